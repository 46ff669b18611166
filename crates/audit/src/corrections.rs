//! The corrections of a run: those that take its records back, and the one by which it takes another run's place.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::ground::Ground;
use tiebreak_record::commit::correction::{CORRECTION_MAX, Correction, History};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::transcript::Transcript;
use tiebreak_run::run::{RunError, Stored, names};

/// The most corrections of a run.
pub const CORRECTIONS_MAX: usize = 64;

/// A run's corrections, by the first step that each takes back. Without any by default.
#[derive(Clone, Debug, Default)]
pub struct Corrections {
    /// The corrections that an audit accepts, each with its file.
    accepted: Vec<(PathBuf, Correction)>,
    /// Corrections that came after the audit was drawn, and count for nothing.
    late: Vec<Correction>,
    /// The correction by which the run takes another run's place.
    corrects: Option<Correction>,
}

/// A correction, for reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// The digest that names the correction.
    pub digest: Digest,
    /// The first step that is taken back.
    pub step: u32,
    /// True if the audit accepted it; false if it came after the audit was drawn.
    pub accepted: bool,
    /// The name of the reason.
    pub reason: &'static str,
    /// The reason in the trainer's words.
    pub text: String,
    /// The state after the last good step.
    pub last_state: Digest,
    /// The run whose records are taken back.
    pub old: Side,
    /// The corrected run.
    pub new: Side,
}

/// One of the two runs that a correction names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Side {
    /// The run id.
    pub run: Digest,
    /// The number of records that the head covers.
    pub head_size: u64,
    /// The root over these records.
    pub head_root: Digest,
    /// The record of the step, base64 of its bytes.
    pub record: String,
}

impl Side {
    fn of(history: &History) -> Side {
        let Head { run, size, root } = history.head;
        let step = history.record.clone();
        let record = Record::Step { computation: history.computation, step };
        Side { run, head_size: size, head_root: root, record: STANDARD.encode(record.encode()) }
    }
}

impl Listed {
    /// A correction, as a report lists it.
    #[doc(hidden)] // for the layers above
    pub fn of(correction: &Correction, accepted: bool) -> Listed {
        Listed {
            digest: correction.digest(),
            step: correction.step,
            accepted,
            reason: correction.reason.name(),
            text: correction.text.clone(),
            last_state: correction.last.state(),
            old: Side::of(&correction.old),
            new: Side::of(&correction.new),
        }
    }

    /// A sentence for people.
    #[doc(hidden)] // for the layers above
    pub fn line(&self) -> String {
        let Listed { digest, step, reason, text, .. } = self;
        let [old, new] = [&self.old, &self.new].map(|side| side.run.short());
        let words = if text.is_empty() { String::new() } else { format!(": {text}") };
        let late = if self.accepted { "" } else { "NOT ACCEPTED, since it came after the draw: " };
        format!(
            "{late}correction {} takes back the records of run {old} from step {step} on ({reason}{words}); run {new} takes its place",
            digest.short()
        )
    }
}

impl Corrections {
    /// The corrections in a run's folder, and those in these files.
    ///
    /// # Errors
    /// If a file cannot be read, is no correction by the run's key, or is of another run. Also if the run names no key, or there are
    /// too many.
    #[doc(hidden)] // for the layers above
    pub fn read(run: &Run, more: &[PathBuf]) -> Result<Corrections, RunError> {
        let folder = run.layout.root.join(names::CORRECTIONS);
        let there = run.corrections()?;
        let count = there.len() + more.len();
        if count > CORRECTIONS_MAX {
            return Err(RunError::invalid(
                &folder,
                format!("{count} corrections are more than {CORRECTIONS_MAX}"),
            ));
        }
        let files = there.iter().map(|name| run.at(name.as_str()));
        let mut found = Corrections::default();
        for file in files.chain(more.iter().map(Stored::from)) {
            let correction = parsed(run, &file)?;
            is_of(run, file.path(), "takes back records of", &correction.old.head)?;
            found.accepted.push((file.path().to_path_buf(), correction));
        }
        found.accepted.sort_by_key(|(_, correction)| correction.step);
        found.accepted.dedup_by_key(|(_, correction)| correction.digest());
        let file = run.at(names::CORRECTS);
        if file.is_here() {
            let correction = parsed(run, &file)?;
            is_of(run, file.path(), "names as the corrected run", &correction.new.head)?;
            found.corrects = Some(correction);
        }
        Ok(found)
    }

