//! One step with everything that its record promises. Trainer and auditor both run this code.

mod digests;
pub mod finite;
mod replayed;
mod tracer;
mod unread;

use crate::observers::record::{Logged, Recorder, Rounder, Steer};
use crate::observers::replay::Replayer;
use crate::run::RunError;
pub use digests::{gradient_root, noted_digests, state_digests};
use finite::NotFinite;
pub use replayed::{disputed_step, readable_log, replayed_micro_batch, replayed_step, replayer};
use tiebreak_contract::program::step::{MicroBatch, Program};
use tiebreak_engine::EngineError;
use tiebreak_engine::session::{Session, StepOutcome, StepScalars};
use tiebreak_job::Granularity;
use tiebreak_job::computation::Computation;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::{StepRecord, gradients_root};
use tiebreak_record::commit::state::state_digest;
use tiebreak_record::commit::trace::Trace;
use tiebreak_record::rounding::log::Log;
pub use tracer::Tracer;
pub use tracer::{Outputs, Tamper, Watch};
use unread::{Read, Unread};

/// The reasons why a step could not run, by blame.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The run's files.
    #[error(transparent)]
    Run(#[from] RunError),
    /// This machine.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A step's record and its parts.
pub struct CommittedStep {
    /// The record, as the transcript has it.
    pub record: StepRecord,
    /// The gradient's global norm before clipping, a binary32 pattern; no record holds it.
    pub norm: u32,
    /// The state's tensor digests, in the table's order.
    pub state: Vec<Digest>,
    /// The committed gradient root of each micro-batch; empty for jobs that commit states only.
    pub gradients: Vec<Digest>,
    /// The trace, for jobs that commit operators, and for a [`Watch`] that asks for it.
    pub trace: Option<Trace>,
    /// For jobs of the logged profile: the trainer's log and its counts.
    pub log: Option<(Log, Logged)>,
    /// The outputs of the nodes that were watched.
    pub outputs: Outputs,
    /// The first value that is not finite, if the loss is not and [`Watch::finite`] is set.
    pub not_finite: Option<NotFinite>,
}

/// Runs a requested step, as a trainer or as a replay.
pub type RunStep<'a> = dyn FnMut(&mut Session, StepRequest) -> Result<CommittedStep, EngineError> + 'a;

/// The scalars of a step of this computation.
pub fn scalars(computation: &Computation, step: u32) -> StepScalars {
    let job = &computation.job;
    let learning_rate = job.schedule.learning_rate(step, job.steps);
    StepScalars { step, seed: computation.key(), learning_rate }
}

/// The state digest of a program's tensor digests.
pub fn state_root(program: &Program, digests: &[Digest]) -> Digest {
    state_digest(&program.state(), digests)
}

/// The source of the rounding decisions of a job of the logged profile. Other jobs have no rounding decisions.
pub enum Roundings<'a> {
    /// The trainer's native kernels, on a [`Session::native`]: their decisions are logged.
    Logged,
    /// A log that is replayed.
    Replayed(&'a mut Replayer),
}

/// One step of a computation, to run on a session's state. [`StepRequest::new`] alone makes an honest one.
///
/// ```
/// use std::sync::Arc;
///
/// use tiebreak_contract::arith::words::bytes_of;
/// use tiebreak_contract::program::init;
/// use tiebreak_contract::program::step::MicroBatch;
/// use tiebreak_engine::Engine;
/// use tiebreak_engine::cpu::Cpu;
/// use tiebreak_engine::reference::Reference;
/// use tiebreak_engine::session::Session;
/// use tiebreak_job::computation::Computation;
/// use tiebreak_job::identity::{CONTRACT, ComputationSummary, program_digest};
/// use tiebreak_job::manifest::files_root;
/// use tiebreak_run::step::{Roundings, StepRequest, Watch, scalars};
/// # use tiebreak_record::commit::digest::Digest;
///
/// let job = r#"
/// steps = 8
/// model = { kind = "mlp", inputs = 2, hidden = [], classes = 2 }
/// data = { kind = "idx", images = "images", labels = "labels" }
/// optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
/// schedule = { peak = 0.5 }
/// batch = { micro_batch = 2 }
/// "#;
/// let (_, program) = Computation::parsed("job", job, None)?;
/// let summary = ComputationSummary {
///     contract: CONTRACT.into(),
///     challenge: None,
///     program: program_digest(&program),
///     data: files_root(&[]), // a run's is that of its files
///     initial: Digest([0; 32]),
/// };
/// let computation = Computation::derive("job", job, None, summary)?;
///
/// let batch = [MicroBatch { tensors: vec![bytes_of(&[255, 0, 0, 255]), bytes_of(&[0, 1])] }];
/// let record = |engine: &mut dyn Engine| {
///     let mut session = Session::new(engine, Arc::new(computation.program.clone()))?;
///     session.load_each(|i| bytes_of(&init::state_tensor(&computation.program, computation.key(), i)))?;
///     let request = StepRequest::new(&computation, scalars(&computation, 1), &batch);
///     Ok::<_, tiebreak_engine::EngineError>(request.run(&mut session, Roundings::Logged, &Watch::default())?.record)
/// };
/// // The trainer's record and the auditor's: a folder was not needed, nor one kind of engine.
/// assert_eq!(record(&mut Cpu::new(1)?)?, record(&mut Reference)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a step runs by `run`"]
pub struct StepRequest<'a> {
    computation: &'a Computation,
    scalars: StepScalars,
    batch: &'a [MicroBatch],
    tamper: Tamper<'a>,
    steer: Option<Steer>,
}

