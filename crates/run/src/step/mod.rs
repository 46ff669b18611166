//! One step with everything that its record promises. The trainer and the auditor both run this.

pub mod finite;
mod tracer;

use crate::commit::digest::Digest;
use crate::commit::record::{StepRecord, gradients_root};
use crate::commit::state::state_digest;
use crate::commit::trace::Trace;
use crate::commit::{Malformed, table, tensor};
use crate::engine::EngineError;
use crate::engine::session::{Gradients, Session, StepOutcome, StepScalars};
use crate::job::Granularity;
use crate::job::data::batch_digest;
use crate::observers::record::{Logged, Recorder, Rounder, Steer};
use crate::observers::replay::Replayer;
use crate::observers::tally::Tally;
use crate::program::step::{MicroBatch, Program};
use crate::rounding::log::Log;
use crate::run::RunError;
use crate::run::dir::Run;
use finite::NotFinite;
pub use tracer::Tracer;
pub use tracer::{Outputs, Tamper, Watch};

/// Why a step could not be run, by blame.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The run's files.
    #[error(transparent)]
    Run(#[from] RunError),
    /// This machine.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A step's record and what it was made of.
pub struct CommittedStep {
    /// The record, as it stands in the transcript.
    pub record: StepRecord,
    /// The gradient's global norm before clipping, a binary32 pattern; no record has it.
    pub norm: u32,
    /// The state's tensor digests, in the table's order.
    pub state: Vec<Digest>,
    /// The gradient root of each micro-batch; none for jobs that commit states only.
    pub gradients: Vec<Digest>,
    /// For jobs that commit operators, and whoever watched the step for it.
    pub trace: Option<Trace>,
    /// For jobs of the logged profile: the trainer's log and what is in it.
    pub log: Option<(Log, Logged)>,
    /// Outputs of nodes that were watched.
    pub outputs: Outputs,
    /// Where values cease to be finite, if the loss is not and that was watched for.
    pub not_finite: Option<NotFinite>,
}

/// What runs a step on a session's state and commits to it, as a trainer's [`committed_step`] or a replay of it: (session, scalars, batch, what
/// is tampered with, how roundings are steered).
pub type RunStep<'a> = dyn FnMut(
        &mut Session,
        StepScalars,
        &[MicroBatch],
        Tamper,
        Option<Steer>,
    ) -> Result<CommittedStep, EngineError>
    + 'a;

/// The scalars of a step of this run.
pub fn scalars(run: &Run, step: u32) -> StepScalars {
    StepScalars { step, seed: run.key(), learning_rate: run.job.schedule.learning_rate(step, run.job.steps) }
}

/// The root over a micro-batch's gradients and loss.
///
/// # Errors
/// If the engine cannot read the gradients.
pub fn gradient_root(session: &mut Session, gradients: &Gradients) -> Result<Digest, EngineError> {
    let table = session.program().gradients();
    let mut digests = Vec::with_capacity(table.len());
    match session.gradient_roots(gradients)? {
        Some(roots) => {
            digests.extend(table.iter().zip(&roots).map(|(t, root)| tensor::digest_from_root(&t.ty(), root)))
        }
        None => session.visit_gradients(gradients, |i, bytes| {
            digests.push(tensor::digest(&table[i].ty(), bytes));
        })?,
    }
    Ok(table::root(table.iter().map(|t| t.name.as_str()).zip(&digests)))
}

/// The digests of a session's state tensors.
///
/// # Errors
/// If the engine cannot read the state.
pub fn state_digests(session: &mut Session) -> Result<Vec<Digest>, EngineError> {
    let state = session.program().state();
    if let Some(roots) = session.state_roots()? {
        let digests = state.iter().zip(&roots).map(|(t, root)| tensor::digest_from_root(&t.ty(), root));
        return Ok(digests.collect());
    }
    let mut digests = Vec::with_capacity(state.len());
    session.visit_state(|i, bytes| digests.push(tensor::digest(&state[i].ty(), bytes)))?;
    Ok(digests)
}

/// The state digest of a program's tensor digests.
pub fn state_root(program: &Program, digests: &[Digest]) -> Digest {
    state_digest(&program.state(), digests)
}