    /// The corrections of an auditor who knew these digests when the audit was drawn: no other one is accepted.
    ///
    /// # Errors
    /// If a correction that was known is not among them.
    #[doc(hidden)] // for the layers above
    pub fn known(mut self, digests: &[Digest]) -> Result<Corrections, RunError> {
        let (accepted, late): (Vec<_>, Vec<_>) =
            self.accepted.into_iter().partition(|(_, correction)| digests.contains(&correction.digest()));
        if let Some(absent) = digests.iter().find(|d| accepted.iter().all(|(_, c)| c.digest() != **d)) {
            let why = format!(
                "the audit was drawn with the correction {absent}, which is not among the {} here",
                accepted.len()
            );
            return Err(RunError::Refused(why));
        }
        self.late.extend(late.into_iter().map(|(_, correction)| correction));
        Ok(Corrections { accepted, ..self })
    }

    /// The accepted correction that takes back the most records.
    #[doc(hidden)] // for the layers above
    pub fn first(&self) -> Option<&Correction> {
        self.accepted.first().map(|(_, correction)| correction)
    }

    /// The digests of the accepted corrections.
    pub(crate) fn digests(&self) -> Vec<Digest> {
        self.accepted.iter().map(|(_, correction)| correction.digest()).collect()
    }

    /// All corrections of the run, as a report lists them; then the one by which it takes another run's place.
    pub fn listed(&self) -> Vec<Listed> {
        let accepted = self.accepted.iter().map(|(_, correction)| Listed::of(correction, true));
        let late = self.late.iter().map(|correction| Listed::of(correction, false));
        accepted.chain(late).chain(self.corrects.iter().map(|of| Listed::of(of, true))).collect()
    }

    /// The ground on which an audit ends that accepted a correction.
    pub(crate) fn ground(&self) -> Option<Ground> {
        let correction = self.first()?;
        Some(Ground::Corrected {
            step: correction.step,
            by: correction.new.head.run,
            reason: correction.reason.name(),
        })
    }

    /// Notes that records were taken back, among them the run's end.
    pub(crate) fn settle(&self, incomplete: &mut Option<Ground>, not_checked: &mut Vec<String>) {
        if let Some(correction) = self.first() {
            *incomplete = None;
            let step = correction.step;
            not_checked.push(format!("the records from step {step} on, which their trainer took back"));
        }
    }

    /// Holds the corrections to the records that a head covers, and takes back the records from the first wrong step on. Their leaves
    /// stay, so that evidence about the others can be proven.
    ///
    /// # Errors
    /// If a correction is of another history, or of more records than there are.
    pub(crate) fn take_back(&self, run: &Run, transcript: &mut Transcript) -> Result<(), RunError> {
        let sides = self.accepted.iter().map(|(path, correction)| (path.clone(), &correction.old.head));
        let corrects = run.layout.root.join(names::CORRECTS);
        let sides = sides.chain(self.corrects.iter().map(|of| (corrects.clone(), &of.new.head)));
        for (path, head) in sides {
            is_under(&path, head, &transcript.leaves)?;
        }
        if let Some(correction) = self.first() {
            transcript.records.truncate(correction.step as usize);
        }
        Ok(())
    }
}

/// Reads a correction by the key that the run names.
fn parsed(run: &Run, file: &Stored) -> Result<Correction, RunError> {
    let malformed = |why| RunError::malformed(file.path(), why);
    let key = run.file.summary().named_key().map_err(malformed)?;
    let key = key.ok_or_else(|| {
        let why = "the run names no key, and a correction is by the key that signed the run's heads";
        RunError::invalid(file.path(), why)
    })?;
    Correction::from_bytes(&file.read(CORRECTION_MAX)?, &key).map_err(malformed)
}

/// Checks that a head is of a run.
fn is_of(run: &Run, path: &Path, what: &str, head: &Head) -> Result<(), RunError> {
    if head.run == run.id {
        return Ok(());
    }
    Err(RunError::invalid(
        path,
        format!("the correction {what} run {}, and this is run {}", head.run, run.id),
    ))
}

/// Checks that a head is over the first of these leaves.
///
/// # Errors
/// If there are fewer, or their root is another.
pub fn is_under(path: &Path, head: &Head, leaves: &[Digest]) -> Result<(), RunError> {
    let (size, here) = (head.size, leaves.len());
    let covered = usize::try_from(size).ok().and_then(|size| leaves.get(..size)).ok_or_else(|| {
        let why =
            format!("the correction is of a head over {size} records, and the run's head here covers {here}");
        RunError::invalid(path, why)
    })?;
    let root = merkle::root(covered);
    if root == head.root {
        return Ok(());
    }
    let roots = root.not(&head.root);
    let why = format!("the correction is of a head over {size} other records: the root of these is {roots}");
    Err(RunError::invalid(path, why))
}
