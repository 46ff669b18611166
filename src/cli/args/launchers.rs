//! The launchers that start ranks (torchrun, srun, mpirun), as the variables that they set tell.
//!
//! A launcher may run inside another one, as mpirun does in a Slurm allocation. The inner one counts: torchrun, then an MPI
//! launcher, then a step of srun. Variables that a person sets (RANK, WORLD_SIZE) must agree with that launcher.

use std::net::SocketAddr;

use crate::cli::view::report::{Exit, Failure};

/// The greatest number of a step that srun starts; greater ones are batch scripts and interactive shells.
const STEP_MAX: u32 = 0xffff_fff0;
/// The ports that ranks of a Slurm step listen at: below those that systems give to connections.
const SLURM_PORTS: std::ops::Range<u32> = 20_000..30_000;

/// What a launcher says about this process.
#[derive(Debug)]
pub struct Launched {
    /// The launcher and its variable, for people.
    pub by: &'static str,
    pub rank: u32,
    pub ranks: u32,
    /// The rank's number on its machine, if the launcher says it.
    pub local_rank: Option<u32>,
    /// The number of ranks on this machine, if the launcher says it.
    pub local_ranks: Option<u32>,
    /// A host and a port of rank 0, as far as the launcher says them.
    host: Option<String>,
    port: Option<u32>,
    /// A name of these ranks, which other ranks on the machine do not have, if the launcher is Slurm.
    pub name: Option<String>,
    /// True if torchrun set RANK and WORLD_SIZE.
    torchrun: bool,
}

pub fn usage(why: impl ToString) -> Failure {
    Failure::new(Exit::Usage, why)
}

pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

pub fn number(name: &str) -> Result<Option<u32>, Failure> {
    let parse =
        |value: String| value.parse().map_err(|_| usage(format!("{name} is not a number: {value:?}")));
    variable(name).map(parse).transpose()
}

/// What follows "say" for a rank of several.
fn place(rank: u32, ranks: u32) -> String {
    format!("rank {rank} of {ranks}")
}

/// The launcher that started this process, if one did.
///
/// # Errors
/// If variables are half set, are no numbers, or contradict each other.
pub fn launched() -> Result<Option<Launched>, Failure> {
    let set = (number("RANK")?, number("WORLD_SIZE")?);
    let hand = match set {
        (Some(rank), Some(ranks)) => Some(by_hand(rank, ranks)?),
        _ => None,
    };
    let launcher = around(mpi()?, slurm_step()?);
    match (hand, launcher) {
        (None, None) => match set {
            (None, None) => Ok(None),
            (Some(rank), _) => Err(half("RANK", rank, "WORLD_SIZE")),
            (_, ranks) => Err(half("WORLD_SIZE", ranks.unwrap_or_default(), "RANK")),
        },
        (Some(hand), None) => Ok(Some(hand)),
        (Some(hand), Some(launcher)) if hand.torchrun || launcher.ranks == 1 => match launcher.ranks {
            // Nobody can tell whether torchrun runs in each of several processes, or starts the launcher of several.
            2.. if hand.ranks == 1 => Err(disagree(&hand, &launcher)),
            _ => Ok(Some(hand)),
        },
        (None, Some(launcher)) => match set {
            (Some(rank), _) if rank != launcher.rank => {
                Err(other(&format!("RANK says rank {rank}"), &launcher))
            }
            (_, Some(ranks)) if ranks != launcher.ranks => {
                Err(other(&format!("WORLD_SIZE says {ranks} ranks"), &launcher))
            }
            _ => Ok(Some(launcher)),
        },
        (Some(hand), Some(launcher)) if (hand.rank, hand.ranks) == (launcher.rank, launcher.ranks) => {
            Ok(Some(launcher))
        }
        (Some(hand), Some(launcher)) => Err(disagree(&hand, &launcher)),
    }
}

/// The launcher that counts of those of MPI and a step of srun: the inner one, but one with a single process hides no ranks.
fn around(mpi: Option<Launched>, step: Option<Launched>) -> Option<Launched> {
    match (mpi, step) {
        // Slurm's own PMI tells the same as the step, and the step says where rank 0 listens.
        (Some(mpi), Some(step)) if mpi.ranks == 1 || (mpi.rank, mpi.ranks) == (step.rank, step.ranks) => {
            Some(step)
        }
        (Some(mpi), _) => Some(mpi),
        (None, step) => step,
    }
}

