//! The ranks of data-parallel training, and this one of them, as the command line and the environment name them.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use clap::ValueEnum;

use crate::cli::args::engine::{EngineArgs, EngineKind, cores};
use crate::cli::args::launchers::{COORDINATOR, Launched, launched, number, outer, usage, variable};
#[cfg(feature = "mpi")]
use crate::cli::args::mpi_ranks::met;
use crate::cli::args::random::random;
use crate::cli::view::report::{Exit, Failure};
use tiebreak_contract::program::step::Program;
use tiebreak_record::commit::digest::Digest;
use tiebreak_train::ranks::RankError;
use tiebreak_train::ranks::collective::Transport;
#[cfg(feature = "mpi")]
use tiebreak_train::ranks::mpi::World;
use tiebreak_train::ranks::slots::SlotPlan;
use tiebreak_train::ranks::tcp::RankPlace;

/// The variable of the ranks' secret.
pub const TOKEN: &str = "TIEBREAK_RANKS_TOKEN";

/// The variable of rank 0 that says the least bytes of a bucket, for tests and measurements. 0: ranks compute all before they exchange
/// gradients.
const BUCKET: &str = "TIEBREAK_RANKS_BUCKET";

/// The least bytes of a bucket, if the environment says it.
///
/// # Errors
/// If the variable is no number.
pub fn bucket_bytes() -> Result<Option<u64>, RankError> {
    let parse = |text: String| {
        let refused = |_| {
            RankError::Refused(format!(
                "{BUCKET} is {text:?}, no number of bytes: leave it out, or give for example {BUCKET}=1048576"
            ))
        };
        text.parse().map_err(refused)
    };
    variable(BUCKET).map(parse).transpose()
}

/// Seconds that a rank may do nothing while others wait for it.
const RANK_TIMEOUT: u64 = 600;

/// The network that carries gradients between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TransportKind {
    /// TCP, through the hosts' memory; any engine.
    #[default]
    Tcp,
    /// From GPU to GPU by NVIDIA's NCCL (libnccl.so.2); --engine cuda, a GPU for each rank.
    #[cfg(feature = "cuda")]
    Nccl,
    /// By MPI, whose launcher (mpirun, srun) starts the ranks; any engine. Builds with the feature mpi have it.
    Mpi,
}

impl From<TransportKind> for Transport {
    fn from(kind: TransportKind) -> Transport {
        match kind {
            TransportKind::Tcp => Transport::Tcp,
            #[cfg(feature = "cuda")]
            TransportKind::Nccl => Transport::Nccl,
            TransportKind::Mpi => Transport::Mpi,
        }
    }
}

/// Options of data-parallel training.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Data-parallel training (docs/DATA-PARALLEL.md)")]
pub struct RanksArgs {
    /// Number of processes, which train to the bits of one.
    ///
    /// Without --rank the command starts them here, on this machine. Under a launcher (torchrun, srun, mpirun) leave the option out:
    /// the launcher's variables say it. `--ranks 1` trains in one process all the same.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: Option<u32>,
    /// Number of this process among the ranks, from 0.
    ///
    /// Start every rank with the same --ranks and --coordinator. Rank 0 sends the others all that they need, so they take no job and
    /// no folder.
    #[arg(long, value_name = "R", requires = "ranks", requires = "coordinator")]
    rank: Option<u32>,
    /// Address at which rank 0 listens and the others find it.
    ///
    /// torchrun and srun say one themselves; under mpirun give it alone. If other machines reach the address, set
    /// TIEBREAK_RANKS_TOKEN to the same secret for all ranks.
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
    /// Network that carries the gradients between ranks.
    ///
    /// The bits are the same. Give all ranks the same. Everything else goes over TCP.
    #[arg(long, value_enum, default_value_t = TransportKind::Tcp, hide_short_help = true)]
    pub transport: TransportKind,
    /// Every STEPS steps, have each rank check a micro-batch of the next rank.
    ///
    /// Each rank computes that micro-batch too, and training stops if the gradients differ. The check finds a machine that computes
    /// gradients wrongly.
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..), hide_short_help = true)]
    pub cross_check: Option<u32>,
    /// Divide the optimizer's state among the ranks (ZeRO stage 1).
    ///
    /// Each rank holds the moments of its share of the parameters and updates those; then all ranks get the new parameters. The bits
    /// are the same, and rank 0's option counts.
    #[arg(long, hide_short_help = true)]
    pub shard_optimizer: bool,
    /// Stop if a rank does nothing for so long while others wait for it.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = RANK_TIMEOUT,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000),
        hide_short_help = true
    )]
    rank_timeout: u64,
}

/// What ranks have before they connect.
#[derive(Default)]
pub struct Meeting {
    /// The socket at which rank 0 listens already.
    pub listener: Option<TcpListener>,
    /// The processes that MPI started.
    #[cfg(feature = "mpi")]
    pub world: Option<World>,
}

