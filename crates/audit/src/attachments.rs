//! The files beside the records: gradients, traces, rounding logs and data. No step needs another step's files, and records or
//! `run.json` commit to them all. So files that are withheld or damaged are named without a replay.

use std::path::Path;

use serde::Serialize;

use super::checks::{Checked, damaged_text};
use super::work::{Work, length};
use tiebreak_job::manifest::FileManifest;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, Stored, data, names, traces, transcript};

/// The most damaged files that are named.
const DAMAGED_MAX: usize = 1000;

/// The findings about the files beside the records, in words.
#[derive(Debug, Default)]
pub struct Attachments {
    /// Kinds of files, all of which hold what their records commit.
    pub passed: Vec<String>,
    /// Files that the run lacks.
    pub missing: Vec<String>,
    /// Files that do not hold what their records commit, in words, with the error; the first thousand.
    pub damaged: Vec<(String, RunError)>,
}

/// A damaged file, for people and scripts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damaged {
    /// The file's path in the run's folder.
    pub file: String,
    /// The defect of the file.
    pub why: String,
}

impl Damaged {
    /// The file of a run that an error is about.
    #[doc(hidden)] // for the layers above
    pub fn of(run: &Run, error: &RunError) -> Damaged {
        let root = &run.layout.root;
        let file = error.path().map(|path| path.strip_prefix(root).unwrap_or(path).display().to_string());
        Damaged { file: file.unwrap_or_default(), why: error.to_string() }
    }
}

/// A kind of file beside the records.
struct Attachment {
    name: &'static str,
    /// True if the record of a step commits such a file.
    committed: fn(&StepRecord) -> bool,
    /// True if the run has the file.
    here: fn(&Run, u32) -> bool,
    /// The bytes that the check of a step reads.
    bytes: fn(&Run, u32) -> u64,
    /// Reads the file and compares it with the record.
    check: fn(&Run, &StepRecord) -> Result<(), RunError>,
}

const KINDS: [Attachment; 3] = [
    Attachment {
        name: "gradients",
        committed: |record| record.gradients.is_some(),
        here: |run, _| run.at(names::GRADIENTS).is_here(),
        bytes: |run, _| u64::from(run.program().micro_batches) * size_of::<Digest>() as u64,
        check: |run, record| run.gradient_roots(record).map(drop),
    },
    Attachment {
        name: "traces",
        committed: |record| record.trace.is_some(),
        here: |run, step| run.at(names::trace(step)).is_here(),
        bytes: |run, step| length(run, &names::trace(step)),
        check: |run, record| {
            let file = match record.trace {
                Some(root) => run.promised(names::trace(record.step), "trace", root),
                None => run.at(names::trace(record.step)),
            };
            file.settled(|file| {
                let root = traces::read(run.program(), file)?.root(run.program());
                is_committed(file.path(), root, record.trace)
            })
        },
    },
    Attachment {
        name: "rounding logs",
        committed: |record| record.log.is_some(),
        here: |run, step| run.at(names::log(step)).is_here(),
        bytes: |run, step| length(run, &names::log(step)),
        check: |run, record| {
            let root = run.rounding_log(record.step)?.root();
            is_committed(&run.layout.log(record.step), root, record.log)
        },
    },
];

fn is_committed(path: &Path, found: Digest, due: Option<Digest>) -> Result<(), RunError> {
    let wrong = |why: String| Err(RunError::invalid(path, why));
    match due {
        Some(due) if due == found => Ok(()),
        Some(due) => {
            wrong(format!("it is not the one that the record commits: its root is {}", found.not(&due)))
        }
        None => wrong(format!("its root is {}, and the record commits none", found.short())),
    }
}

/// Reads the files beside the records, and compares each with its commitment.
pub fn attachments(run: &Run, checked: &Checked) -> Attachments {
    attachments_watched(run, checked, &mut Work::of_all_files(&mut |_, _| {}))
}

