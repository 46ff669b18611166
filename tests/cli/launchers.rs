//! Ranks as torchrun, srun and mpirun start them: by the variables that each of them sets.

use std::net::TcpListener;
use std::process::Child;

use crate::common::mlp_job;
use crate::ranks::{Runs, address, ended, tiebreak};

/// Variables, of which `R` in a value stands for the rank.
type Variables<'v> = &'v [(&'v str, &'v str)];

/// A task of a step of two tasks on one node, in an allocation of more.
const SRUN: Variables = &[
    ("SLURM_NTASKS", "4"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_PROCID", "R"),
    ("SLURM_LOCALID", "R"),
    ("SLURM_NODEID", "0"),
    ("SLURM_STEP_NUM_TASKS", "2"),
    ("SLURM_STEP_NUM_NODES", "1"),
    ("SLURM_STEP_TASKS_PER_NODE", "2"),
    ("SLURM_STEP_NODELIST", "node07"),
    ("SLURM_LAUNCH_NODE_IPADDR", "192.0.2.9"),
];

const OPEN_MPI: Variables = &[
    ("OMPI_COMM_WORLD_RANK", "R"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "R"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("PMIX_RANK", "R"),
];

const MPICH: Variables =
    &[("PMI_RANK", "R"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "R"), ("MPI_LOCALNRANKS", "2")];

const TORCHRUN: Variables = &[
    ("TORCHELASTIC_RUN_ID", "none"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ("RANK", "R"),
    ("WORLD_SIZE", "2"),
    ("LOCAL_RANK", "R"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "127.0.0.1"),
];

/// A batch script's shell, or the first task of mpirun's own step: rank 0 of more, which is not true of what runs in it.
const BATCH: Variables = &[("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")];

/// Starts a rank: with the command line that all ranks have.
fn rank(runs: &Runs, out: &str, rank: &str, sets: &[Variables], options: &[&str]) -> Child {
    let mut command = match rank {
        "0" => runs.trainer(out, options),
        _ => tiebreak(&[&["train", runs.job.to_str().unwrap()], options].concat()),
    };
    for (name, value) in sets.iter().copied().flatten() {
        command.env(name, value.replace('R', rank));
    }
    command.spawn().unwrap()
}

/// A port that something listens at, below one that is free.
fn agent() -> (TcpListener, u16) {
    loop {
        let agent = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = agent.local_addr().unwrap().port();
        if port < 65_535 && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return (agent, port);
        }
    }
}

#[test]
fn ranks_of_each_launcher_write_the_run_of_one_process() {
    let runs = Runs::of(|folder| mlp_job(folder, "microbatch", 4, 4));
    let at = address();
    let (host, port) = at.split_once(':').unwrap();
    let (store, agent) = agent();
    // Another test process beside this one has another job.
    let job = std::process::id().to_string();
    let (agent, master) = (agent.to_string(), [("MASTER_ADDR", host), ("MASTER_PORT", port)]);
    let in_step = [&BATCH[1..], &[("SLURM_STEP_ID", "2"), ("SLURM_STEP_NUM_TASKS", "1")]].concat();
    let stale = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1"), ("PMIX_RANK", "R")];
    let cases: [(&str, &[Variables], &[&str]); 9] = [
        ("srun", &[SRUN, &[("SLURM_JOB_ID", &job)]], &[]),
        ("srun with PMI", &[SRUN, MPICH, &[("SLURM_JOB_ID", &job)]], &[]),
        ("srun in one process of mpirun", &[SRUN, &stale, &[("SLURM_JOB_ID", &job)]], &[]),
        ("srun with an address", &[SRUN, &master], &["--ranks", "2"]),
        ("Open MPI", &[OPEN_MPI], &["--coordinator", &at]),
        ("Open MPI in a batch script", &[BATCH, OPEN_MPI, &master], &[]),
        ("MPICH in a batch script, over srun", &[&in_step, MPICH], &["--coordinator", &at]),
        ("torchrun", &[TORCHRUN, &[("MASTER_PORT", &agent)]], &[]),
        (
            "torchrun in srun",
            &[SRUN, TORCHRUN, &[("MASTER_PORT", &agent), ("SLURM_STEP_NUM_TASKS", "9")]],
            &[],
        ),
    ];
    for (name, sets, options) in cases {
        let out = runs.begun(name);
        // Ranks that never meet end the test, and do not hang it.
        let options = [&["--rank-timeout", "60"], options].concat();
        let ranks = ["1", "0"].map(|number| rank(&runs, &out, number, sets, &options));
        let [other, first] = ranks.map(ended);
        assert_eq!(other, (0, String::new()), "{name}");
        assert!(first.0 == 0 && first.1.contains("2 ranks"), "{name}: {}", first.1);
        runs.same(&out);
    }
    drop(store);
    // Variables of an allocation start nobody, and one process may start others.
    for (name, sets, options, says) in [
        ("a batch script", BATCH, &[][..], "audit it with"),
        ("ranks in a batch script", BATCH, &["--ranks", "2"], "2 ranks"),
        ("one of several processes", SRUN, &["--ranks", "1"], "audit it with"),
        ("one task", &in_step, &["--ranks", "2"], "2 ranks"),
        ("one task, by a script of several", &in_step, &["--coordinator", &at], "audit it with"),
    ] {
        let out = runs.begun(name);
        let (code, printed) = ended(rank(&runs, &out, "0", &[sets], options));
        assert!(code == 0 && printed.contains(says), "{name}: {printed}");
        runs.same(&out);
    }
}

#[cfg(not(feature = "mpi"))]
#[test]
fn a_build_without_mpi_says_how_to_make_one_with_it() {
    let (code, printed) = ended(tiebreak(&["train", "none.toml", "--transport", "mpi"]).spawn().unwrap());
    assert!(code == 2 && printed.contains("no MPI (feature mpi)"), "{printed}");
    assert!(printed.contains("--features mpi"), "{printed}");
}

#[test]
fn launchers_that_say_too_little_or_disagree_are_named() {
    let (dark, many) = (("SLURM_STEP_NUM_NODES", "2"), ("SLURM_STEP_NODELIST", "node[07-08]"));
    let spread = [("SLURM_JOB_ID", "7"), dark, ("SLURM_STEP_TASKS_PER_NODE", "1(x2)")];
    let by_hand = [("RANK", "0"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")];
    let unknown = "no variable says where rank 0 listens";
    let one = [("TORCHELASTIC_RUN_ID", "x"), ("RANK", "0"), ("WORLD_SIZE", "1")];
    let cases: [(&[Variables], &[&str], &[&str]); 27] = [
        (&[OPEN_MPI], &[], &["mpirun of Open MPI", "rank 1 of 2", unknown, "--coordinator HOST:PORT"]),
        (&[OPEN_MPI, &[("MASTER_ADDR", "127.0.0.1")]], &[], &[unknown]),
        (&[MPICH], &[], &["a launcher of MPI (PMI_RANK)", "rank 1 of 2", unknown]),
        (&[SRUN], &[], &["srun (SLURM_PROCID)", "rank 1 of 2", unknown]),
        (&[SRUN, &[("SLURM_HET_SIZE", "2"), ("SLURM_JOB_ID", "7")]], &[], &[unknown]),
        (&[TORCHRUN], &[], &["torchrun (RANK, WORLD_SIZE)", unknown]),
        (&[SRUN, &[("SLURM_PTY_PORT", "1")]], &[], &["a terminal", "`--ranks 1`"]),
        (&[SRUN, &spread, &[("SLURM_STEP_NODELIST", "no de")]], &[], &["no list of nodes: \"no de\""]),
        (&[SRUN, &spread, &[("SLURM_STEP_NODELIST", "localhost")]], &[], &["this machine's loopback"]),
        (
            &[SRUN, &spread, &[many, ("SLURM_PROCID", "0"), ("SLURMD_NODENAME", "node08")]],
            &[],
            &["task 0 runs on node \"node08\"", "\"node07\""],
        ),
        (&[SRUN], &["--ranks", "4"], &["srun (SLURM_PROCID) started 2 ranks, and --ranks says 4"]),
        (&[&by_hand, SRUN], &[], &["says rank 0 of 8, and srun (SLURM_PROCID) says rank 1 of 2"]),
        (&[OPEN_MPI, &[("WORLD_SIZE", "3")]], &[], &["WORLD_SIZE says 3 ranks, and mpirun"]),
        (&[OPEN_MPI, &[("RANK", "0")]], &[], &["RANK says rank 0, and mpirun"]),
        (
            &[OPEN_MPI, MPICH, &[("PMI_SIZE", "3")]],
            &[],
            &["rank 1 of 2, and a launcher of MPI (PMI_RANK) says rank 1 of 3"],
        ),
        (&[&[("RANK", "1")]], &[], &["RANK is 1, and WORLD_SIZE is not set"]),
        (&[&[("WORLD_SIZE", "2")]], &[], &["WORLD_SIZE is 2, and RANK is not set"]),
        (&[&[("PMIX_RANK", "1")]], &[], &["PMIX_RANK", "as rank 1", "--ranks 1"]),
        (&[&[("PALS_RANKID", "1")]], &[], &["PALS_RANKID", "as rank 1", "of how many"]),
        (&[&OPEN_MPI[..1]], &[], &["OMPI_COMM_WORLD_RANK", "as rank 1", "of how many"]),
        (&[&OPEN_MPI[1..2]], &[], &["OMPI_COMM_WORLD_SIZE", "started 2 ranks"]),
        (&[&MPICH[..1]], &[], &["PMI_RANK", "as rank 1", "of how many"]),
        (&[&SRUN[..3]], &[], &["SLURM_STEP_NUM_TASKS is not set"]),
        (&[&one, OPEN_MPI], &[], &["torchrun (RANK, WORLD_SIZE) says rank 0 of 1, and mpirun"]),
        (&[&one[..1], OPEN_MPI], &[], &["mpirun of Open MPI", "rank 1 of 2", unknown]),
        (&[&[("RANK", "0"), ("WORLD_SIZE", "0")]], &[], &["rank 0 of 0: the first is rank 0"]),
        (&[BATCH], &["--coordinator", "127.0.0.1:1"], &["no variable names a launcher"]),
    ];
    for (sets, options, says) in cases {
        let args = ["train", "none.toml", "--out", "none", "--rank-timeout", "20"];
        let mut command = tiebreak(&[&args, options].concat());
        for (name, value) in sets.iter().copied().flatten() {
            command.env(name, value.replace('R', "1"));
        }
        let (code, printed) = ended(command.spawn().unwrap());
        assert_eq!(code, 2, "{sets:?}: {printed}");
        for says in says {
            assert!(printed.contains(says), "{sets:?}: {says}: {printed}");
        }
    }
}
