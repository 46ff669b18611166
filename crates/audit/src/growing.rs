//! The plan of an audit of a run that grows: the segments that a head covers so far, behind those that were replayed under earlier heads.
//!
//! A head that extends an earlier one covers the same records and more, so what was replayed under the earlier head still counts.

use std::collections::BTreeSet;

use super::checks::Checked;
use super::plan::{Choice, ReplayPlan, bytes_read, plan};
use tiebreak_run::run::dir::Run;

/// The steps that a head covers.
pub fn steps_covered(run: &Run, checked: &Checked) -> u32 {
    (checked.transcript.records.len() as u32 - 1).min(run.job().steps)
}

/// True if a head covers a run to its end.
pub fn is_ended(run: &Run, checked: &Checked) -> bool {
    checked.transcript.records.len() as u64 == u64::from(run.job().steps) + 2
}

/// Plans the whole segments that a head covers. `replayed` has those that were replayed before, ascending; the plan begins with them
/// where the choice still has them.
///
/// A sample is drawn among the segments between all checkpoints that the job promises, so that each head brings another part of one
/// sample. A range is not for growing runs.
pub fn plan_so_far(run: &Run, checked: &Checked, choice: &Choice, replayed: &[(u32, u32)]) -> ReplayPlan {
    let (covered, steps) = (steps_covered(run, checked), run.job().steps);
    let is_inside = |step: u32| replayed.iter().any(|&(first, last)| first <= step && step < last);
    let starts = replayed.iter().map(|&(first, _)| first - 1);
    let known = checked.checkpoints.iter().copied().filter(|&step| step <= covered && !is_inside(step));
    let known: BTreeSet<u32> = known.chain(starts).collect();
    let mut plan = match choice {
        Choice::Sample { .. } => {
            let promised: Vec<u32> =
                (0..=steps).filter(|&step| step == 0 || run.job().is_checkpoint(step)).collect();
            let mut plan = plan(run, &promised, steps, choice);
            plan.segments.retain(|&(_, last)| last <= covered);
            // The trainer may keep the last checkpoints alone.
            let is_lost = |segment: &(u32, u32)| !known.contains(&(segment.0 - 1));
            plan.unreachable = plan.segments.iter().copied().find(is_lost);
            plan.segments.retain(|segment| !is_lost(segment));
            plan.bytes = bytes_read(run, &plan.segments);
            plan
        }
        Choice::All | Choice::Range(..) => {
            let last = if is_ended(run, checked) { Some(covered) } else { known.last().copied() };
            plan(run, &Vec::from_iter(known), last.unwrap_or(0), choice)
        }
    };
    plan.done = plan.segments.iter().zip(replayed).take_while(|(planned, done)| planned == done).count();
    plan
}
