//! The plan of an audit of a run that grows: the segments that a head covers so far, behind those that were replayed under earlier heads.
//!
//! A head that extends an earlier one covers the same records and more, so what was replayed under the earlier head still counts. Every
//! segment is planned: a trainer who sees which ones an auditor reads would learn from a sample where nobody will look.

use std::collections::BTreeSet;

use super::checks::Checked;
use super::plan::{Choice, ReplayPlan, plan};
use tiebreak_run::run::dir::Run;

/// The steps that a head covers.
pub fn steps_covered(run: &Run, checked: &Checked) -> u32 {
    (checked.transcript.records.len() as u32 - 1).min(run.job().steps)
}

/// Plans the segments between checkpoints that a head covers; with `ended` also the last one, at whose end no checkpoint need be.
/// `replayed` has those that were replayed before, ascending. They need no checkpoint any more, which the trainer may have removed.
pub fn plan_so_far(run: &Run, checked: &Checked, replayed: &[(u32, u32)], ended: bool) -> ReplayPlan {
    let covered = steps_covered(run, checked);
    let is_inside = |step: u32| replayed.iter().any(|&(first, last)| first <= step && step < last);
    let ends = replayed.iter().flat_map(|&(first, last)| [first - 1, last]);
    let here = || checked.checkpoints.iter().copied();
    let known: BTreeSet<u32> =
        here().filter(|&step| step <= covered && !is_inside(step)).chain(ends).collect();
    let last = if ended { covered } else { known.last().copied().unwrap_or(0) };
    let mut plan = plan(run, &Vec::from_iter(known), last, &Choice::All);
    plan.done = plan.segments.iter().zip(replayed).take_while(|(planned, done)| planned == done).count();
    // The segment behind those that were replayed may have lost its beginning, too.
    if let Some(&(first, end)) = plan.segments.get(plan.done)
        && !here().any(|step| step + 1 == first)
    {
        plan.segments.remove(plan.done);
        plan.unreachable = Some((first, end));
    }
    plan
}
