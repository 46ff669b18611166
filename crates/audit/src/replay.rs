//! An auditor's sessions, and how they reach the state before a step.

use std::sync::Arc;
use std::time::Instant;

use super::checks::{self, Checked};
use super::ground::{Differences, differences};
use super::report::AuditError;
use tiebreak_contract::program::phase::{graph_of, phases};
use tiebreak_engine::Engine;
use tiebreak_engine::reference::{ReferenceUntil, operations};
use tiebreak_engine::session::Session;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::StepRecord;
use tiebreak_record::rounding::thresholds::Rounding;
use tiebreak_run::observers::tally::Tally;
use tiebreak_run::run::checked::Watch;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::states::Checkpoints;
use tiebreak_run::run::{RunError, states};
use tiebreak_run::step::{CommittedStep, replayed_step};

/// Receives a step's progress: arithmetic operations done, and their total.
pub type StepWatch<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// An auditor's session that gives what an exact one does, faster where it can. In the logged profile on grids finer than bfloat16,
/// native products decide most roundings, if the engine knows how much they err (`docs/ROUNDING.md`, section 4).
pub(super) fn fast_session<'e>(run: &Run, engine: &'e mut dyn Engine) -> Result<Session<'e>, AuditError> {
    let fine = |rounding: &Rounding| rounding.rule().is_wide() && !rounding.is_paper();
    let filtered = run.job().rounding.as_ref().is_some_and(fine) && engine.binary64_roundings(1).is_some();
    let program = Arc::new(run.program().clone());
    Ok(if filtered { Session::native(engine, program)? } else { Session::new(engine, program)? })
}

/// An auditor's session: exact, or with native products.
pub(super) fn session<'e>(
    run: &Run,
    engine: &'e mut dyn Engine,
    native: bool,
) -> Result<Session<'e>, AuditError> {
    let program = Arc::new(run.program().clone());
    if !native {
        return Ok(Session::new(engine, program)?);
    }
    if !run.job().rounding.as_ref().is_some_and(Rounding::is_paper) {
        let why = "only a run whose job has rounding.preset = \"paper\" is audited natively";
        return Err(AuditError::Limit(why.into()));
    }
    Ok(Session::native(engine, program)?)
}

/// Brings a session to the state before `step`, from the nearest available state through the steps between. If one of these steps
/// differs from its record, it is returned with the difference.
///
/// # Errors
/// If the engine fails, or a file that the steps need cannot be read or is malformed.
pub fn replay_to(
    run: &Run,
    checked: &Checked,
    session: &mut Session,
    step: u32,
) -> Result<Option<(u32, Differences)>, AuditError> {
    replay_to_watched(run, checked, session, step, &mut |_, _| {})
}

/// [`replay_to`], with its progress: steps done, and their total.
///
/// # Errors
/// As [`replay_to`].
pub fn replay_to_watched(
    run: &Run,
    checked: &Checked,
    session: &mut Session,
    step: u32,
    watch: Watch,
) -> Result<Option<(u32, Differences)>, AuditError> {
    let from = load_nearest(run, checked, session, step, false)?;
    replay_from(run, checked, session, (from, step), watch)
}

/// [`replay_to`] for a session that computes gradients of the step alone.
pub(super) fn replay_to_gradients(
    run: &Run,
    checked: &Checked,
    session: &mut Session,
    step: u32,
) -> Result<Option<(u32, Differences)>, AuditError> {
    let from = load_nearest(run, checked, session, step, true)?;
    replay_from(run, checked, session, (from, step), &mut |_, _| {})
}

/// Replays the steps between a session's state, which is the one after `from`, and `step`.
fn replay_from(
    run: &Run,
    checked: &Checked,
    session: &mut Session,
    (from, step): (u32, u32),
    watch: Watch,
) -> Result<Option<(u32, Differences)>, AuditError> {
    let mut dataset = run.dataset()?;
    for between in from + 1..step {
        let batch = run.batch(&mut dataset, between)?;
        let (mine, _) = replayed_step(run, session, between, &batch, false)?;
        let different = differences(&mine.record, checked.step(between)?);
        if !different.0.is_empty() {
            return Ok(Some((between, different)));
        }
        watch(u64::from(between - from), u64::from(step - from - 1));
    }
    Ok(None)
}

/// Takes the tensors of a state, one after another.
type Load<'a> = dyn FnMut(usize, &[u8]) -> Result<(), AuditError> + 'a;