fn half(name: &str, value: u32, missing: &str) -> Failure {
    usage(format!("{name} is {value}, and {missing} is not set"))
        .help("set RANK and WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or none of them")
}

fn other(says: &str, launcher: &Launched) -> Failure {
    usage(format!("{says}, and {} says {}", launcher.by, place(launcher.rank, launcher.ranks)))
        .help("unset the variables that are not true, or give --ranks, --rank and --coordinator")
}

fn disagree(first: &Launched, second: &Launched) -> Failure {
    other(&format!("{} says {}", first.by, place(first.rank, first.ranks)), second)
}

/// Ranks of torchrun, or of whoever sets the same variables.
fn by_hand(rank: u32, ranks: u32) -> Result<Launched, Failure> {
    let mut port = number("MASTER_PORT")?;
    let torchrun = variable("TORCHELASTIC_RUN_ID").is_some();
    // torchrun's own store listens at the port, and the ranks take the next one.
    if torchrun && variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|agent| agent == "True") {
        port = port.map(|port| if port < 65_535 { port + 1 } else { port - 1 });
    }
    let by = if torchrun { "torchrun (RANK, WORLD_SIZE)" } else { "somebody (RANK, WORLD_SIZE)" };
    let (local_rank, local_ranks, host, name) = (None, None, None, None);
    Ok(Launched { by, rank, ranks, local_rank, local_ranks, host, port, name, torchrun })
}

