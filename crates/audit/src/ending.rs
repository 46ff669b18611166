//! The end of an audit: what a report says about the whole, once its replays are noted.

use super::checks::Checked;
use super::ground::Ground;
use super::report::{Outcome, Report};
use super::rounding;
use tiebreak_run::run::dir::Run;

/// Ends a report whose replays are noted.
pub fn end(report: &mut Report, run: &Run, checked: &Checked, native: bool) {
    if report.outcome == Outcome::Matches
        && !native
        && let Some(outcome) = rounding::without_meaning(run, report.rounding.as_ref())
    {
        report.outcome = outcome;
    }
    if let (Some(tally), Some(rounding)) = (&mut report.rounding, &run.job().rounding) {
        tally.settle(rounding.accumulation());
    }
    conclude(report, checked, run.job().steps);
    report.not_checked.extend(report.plan.left_out(run.job().steps));
    report.not_checked.extend(report.plan.of_file());
    note_what_nobody_checks(report, checked, native);
}

/// Lists the properties that no audit of this kind checks.
fn note_what_nobody_checks(report: &mut Report, checked: &Checked, native: bool) {
    if native {
        let why = "whether roundings are legal: this auditor rounded native products of its own, which have no proved bound; the \
                   audit shows replication only, and an exact engine (no --native) judges";
        report.not_checked.push(why.into());
    }
    if !checked.signed_by_key {
        report.not_checked.push("who signed the head: no --trainer-key was given".into());
    }
    report.not_checked.extend(checked.not_checked.iter().cloned());
}

/// Ends an audit that found no difference: as a match, or as incomplete if the run's end or a state that the plan needs is
/// missing.
fn conclude(report: &mut Report, checked: &Checked, steps: u32) {
    if checked.inconsistent.is_some() {
        return; // nothing after a contradiction was checked
    }
    let gap = report.plan.unreachable.map(|(first, last)| Ground::Unreachable { first, last });
    let correction = checked.corrections.first();
    let whole = correction.is_some_and(|correction| correction.step == 1);
    let none = (report.plan.steps() == 0 && !whole).then_some(Ground::NoSteps);
    let reasons: Vec<Ground> = [checked.undecided(), gap.or(none)].into_iter().flatten().collect();
    if !report.is_complete() {
        report.not_checked.extend(reasons.iter().map(Ground::to_string));
    } else if let Some(what) = Ground::all(reasons) {
        report.outcome = Outcome::Incomplete { what };
    } else if let (Some(correction), Some(what)) = (correction, checked.corrections.ground()) {
        report.outcome = Outcome::Corrected { step: correction.step, what };
    }
    if checked.end_checked && report.replayed.iter().any(|&(_, last)| last == steps) {
        let what = "the state computed for the last step is the final record's, and the released model's";
        report.checked.push(what.into());
    }
}