/// Loads the nearest state before a step, tensor by tensor, and returns that state's step. Damaged checkpoints are skipped. What only an
/// update reads is left out if the state is the one before the step, and `gradients_only`.
fn load_nearest(
    run: &Run,
    checked: &Checked,
    session: &mut Session,
    step: u32,
    gradients_only: bool,
) -> Result<u32, AuditError> {
    let records = &checked.transcript.records;
    let steps = run.checkpoint_steps()?.into_iter().rev().filter(|&at| 0 < at && at < step);
    for at in steps.chain([0]) {
        let visit = |load: &mut Load| states::visit(run, records, at, load);
        let loaded = states::settled(run, records, at, || match gradients_only && at + 1 == step {
            true => session.load_read(visit),
            false => session.load_visited(visit),
        });
        match loaded {
            Err(AuditError::Run(_)) if at > 0 => {}
            loaded => return loaded.map(|()| at),
        }
    }
    unreachable!("the last state is returned, or its error")
}

/// The nearest state before a step, with that state's step. Damaged checkpoints are skipped.
pub(super) fn nearest_state(
    run: &Run,
    checked: &Checked,
    step: u32,
) -> Result<(u32, Vec<Vec<u8>>), RunError> {
    match states::nearest_checkpoint(run, &checked.transcript.records, step)? {
        Some(found) => Ok(found),
        None => Ok((0, checks::state_after(run, checked, 0)?)),
    }
}

/// The step of the state from which a replay of `step` begins.
///
/// # Errors
/// If there is none, since a run that does not begin from its seed lacks its first checkpoint.
pub fn replay_begins_after(run: &Run, checked: &Checked, step: u32) -> Result<u32, RunError> {
    let records = &checked.transcript.records;
    let mut steps = run.checkpoint_steps()?.into_iter().rev().filter(|&at| 0 < at && at < step);
    let checkpoints = Checkpoints::of(run);
    match steps.find(|&at| checkpoints.check(records, at).is_ok()) {
        Some(at) => Ok(at),
        None => {
            states::settled(run, records, 0, || states::visit(run, records, 0, |_, _| Ok(()))).map(|()| 0)
        }
    }
}

/// Replays one step from a state with the scalar reference. `theirs`: the step's record.
///
/// # Errors
/// If the run's data or log cannot be read or is malformed, or the log is not the one that the record commits.
pub fn reference_step(
    run: &Run,
    before: &[Vec<u8>],
    theirs: &StepRecord,
) -> Result<(CommittedStep, Tally), AuditError> {
    reference_step_on(run, before, theirs, ReferenceUntil::default(), None)
}

/// [`reference_step`], with its progress: arithmetic operations done, and their total.
///
/// # Errors
/// As [`reference_step`].
pub(super) fn reference_step_watched(
    run: &Run,
    before: &[Vec<u8>],
    theirs: &StepRecord,
    watch: StepWatch,
) -> Result<(CommittedStep, Tally), AuditError> {
    let phases = phases(run.program().micro_batches);
    let graphs = phases.into_iter().map(|phase| operations(graph_of(run.program(), phase)));
    let (mut done, all) = (0u64, graphs.fold(0, u64::saturating_add));
    let mut counted = |operations: u64| {
        done = done.saturating_add(operations).min(all);
        watch(done, all);
    };
    let reference = ReferenceUntil { watch: Some(&mut counted), end: None };
    reference_step_on(run, before, theirs, reference, None)
}

/// [`reference_step`] on this reference engine, until `end`.
///
/// # Errors
/// As [`reference_step`]; [`tiebreak_engine::EngineError::OutOfTime`] if the time ends first.
pub(super) fn reference_step_on(
    run: &Run,
    before: &[Vec<u8>],
    theirs: &StepRecord,
    reference: impl Engine,
    end: Option<Instant>,
) -> Result<(CommittedStep, Tally), AuditError> {
    let mut session = Session::new(reference, Arc::new(run.program().clone()))?;
    session.stop_at(end);
    session.load(before)?;
    let batch = run.batch(&mut run.dataset()?, theirs.step)?;
    let done = replayed_step(run, &mut session, theirs.step, &batch, false)?;
    same_log(run, &done.0.record, theirs)?;
    Ok(done)
}

/// Checks that a replay read the log that the record commits: the file may have changed since it was checked.
///
/// # Errors
/// If the replay read another log.
pub(super) fn same_log(run: &Run, mine: &StepRecord, theirs: &StepRecord) -> Result<(), AuditError> {
    if mine.log == theirs.log { Ok(()) } else { Err(other_log(run, theirs.step, mine.log, theirs.log)) }
}

/// The error for a log that is not the committed one, by the roots of both.
pub fn other_log(run: &Run, step: u32, found: Option<Digest>, due: Option<Digest>) -> AuditError {
    let [found, due] = [found, due].map(|root| root.map_or("none".into(), |root| root.short()));
    let why = format!(
        "it is not the rounding log that the record commits (root {found}, not {due}); get this file from the trainer again"
    );
    RunError::malformed(&run.layout.log(step), Malformed::invalid("rounding log", why)).into()
}
