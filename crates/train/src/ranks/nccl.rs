//! Gradients from GPU to GPU over NVIDIA's NCCL; everything else stays on TCP.
//!
//! NCCL carries bytes. Shards are sent from the CUDA engine's memory without a copy, and the engine adds them as it would over
//! TCP. Every exchange begins with a word over TCP from each rank to each. So a rank that is late, gone or silent is named as it
//! would be over TCP, and no GPU waits for a rank that still computes. During an exchange the connections are watched, since NCCL
//! need not notice that a process has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_bridge::device::Device;
use cuda_bridge::nccl::{self, Communicator, NcclError, Transfer, UNIQUE_ID_BYTES, UniqueId};

use super::collective::{Collective, Devices, MessageKind, ShardPart};
use super::tcp::Tcp;
use crate::error::RankError;
use crate::error::TrainError;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_engine::{Engine, EngineError, Tensor};
use tiebreak_gpu::{Cuda, engine_error};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::codec::{Decoder, Encoder};

/// The most bytes of a library's version.
const VERSION_BYTES: usize = 32;
/// Bytes of a GPU's UUID.
const UUID_BYTES: usize = 16;
/// The time that other ranks have to give their reasons after a failure that affects all.
const GRACE: Duration = Duration::from_secs(2);

/// TCP, with NCCL for gradients.
pub struct Nccl {
    tcp: Tcp,
    library: Arc<nccl::Nccl>,
    /// The communicator, from [`Collective::connect`] on.
    communicator: Option<Communicator>,
    exchanges: u32,
}

/// A rank's GPU and library.
struct Gpu {
    uuid: [u8; UUID_BYTES],
    /// The version of the NCCL library.
    version: String,
}

/// Checks that this machine has NCCL, and a GPU for each of the `local` ranks that are to run here.
///
/// # Errors
/// If one is missing; the message says what to do.
pub fn available(local: u32) -> Result<Arc<nccl::Nccl>, TrainError> {
    let library = nccl::Nccl::load().map_err(|error| {
        let why = format!("--transport nccl: {error}, or give --transport tcp");
        RankError::Refused(why)
    })?;
    // If there is no GPU, the engine names the missing piece.
    let gpus = tiebreak_gpu::cuda_devices()?.len();
    if (1..local as usize).contains(&gpus) {
        return Err(RankError::Refused(format!(
            "--transport nccl: NCCL takes one rank a GPU, and {local} ranks would share {gpus} here: give --transport tcp, or fewer ranks"
        ))
        .into());
    }
    Ok(library)
}

fn cuda(engine: &mut dyn Engine) -> Result<&mut Cuda, RankError> {
    let why = "--transport nccl: gradients go from GPU to GPU, and this rank's engine has none that NCCL reaches: give --engine cuda, or \
               --transport tcp";
    engine.as_any().and_then(|engine| engine.downcast_mut()).ok_or_else(|| RankError::Refused(why.into()))
}

fn of_device(error: cuda_bridge::device::DeviceError) -> TrainError {
    engine_error("cuda", error).into()
}

impl Nccl {
    /// The network that sends gradients over NCCL, and everything else over `tcp`. [`Devices`] connects the GPUs.
    pub fn over(tcp: Tcp, library: Arc<nccl::Nccl>) -> Nccl {
        Nccl { tcp, library, communicator: None, exchanges: 0 }
    }

