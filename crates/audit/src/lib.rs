//! Audits: is a run what its job says, bit for bit?
//!
//! Every audit first makes the checks that need no replay ([`checks`]). Then it replays checkpoint segments ([`plan`]) until
//! something differs, and finds the cause ([`localise`]). An audit says that a run *matches* or *diverges*; only a verdict whose
//! evidence stands alone *convicts*.
//!
//! The crate changes nothing in a run's folder, and trusts nothing in it: files are parsed with bounds, and a difference is a
//! result, not an error.
//!
//! Start with [`checks::always`], [`plan::plan`] and [`audit`], in this order; the package's `examples/audit.rs` shows all three.
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

mod afterwards;
pub mod attachments;
pub mod checks;
pub mod corrections;
pub mod coverage;
mod disputed_rounding;
pub mod disputed_step;
pub mod drawn;
pub mod forward;
pub mod ground;
mod hidden;
pub mod localise;
pub mod merge;
mod micro_batch;
pub mod needed;
pub mod opened;
pub mod operands;
mod place;
pub mod plan;
mod progress;
mod replay;
mod report;
pub mod report_file;
pub mod rounding;
mod segments;
pub mod shard;
pub mod states;
pub mod watched;
pub mod weights;
pub mod work;

use std::time::{Duration, Instant};

use attachments::Damaged;
use checks::Checked;
use ground::Ground;
pub use ground::differences;
pub use micro_batch::micro_batch;
use plan::ReplayPlan;
pub use progress::{Progress, Silent};
pub use replay::other_log;
use replay::{fast_session, session};
pub use replay::{reference_step, replay_begins_after, replay_to, replay_to_watched};
use report::Found;
pub use report::{AuditError, Outcome, REPORT_FORMAT, Report, step_of};
use tiebreak_dispute::verdict::Verdict;
use tiebreak_engine::{Engine, EngineError};
use tiebreak_run::observers::tally::Tally;
use tiebreak_run::run::dir::Run;
use tiebreak_run::step::{StepError, gradient_root, replayed_micro_batch};

/// Replays the segments of `plan` on `engine` after the checks that made `checked`. A divergence comes with its
/// verdict.
///
/// # Errors
/// If the engine fails, or a file that the plan needs cannot be read or is malformed. A difference is no error, nor is the end of
/// `max_time`: the report lists the steps that were not replayed.
pub fn audit(
    run: &Run,
    engine: &mut dyn Engine,
    checked: Checked,
    plan: ReplayPlan,
    max_time: Option<Duration>,
    progress: &mut dyn Progress,
) -> Result<(Report, Option<Verdict>), AuditError> {
    audit_in_jobs(run, &mut [engine], false, checked, plan, max_time, progress)
}

/// Audits a run in the paper's preset by an engine whose native kernels compute the products again. A match shows only that the
/// log makes two such machines agree: no rounding is judged, and no difference accuses anybody.
///
/// # Errors
/// As [`audit`]; also if the run is not in the paper's preset.
pub fn audit_natively(
    run: &Run,
    engine: &mut dyn Engine,
    checked: Checked,
    plan: ReplayPlan,
    max_time: Option<Duration>,
    progress: &mut dyn Progress,
) -> Result<(Report, Option<Verdict>), AuditError> {
    audit_in_jobs(run, &mut [engine], true, checked, plan, max_time, progress)
}

