//! The plan of an audit of a run that grows: the segments that a head covers so far, behind those that were replayed under earlier heads.
//!
//! A head that extends an earlier one covers the same records and more, so what was replayed under the earlier head still counts. Every
//! segment is planned: a trainer who sees which ones an auditor reads would learn from a sample where nobody will look.

use std::collections::BTreeSet;

use super::checks::{Checked, damaged_text};
use super::plan::{Choice, ReplayPlan, plan};
use tiebreak_job::initial::InitialOrigin;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::states::Checkpoints;

/// The steps that a head covers.
pub fn steps_covered(run: &Run, checked: &Checked) -> u32 {
    (checked.transcript.records.len() as u32 - 1).min(run.job().steps)
}

/// Passes over checkpoints that are damaged: those behind the replayed steps, from which a segment may begin.
pub fn pass_over_damaged(run: &Run, checked: &mut Checked, replayed: &[(u32, u32)]) {
    let (end, all) = (replayed.last().map_or(0, |&(_, end)| end), Checkpoints::of(run));
    for step in checked.checkpoints.clone() {
        let is_seeded = step == 0 && run.file.origin == InitialOrigin::Seed;
        if step < end || is_seeded {
            continue;
        }
        if let Err(error) = all.check(&checked.transcript.records, step) {
            checked.checkpoints.retain(|other| *other != step);
            checked.not_checked.push(damaged_text(&error));
            checked.damaged.push(error);
        }
    }
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
        // An earlier state does as well: the steps behind it are replayed again.
        if let Some(before) = here().filter(|step| step + 1 < first).max()
            && let kept = replayed.partition_point(|&(_, last)| last <= before)
            && kept < replayed.len()
        {
            return plan_so_far(run, checked, &replayed[..kept], ended);
        }
        plan.segments.remove(plan.done);
        plan.unreachable = Some((first, end));
    }
    plan
}
