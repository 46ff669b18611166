//! One step with everything that its record promises. The trainer and the auditor both run this.

use std::sync::Arc;

use crate::arith::DType;
use crate::commit::digest::Digest;
use crate::commit::record::StepRecord;
use crate::commit::{table, tensor};
use crate::engine::session::{Gradients, MicroBatch, Phase, Session, StepObserver, StepScalars};
use crate::engine::{EngineError, Observer};
use crate::program::graph::{Graph, Node, TensorType};
use crate::program::step::{Program, port};
use crate::run::checkpoint::state_type;
use crate::run::data::batch_digest;
use crate::run::dir::Run;
use crate::run::job::{Granularity, philox_key};
use crate::run::traces::{Trace, TracedNode};

/// A step's record and what it was made of.
pub struct CommittedStep {
    pub record: StepRecord,
    /// The state's tensor digests, in the table's order.
    pub state: Vec<Digest>,
    /// For jobs that commit operators.
    pub trace: Option<Trace>,
}

/// Changes an operator's output as it is made; the honest one changes nothing.
pub type Tamper<'a> = Option<&'a mut dyn FnMut(Phase, usize, &Node, &[u8]) -> Option<Vec<u8>>>;

/// Hashes every node's output as it is shown.
struct Tracer<'a, 'b> {
    nodes: Vec<TracedNode>,
    /// Whether digests are wanted at all.
    hashing: bool,
    tamper: &'b mut Tamper<'a>,
    phase: Phase,
    graph: Option<Arc<Vec<TensorType>>>,
}

impl StepObserver for Tracer<'_, '_> {
    fn phase(&mut self, phase: Phase, graph: &Graph) -> Option<&mut dyn Observer> {
        if !self.hashing && self.tamper.is_none() {
            return None;
        }
        self.phase = phase;
        self.graph = Some(Arc::new(graph.nodes.iter().map(|n| graph.tensor(n.output).clone()).collect()));
        Some(self)
    }
}

impl Observer for Tracer<'_, '_> {
    fn node(&mut self, index: usize, node: &Node, bytes: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        let changed = self.tamper.as_mut().and_then(|tamper| tamper(self.phase, index, node, bytes));
        if self.hashing {
            let types = self.graph.as_ref().expect("a phase was begun");
            let tiles = tensor::tile_values(changed.as_deref().unwrap_or(bytes));
            let digest = tensor::digest_from_root(&types[index], &tensor::root_from_tiles(&tiles));
            self.nodes.push(TracedNode { digest, tiles });
        }
        Ok(changed)
    }
}

/// The scalars of a step of this run.
pub fn scalars(run: &Run, step: u32) -> StepScalars {
    StepScalars {
        step,
        seed: philox_key(&run.seed),
        learning_rate: run.job.schedule.learning_rate(step, run.job.steps),
    }
}

/// The root over a micro-batch's gradients and loss.
pub fn gradient_root(session: &mut Session, gradients: &Gradients) -> Result<Digest, EngineError> {
    let program = session.program().clone();
    let mut named = Vec::new();
    session.visit_gradients(gradients, |i, bytes| {
        let (name, shape) = match program.parameters.get(i) {
            Some(p) => (port::gradient(&p.name), p.shape.clone()),
            None => (port::LOSS.to_string(), vec![1]),
        };
        named.push((name, tensor::digest(&TensorType { dtype: DType::F32, shape }, bytes)));
    })?;
    Ok(table::root(named.iter().map(|(name, digest)| (name.as_str(), digest))))
}

/// The digests of a session's state tensors.
pub fn state_digests(session: &mut Session) -> Result<Vec<Digest>, EngineError> {
    let state = session.program().state();
    let mut digests = Vec::with_capacity(state.len());
    session.visit_state(|i, bytes| digests.push(tensor::digest(&state_type(&state[i]), bytes)))?;
    Ok(digests)
}

/// The state digest of a program's tensor digests.
pub fn state_root(program: &Program, digests: &[Digest]) -> Digest {
    crate::run::checkpoint::state_digest(&program.state(), digests)
}

/// Runs step `scalars.step` on the session's state and commits to it.
pub fn committed_step(
    run: &Run,
    session: &mut Session,
    scalars: StepScalars,
    batch: &[MicroBatch],
    mut tamper: Tamper,
) -> Result<CommittedStep, EngineError> {
    let granularity = run.job.commit.granularity;
    let hashing = granularity == Granularity::Operator;
    let mut tracer =
        Tracer { nodes: Vec::new(), hashing, tamper: &mut tamper, phase: Phase::Update, graph: None };
    let mut micro_batches = Vec::new();
    let outcome = session.step(scalars, batch, &mut tracer, |session, _, gradients| {
        if granularity != Granularity::Step {
            micro_batches.push(gradient_root(session, gradients)?);
        }
        Ok(())
    })?;
    let trace = hashing.then_some(Trace { nodes: tracer.nodes });
    let state = state_digests(session)?;
    let record = StepRecord {
        step: scalars.step,
        state: state_root(&run.program, &state),
        batch: batch_digest(&run.program, batch),
        micro_batches,
        trace: trace.as_ref().map(|trace| trace.root(&run.program)),
        log: None,
        learning_rate: scalars.learning_rate,
        clip: outcome.clip,
        loss: outcome.loss,
        cursor: u64::from(scalars.step) * u64::from(run.program.batch()),
    };
    Ok(CommittedStep { record, state, trace })
}