pub(crate) fn attachments_watched(run: &Run, checked: &Checked, work: &mut Work) -> Attachments {
    let last = (checked.transcript.records.len() as u32 - 1).min(run.job().steps);
    let mut found = attachments_of(run, checked, 1..=last, work);
    data(run, checked, &mut found, work);
    if let Some(Record::Final { .. }) = checked.transcript.records.last() {
        let after = after_the_end(run, checked.head.size).err();
        found.damaged.extend(after.map(|error| ("records".to_string(), error)));
    }
    found
}

/// The files beside the records of these steps.
pub(crate) fn attachments_of(
    run: &Run,
    checked: &Checked,
    steps: impl Iterator<Item = u32> + Clone,
    work: &mut Work,
) -> Attachments {
    let mut found = Attachments::default();
    for kind in KINDS {
        let (mut fine, mut missing, mut damaged) = (0u32, 0u32, 0u32);
        let mut first_missing = 0;
        let records = steps.clone().filter_map(|step| checked.step(step).ok());
        for record in records.filter(|record| (kind.committed)(record)) {
            if !(kind.here)(run, record.step) {
                first_missing = if missing == 0 { record.step } else { first_missing };
                missing += 1;
            } else {
                match (kind.check)(run, record) {
                    Ok(()) => fine += 1,
                    Err(why) => {
                        damaged += 1;
                        if found.damaged.len() < DAMAGED_MAX {
                            found.damaged.push((format!("{} of step {}", kind.name, record.step), why));
                        }
                    }
                }
            }
            work.done((kind.bytes)(run, record.step));
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

/// Reads the data files that the run holds, to their ends; steps draw only some of their samples.
fn data(run: &Run, checked: &Checked, found: &mut Attachments, work: &mut Work) {
    if run.job().hides() {
        return; // the files are no part of such a run, and a batch checks what it reads of them
    }
    let mut fine = 0;
    for (number, promised) in run.file.data.iter().enumerate() {
        let file = run.at(names::data_file(number));
        let known = |error: &RunError| error.path() == Some(file.path());
        if !file.is_here() || checked.damaged.iter().any(known) {
            continue;
        }
        let read = data::promised(&file, promised).settled(|file| is_promised(file, promised));
        work.file(run, &names::data_file(number));
        match read {
            Ok(()) => fine += 1,
            Err(error) if found.damaged.len() < DAMAGED_MAX => {
                found.damaged.push((format!("data file {number}"), error));
            }
            Err(_) => {}
        }
    }
    if fine == run.file.data.len() {
        found.passed.push(format!("{fine} data files are those that run.json promises, to their ends"));
    }
}

/// Reads a data file to its end, and compares it with its promise.
fn is_promised(file: &Stored, promised: &FileManifest) -> Result<(), RunError> {
    let (manifest, _) = data::kept_manifest(file)?;
    if manifest == *promised {
        return Ok(());
    }
    let (found, due) = (manifest.bytes, promised.bytes);
    let roots = manifest.root.not(&promised.root);
    let why = format!(
        "its bytes are not those that run.json promises: {found} bytes, not {due}, with root {roots}"
    );
    Err(RunError::invalid(file.path(), why))
}

/// Adds withheld and damaged files to an audit's findings.
pub fn note(checked: &mut Checked, beside: Attachments) {
    checked.not_checked.extend(beside.missing);
    checked.not_checked.extend(beside.damaged.iter().map(|(_, error)| damaged_text(error)));
    checked.damaged.extend(beside.damaged.into_iter().map(|(_, error)| error));
}

/// Checks that nothing follows the final record.
fn after_the_end(run: &Run, records: u64) -> Result<(), RunError> {
    let file = run.at(names::TRANSCRIPT);
    let (transcript, whole) = transcript::read(file.clone())?;
    let len = file.length()?;
    match transcript.records.len() as u64 == records && whole == len {
        true => Ok(()),
        false => {
            let (found, rest) = (transcript.records.len(), len - whole);
            let why = format!(
                "something follows the final record: {found} records and {rest} bytes more are there, and {records} records are due"
            );
            Err(RunError::invalid(file.path(), why))
        }
    }
}
