//! The report of an auditor who was given another run than the one that was asked for, or a run without records.

use super::ground::Ground;
use super::plan::{Choice, ReplayPlan};
use super::report::{Outcome, REPORT_FORMAT, Report, VERSION};
use tiebreak_record::commit::merkle;
use tiebreak_run::run::dir::Run;

/// A report about `run` that accuses nobody: `why` says why nothing of the run was read but its identity.
pub fn refused(run: &Run, engine: String, choice: Choice, why: Ground) -> Report {
    Report {
        format: REPORT_FORMAT,
        verifier: VERSION.into(),
        run: run.id,
        computation: run.computation.id,
        job: run.job().digest(),
        data: run.file.summary().data,
        steps: run.job().steps,
        signed: "not read".into(),
        head_size: 0,
        head_root: merkle::root(&[]),
        end_checked: false,
        engine,
        native: false,
        outcome: Outcome::Incomplete { what: why },
        checked: Vec::new(),
        not_checked: vec!["anything but which run it is".into()],
        damaged: Vec::new(),
        corrections: Vec::new(),
        not_finite: None,
        replayed: Vec::new(),
        plan: ReplayPlan { choice, ..ReplayPlan::default() },
        rounding: None,
        seconds: 0.0,
        auditor: None,
    }
}
