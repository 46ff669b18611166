//! The launchers that start ranks (torchrun, srun, mpirun), as the variables that they set tell.
//!
//! A launcher may run inside another one, as mpirun does in a Slurm allocation. The inner one counts: torchrun, then an MPI
//! launcher, then a step of srun. Variables that a person sets (RANK, WORLD_SIZE) must agree with that launcher.

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
    let (rank, ranks) = (number("RANK")?, number("WORLD_SIZE")?);
    let by_torchrun = variable("TORCHELASTIC_RUN_ID").is_some();
    let launcher = match mpi()? {
        _ if by_torchrun => None,
        None => slurm_step()?,
        launcher => launcher,
    };
    match (rank, ranks, launcher) {
        (Some(rank), Some(ranks), None) => by_hand(rank, ranks, by_torchrun).map(Some),
        // One process of a launcher, in which somebody starts several.
        (Some(rank), Some(ranks), Some(launcher)) if launcher.ranks == 1 => {
            by_hand(rank, ranks, by_torchrun).map(Some)
        }
        (None, None, None) => match number("PMIX_RANK")? {
            None => Ok(None),
            Some(rank) => Err(usage(format!(
                "PMIX_RANK says that a launcher started this process as rank {rank}, and no variable says of how many"
            ))
            .help("give --ranks, --rank and --coordinator; `--ranks 1` trains in this process alone")),
        },
        (rank, ranks, Some(launcher)) => {
            let agree = rank.is_none_or(|rank| rank == launcher.rank)
                && ranks.is_none_or(|ranks| ranks == launcher.ranks);
            if agree {
                return Ok(Some(launcher));
            }
            let set = match (rank, ranks) {
                (Some(rank), Some(ranks)) => format!("RANK and WORLD_SIZE say {}", place(rank, ranks)),
                (Some(rank), None) => format!("RANK says rank {rank}"),
                (None, ranks) => format!("WORLD_SIZE says {} ranks", ranks.unwrap_or_default()),
            };
            Err(usage(format!("{set}, and {} says {}", launcher.by, place(launcher.rank, launcher.ranks)))
                .help("unset the variables that are not true, or give --ranks, --rank and --coordinator"))
        }
        (Some(rank), None, None) => Err(usage(format!("RANK is {rank}, and WORLD_SIZE is not set"))
            .help("set RANK and WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or none of them")),
        (None, Some(ranks), None) => Err(usage(format!("WORLD_SIZE is {ranks}, and RANK is not set"))
            .help("set RANK and WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or none of them")),
    }
}

/// Ranks of torchrun, or of whoever sets the same variables.
fn by_hand(rank: u32, ranks: u32, torchrun: bool) -> Result<Launched, Failure> {
    let mut port = number("MASTER_PORT")?;
    let mut by = "somebody (RANK, WORLD_SIZE)";
    if torchrun {
        by = "torchrun (RANK, WORLD_SIZE)";
        // torchrun's own store listens at the port, and the ranks take the next one.
        if variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|agent| agent == "True") {
            port = port.map(|port| if port < 65_535 { port + 1 } else { port - 1 });
        }
    }
    Ok(Launched { by, rank, ranks, local_rank: None, local_ranks: None, host: None, port, name: None })
}

/// The variables of rank, ranks, and both on this machine, of launchers of MPI.
fn mpi() -> Result<Option<Launched>, Failure> {
    let open = [
        number("OMPI_COMM_WORLD_RANK")?,
        number("OMPI_COMM_WORLD_SIZE")?,
        number("OMPI_COMM_WORLD_LOCAL_RANK")?,
        number("OMPI_COMM_WORLD_LOCAL_SIZE")?,
    ];
    let pmi =
        [number("PMI_RANK")?, number("PMI_SIZE")?, number("MPI_LOCALRANKID")?, number("MPI_LOCALNRANKS")?];
    let of = |by, [rank, ranks, local_rank, local_ranks]: [Option<u32>; 4]| {
        let (rank, ranks) = (rank?, ranks?);
        Some(Launched { by, rank, ranks, local_rank, local_ranks, host: None, port: None, name: None })
    };
    let open = of("mpirun of Open MPI (OMPI_COMM_WORLD_RANK)", open);
    let pmi = of("a launcher of MPI (PMI_RANK)", pmi);
    match (open, pmi) {
        (Some(open), Some(pmi)) if (open.rank, open.ranks) != (pmi.rank, pmi.ranks) => {
            let [first, second] = [&open, &pmi].map(|l| format!("{} says {}", l.by, place(l.rank, l.ranks)));
            Err(usage(format!("{first}, and {second}"))
                .help("unset the variables that are not true, or give --ranks, --rank and --coordinator"))
        }
        (Some(open), _) => Ok(Some(open)),
        (None, pmi) => Ok(pmi),
    }
}

/// A task of a step that srun started. A batch script and a shell of salloc have variables of their allocation, and no step.
fn slurm_step() -> Result<Option<Launched>, Failure> {
    let Some(step) = number("SLURM_STEP_ID")?.filter(|step| *step < STEP_MAX) else { return Ok(None) };
    // SLURM_NTASKS would be the allocation's in a batch script; this one is the step's.
    let (Some(rank), Some(ranks)) = (number("SLURM_PROCID")?, number("SLURM_STEP_NUM_TASKS")?) else {
        return Ok(None);
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
    Ok(Some(Launched { by, rank, ranks, local_rank, local_ranks, host, port, name }))
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

    /// True if the launcher says that other machines have ranks too.
    pub fn spans_machines(&self) -> bool {
        self.local_ranks.is_some_and(|here| here < self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::{SLURM_PORTS, first_host, slurm_port, tasks_of_node};

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
