//! What the checks of a run without a replay found.

use std::path::Path;

use super::corrections::Corrections;
use super::ground::Ground;
use tiebreak_dispute::verdict::{Base64, Claim, Fork, ProvenRecord, Ruling, VERDICT_MAX, Verdict};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::run::RunError;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::transcript::Transcript;
use tiebreak_run::step::finite::LossesNotFinite;

/// The result of the checks.
pub struct Checked {
    /// The head that was audited: the run's largest.
    pub head: Head,
    /// The head's note, as text.
    pub note: String,
    /// The records that the head covers.
    pub transcript: Transcript,
    /// The signer, in words.
    pub signed: String,
    /// True if the signature was verified with a key that the auditor gave.
    pub signed_by_key: bool,
    /// Steps whose states are available and agree with their records, ascending: step 0 follows from the seed, the others have
    /// checkpoints.
    pub checkpoints: Vec<u32>,
    /// Checks that passed, in words.
    pub passed: Vec<String>,
    /// Checks that were not made, with the reason, in words.
    pub not_checked: Vec<String>,
    /// Files that are damaged or missing, with the error. No check that passed needed them; a later step that needs one meets the
    /// error again.
    pub damaged: Vec<RunError>,
    /// The reason why a match of everything under the head is no match of the run: there is no final record, or no released
    /// model.
    pub incomplete: Option<Ground>,
    /// True if the head covers the final record, and the released model is the one of that record.
    pub end_checked: bool,
    /// The reason why these records may be a shortened history or another one: the trainer signed a head that they do not reach.
    pub unreached: Option<Ground>,
    /// The first contradiction.
    pub inconsistent: Option<Inconsistent>,
    /// The corrections of the run. Records that an accepted one takes back are not judged.
    pub corrections: Corrections,
    /// The losses of the records that are not finite.
    pub(super) not_finite: Option<LossesNotFinite>,
}

/// A contradiction that needs no replay.
pub struct Inconsistent {
    /// The step of the record in question; 0 for the initial state.
    pub step: u32,
    /// The contradiction.
    pub what: Ground,
    /// The evidence from one file alone; absent if it would be too large, or if the trainer's signature is missing.
    pub verdict: Option<Verdict>,
}

impl Checked {
    /// The record of a step.
    ///
    /// # Errors
    /// If the head covers no record of that step.
    #[doc(hidden)] // for the layers above
    pub fn step(&self, step: u32) -> Result<&StepRecord, RunError> {
        match self.transcript.records.get(step as usize) {
            Some(Record::Step { step, .. }) => Ok(step),
            _ => {
                let covered = self.transcript.records.len();
                Err(RunError::Refused(format!("the head covers {covered} records, and none of step {step}")))
            }
        }
    }

    /// The record at `index` with its proof.
    #[doc(hidden)] // for the layers above
    pub fn proven(&self, index: u32) -> ProvenRecord {
        ProvenRecord {
            index: u64::from(index),
            record: Base64(self.transcript.records[index as usize].encode()),
            proof: merkle::prove(&self.transcript.leaves, index as usize),
        }
    }

    /// A verdict on the record at `index`.
    #[doc(hidden)] // for the layers above
    pub fn verdict(&self, run: &Run, index: u32, claim: Claim) -> Verdict {
        let record = Some(self.proven(index));
        Verdict::new(
            run.file.summary(),
            (run.job_text.clone(), run.program_file.clone()),
            self.note.clone(),
            record,
            claim,
        )
    }

    /// The losses of the records that are not finite. The bits of such a run can be right, but its training failed.
    #[doc(hidden)] // for the layers above
    pub fn not_finite(&self) -> Option<LossesNotFinite> {
        self.not_finite.clone()
    }

    /// Accepts a head that does not cover the run's end, for an auditor who asks for no more: the end counts as not checked.
    pub fn allow_prefix(&mut self) {
        self.not_checked.extend(self.incomplete.take().map(|why| why.to_string()));
    }

    /// The reason why the audit cannot end with a match, unless it finds a difference.
    #[doc(hidden)] // for the layers above
    pub fn undecided(&self) -> Option<Ground> {
        Ground::all([&self.unreached, &self.incomplete].into_iter().flatten().cloned().collect())
    }

    /// Notes a contradiction, unless there is an earlier one. `evidence`: the record's index, and the claim.
    pub(super) fn fail(
        &mut self,
        run: &Run,
        step: u32,
        what: Ground,
        evidence: impl FnOnce(&Checked) -> Result<(Option<u32>, Claim), RunError>,
    ) -> Result<(), RunError> {
        if self.inconsistent.is_some() {
            return Ok(());
        }
        if run.job().hides() && !what.is_in_records() {
            // Evidence would carry what the salts hide, and nobody could check it without them.
            self.inconsistent = Some(Inconsistent { step, what, verdict: None });
            return Ok(());
        }
        let (index, claim) = evidence(self)?;
        let mut verdict = self.verdict(run, index.unwrap_or(0), claim);
        if index.is_none() {
            verdict.record = None;
        }
        // A verdict whose evidence does not stand alone is dropped; only weights are too large to be carried.
        let stands =
            matches!(verdict.check(None), Ok(Ruling::Convicts(_) | Ruling::NeedsReplay { step: 0, .. }))
                && verdict.to_bytes().len() as u64 <= VERDICT_MAX;
        let verdict = stands.then_some(verdict);
        self.inconsistent = Some(Inconsistent { step, what, verdict });
        Ok(())
    }

    /// Holds the run to a head, read from `path`, that somebody else has: a witness, or somebody who downloaded the run. If these
    /// records do not reach that head, the audit stays undecided: they may be cut short, or another history.
    ///
    /// # Errors
    /// If the note is malformed, of another run, or not signed by the key that the run names.
    pub fn other_head(&mut self, run: &Run, path: &Path, note: &str) -> Result<(), RunError> {
        let named = run.file.summary().named_key().map_err(|why| RunError::malformed(path, why))?;
        let (head, _) =
            Head::from_note(note, named.as_ref()).map_err(|why| RunError::malformed(path, why))?;
        if head.run != run.id || head.size == 0 {
            let why = format!(
                "the other head is over {} records of run {}, and this is run {}",
                head.size, head.run, run.id
            );
            return Err(RunError::invalid(path, why));
        }
        if head.size > self.head.size {
            let (signed, records, here) = (named.is_some(), head.size, self.head.size);
            self.unreached = Some(Ground::Unreached { signed, records, here });
            return Ok(());
        }
        let root = merkle::root(&self.transcript.leaves[..head.size as usize]);
        if root == head.root {
            self.passed.push(format!("another head, over {} records, is of this history", head.size));
            return Ok(());
        }
        if named.is_none() {
            return Err(other_root(path, &head, &root));
        }
        self.fail(run, 0, Ground::Fork { records: head.size }, |checked| {
            let proof = merkle::prove_prefix(&checked.transcript.leaves, head.size as usize);
            Ok((None, Claim::Fork { other: note.to_string(), evidence: Fork::Prefix { proof } }))
        })
    }
}

/// The error for a head that nobody signed and that is over records with another root.
pub(super) fn other_root(path: &Path, head: &Head, root: &Digest) -> RunError {
    let (size, roots) = (head.size, root.not(&head.root));
    RunError::invalid(
        path,
        format!("the head of size {size} is not over these records, whose root is {roots}"),
    )
}
