//! An audit of a part of a run that reads no more than the part needs: the records, and the files of the steps that are replayed.
//!
//! Whoever audits a run that is far away pays for each byte, and each of many auditors would read the same files. The records are
//! checked as in every audit. A replay holds what it reads to them: the state that it begins from, its batches, and all that its
//! steps promise.

use super::attachments::{Attachments, attachments_of};
use super::checks::Checked;
use super::plan::ReplayPlan;
use super::work::Work;
use tiebreak_run::run::dir::Run;

/// Checks the files beside the records of the steps that a plan replays and that nobody replayed before.
pub fn attachments(run: &Run, checked: &Checked, plan: &ReplayPlan) -> Attachments {
    let steps = plan.segments.iter().skip(plan.done).flat_map(|&(first, last)| first..=last);
    attachments_of(run, checked, steps, &mut Work::of_part(&mut |_, _| {}))
}