/// Runs step `scalars.step` on the session's state and commits to it, as the trainer. Jobs of the logged profile want a
/// [`Session::native`] and log their decisions, which `steer`, if any, changes.
///
/// # Errors
/// If the engine fails.
pub fn committed_step(
    run: &Run,
    session: &mut Session,
    scalars: StepScalars,
    batch: &[MicroBatch],
    tamper: Tamper,
    steer: Option<Steer>,
) -> Result<CommittedStep, EngineError> {
    recorded_step(run, session, scalars, batch, tamper, (steer, &Watch::default()))
}

/// [`committed_step`], whose operators are watched.
///
/// # Errors
/// If the engine fails.
pub fn recorded_step(
    run: &Run,
    session: &mut Session,
    scalars: StepScalars,
    batch: &[MicroBatch],
    tamper: Tamper,
    (steer, watch): (Option<Steer>, &Watch),
) -> Result<CommittedStep, EngineError> {
    let Some(rounding) = &run.job.rounding else {
        return observed_step(run, session, scalars, batch, tamper, None, watch);
    };
    let micro_batches = run.program.micro_batches;
    let mut recorder = Recorder::new(rounding, &run.program.micro, micro_batches, steer);
    let mut done = observed_step(run, session, scalars, batch, tamper, Some(&mut recorder), watch)?;
    let (log, logged) = recorder.finish();
    done.record.log = Some(log.root());
    done.log = Some((log, logged));
    Ok(done)
}

/// A replayer of a step's log, for jobs of the logged profile.
///
/// # Errors
/// If the log cannot be read, or is malformed.
pub fn replayer(run: &Run, step: u32) -> Result<Option<Replayer>, RunError> {
    let Some(rounding) = &run.job.rounding else { return Ok(None) };
    let log = run.rounding_log(step)?;
    Ok(Some(Replayer::new(rounding, &run.program.micro, log)))
}

/// Runs step `scalars.step` on the session's state and commits to it, as an auditor: rounding decisions, if there are any, are
/// taken from the run's log. `choices`: also count how each product's were chosen, and what could have been.
///
/// # Errors
/// If the engine fails, or the run's log cannot be read or is malformed.
pub fn replayed_step(
    run: &Run,
    session: &mut Session,
    scalars: StepScalars,
    batch: &[MicroBatch],
    choices: bool,
) -> Result<(CommittedStep, Tally), StepError> {
    let Some(mut replayer) = replayer(run, scalars.step)? else {
        let done = watched_step(run, session, scalars, batch, None, (None, &Watch::default()))?;
        return Ok((done, Tally::default()));
    };
    if choices {
        replayer.count_choices(&run.program.micro);
    }
    let watch = Watch::default();
    let done = watched_step(run, session, scalars, batch, None, (Some(&mut replayer), &watch));
    sound_log(run, scalars.step, &replayer)?;
    Ok((done?, replayer.tally().clone()))
}

/// [`replayed_step`] by a party of a dispute: a decision about a value that is not finite changes nothing, as the referee takes it
/// (`docs/DISPUTE.md`, section 7), so that no log stops a party but one that cannot be read.
///
/// # Errors
/// If the engine fails, or the run's log cannot be read.
pub fn disputed_step(
    run: &Run,
    session: &mut Session,
    scalars: StepScalars,
    batch: &[MicroBatch],
) -> Result<CommittedStep, StepError> {
    let mut replayer = replayer(run, scalars.step)?;
    let watch = Watch::default();
    let done = watched_step(run, session, scalars, batch, None, (replayer.as_mut(), &watch));
    if let Some(replayer) = &replayer {
        readable_log(run, scalars.step, replayer)?;
    }
    Ok(done?)
}

/// [`replayed_step`], whose operators are watched, by a trainer who may tamper with them: rounding decisions, if there are any, are the replayer's.
///
/// # Errors
/// If the engine fails.
pub fn watched_step(
    run: &Run,
    session: &mut Session,
    scalars: StepScalars,
    batch: &[MicroBatch],
    tamper: Tamper,
    (replayer, watch): (Option<&mut Replayer>, &Watch),
) -> Result<CommittedStep, EngineError> {
    let Some(replayer) = replayer else {
        return observed_step(run, session, scalars, batch, tamper, None, watch);
    };
    let mut done = observed_step(run, session, scalars, batch, tamper, Some(replayer), watch)?;
    done.record.log = Some(replayer.root());
    Ok(done)
}

/// Checks that a log that was replayed could be read to its end, and that each of its decisions is about a finite value.
///
/// # Errors
/// If it is malformed.
pub fn sound_log(run: &Run, step: u32, replayer: &Replayer) -> Result<(), RunError> {
    readable_log(run, step, replayer)?;
    replayer.void().map_or(Ok(()), |why| Err(RunError::malformed(&run.layout.log(step), why.clone())))
}

