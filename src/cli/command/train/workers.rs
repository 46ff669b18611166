//! Rank 0 and the others: the network between them, and the processes that rank 0 starts.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::agent::AgentArgs;
use crate::cli::args::around::AroundArgs;
use crate::cli::args::engine::EngineArgs;
use crate::cli::args::launchers::{COORDINATOR, usage};
use crate::cli::args::limits::Limits;
use crate::cli::args::ranks::{Meeting, Role, TOKEN};
use crate::cli::view::report::{Exit, Failure, Printer};
use tiebreak_train::TrainError;
use tiebreak_train::ranks::RankError;
use tiebreak_train::ranks::collective::{Collective, Transport};
use tiebreak_train::ranks::tcp::{RankPlace, Tcp, Waiting};

/// The time that ranks which were started here may take to end when the run is complete.
const ENDING: Duration = Duration::from_secs(10);

/// The network that gradients go over.
///
/// # Errors
/// If what it takes is not here.
pub fn network(tcp: Tcp, meeting: Meeting) -> Result<Box<dyn Collective>, TrainError> {
    #[cfg(feature = "mpi")]
    if let Some(world) = meeting.world {
        return Ok(Box::new(tiebreak_train::ranks::mpi::Mpi::over(tcp, world)));
    }
    #[cfg(not(feature = "mpi"))]
    drop(meeting);
    #[cfg(feature = "cuda")]
    if tcp.place().transport == Transport::Nccl {
        let library = tiebreak_train::ranks::nccl::available(1)?;
        return Ok(Box::new(tiebreak_train::ranks::nccl::Nccl::over(tcp, library)));
    }
    Ok(Box::new(tcp))
}

/// Ranks that were started here. They are killed when this is dropped.
#[derive(Default)]
pub struct Workers(Vec<(u32, Child)>);

impl Drop for Workers {
    fn drop(&mut self) {
        for (_, child) in &mut self.0 {
            // One that has ended cannot be killed, and needs not.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Workers {
    /// Starts all ranks but 0, to find rank 0 at `address`.
    fn spawn(
        place: &RankPlace,
        (engine, around): (&EngineArgs, &AroundArgs),
        limits: &Limits,
        agent: &AgentArgs,
        address: SocketAddr,
    ) -> Result<Workers, Failure> {
        let failed = |error: std::io::Error| {
            Failure::new(Exit::Undecided, format!("cannot start another process of tiebreak: {error}"))
        };
        let program = std::env::current_exe().map_err(failed)?;
        let mut workers = Workers::default();
        for rank in 1..place.ranks {
            let mut command = Command::new(&program);
            command.arg("train").arg("--quiet").arg(format!("--coordinator={address}"));
            command.arg(format!("--rank={rank}")).arg(format!("--ranks={}", place.ranks));
            command.arg(format!("--rank-timeout={}", place.timeout.as_secs())).args(engine.options());
            command.args(around.options());
            command.args(limits.memory_option());
            for (option, path) in agent.options() {
                command.arg(option).arg(path);
            }
            if place.transport == Transport::Nccl {
                command.arg("--transport=nccl");
            }
            command.env("LOCAL_RANK", rank.to_string()).env("LOCAL_WORLD_SIZE", place.ranks.to_string());
            command.env(TOKEN, &place.token).stdin(Stdio::null()).stdout(Stdio::null());
            workers.0.push((rank, command.spawn().map_err(failed)?));
        }
        Ok(workers)
    }

    /// Says which of them ended otherwise than by themselves, for the system's reasons: out of memory, mostly.
    pub fn deaths(&mut self, printer: Printer) {
        for (rank, child) in &mut self.0 {
            if let Ok(Some(status)) = child.try_wait()
                && status.code().is_none()
            {
                printer.say(format!("the process of rank {rank} did not end by itself: {status}"));
            }
        }
    }

    /// Waits until all have ended, which they do when the run is complete.
    pub fn finish(mut self) {
        let begin = Instant::now();
        let running = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        while begin.elapsed() < ENDING && self.0.iter_mut().any(|(_, child)| running(child)) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Waits for ranks, of which some are processes of our own.
struct Watch<'a> {
    workers: &'a mut Workers,
    printer: Printer,
}

impl Waiting for Watch<'_> {
    fn check(&mut self) -> Result<(), RankError> {
        for (rank, child) in &mut self.workers.0 {
            if let Ok(Some(status)) = child.try_wait() {
                let why = format!("its process ended before it joined: {status}");
                return Err(RankError::Lost { rank: *rank, why });
            }
        }
        Ok(())
    }

    fn refused(&mut self, why: &str) {
        self.printer.say(format!("refused a connection from {why}"));
    }
}

/// Rank 0 before the others are there.
pub struct Host {
    listener: TcpListener,
    place: RankPlace,
    pub workers: Workers,
}

impl Host {
    /// Listens, and starts the other ranks if nobody else does.
    pub fn new(
        role: &Role,
        meeting: &mut Meeting,
        engine: (&EngineArgs, &AroundArgs),
        limits: &Limits,
        agent: &AgentArgs,
    ) -> Result<Option<Host>, Failure> {
        match role {
            Role::Spawns { place } => {
                let listener = listen(&[SocketAddr::from(([127, 0, 0, 1], 0))])?;
                let address = listener.local_addr().map_err(|error| Failure::new(Exit::Undecided, error))?;
                let workers = Workers::spawn(place, engine, limits, agent, address)?;
                Ok(Some(Host { listener, place: place.clone(), workers }))
            }
            Role::Joins { place, coordinator, .. } if place.rank == 0 => {
                let listener = match meeting.listener.take() {
                    Some(listener) => listener,
                    None => listen(coordinator)?,
                };
                Ok(Some(Host { listener, place: place.clone(), workers: Workers::default() }))
            }
            Role::Joins { .. } | Role::Alone => Ok(None),
        }
    }

    /// Waits for the other ranks.
    pub fn wait(&mut self, printer: Printer) -> Result<Tcp, Failure> {
        let mut watch = Watch { workers: &mut self.workers, printer };
        let tcp = Tcp::host(&self.listener, self.place.clone(), &mut watch);
        tcp.map_err(|error| Failure::new(Exit::Undecided, error))
    }
}

fn listen(addresses: &[SocketAddr]) -> Result<TcpListener, Failure> {
    TcpListener::bind(addresses).map_err(|error| {
        let at: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        usage(format!("rank 0 cannot listen at {}: {error}", at.join(" or "))).help(COORDINATOR)
    })
}