/// The variables of rank, ranks, and both on this machine, of launchers of MPI.
const MPI: [(&str, [&str; 4]); 3] = [
    (
        "mpirun of Open MPI (OMPI_COMM_WORLD_RANK)",
        [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ],
    ),
    (
        "mpirun of MVAPICH (MV2_COMM_WORLD_RANK)",
        [
            "MV2_COMM_WORLD_RANK",
            "MV2_COMM_WORLD_SIZE",
            "MV2_COMM_WORLD_LOCAL_RANK",
            "MV2_COMM_WORLD_LOCAL_SIZE",
        ],
    ),
    ("a launcher of MPI (PMI_RANK)", ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
];
/// Variables of a rank whose launchers say its number of ranks by one of the others, if at all.
const RANKS_ALONE: [&str; 2] = ["PMIX_RANK", "PALS_RANKID"];

/// The launcher of MPI that started this process.
fn mpi() -> Result<Option<Launched>, Failure> {
    let mut found: Option<Launched> = None;
    for (by, names) in MPI {
        let [rank, ranks, local_rank, local_ranks] = names.map(number);
        let (rank, ranks) = match (rank?, ranks?) {
            (Some(rank), Some(ranks)) => (rank, ranks),
            (None, None) => continue,
            (Some(rank), None) => return Err(of_how_many(names[0], rank)),
            (None, Some(ranks)) => {
                let why = format!(
                    "{} says that a launcher started {ranks} ranks, and {} is not set",
                    names[1], names[0]
                );
                return Err(usage(why).help(NUMBERS));
            }
        };
        let (local_rank, local_ranks) = (local_rank?, local_ranks?);
        let (host, port, name, torchrun) = (None, None, None, false);
        let this = Launched { by, rank, ranks, local_rank, local_ranks, host, port, name, torchrun };
        match &found {
            Some(_) if ranks == 1 => {}
            Some(first) if first.ranks > 1 && (first.rank, first.ranks) != (rank, ranks) => {
                return Err(disagree(first, &this));
            }
            Some(first) if first.ranks > 1 => {}
            _ => found = Some(this),
        }
    }
    // A step of srun says by its own variables how many there are.
    if found.is_none() && !in_step()? {
        for name in RANKS_ALONE {
            if let Some(rank) = number(name)? {
                return Err(of_how_many(name, rank));
            }
        }
    }
    Ok(found)
}

/// What to do where a launcher's variables do not say enough.
const NUMBERS: &str = "give --ranks, --rank and --coordinator; `--ranks 1` trains in this process alone";

fn of_how_many(name: &str, rank: u32) -> Failure {
    let why = format!(
        "{name} says that a launcher started this process as rank {rank}, and no variable says of how many"
    );
    usage(why).help(NUMBERS)
}

/// True in a step that srun started. A batch script and a shell of salloc have variables of their allocation, and no step.
fn in_step() -> Result<bool, Failure> {
    Ok(number("SLURM_STEP_ID")?.is_some_and(|step| step < STEP_MAX))
}

/// The task of a step that this process is.
fn slurm_step() -> Result<Option<Launched>, Failure> {
    let Some(step) = number("SLURM_STEP_ID")?.filter(|step| *step < STEP_MAX) else { return Ok(None) };
    // SLURM_NTASKS would be the allocation's in a batch script; this one is the step's.
    let (Some(rank), Some(ranks)) = (number("SLURM_PROCID")?, number("SLURM_STEP_NUM_TASKS")?) else {
        let why = format!(
            "SLURM_STEP_ID says that srun started this process in step {step}; SLURM_PROCID or SLURM_STEP_NUM_TASKS is not set"
        );
        return Err(usage(why).help(NUMBERS));
    };
    if ranks > 1 && variable("SLURM_PTY_PORT").is_some() {
        let why = format!("srun --pty started a terminal as {} (SLURM_PROCID)", place(rank, ranks));
        return Err(usage(why)
            .help("`--ranks 1` trains in this process alone; `srun` without --pty starts the ranks"));
    }
    let job = number("SLURM_JOB_ID")?;
    let tasks = variable("SLURM_STEP_TASKS_PER_NODE");
    let node = number("SLURM_NODEID")?;
    let local_ranks = tasks.zip(node).and_then(|(tasks, node)| tasks_of_node(&tasks, node));
    let host = if ranks > 1 { slurm_host(rank)? } else { None };
    let port = job.map(|job| slurm_port(job, step));
    let by = "srun (SLURM_PROCID)";
    let name = Some(format!("slurm {}.{step}", job.unwrap_or_default()));
    let local_rank = number("SLURM_LOCALID")?;
    let torchrun = false;
    Ok(Some(Launched { by, rank, ranks, local_rank, local_ranks, host, port, name, torchrun }))
}

/// The port of a step: the same for all its tasks, another one for the next step and the next job.
fn slurm_port(job: u32, step: u32) -> u32 {
    let many = u64::from(SLURM_PORTS.end - SLURM_PORTS.start);
    SLURM_PORTS.start + ((u64::from(job) + 389 * u64::from(step)) % many) as u32
}

/// The host of a step's task 0: the first of the step's nodes. SLURM_LAUNCH_NODE_IPADDR is the machine where srun was called.
fn slurm_host(rank: u32) -> Result<Option<String>, Failure> {
    // The tasks of a heterogeneous step have node lists of their own components.
    if variable("SLURM_HET_SIZE").is_some() {
        return Ok(None);
    }
    if number("SLURM_STEP_NUM_NODES")? == Some(1) {
        return Ok(Some("127.0.0.1".into()));
    }
    let Some(list) = variable("SLURM_STEP_NODELIST") else { return Ok(None) };
    let first = first_host(&list).ok_or_else(|| {
        usage(format!("SLURM_STEP_NODELIST is no list of nodes: {list:?}")).help(COORDINATOR)
    })?;
    match variable("SLURMD_NODENAME") {
        // srun --distribution=arbitrary can start task 0 on another node.
        Some(own) if rank == 0 && own != first => {
            let why = format!(
                "task 0 runs on node {own:?}, and the first node of SLURM_STEP_NODELIST is {first:?}"
            );
            Err(usage(why).help(COORDINATOR))
        }
        _ => Ok(Some(first)),
    }
}

/// What to do about an address that is wrong, taken or not known.
pub const COORDINATOR: &str =
    "give all ranks --coordinator HOST:PORT, with an address of the machine of rank 0 and a free port";

/// The first host of a list as Slurm writes it: `node[07-12,20],login`.
fn first_host(list: &str) -> Option<String> {
    let (mut host, mut rest) = (String::new(), list);
    while let Some(at) = rest.find(['[', ',']) {
        host += &rest[..at];
        if rest[at..].starts_with(',') {
            rest = "";
            break;
        }
        let (numbers, after) = rest[at + 1..].split_once(']')?;
        let first = numbers.split([',', '-']).next().filter(|first| !first.is_empty())?;
        host += first;
        rest = after;
    }
    host += rest;
    let part_of_a_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (!host.is_empty() && host.chars().all(part_of_a_name)).then_some(host)
}

/// The number of tasks on a node, of a list as Slurm writes it: `4(x2),3` is 4, 4 and 3.
fn tasks_of_node(list: &str, node: u32) -> Option<u32> {
    let mut nodes = 0u64;
    for part in list.split(',') {
        let (tasks, times) = match part.split_once("(x") {
            None => (part, 1),
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse::<u32>().ok()?),
        };
        nodes += u64::from(times);
        if u64::from(node) < nodes {
            return tasks.parse().ok();
        }
    }
    None
}

