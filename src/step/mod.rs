//! One step with everything that its record promises. The trainer and the auditor both run this.

mod tracer;

use crate::commit::digest::Digest;
use crate::commit::record::{StepRecord, gradients_root};
use crate::commit::state::state_digest;
use crate::commit::trace::Trace;
use crate::commit::{table, tensor};
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
pub use tracer::Tamper;
pub(crate) use tracer::Tracer;

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
    /// For jobs that commit operators.
    pub trace: Option<Trace>,
    /// For jobs of the logged profile: the trainer's log and what is in it.
    pub log: Option<(Log, Logged)>,
}

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
    let Some(rounding) = &run.job.rounding else {
        return observed_step(run, session, scalars, batch, tamper, None);
    };
    let micro_batches = run.program.micro_batches;
    let mut recorder = Recorder::new(rounding, &run.program.micro, micro_batches, steer);
    let mut done = observed_step(run, session, scalars, batch, tamper, Some(&mut recorder))?;
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
        return Ok((observed_step(run, session, scalars, batch, None, None)?, Tally::default()));
    };
    if choices {
        replayer.count_choices(&run.program.micro);
    }
    let done = observed_step(run, session, scalars, batch, None, Some(&mut replayer));
    if let Some(why) = replayer.malformed() {
        return Err(RunError::malformed(&run.layout.log(scalars.step), why.clone()).into());
    }
    let mut done = done?;
    done.record.log = Some(replayer.root());
    Ok((done, replayer.tally().clone()))
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
    if let Some(why) = replayer.as_ref().and_then(Replayer::malformed) {
        return Err(RunError::malformed(&run.layout.log(scalars.step), why.clone()).into());
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
) -> Result<CommittedStep, EngineError> {
    let granularity = run.job.commit.granularity;
    let hashing = granularity == Granularity::Operator;
    let mut tracer = Tracer::new(hashing, &mut tamper, rounder);
    let mut micro_batches = Vec::new();
    let outcome = session.step(scalars, batch, &mut tracer, |session, _, gradients| {
        if granularity != Granularity::Step {
            micro_batches.push(gradient_root(session, gradients)?);
        }
        Ok(())
    })?;
    let trace = hashing.then_some(Trace { nodes: tracer.nodes });
    let state = state_digests(session)?;
    Ok(Parts { outcome, state, micro_batches, trace, log: None }.commit(run, scalars, batch))
}

/// What a step's record promises, wherever its parts were computed.
pub(crate) struct Parts {
    pub outcome: StepOutcome,
    pub state: Vec<Digest>,
    pub micro_batches: Vec<Digest>,
    pub trace: Option<Trace>,
    pub log: Option<(Log, Logged)>,
}

impl Parts {
    pub(crate) fn commit(self, run: &Run, scalars: StepScalars, batch: &[MicroBatch]) -> CommittedStep {
        let Parts { outcome, state, micro_batches, trace, log } = self;
        let record = StepRecord {
            step: scalars.step,
            state: state_root(&run.program, &state),
            batch: batch_digest(&run.program, batch),
            gradients: (!micro_batches.is_empty()).then(|| gradients_root(&micro_batches)),
            trace: trace.as_ref().map(|trace| trace.root(&run.program)),
            log: log.as_ref().map(|(log, _)| log.root()),
            learning_rate: scalars.learning_rate,
            clip: outcome.clip,
            loss: outcome.loss,
            cursor: u64::from(scalars.step) * u64::from(run.program.samples()),
        };
        CommittedStep { record, norm: outcome.norm, state, gradients: micro_batches, trace, log }
    }
}
