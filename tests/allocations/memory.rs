//! Training and audits take the memory that was planned.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::edit::edit;
use crate::common::{begin_run, gpt_job, key, trained};
use crate::{alone, peak};
use tiebreak_audit::plan::{Choice, memory_to_confirm, plan};
use tiebreak_audit::{Outcome, Silent, audit, checks, micro_batch};
use tiebreak_contract::program::step::state_bytes;
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::liveness::Keeping;
use tiebreak_engine::recompute::{micro_batch_bytes, step_bytes_with};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::spilled::Spilled;
use tiebreak_train::train;

/// The memory of threads and the like, beside tensors and programs.
const OTHER: usize = 1 << 20;

/// A model of several layers, so that the tensors of a micro-batch are many times those of one operator.
fn deep_job(folder: &Path, granularity: &str) -> PathBuf {
    let path = gpt_job(folder, granularity, "");
    edit(
        &path,
        &[("steps = 8", "steps = 2"), ("layers = 1", "layers = 6"), ("context = 12", "context = 64")],
    );
    path
}

/// The scalar reference confirms a cheat within the memory that the plan announced before the replay.
#[test]
fn confirming_a_cheat_takes_the_memory_that_was_planned() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    for granularity in ["microbatch", "operator"] {
        let job = deep_job(folder.path(), granularity);
        let run = trained(&job, &folder.path().join(granularity), Some("operator@2"));
        // An audit's sessions keep a program each, and its graphs.
        let (opened, program) = peak(|| Run::open(&run.layout.root).unwrap());
        drop(opened);
        let planned = memory_to_confirm(&run, false) as usize;
        let (outcome, taken) = peak(|| {
            let run = Run::open(&run.layout.root).unwrap();
            let checked = checks::always(&run, Some(&key().public())).unwrap();
            let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
            audit(&run, &mut Cpu::new(1).unwrap(), checked, plan, None, &mut Silent).unwrap().0.outcome
        });
        assert!(matches!(outcome, Outcome::Diverges { step: 2, .. }), "{outcome:?}");
        println!("{granularity}: planned {planned}, taken {taken}, a program {program}");
        assert!(
            taken <= planned + 4 * program + OTHER,
            "{granularity}: planned {planned} bytes, {taken} were taken"
        );
        // With less memory, a difference is named and not confirmed.
        let run = Run::open(&run.layout.root).unwrap().with_memory(planned as u64 - 1);
        let checked = checks::always(&run, Some(&key().public())).unwrap();
        let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
        assert!(plan.memory < planned as u64);
        let ended = audit(&run, &mut Cpu::new(1).unwrap(), checked, plan, None, &mut Silent);
        let why = ended.map(|(report, _)| report.outcome).unwrap_err().to_string();
        assert!(why.starts_with("a step that differs, step 2, and its confirmation"), "{why}");
    }
}

/// The same where parameters are most of the memory: the reference frees each tensor of the state that it replaces.
#[test]
fn confirming_a_cheat_of_a_wide_model_takes_the_memory_that_was_planned() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let sizes =
        [("layers = 1", "layers = 2"), ("width = 16", "width = 160"), ("context = 12", "context = 4")];
    let less = [("steps = 8", "steps = 1"), ("micro_batch = 2", "micro_batch = 1")];
    edit(&job, &[&sizes[..], &less].concat());
    let run = trained(&job, &folder.path().join("run"), Some("operator@1"));
    let planned = memory_to_confirm(&run, false) as f64;
    let checked = checks::always(&run, Some(&key().public())).unwrap();
    let plan = plan(&run, &checked.checkpoints, 1, &Choice::All);
    let mut cpu = Cpu::new(1).unwrap();
    let ((report, _), taken) = peak(|| audit(&run, &mut cpu, checked, plan, None, &mut Silent).unwrap());
    assert!(matches!(report.outcome, Outcome::Diverges { step: 1, .. }), "{:?}", report.outcome);
    println!("planned {planned}, taken {taken}");
    assert!((0.85..1.15).contains(&(taken as f64 / planned)), "planned {planned}, {taken} were taken");
}

/// Training and auditing a step take the memory that is planned, within 15 %, where parameters are most of it. With slots and waiting
/// gradients outside of memory both take far less.
#[test]
fn a_step_takes_the_memory_that_was_planned() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let sizes =
        [("layers = 1", "layers = 2"), ("width = 16", "width = 512"), ("context = 12", "context = 4")];
    let less = [("steps = 8", "steps = 1"), ("micro_batch = 2", "micro_batch = 1")];
    edit(&job, &[&sizes[..], &less].concat());
    for outside in [false, true] {
        let mut cpu = Cpu::new(1).unwrap();
        if outside {
            assert!(cpu.use_outside(Arc::new(Spilled::in_folder(folder.path()).unwrap())));
        }
        let out = folder.path().join(format!("run-{outside}"));
        let run = begin_run(&Disk::default(), &job, &out).unwrap();
        let state = state_bytes(&run.program().state());
        let planned =
            |before| step_bytes_with(run.program(), false, Keeping { outside, before, holds: false });
        let near = |what: &str, planned: u64, taken: usize| {
            println!("{what}, outside {outside}: planned {planned}, taken {taken}, a state {state}");
            let ratio = taken as f64 / planned as f64;
            assert!((0.85..1.15).contains(&ratio), "{what}, outside {outside}: {taken} of {planned}");
        };
        let (trained, taken) = peak(|| train(&run, &mut cpu, Some(&key()), &mut tiebreak_train::Silent));
        trained.unwrap();
        near("training", planned(false), taken);
        // All micro-batches have run, but for what a state of parameters and slots takes.
        assert!(!outside || planned(false) < state, "{} of {state}", planned(false));
        cpu.release();
        let checked = checks::always(&run, Some(&key().public())).unwrap();
        let plan = plan(&run, &checked.checkpoints, 1, &Choice::All);
        let ((report, _), taken) = peak(|| audit(&run, &mut cpu, checked, plan, None, &mut Silent).unwrap());
        assert_eq!(report.outcome, Outcome::Matches);
        near("auditing", planned(true), taken);
        cpu.release();
        let checked = checks::always(&run, Some(&key().public())).unwrap();
        let (outcome, taken) = peak(|| micro_batch(&run, &mut cpu, &checked, 1, 0).unwrap());
        assert_eq!(outcome, Outcome::Matches);
        near("auditing a micro-batch", micro_batch_bytes(run.program(), false), taken);
    }
}
