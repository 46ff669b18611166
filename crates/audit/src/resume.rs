//! Going on with a shard that was interrupted, from the report that its auditor had signed before.
//!
//! Only the auditor's own signature counts: anybody can write a report that says that segments match.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::checks::Checked;
use super::coverage::plan_of;
use super::plan::{Choice, ReplayPlan};
use super::report::{Outcome, VERSION};
use super::report_file::{Account, decode};
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::run::dir::Run;

/// An audit that may go on from a report.
pub struct Resumable<'a> {
    /// The checks of this audit.
    pub checked: &'a Checked,
    /// Its plan.
    pub plan: &'a ReplayPlan,
    /// Its engines, as a report names them.
    pub engine: &'a str,
    /// True if native products are replayed.
    pub native: bool,
    /// The auditor.
    pub auditor: &'a PublicKey,
}

/// The fields of a report that a merge does not need.
#[derive(Deserialize)]
struct Beside {
    verifier: Option<String>,
    engine: String,
    rounding: Option<IgnoredAny>,
}

/// True if an interrupted audit of the run can be gone on with. A report does not hold all counts of a logged run, nor what came of the
/// step that a correction takes back.
pub fn can_resume(run: &Run, checked: &Checked) -> bool {
    run.job().rounding.is_none() && checked.corrections.first().is_none()
}

impl Resumable<'_> {
    /// The report in these bytes with its plan, if it is this auditor's, of this version and engine, of this run, and so far a match.
    fn mine(&self, bytes: &[u8]) -> Result<(Account, ReplayPlan), String> {
        let none = "it is no report that this version reads";
        let (account, auditor) = decode(bytes).map_err(|_| none)?;
        let plan = plan_of(bytes, &account).map_err(|_| none)?;
        let beside: Beside = serde_json::from_slice(bytes).map_err(|_| none)?;
        if auditor.as_ref() != Some(self.auditor) {
            let found = auditor.map_or("nobody".to_string(), |key| key.identified());
            return Err(format!("{found} signed it, and --key is {}", self.auditor.identified()));
        }
        if account.run != self.checked.head.run {
            let (theirs, records) = (account.run, account.head_size);
            let here = self.checked.head.run;
            return Err(format!(
                "it is of run {theirs} under a head over {records} records, and here is run {here}"
            ));
        }
        let verifier = beside.verifier.unwrap_or_default();
        if verifier != VERSION {
            return Err(format!("version {verifier:?} of this program wrote it, and this is {VERSION:?}"));
        }
        if beside.engine != self.engine || account.native != self.native {
            return Err(format!("its engine was {}, and here it is {}", beside.engine, self.engine));
        }
        if account.outcome != Outcome::Matches || beside.rounding.is_some() {
            return Err("it does not end with a match so far".into());
        }
        Ok((account, plan))
    }

    /// The number of the plan's first segments that the report in these bytes says to match.
    ///
    /// # Errors
    /// If it is not this auditor's unfinished report of this audit, in words.
    pub fn done(&self, bytes: &[u8]) -> Result<usize, String> {
        let (account, plan) = self.mine(bytes)?;
        let Head { size, root, .. } = self.checked.head;
        if (account.head_size, account.head_root) != (size, root) {
            let (theirs, here) = (account.head_size, account.head_root);
            return Err(format!(
                "it is under a head over {theirs} records, {here}; here the head is over {size}, {root}"
            ));
        }
        if !plan.is_same(self.plan) {
            return Err("it is of other segments".into());
        }
        let segments = account.replayed.iter().zip(&plan.segments);
        let done = segments.take_while(|(replayed, segment)| replayed == segment).count();
        // The segment in which an audit ended is replayed as a whole.
        match done < plan.segments.len() && account.replayed.len() <= done + 1 {
            true => Ok(done),
            false => Err("it is finished".into()),
        }
    }

    /// The segments that the report in these bytes says to match under this head or an earlier one, ascending.
    ///
    /// # Errors
    /// If it is not this auditor's report of all segments, or its head is none of this history, in words.
    pub fn done_earlier(&self, bytes: &[u8]) -> Result<Vec<(u32, u32)>, String> {
        let (account, plan) = self.mine(bytes)?;
        let leaves = usize::try_from(account.head_size)
            .ok()
            .and_then(|size| self.checked.transcript.leaves.get(..size));
        let Some(leaves) = leaves else {
            let (theirs, here) = (account.head_size, self.checked.head.size);
            return Err(format!("it is under a head over {theirs} records, and here are {here}"));
        };
        if merkle::root(leaves) != account.head_root {
            let theirs = account.head_size;
            return Err(format!("its first {theirs} records are another history than those here"));
        }
        if plan.choice != Choice::All || plan.shard.is_some() || plan.file.is_some() {
            return Err("it is of some segments, and not of all".into());
        }
        let segments = account.replayed.iter().zip(plan.segments);
        Ok(segments.map_while(|(replayed, segment)| (*replayed == segment).then_some(segment)).collect())
    }
}