/// The role of this process.
pub enum Role {
    /// The only one.
    Alone,
    /// Rank 0: starts the others itself.
    Spawns { place: RankPlace },
    /// A rank among others that somebody starts. `local` is its number on its machine, and the number of ranks there.
    Joins { place: RankPlace, coordinator: Vec<SocketAddr>, local: (u32, u32) },
}

impl RanksArgs {
    /// The options by which a command line starts as many ranks again.
    pub fn options(&self) -> Vec<String> {
        let mut options: Vec<String> = self.ranks.iter().map(|ranks| format!("--ranks={ranks}")).collect();
        options.extend(self.rank.map(|rank| format!("--rank={rank}")));
        options.extend(self.coordinator.iter().map(|coordinator| format!("--coordinator={coordinator}")));
        if self.transport != TransportKind::default() {
            let name = self.transport.to_possible_value().map(|value| value.get_name().to_string());
            options.extend(name.map(|name| format!("--transport={name}")));
        }
        options.extend(self.shard_optimizer.then(|| "--shard-optimizer".to_string()));
        options
    }

    /// The division of the optimizer's state, if it is asked for.
    ///
    /// # Errors
    /// If there is one rank, or the program's state cannot be divided.
    pub fn slots(&self, program: &Program, role: &Role) -> Result<Option<SlotPlan>, Failure> {
        match (self.shard_optimizer, role.ranks()) {
            (false, _) => Ok(None),
            (true, 1) => Err(Failure::new(
                Exit::Usage,
                "--shard-optimizer needs two ranks or more: give --ranks too, or leave it out",
            )),
            (true, ranks) => Ok(Some(SlotPlan::new(program, ranks)?)),
        }
    }

    /// The role of this process, by the command line or else the environment.
    pub fn role(&self) -> Result<(Role, Meeting), Failure> {
        match self.transport {
            TransportKind::Mpi => self.over_mpi(),
            _ => Ok((self.over_tcp()?, Meeting::default())),
        }
    }

    #[cfg(not(feature = "mpi"))]
    fn over_mpi(&self) -> Result<(Role, Meeting), Failure> {
        let help =
            "build one by `cargo install --path . --locked --features mpi`, or leave --transport mpi out";
        Err(usage("this build of tiebreak has no MPI (feature mpi)").help(help))
    }

    /// The role of a process that an MPI launcher started.
    #[cfg(feature = "mpi")]
    fn over_mpi(&self) -> Result<(Role, Meeting), Failure> {
        let timeout = Duration::from_secs(self.rank_timeout);
        let met = met((self.rank, self.ranks), self.coordinator.as_deref(), TOKEN, timeout)?;
        let (rank, ranks) = (met.world.rank, met.world.ranks);
        let place = RankPlace { rank, ranks, token: met.token, timeout, transport: Transport::Mpi };
        let local_rank = number("LOCAL_RANK")?.unwrap_or(met.world.local.0);
        let local = (local_rank, number("LOCAL_WORLD_SIZE")?.unwrap_or(met.world.local.1).max(1));
        let role = Role::Joins { place, coordinator: met.coordinator, local };
        Ok((role, Meeting { listener: met.listener, world: Some(met.world) }))
    }

    /// The role of a process whose ranks meet over TCP.
    fn over_tcp(&self) -> Result<Role, Failure> {
        let (timeout, transport) = (Duration::from_secs(self.rank_timeout), self.transport.into());
        let place = |rank, ranks, token| RankPlace { rank, ranks, token, timeout, transport };
        let named = match (self.rank, self.ranks, &self.coordinator) {
            (Some(rank), Some(ranks), Some(coordinator)) => Some((rank, ranks, coordinator.clone(), None)),
            (_, Some(1), None) => return self.alone(),
            _ => match self.joined()? {
                None => match self.ranks {
                    Some(ranks) => {
                        let token = Digest(random()?).to_string();
                        return Ok(Role::Spawns { place: place(0, ranks, token) });
                    }
                    None => None,
                },
                // A script that starts one rank has the options of one that starts several.
                Some(Launched { ranks: 1, rank: 0, .. }) => return Ok(Role::Alone),
                Some(launched) => {
                    launched.check()?;
                    let coordinator = match &self.coordinator {
                        Some(coordinator) => coordinator.clone(),
                        None => launched.coordinator()?,
                    };
                    Some((launched.rank, launched.ranks, coordinator, Some(launched)))
                }
            },
        };
        let Some((rank, ranks, coordinator, launched)) = named else { return self.alone() };
        if rank >= ranks {
            return Err(usage(format!("{ranks} ranks have no rank {rank}: the first is rank 0")));
        }
        if ranks == 1 {
            return Ok(Role::Alone);
        }
        let coordinator = self.reached(&coordinator, launched.as_ref())?;
        let launched = launched.as_ref();
        let token = variable(TOKEN).or_else(|| launched.and_then(|launched| launched.name.clone()));
        let local_rank = number("LOCAL_RANK")?.or(launched.and_then(|launched| launched.local_rank));
        let local_ranks = number("LOCAL_WORLD_SIZE")?.or(launched.and_then(|launched| launched.local_ranks));
        let local = (local_rank.unwrap_or(rank), local_ranks.unwrap_or(1).max(1));
        Ok(Role::Joins { place: place(rank, ranks, token.unwrap_or_default()), coordinator, local })
    }