/// Checks that a log that was replayed could be read to its end.
///
/// # Errors
/// If it cannot.
pub fn readable_log(run: &Run, step: u32, replayer: &Replayer) -> Result<(), RunError> {
    let malformed = |why: &Malformed| Err(RunError::malformed(&run.layout.log(step), why.clone()));
    replayer.malformed().map_or(Ok(()), malformed)
}

/// The gradient and loss share of one micro-batch, as an auditor.
///
/// # Errors
/// If the engine fails, or the run's log cannot be read or is malformed.
pub fn replayed_micro_batch(
    run: &Run,
    session: &mut Session,
    scalars: StepScalars,
    index: u32,
    batch: &MicroBatch,
) -> Result<(Gradients, Tally), StepError> {
    let mut replayer = replayer(run, scalars.step)?;
    let mut honest = None;
    let rounder = replayer.as_mut().map(|replayer| replayer as &mut dyn Rounder);
    let mut tracer = Tracer::new(false, &mut honest, rounder);
    let gradients = session.micro_batch(scalars, index, batch, &mut tracer);
    if let Some(replayer) = &replayer {
        sound_log(run, scalars.step, replayer)?;
    }
    Ok((gradients?, replayer.map(|replayer| replayer.tally().clone()).unwrap_or_default()))
}

fn observed_step(
    run: &Run,
    session: &mut Session,
    scalars: StepScalars,
    batch: &[MicroBatch],
    mut tamper: Tamper,
    rounder: Option<&mut dyn Rounder>,
    watch: &Watch,
) -> Result<CommittedStep, EngineError> {
    let granularity = run.job.commit.granularity;
    let hashing = watch.trace || granularity == Granularity::Operator;
    let mut tracer = Tracer::new(hashing, &mut tamper, rounder).keeping(watch.outputs.clone());
    let mut micro_batches = Vec::new();
    let total = session.whole_gradient(scalars, batch, &mut tracer, |session, _, gradients| {
        if granularity != Granularity::Step {
            micro_batches.push(gradient_root(session, gradients)?);
        }
        Ok(())
    })?;
    let not_finite = match watch.finite {
        true => finite::of_step(session, scalars, batch, &total, &mut || {})?,
        false => None,
    };
    let outcome = session.update(scalars, &total, &mut tracer)?;
    drop(total);
    let (nodes, outputs) = (tracer.nodes, tracer.kept);
    let trace = hashing.then_some(Trace { nodes });
    let state = state_digests(session)?;
    let done = Parts { outcome, state, micro_batches, trace, log: None }.commit(run, scalars, batch);
    Ok(CommittedStep { outputs, not_finite, ..done })
}

/// What a step's record promises, wherever its parts were computed.
pub struct Parts {
    /// Loss, norm and clipping factor of the step.
    pub outcome: StepOutcome,
    /// The digest of every tensor of the state after the step.
    pub state: Vec<Digest>,
    /// The root of each micro-batch's gradients; empty if the job commits none.
    pub micro_batches: Vec<Digest>,
    /// The digests of all operators' outputs, if they were wanted.
    pub trace: Option<Trace>,
    /// The rounding log of the logged profile, with what it cost.
    pub log: Option<(Log, Logged)>,
}

impl Parts {
    /// The step's record, with the parts that are kept beside it.
    pub fn commit(self, run: &Run, scalars: StepScalars, batch: &[MicroBatch]) -> CommittedStep {
        let Parts { outcome, state, micro_batches, trace, log } = self;
        let operators = run.job.commit.granularity == Granularity::Operator;
        let record = StepRecord {
            step: scalars.step,
            state: state_root(&run.program, &state),
            batch: batch_digest(&run.program, batch),
            gradients: (!micro_batches.is_empty()).then(|| gradients_root(&micro_batches)),
            trace: trace.as_ref().filter(|_| operators).map(|trace| trace.root(&run.program)),
            log: log.as_ref().map(|(log, _)| log.root()),
            learning_rate: scalars.learning_rate,
            clip: outcome.clip,
            loss: outcome.loss,
            cursor: u64::from(scalars.step) * u64::from(run.program.samples()),
        };
        let (norm, gradients, outputs) = (outcome.norm, micro_batches, Outputs::new());
        CommittedStep { record, norm, state, gradients, trace, log, outputs, not_finite: None }
    }
}
