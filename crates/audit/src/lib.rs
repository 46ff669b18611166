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
pub mod answers;
pub mod attachments;
mod checked;
pub mod checks;
pub mod corrections;
pub mod coverage;
mod disputed_rounding;
pub mod disputed_step;
pub mod drawn;
mod ending;
mod final_record;
pub mod forward;
pub mod ground;
pub mod growing;
mod hidden;
pub mod localise;
pub mod merge;
mod micro_batch;
pub mod needed;
pub mod opened;
pub mod operands;
pub mod part;
mod place;
pub mod plan;
pub mod plan_file;
pub mod predictions;
mod progress;
pub mod refused;
mod replay;
mod report;
pub mod report_file;
pub mod resume;
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
pub use ground::differences;
pub use micro_batch::micro_batch;
use plan::ReplayPlan;
pub use progress::{Progress, Silent};
pub use replay::other_log;
use replay::{fast_session, session};
pub use replay::{reference_step, replay_begins_after, replay_to, replay_to_watched};
pub use report::{AuditError, Outcome, REPORT_FORMAT, Report, step_of};
use report::{Found, VERSION};
use tiebreak_dispute::verdict::Verdict;
use tiebreak_engine::{Engine, EngineError};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::states as run_states;
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
        verifier: VERSION.into(),
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
        rounding: run.job().rounding.is_some().then(|| plan.counted.clone().unwrap_or_default()),
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
            let replay = segments::Replay { run, native, checked: &checked, begun: start, end };
            replay.segments(sessions, &plan, &mut report, progress)?
        }
    };
    let verdict = found.and_then(|found| {
        report.outcome = found.outcome;
        found.verdict
    });
    if report.outcome == Outcome::Matches {
        run.answered()?;
    }
    ending::end(&mut report, run, &checked, native);
    report.seconds = start.elapsed().as_secs_f64();
    Ok((report, verdict))
}

/// True if [`estimated_seconds`], which computes two micro-batches, is a small share of a plan's work.
pub fn worth_estimating(run: &Run, plan: &ReplayPlan) -> bool {
    plan.steps() * u64::from(run.program().micro_batches) >= 40
}

/// An estimate of the seconds that the rest of a plan will take on an engine: times one micro-batch of the first step, after another one that
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
    let Some(&(first, _)) = plan.segments.get(plan.done) else { return Ok(0.0) };
    let mut session = if native { session(run, engine, true)? } else { fast_session(run, engine)? };
    let records = &checked.transcript.records;
    run_states::settled(run, records, first - 1, || {
        session.load_visited(|load| -> Result<(), AuditError> {
            run_states::visit(run, records, first - 1, load)
        })
    })?;
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
    let micro_batches = (plan.steps() - plan.steps_done()) * u64::from(run.program().micro_batches);
    Ok(start.elapsed().as_secs_f64() * micro_batches as f64)
}