impl Launched {
    /// The address of rank 0: MASTER_ADDR and MASTER_PORT, or what the launcher says.
    ///
    /// # Errors
    /// If neither gives it.
    pub fn coordinator(&self) -> Result<String, Failure> {
        let host = variable("MASTER_ADDR").or_else(|| self.host.clone());
        let set = number("MASTER_PORT")?;
        // torchrun's port is made of the one that is set; Slurm's is for where none is.
        let port = if self.name.is_some() { set.or(self.port) } else { self.port.or(set) };
        match (host, port) {
            // An IPv6 address takes brackets before a port.
            (Some(host), Some(port)) if host.contains(':') => Ok(format!("[{host}]:{port}")),
            (Some(host), Some(port)) => Ok(format!("{host}:{port}")),
            _ => {
                let this = place(self.rank, self.ranks);
                let why = format!(
                    "{} started this process as {this}, and no variable says where rank 0 listens",
                    self.by
                );
                Err(usage(why).help(format!("{COORDINATOR}, or set MASTER_ADDR and MASTER_PORT")))
            }
        }
    }

    /// Checks that there is such a rank.
    ///
    /// # Errors
    /// If there is none.
    pub fn check(&self) -> Result<(), Failure> {
        match self.rank < self.ranks {
            true => Ok(()),
            false => {
                Err(usage(format!("{} says {}: the first is rank 0", self.by, place(self.rank, self.ranks))))
            }
        }
    }

    /// True if the launcher says that other machines have ranks too.
    pub fn spans_machines(&self) -> bool {
        self.local_ranks.is_some_and(|here| here < self.ranks)
    }
}

/// The addresses of rank 0 that other machines reach, if there are any: a name in /etc/hosts may have this machine's loopback too.
pub fn outer(mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    if addresses.iter().any(|address| !address.ip().is_loopback()) {
        addresses.retain(|address| !address.ip().is_loopback());
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::{SLURM_PORTS, first_host, outer, slurm_port, tasks_of_node};

    #[test]
    fn a_name_with_the_loopback_and_another_address_is_the_other_one() {
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let both = addresses(&["127.0.1.1:7", "10.0.0.1:7", "[::1]:7"]);
        assert_eq!(outer(both), addresses(&["10.0.0.1:7"]));
        assert_eq!(outer(addresses(&["127.0.0.1:7"])), addresses(&["127.0.0.1:7"]));
    }

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, first) in [
            ("node07", Some("node07")),
            ("node07,login", Some("node07")),
            ("node[07-12,20],login", Some("node07")),
            ("node[3,5-9]", Some("node3")),
            ("rack[2-3]-n[08-09].site", Some("rack2-n08.site")),
            ("a.example,b[1-2]", Some("a.example")),
            ("node[", None),
            ("node[]", None),
            ("node[1-2", None),
            ("", None),
            (",node", None),
            ("no de", None),
            ("node]", None),
        ] {
            assert_eq!(first_host(list).as_deref(), first, "{list}");
        }
    }

    #[test]
    fn the_tasks_of_each_node_are_found() {
        let of = |list: &str| (0..5).map(|node| tasks_of_node(list, node)).collect::<Vec<_>>();
        assert_eq!(of("4(x2),3"), [Some(4), Some(4), Some(3), None, None]);
        assert_eq!(of("1,2(x4294967295)"), [Some(1), Some(2), Some(2), Some(2), Some(2)]);
        for wrong in ["", "x", "4(x", "4(x)", "4(x2", "-1(x9)"] {
            assert_eq!(tasks_of_node(wrong, 0), None, "{wrong}");
        }
    }

    #[test]
    fn steps_and_jobs_listen_at_different_ports() {
        let ports: std::collections::BTreeSet<u32> =
            (0..20).flat_map(|step| (0..300).map(move |job| slurm_port(4_000_000_000 + job, step))).collect();
        assert_eq!(ports.len(), 6000);
        assert!(ports.iter().all(|port| SLURM_PORTS.contains(port)));
    }
}
