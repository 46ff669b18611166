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
mod replay;
mod report;
pub mod report_file;
pub mod rounding;
pub mod states;
pub mod watched;
pub mod weights;
pub mod work;

use std::time::{Duration, Instant};

use attachments::Damaged;
use checks::Checked;
use ground::Ground;
pub use ground::differences;
use localise::Difference;
pub use micro_batch::micro_batch;
use plan::ReplayPlan;
pub use replay::other_log;
use replay::{fast_session, same_log, session};
pub use replay::{reference_step, replay_begins_after, replay_to, replay_to_watched};
use report::Found;
pub use report::{AuditError, Outcome, REPORT_FORMAT, Report, step_of};
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_dispute::verdict::Verdict;
use tiebreak_engine::session::{KeptState, Session};
use tiebreak_engine::{Engine, EngineError};
use tiebreak_record::commit::record::StepRecord;
use tiebreak_run::observers::tally::Tally;
use tiebreak_run::run::dir::Run;
use tiebreak_run::step::{CommittedStep, StepError, gradient_root, replayed_micro_batch, replayed_step};

/// Receives an audit's progress.
pub trait Progress {
    /// Called after a step was replayed: `done` of `planned` steps are.
    fn step(&mut self, step: u32, done: u64, planned: u64);
}

/// Reports no progress.
pub struct Silent;

impl Progress for Silent {
    fn step(&mut self, _: u32, _: u64, _: u64) {}
}

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
    audit_in(run, fast_session(run, engine)?, false, checked, plan, max_time, progress)
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
    audit_in(run, session(run, engine, true)?, true, checked, plan, max_time, progress)
}