impl<'a> StepRequest<'a> {
    /// A request for step `scalars.step` on `batch`, which holds all its micro-batches.
    pub fn new(
        computation: &'a Computation,
        scalars: StepScalars,
        batch: &'a [MicroBatch],
    ) -> StepRequest<'a> {
        StepRequest { computation, scalars, batch, tamper: None, steer: None }
    }

    /// The step with a function that changes operators' outputs as they are computed.
    #[doc(hidden)] // for the layers above
    pub fn tampered<'b>(self, tamper: Tamper<'b>) -> StepRequest<'b>
    where
        'a: 'b,
    {
        let StepRequest { computation, scalars, batch, steer, .. } = self;
        StepRequest { computation, scalars, batch, tamper, steer }
    }

    /// The step with a function that changes the decisions that are logged. A replayed log has no decisions to change.
    #[doc(hidden)] // for the layers above
    pub fn steered(self, steer: Option<Steer>) -> StepRequest<'a> {
        StepRequest { steer, ..self }
    }

    /// Runs the step and commits to it.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn run(
        self,
        session: &mut Session,
        roundings: Roundings,
        watch: &Watch,
    ) -> Result<CommittedStep, EngineError> {
        let Computation { job, program, .. } = self.computation;
        match (&job.rounding, roundings) {
            (None, _) => self.observed(session, None, watch),
            (Some(rounding), Roundings::Logged) => {
                let mut request = self;
                let steer = request.steer.take();
                let mut recorder = Recorder::new(rounding, &program.micro, program.micro_batches, steer);
                let mut done = request.observed(session, Some(&mut recorder), watch)?;
                let (log, logged) = recorder.finish();
                done.record.log = Some(log.root());
                done.log = Some((log, logged));
                Ok(done)
            }
            (Some(_), Roundings::Replayed(replayer)) => {
                let mut done = self.observed(session, Some(replayer), watch)?;
                done.record.log = Some(replayer.root());
                Ok(done)
            }
        }
    }

    fn observed(
        mut self,
        session: &mut Session,
        rounder: Option<&mut dyn Rounder>,
        watch: &Watch,
    ) -> Result<CommittedStep, EngineError> {
        let StepRequest { computation, scalars, batch, .. } = self;
        let granularity = computation.job.commit.granularity;
        let hashing = watch.trace || granularity == Granularity::Operator;
        let mut tracer = Tracer::new(hashing, self.tamper.take(), rounder).keeping(watch.outputs.clone());
        let mut unread = Unread::default();
        let total =
            session.whole_gradient(
                scalars,
                batch,
                &mut tracer,
                |session, _, gradients| match granularity {
                    Granularity::Step => Ok(()),
                    _ => unread.push(session, gradients),
                },
            )?;
        let not_finite = match watch.finite {
            true => finite::of_step(session, scalars, batch, &total, &mut || {})?,
            false => None,
        };
        let outcome = session.update_unread(scalars, &total, &mut tracer)?;
        drop(total);
        let (nodes, outputs) = (tracer.nodes, tracer.kept);
        let trace = hashing.then_some(Trace { nodes });
        let Read { outcome, state, micro_batches } = unread.read(session, &outcome)?;
        let parts = Parts { outcome, state, micro_batches, trace, log: None };
        Ok(CommittedStep { outputs, not_finite, ..parts.commit(computation, scalars, batch) })
    }
}

/// The parts that a step's record promises, wherever they were computed.
pub struct Parts {
    /// Loss, norm and clipping factor of the step.
    pub outcome: StepOutcome,
    /// The digest of every tensor of the state after the step.
    pub state: Vec<Digest>,
    /// The root of each micro-batch's gradients; empty if the job commits none.
    pub micro_batches: Vec<Digest>,
    /// The digests of all operators' outputs, if they were requested.
    pub trace: Option<Trace>,
    /// The rounding log of the logged profile, with its counts.
    pub log: Option<(Log, Logged)>,
}

impl Parts {
    /// The step's record, with the parts that are stored beside it.
    pub fn commit(
        self,
        computation: &Computation,
        scalars: StepScalars,
        batch: &[MicroBatch],
    ) -> CommittedStep {
        let Parts { outcome, state, micro_batches, trace, log } = self;
        let Computation { job, program, .. } = computation;
        let step = scalars.step;
        let micro_batches: Vec<Digest> = (0..)
            .zip(micro_batches)
            .map(|(micro, plain)| computation.gradient_root(step, micro, plain))
            .collect();
        let operators = job.commit.granularity == Granularity::Operator;
        let record = StepRecord {
            step,
            state: computation.state_digest(step, &program.state(), &state),
            batch: computation.batch_digest(step, batch),
            gradients: (!micro_batches.is_empty()).then(|| gradients_root(&micro_batches)),
            trace: trace.as_ref().filter(|_| operators).map(|trace| trace.root(program)),
            log: log.as_ref().map(|(log, _)| log.root()),
            learning_rate: scalars.learning_rate,
            clip: outcome.clip,
            loss: outcome.loss,
            cursor: u64::from(step) * u64::from(program.samples()),
        };
        let record = computation.masked(record);
        let (norm, gradients, outputs) = (outcome.norm, micro_batches, Outputs::new());
        CommittedStep { record, norm, state, gradients, trace, log, outputs, not_finite: None }
    }
}