    /// The role of a process without others, in which options of several change nothing.
    fn alone(&self) -> Result<Role, Failure> {
        match self.rank_timeout == RANK_TIMEOUT {
            true => Ok(Role::Alone),
            false => Err(usage("--rank-timeout is for several ranks: give --ranks too, or leave it out")),
        }
    }

    /// What the launcher says of this rank. A launcher of one process counts only where --ranks is not given.
    fn joined(&self) -> Result<Option<Launched>, Failure> {
        let launched = launched()?.filter(|launched| launched.ranks != 1 || self.ranks.is_none());
        match (&launched, self.ranks) {
            (Some(launched), Some(ranks)) if launched.ranks != ranks => {
                let why =
                    format!("{} started {} ranks, and --ranks says {ranks}", launched.by, launched.ranks);
                Err(usage(why).help("leave --ranks out, or give --rank and --coordinator too"))
            }
            (None, _) if self.coordinator.is_some() => {
                let why =
                    "--coordinator is for ranks that a launcher starts, and no variable names a launcher";
                Err(usage(why).help("give --rank and --ranks too, or leave --coordinator out"))
            }
            _ => Ok(launched),
        }
    }

    /// The addresses of rank 0 behind a name.
    fn reached(&self, coordinator: &str, launched: Option<&Launched>) -> Result<Vec<SocketAddr>, Failure> {
        let addresses = coordinator.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        let addresses = outer(addresses.map_err(|error| usage(format!("{coordinator}: {error}")))?);
        let loopback = addresses.iter().all(|address| address.ip().is_loopback());
        if loopback && self.coordinator.is_none() && launched.is_some_and(Launched::spans_machines) {
            let why = format!("other machines have ranks too, and {coordinator} is this machine's loopback");
            return Err(usage(why).help(COORDINATOR));
        }
        if variable(TOKEN).is_none() && !loopback {
            let why =
                format!("set {TOKEN} to the same secret for all ranks: others can reach {coordinator} too");
            return Err(usage(why));
        }
        Ok(addresses)
    }
}

impl Role {
    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        match self {
            Role::Alone => 1,
            Role::Spawns { place } | Role::Joins { place, .. } => place.ranks,
        }
    }

    /// The number of ranks on this machine, as far as this process knows.
    #[cfg(feature = "cuda")]
    fn local_ranks(&self) -> u32 {
        match self {
            Role::Spawns { place } => place.ranks,
            Role::Alone | Role::Joins { .. } => 1,
        }
    }

    /// Checks that gradients can go as they are to.
    ///
    /// # Errors
    /// If what that takes is not here.
    pub fn check_transport(&self, args: &RanksArgs, engine: &EngineArgs) -> Result<(), Failure> {
        #[cfg(feature = "cuda")]
        if args.transport == TransportKind::Nccl {
            if engine.engine != EngineKind::Cuda {
                return Err(usage("--transport nccl needs --engine cuda: gradients go from GPU to GPU"));
            }
            tiebreak_train::ranks::nccl::available(self.local_ranks())?;
        }
        let _ = (args, engine);
        Ok(())
    }

    /// The engine of a rank: each takes the CUDA device of its number on this machine, and a share of the cores.
    pub fn engine(&self, args: &EngineArgs) -> Result<EngineArgs, Failure> {
        let (local, here) = match self {
            Role::Alone => return Ok(args.clone()),
            Role::Spawns { place } => (place.rank, place.ranks),
            Role::Joins { local, .. } => *local,
        };
        let mut args = args.clone();
        #[cfg(feature = "cuda")]
        if args.engine == EngineKind::Cuda && args.adapter.is_none() {
            let devices = tiebreak_gpu::cuda_devices()?;
            let device = devices.get(local as usize % devices.len().max(1));
            args.adapter = device.map(|device| device.index.to_string());
        }
        #[cfg(not(feature = "cuda"))]
        let _ = local;
        if args.engine == EngineKind::Cpu && args.threads == 0 {
            let cores = cores();
            args.threads = (cores / here as usize).max(1);
        }
        Ok(args)
    }
}