/// [`audit`], or with `native` [`audit_natively`], on several engines, each of which replays a segment of its own at a time. The
/// outcome, its verdict and the counts are those of one engine: what jobs replay behind the first difference counts for nothing.
///
/// # Errors
/// As [`audit_natively`]; also if there is no engine.
pub fn audit_in_jobs(
    run: &Run,
    engines: &mut [&mut dyn Engine],
    native: bool,
    checked: Checked,
    plan: ReplayPlan,
    max_time: Option<Duration>,
    progress: &mut dyn Progress,
) -> Result<(Report, Option<Verdict>), AuditError> {
    let start = Instant::now();
    let sessions = engines.iter_mut().map(|engine| match native {
        true => session(run, *engine, true),
        false => fast_session(run, *engine),
    });
    let sessions = sessions.collect::<Result<Vec<_>, _>>()?;
    let mut report = Report {
        format: REPORT_FORMAT,
        run: run.id,
        computation: run.computation.id,
        job: run.job().digest(),
        data: run.file.summary().data,
        steps: run.job().steps,
        signed: checked.signed.clone(),
        head_size: checked.head.size,
        head_root: checked.head.root,
        end_checked: checked.end_checked,
        engine: segments::described(&sessions)?,
        native,
        outcome: Outcome::Matches,
        checked: checked.passed.clone(),
        not_checked: Vec::new(),
        damaged: checked.damaged.iter().map(|error| Damaged::of(run, error)).collect(),
        corrections: checked.corrections.listed(),
        not_finite: checked.not_finite(),
        replayed: Vec::new(),
        plan: plan.clone(),
        rounding: run.job().rounding.is_some().then(Tally::default),
        seconds: 0.0,
        auditor: None,
    };
    let found = match &checked.inconsistent {
        Some(found) => {
            let outcome = Outcome::Inconsistent { step: found.step, what: found.what.clone() };
            Some(Found { outcome, verdict: found.verdict.clone() })
        }
        None => {
            let end = max_time.and_then(|limit| start.checked_add(limit));
            let replay = segments::Replay { run, native, checked: &checked, end };
            replay.segments(sessions, &plan, &mut report, progress)?
        }
    };
    let verdict = found.and_then(|found| {
        report.outcome = found.outcome;
        found.verdict
    });
    if report.outcome == Outcome::Matches
        && !native
        && let Some(outcome) = rounding::without_meaning(run, report.rounding.as_ref())
    {
        report.outcome = outcome;
    }
    if let (Some(tally), Some(rounding)) = (&mut report.rounding, &run.job().rounding) {
        tally.settle(rounding.accumulation());
    }
    conclude(&mut report, &checked, run.job().steps);
    report.not_checked.extend(plan.left_out(run.job().steps));
    note_what_nobody_checks(&mut report, &checked, native);
    report.seconds = start.elapsed().as_secs_f64();
    Ok((report, verdict))
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

/// True if [`estimated_seconds`], which computes two micro-batches, is a small share of a plan's work.
pub fn worth_estimating(run: &Run, plan: &ReplayPlan) -> bool {
    plan.steps() * u64::from(run.program().micro_batches) >= 40
}

/// An estimate of the seconds that a plan will take on an engine: times one micro-batch of the first step, after another one that
/// absorbs the engine's one-time work.
///
/// # Errors
/// If the engine fails, or a file that the first step needs cannot be read or is malformed.
pub fn estimated_seconds(
    run: &Run,
    engine: &mut dyn Engine,
    native: bool,
    checked: &Checked,
    plan: &ReplayPlan,
) -> Result<f64, AuditError> {
    let Some(&(first, _)) = plan.segments.first() else { return Ok(0.0) };
    let mut session = if native { session(run, engine, true)? } else { fast_session(run, engine)? };
    session.load(&checks::state_after(run, checked, first - 1)?)?;
    let batch = run.micro_batch(&mut run.dataset()?, first, 0)?;
    let mut start = Instant::now();
    for _ in 0..2 {
        start = Instant::now();
        let replayed = match replayed_micro_batch(run, &mut session, first, 0, &batch) {
            Err(StepError::Engine(EngineError::Stopped(_))) if session.is_native() && !native => {
                session.compute_exactly()?;
                replayed_micro_batch(run, &mut session, first, 0, &batch)
            }
            replayed => replayed,
        };
        let (gradients, _) = replayed?;
        gradient_root(&mut session, &gradients)?; // waits for the engine
    }
    let micro_batches = plan.steps() * u64::from(run.program().micro_batches);
    Ok(start.elapsed().as_secs_f64() * micro_batches as f64)
}
