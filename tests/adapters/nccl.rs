//! `tiebreak train --transport nccl` over the stand-ins for NVIDIA's driver and NCCL. Ranks write the run directories of one
//! process. Errors name the rank, end training, and leave a run that resumes to the same bits. `cuda-bridge/tests/nccl.rs` tests
//! NCCL's calls.

use std::path::{Path, PathBuf};

use crate::common::shim::{shim, tiebreak};
use crate::common::{begin_run, files, key, mlp_job, trained};
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::read_job;
use tiebreak_train::ranks::plan::ShardPlan;
use tiebreak_train::ranks::slots::SlotPlan;

const STEPS: u32 = 4;

/// A job that one process has trained on the CPU.
struct Runs {
    shim: &'static Path,
    folder: tempfile::TempDir,
    job: PathBuf,
    key: String,
}

impl Runs {
    /// Seven micro-batches, so that no rank has one partial sum only, and a gradient of several tiles.
    fn new(shim: &'static Path) -> Runs {
        let folder = tempfile::tempdir().unwrap();
        let job = mlp_job(folder.path(), "operator", STEPS, 7);
        trained(&job, &folder.path().join("whole"), None);
        let path = folder.path().join("key");
        std::fs::write(&path, key().to_text()).unwrap();
        Runs { shim, job, key: path.to_str().unwrap().into(), folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_string()
    }

    /// A run that has begun, without a step.
    fn begun(&self, name: &str) -> String {
        begin_run(&Disk::default(), &self.job, &self.folder.path().join(name)).unwrap();
        self.path(name)
    }

    /// Resumes a run over so many ranks, each with a GPU unless `more` says otherwise.
    fn train(&self, out: &str, ranks: &str, environment: &[(&str, &str)], more: &[&str]) -> (i32, String) {
        let args =
            ["train", "--out", out, "--key", &self.key, "--resume", "--engine", "cuda", "--ranks", ranks];
        let nccl = ["--transport", "nccl"];
        let environment = [&[("TIEBREAK_SHIM_DEVICES", "5")], environment].concat();
        tiebreak(self.shim, &environment, &[&args, &nccl[..], more].concat())
    }

    fn same(&self, out: &str) {
        let mut found = files(Path::new(out));
        found.retain(|(file, _)| !file.to_string_lossy().ends_with(".partial"));
        assert!(found == files(&self.folder.path().join("whole")), "{out} is not the run of one process");
    }
}

/// Two ranks; then three, one of which is killed while gradients move; two, with a failing NCCL in one; and three that finish.
#[test]
fn ranks_write_the_run_of_one_process_and_go_on_after_a_fault() {
    let Some(shim) = shim() else { return };
    let runs = Runs::new(shim);
    let (out, counts) = (runs.begun("two"), runs.path("counts"));
    let (code, printed) = runs.train(&out, "2", &[("TIEBREAK_SHIM_NCCL_COUNTS", &counts)], &[]);
    assert!(code == 0 && printed.contains("of gradients a step over NCCL 2.99.0"), "{printed}");
    runs.same(&out);
    // All gradients went over NCCL, and nothing else did: rank, groups, bytes sent.
    let program = read_job(&runs.job).unwrap().1.program(None).unwrap();
    let plan = ShardPlan::new(&program, 2).unwrap();
    let line = |rank| format!("{rank} {} {}", 2 * STEPS, u64::from(STEPS) * plan.bytes_sent(rank));
    let counted = std::fs::read_to_string(&counts).unwrap();
    assert!(counted.lines().count() == 2 && (0..2).all(|rank| counted.contains(&line(rank))), "{counted}");

    let out = runs.begun("faults");
    for (ranks, fault, says) in [
        ("3", "2 kill 3", "rank 2 is gone ("),
        (
            "2",
            "1 error 2",
            "rank 1 reports: NCCL's transfer: remote process exited or there was a network error",
        ),
    ] {
        let (code, printed) = runs.train(&out, ranks, &[("TIEBREAK_SHIM_NCCL", fault)], &[]);
        assert!(code == 3 && printed.contains(says), "{fault}: {code} {printed}");
        assert!(printed.contains("can be resumed from its last checkpoint"), "{fault}: {printed}");
    }
    let (code, printed) = runs.train(&out, "3", &[], &[]);
    assert_eq!(code, 0, "{printed}");
    runs.same(&out);

    // Ranks that divide the optimizer's slots: the new parameters go over NCCL too, in a third group a step.
    let (out, counts) = (runs.begun("divided"), runs.path("counts-divided"));
    let (code, printed) =
        runs.train(&out, "2", &[("TIEBREAK_SHIM_NCCL_COUNTS", &counts)], &["--shard-optimizer"]);
    assert!(code == 0 && printed.contains("of parameters a step"), "{printed}");
    runs.same(&out);
    let slots = SlotPlan::new(&program, 2).unwrap();
    let sent = |rank| u64::from(STEPS) * (plan.bytes_sent(rank) + slots.bytes_sent(rank));
    let counted = std::fs::read_to_string(&counts).unwrap();
    let line = |rank| format!("{rank} {} {}", 3 * STEPS, sent(rank));
    assert!(counted.lines().count() == 2 && (0..2).all(|rank| counted.contains(&line(rank))), "{counted}");
}

/// A rank that is stopped while gradients move is named soon after the given time. That time is as long as opening an engine may
/// take on a machine that is busy with other tests.
#[test]
fn nobody_waits_for_ever() {
    let Some(shim) = shim() else { return };
    let runs = Runs::new(shim);
    let fault = [("TIEBREAK_SHIM_NCCL", "1 stop 2")];
    let (code, printed) = runs.train(&runs.begun("stopped"), "2", &fault, &["--rank-timeout", "45"]);
    assert!(
        code == 3 && printed.contains("rank 1 did nothing for 45 s (--rank-timeout)"),
        "{code} {printed}"
    );
}

/// The environment, the options, and a part of the error.
type Refusal<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], &'a str);

/// An impossible request is refused before anything is written, or at the ranks' first message.
#[test]
fn what_nccl_cannot_do_is_refused() {
    let Some(shim) = shim() else { return };
    let runs = Runs::new(shim);
    let (job, out) = (runs.job.to_str().unwrap(), runs.path("new"));
    let cuda = ["--engine", "cuda", "--ranks", "2"];
    let cases: [Refusal; 4] = [
        (&[], &["--ranks", "2"], "--transport nccl needs --engine cuda"),
        (&[("TIEBREAK_NCCL", "/nowhere/libnccl.so.2")], &cuda, "pip install nvidia-nccl-cu12"),
        (
            &[("TIEBREAK_SHIM_NCCL_VERSION", "21200")],
            &cuda,
            "NCCL 2.12.0 is too old, and 2.13.4 is the oldest",
        ),
        (&[], &cuda, "NCCL takes one rank a GPU, and 2 ranks would share 1 here: give --transport tcp"),
    ];
    for (environment, args, says) in cases {
        let train = ["train", job, "--out", &out, "--transport", "nccl"];
        let (code, printed) = tiebreak(shim, environment, &[&train, args].concat());
        assert!(code == 2 && printed.contains(says), "{code} {printed}");
        assert!(!Path::new(&out).exists(), "{says}");
    }
    let out = runs.begun("one GPU");
    let (code, printed) = runs.train(&out, "2", &[], &["--adapter", "3"]);
    assert!(code == 2 && printed.contains("rank 0 and rank 1 are on one GPU"), "{code} {printed}");
}