    /// Rank 0: checks that every rank has a GPU of its own and the same library.
    fn hear_gpus(&mut self, own: Gpu) -> Result<(), TrainError> {
        let mut gpus = vec![own];
        for rank in 1..self.tcp.ranks() {
            let bytes = self.tcp.receive(rank, MessageKind::Meet, (UUID_BYTES + 4 + VERSION_BYTES) as u64)?;
            let mut d = Decoder::new("a rank's GPU", &bytes);
            let mut read = || -> Result<Gpu, Malformed> {
                let uuid = d.take(UUID_BYTES)?.try_into().expect("as many bytes as were asked for");
                Ok(Gpu { uuid, version: d.text(VERSION_BYTES)?.to_string() })
            };
            let gpu = read().and_then(|gpu| d.finish().map(|()| gpu));
            let gpu = gpu.map_err(|source| RankError::Malformed { rank, source })?;
            if let Some(other) = gpus.iter().position(|other| other.uuid == gpu.uuid) {
                return Err(RankError::Refused(format!(
                    "--transport nccl: rank {other} and rank {rank} are on one GPU, and NCCL takes one rank a GPU: give --transport tcp, \
                     fewer ranks, or each its own --adapter"
                ))
                .into());
            }
            if gpu.version != self.library.version {
                // A rank's text is escaped for the terminal.
                let theirs = gpu.version.escape_default();
                let own = &self.library.version;
                return Err(RankError::Refused(format!(
                    "--transport nccl: rank {rank} has NCCL {theirs}, rank 0 {own}: install the same for all"
                ))
                .into());
            }
            gpus.push(gpu);
        }
        Ok(())
    }

    /// The id under which all ranks connect: rank 0 sends it to the others when it knows that they can.
    fn unique_id(&mut self, device: &Device) -> Result<UniqueId, TrainError> {
        let own = Gpu { uuid: device.uuid().map_err(of_device)?, version: self.library.version.clone() };
        if self.tcp.rank() == 0 {
            self.hear_gpus(own)?;
            let id = self.library.unique_id().map_err(|error| RankError::Nccl { why: error.to_string() })?;
            (1..self.tcp.ranks()).try_for_each(|rank| self.tcp.send(rank, MessageKind::Meet, &id.0))?;
            return Ok(id);
        }
        let mut e = Encoder::default();
        e.0.extend(own.uuid);
        e.bytes(own.version.as_bytes());
        self.tcp.send(0, MessageKind::Meet, &e.0)?;
        let bytes = self.tcp.receive(0, MessageKind::Meet, UNIQUE_ID_BYTES as u64)?;
        let source = Malformed::Truncated { what: "message" };
        let id = bytes.try_into().map_err(|_| RankError::Malformed { rank: 0, source })?;
        Ok(UniqueId(id))
    }

