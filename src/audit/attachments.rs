//! The files beside the records: gradients, traces and rounding logs. No step needs another's, and records commit to them all, so those
//! that are withheld or damaged are named without a replay.

use std::fs;
use std::path::Path;

use super::checks::Checked;
use crate::commit::record::StepRecord;
use crate::run::dir::Run;
use crate::run::{RunError, traces};

/// The most damaged files that are named.
const DAMAGED_MAX: usize = 20;

/// What the files beside the records are, in words.
#[derive(Debug, Default)]
pub struct Attachments {
    /// Kinds of files of which every one is what its record commits.
    pub passed: Vec<String>,
    /// Files that are not here.
    pub missing: Vec<String>,
    /// Files that are not what their records commit, and why; the first few.
    pub damaged: Vec<String>,
}

/// A kind of file.
struct Kind {
    name: &'static str,
    /// Whether the record of a step commits one.
    committed: fn(&StepRecord) -> bool,
    /// Whether it is here.
    here: fn(&Run, u32) -> bool,
    /// Reads it and compares it with the record.
    check: fn(&Run, &StepRecord) -> Result<(), RunError>,
}

fn is_here(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "gradients",
        committed: |record| record.gradients.is_some(),
        here: |run, _| is_here(&run.layout.gradients()),
        check: |run, record| run.gradient_roots(record).map(drop),
    },
    Kind {
        name: "traces",
        committed: |record| record.trace.is_some(),
        here: |run, step| is_here(&run.layout.trace(step)),
        check: |run, record| {
            let path = run.layout.trace(record.step);
            let root = traces::read(&run.program, &path)?.root(&run.program);
            if Some(root) == record.trace { Ok(()) } else { Err(other(&path)) }
        },
    },
    Kind {
        name: "rounding logs",
        committed: |record| record.log.is_some(),
        here: |run, step| is_here(&run.layout.log(step)),
        check: |run, record| {
            let root = run.rounding_log(record.step)?.root();
            if Some(root) == record.log { Ok(()) } else { Err(other(&run.layout.log(record.step))) }
        },
    },
];

fn other(path: &Path) -> RunError {
    RunError::invalid(path, "it is not the one that the record commits")
}

/// Looks at the files beside the records; `read`: not only whether they are here.
pub fn attachments(run: &Run, checked: &Checked, read: bool) -> Attachments {
    let mut found = Attachments::default();
    let last = (checked.transcript.records.len() as u32 - 1).min(run.job.steps);
    for kind in KINDS {
        let (mut fine, mut missing, mut damaged) = (0u32, 0u32, 0u32);
        let mut first_missing = 0;
        for record in
            (1..=last).filter_map(|step| checked.step(step).ok()).filter(|record| (kind.committed)(record))
        {
            if !(kind.here)(run, record.step) {
                first_missing = if missing == 0 { record.step } else { first_missing };
                missing += 1;
            } else if read {
                match (kind.check)(run, record) {
                    Ok(()) => fine += 1,
                    Err(why) => {
                        damaged += 1;
                        if found.damaged.len() < DAMAGED_MAX {
                            found.damaged.push(format!("{} of step {}: {why}", kind.name, record.step));
                        }
                    }
                }
            }
        }
        if missing > 0 {
            let what = format!(
                "{} of {missing} steps that records commit, the first of step {first_missing}",
                kind.name
            );
            found.missing.push(what);
        }
        if fine > 0 && missing == 0 && damaged == 0 {
            found.passed.push(format!("{} of {fine} steps are those that records commit", kind.name));
        }
    }
    found
}
