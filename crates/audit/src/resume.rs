//! Going on with a shard that was interrupted, from the report that its auditor had signed before.
//!
//! Only the auditor's own signature counts: anybody can write a report that says that segments match.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::checks::Checked;
use super::coverage::plan_of;
use super::plan::ReplayPlan;
use super::report::{Outcome, VERSION};
use super::report_file::decode;
use tiebreak_record::commit::keys::PublicKey;
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
    /// The number of the plan's first segments that the report in these bytes says to match.
    ///
    /// # Errors
    /// If it is not this auditor's unfinished report of this audit, in words.
    pub fn done(&self, bytes: &[u8]) -> Result<usize, String> {
        let none = "it is no report that this version reads";
        let (account, auditor) = decode(bytes).map_err(|_| none)?;
        let plan = plan_of(bytes, &account).map_err(|_| none)?;
        let beside: Beside = serde_json::from_slice(bytes).map_err(|_| none)?;
        if auditor.as_ref() != Some(self.auditor) {
            let found = auditor.map_or("nobody".to_string(), |key| key.identified());
            return Err(format!("{found} signed it, and --key is {}", self.auditor.identified()));
        }
        let Head { run, size, root } = self.checked.head;
        if (account.run, account.head_size, account.head_root) != (run, size, root) {
            let (theirs, here) = (account.head_size, account.head_root);
            return Err(format!(
                "it is of run {} under a head over {theirs} records, {here}; here run {run} has one over {size}, {root}",
                account.run
            ));
        }
        let verifier = beside.verifier.unwrap_or_default();
        if verifier != VERSION {
            return Err(format!("version {verifier:?} of this program wrote it, and this is {VERSION:?}"));
        }
        if !plan.is_same(self.plan) {
            return Err("it is of other segments".into());
        }
        if beside.engine != self.engine || account.native != self.native {
            return Err(format!("its engine was {}, and here it is {}", beside.engine, self.engine));
        }
        if account.outcome != Outcome::Matches || beside.rounding.is_some() {
            return Err("it does not end with a match so far".into());
        }
        let segments = account.replayed.iter().zip(&plan.segments);
        let done = segments.take_while(|(replayed, segment)| replayed == segment).count();
        // The segment in which an audit ended is replayed as a whole.
        match done < plan.segments.len() && account.replayed.len() <= done + 1 {
            true => Ok(done),
            false => Err("it is finished".into()),
        }
    }
}