    /// The known reason why NCCL's work failed: a rank that is gone or has said why it stops, or that stays silent when all
    /// waiting ranks have given up.
    fn blame(&mut self, trouble: Trouble) -> TrainError {
        let timeout = self.tcp.place().timeout;
        let error = match trouble {
            Trouble::Late => {
                return match self.tcp.silent(GRACE).first() {
                    Some(&rank) => RankError::Hung { rank, seconds: timeout.as_secs() }.into(),
                    None => RankError::Nccl { why: not_within(timeout) }.into(),
                };
            }
            Trouble::Known(error) => return error,
            Trouble::Failed(error) => error,
        };
        let begin = Instant::now();
        while begin.elapsed() < GRACE {
            if let Err(named) = self.tcp.look() {
                return named.into();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        match error {
            NcclError::Device(error) => of_device(error),
            other => RankError::Nccl { why: other.to_string() }.into(),
        }
    }
}

fn not_within(timeout: Duration) -> String {
    format!(
        "NCCL did not connect the ranks, or move their gradients, within {} s (--rank-timeout), though all of them are there: \
         NCCL_DEBUG=INFO says what it tries, NCCL_SOCKET_IFNAME names the network interface it is to take",
        timeout.as_secs()
    )
}

/// The ways in which NCCL's work fails.
enum Trouble {
    Failed(NcclError),
    /// The work took too long.
    Late,
    /// A rank is gone, or has said why it stops.
    Known(TrainError),
}

impl From<NcclError> for Trouble {
    fn from(error: NcclError) -> Trouble {
        Trouble::Failed(error)
    }
}

/// Watches the ranks while NCCL works: ends the work if a rank is gone, or if it takes too long.
fn watch(tcp: &mut Tcp, begin: Instant) -> Result<(), Trouble> {
    tcp.look().map_err(|error| Trouble::Known(error.into()))?;
    if begin.elapsed() > tcp.place().timeout { Err(Trouble::Late) } else { Ok(()) }
}

impl Collective for Nccl {
    fn rank(&self) -> u32 {
        self.tcp.rank()
    }

    fn ranks(&self) -> u32 {
        self.tcp.ranks()
    }

    fn describe(&self) -> String {
        format!("NCCL {}", self.library.version)
    }

    fn send(&mut self, to: u32, kind: MessageKind, bytes: &[u8]) -> Result<(), TrainError> {
        self.tcp.send(to, kind, bytes)
    }

    fn receive(&mut self, from: u32, kind: MessageKind, max: u64) -> Result<Vec<u8>, TrainError> {
        self.tcp.receive(from, kind, max)
    }

    fn all_to_all(
        &mut self,
        outgoing: &[Vec<&[u8]>],
        incoming: &[Vec<usize>],
        each: &mut dyn FnMut(&[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        self.tcp.all_to_all(outgoing, incoming, each)
    }

    fn connect(&mut self, engine: &mut dyn Engine) -> Result<(), TrainError> {
        let device = cuda(engine)?.gpu().clone();
        let id = self.unique_id(&device)?;
        let (place, begin) = ([self.tcp.rank(), self.tcp.ranks()], Instant::now());
        let joined =
            Communicator::join(&self.library, &device, place, id, &mut || watch(&mut self.tcp, begin));
        self.communicator = Some(joined.map_err(|trouble| self.blame(trouble))?);
        Ok(())
    }

    fn devices(&mut self) -> Option<&mut dyn Devices> {
        Some(self)
    }

    fn abort(&mut self, why: &str) -> bool {
        self.tcp.abort(why)
    }
}

impl Devices for Nccl {
    fn blank(&self, engine: &mut dyn Engine, ty: &TensorType) -> Result<Tensor, EngineError> {
        let fault = |error: RankError| EngineError::Stopped(error.to_string());
        cuda(engine).map_err(fault)?.blank(ty)
    }

    fn exchange(
        &mut self,
        engine: &mut dyn Engine,
        outgoing: &[Vec<ShardPart>],
        incoming: &[Vec<ShardPart>],
    ) -> Result<(), TrainError> {
        let (engine, own) = (cuda(engine)?, self.tcp.rank());
        for (from, to) in outgoing[own as usize].iter().zip(&incoming[own as usize]) {
            let [from, to] = [from, to].map(|part| engine.place_of(part.tensor, part.bytes.clone()));
            engine.gpu().copy(from?, to?).map_err(of_device)?;
        }
        let [send, receive] = [outgoing, incoming].map(|all| transfers(engine, own, all));
        let (send, receive) = (send?, receive?);
        // The engine finishes before this rank says that it is ready: NCCL's kernels wait on the GPU for those of other ranks.
        engine.gpu().finish().map_err(of_device)?;
        self.tcp.all_here(self.exchanges)?;
        self.exchanges += 1;
        let communicator = self.communicator.as_mut().expect("ranks connect before they exchange anything");
        let begin = Instant::now();
        let done = communicator.exchange(&send, &receive, &mut || watch(&mut self.tcp, begin));
        done.map_err(|trouble| self.blame(trouble))
    }
}

/// The memory of the parts to send to other ranks, or to receive from them.
fn transfers<'t>(
    engine: &Cuda,
    own: u32,
    all: &[Vec<ShardPart<'t>>],
) -> Result<Vec<Transfer<'t>>, EngineError> {
    let others = (0..).zip(all).filter(|(rank, _)| *rank != own);
    let parts = others.flat_map(|(rank, parts)| parts.iter().map(move |part| (rank, part)));
    parts
        .map(|(rank, part)| Ok(Transfer { rank, at: engine.place_of(part.tensor, part.bytes.clone())? }))
        .collect()
}