fn audit_in(
    run: &Run,
    session: Session,
    native: bool,
    checked: Checked,
    plan: ReplayPlan,
    max_time: Option<Duration>,
    progress: &mut dyn Progress,
) -> Result<(Report, Option<Verdict>), AuditError> {
    let start = Instant::now();
    let report = Report {
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
        engine: session.engine().describe(),
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
    let mut replay = Replay { run, session, native, checked: &checked, end: None, report };
    replay.end = max_time.and_then(|limit| start.checked_add(limit));
    replay.session.stop_at(replay.end);
    let found = match &checked.inconsistent {
        Some(found) => {
            let outcome = Outcome::Inconsistent { step: found.step, what: found.what.clone() };
            Some(Found { outcome, verdict: found.verdict.clone() })
        }
        None => replay.plan(&plan, progress)?,
    };
    let mut report = replay.report;
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

/// An audit under way: steps are replayed until one differs.
struct Replay<'a, 'e> {
    run: &'a Run,
    session: Session<'e>,
    native: bool,
    checked: &'a Checked,
    /// The time to stop at, if the auditor set a limit.
    end: Option<Instant>,
    report: Report,
}

impl Replay<'_, '_> {
    /// Replays a plan, and the first step that a correction takes back if nothing differs before.
    fn plan(&mut self, plan: &ReplayPlan, progress: &mut dyn Progress) -> Result<Option<Found>, AuditError> {
        let found = self.segments(plan, progress)?;
        if found.is_none() {
            self.taken_back()?;
        }
        Ok(found)
    }

    /// Replays the segments of a plan. Returns the findings about the first difference, if there is one.
    fn segments(
        &mut self,
        plan: &ReplayPlan,
        progress: &mut dyn Progress,
    ) -> Result<Option<Found>, AuditError> {
        let (run, planned) = (self.run, plan.steps());
        let mut dataset = run.dataset()?;
        let mut done = 0;
        for &(first, last) in &plan.segments {
            self.session.load(&checks::state_after(run, self.checked, first - 1)?)?;
            self.report.replayed.push((first, first - 1));
            for step in first..=last {
                if self.end.is_some_and(|end| Instant::now() > end) {
                    return Ok(self.out_of_time(step));
                }
                let batch = run.batch(&mut dataset, step)?;
                let found = match self.step(step, &batch) {
                    Err(AuditError::Engine(EngineError::OutOfTime)) => return Ok(self.out_of_time(step)),
                    found => found?,
                };
                done += 1;
                progress.step(step, done, planned);
                if found.is_some() {
                    return Ok(found);
                }
                if let Some(replayed) = self.report.replayed.last_mut() {
                    replayed.1 = step;
                }
            }
        }
        Ok(None)
    }

    /// Notes that the time ended before `step` was replayed.
    fn out_of_time(&mut self, step: u32) -> Option<Found> {
        self.report.not_checked.push(format!("steps from {step} of the plan: --max-time was reached"));
        None
    }

    /// Replays one step. Returns the findings about a difference, if there is one.
    fn step(&mut self, step: u32, batch: &[MicroBatch]) -> Result<Option<Found>, AuditError> {
        let (run, theirs) = (self.run, self.checked.step(step)?);
        let before = self.session.keep_state()?;
        rounding::check_log(run, step, theirs)?;
        let (mine, tally) = self.replayed(step, batch, &before, theirs)?;
        same_log(run, &mine.record, theirs)?;
        if let (Some(all), Some(rounding)) = (&mut self.report.rounding, &run.job().rounding) {
            all.add(step, &tally, rounding.accumulation());
        }
        let without_verdict = |outcome| Ok(Some(Found { outcome, verdict: None }));
        let same = mine.record == *theirs;
        if self.native && !same {
            return without_verdict(rounding::not_replicated(step, &mine.record, theirs));
        }
        // A decision may be about other operands than these if the records differ: one decision that an honest trainer's log
        // lacks would make later ones look wrong. If the records agree, all operands of the decisions agree.
        if let Some(illegal) = tally.first_illegal.as_ref().filter(|_| same) {
            let before = self.session.kept_bytes(&before)?;
            return self.difference(&before, batch, &mine).illegal(illegal).map(Some);
        }
        if mine.trace.is_none()
            && run.job().rounding.is_some()
            && rounding::may_lack_a_decision(&mine.record, theirs)
        {
            return without_verdict(rounding::missing(step, &mine.record, theirs));
        }
        if same {
            return Ok(None);
        }
        let before = self.session.kept_bytes(&before)?;
        self.difference(&before, batch, &mine).localise().map(Some)
    }

    /// A step's replay. Native products decide nothing but a match: any other outcome is that of exact products.
    fn replayed(
        &mut self,
        step: u32,
        batch: &[MicroBatch],
        before: &KeptState,
        theirs: &StepRecord,
    ) -> Result<(CommittedStep, Tally), AuditError> {
        if self.session.is_native() && !self.native {
            match replayed_step(self.run, &mut self.session, step, batch, true) {
                Ok((mine, tally)) if mine.record == *theirs && tally.illegal == 0 => {
                    return Ok((mine, tally));
                }
                Err(StepError::Engine(error @ EngineError::OutOfTime)) => return Err(error.into()),
                _ => {
                    self.session.compute_exactly()?;
                    let before = self.session.kept_bytes(before)?;
                    self.session.load(&before)?;
                }
            }
        }
        Ok(replayed_step(self.run, &mut self.session, step, batch, !self.native)?)
    }

    /// Replays the first step that a correction takes back, if the state before it is at hand, and says which of its two records comes
    /// out. Nobody is accused: the corrected run has an audit of its own.
    fn taken_back(&mut self) -> Result<(), AuditError> {
        let (run, checked) = (self.run, self.checked);
        let Some(correction) = checked.corrections.first() else { return Ok(()) };
        let step = correction.step;
        let seeded = step == 1 && checked.checkpoints.contains(&0);
        let reached = self.report.replayed.last().map_or(seeded, |&(_, last)| last + 1 == step);
        if !reached || run.job().rounding.is_some() {
            let why = format!(
                "which record of step {step} is right: no state before it was at hand, or roundings are logged"
            );
            self.report.not_checked.push(why);
            return Ok(());
        }
        if self.report.replayed.is_empty() {
            self.session.load(&checks::state_after(run, checked, 0)?)?;
        }
        let batch = run.batch(&mut run.dataset()?, step)?;
        let before = self.session.keep_state()?;
        let mine = match self.replayed(step, &batch, &before, &correction.old.record) {
            Err(AuditError::Engine(EngineError::OutOfTime)) => {
                self.out_of_time(step);
                return Ok(());
            }
            replayed => replayed?.0.record,
        };
        let report = &mut self.report;
        if mine == correction.new.record {
            report
                .checked
                .push(format!("step {step} comes out as the corrected run's record says, not as the other"));
        } else if mine == correction.old.record {
            report.not_checked.push(format!(
                "why step {step} was corrected: it comes out as the record that was taken back"
            ));
        } else {
            let why = "the corrected run's record of step";
            report.not_checked.push(format!("{why} {step}: here the step comes out as neither record says"));
        }
        Ok(())
    }

    /// The data needed to localise a difference. The engine frees idle memory first.
    fn difference<'a>(
        &'a mut self,
        before: &'a [Vec<u8>],
        batch: &'a [MicroBatch],
        mine: &'a CommittedStep,
    ) -> Difference<'a> {
        self.session.engine_mut().release();
        let Replay { run, checked, end, report, .. } = self;
        Difference { run, checked, before, batch, mine, engine: &report.engine, end: *end }
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
