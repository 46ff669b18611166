//! Training in less memory: the backward pass computes tensors of the forward pass again, so that nobody keeps them meanwhile
//! (Chen et al., "Training deep nets with sublinear memory cost", 2016; the field also says activation checkpointing).
//!
//! [`Recomputing`] is an engine around another one, and changes no bit. Every operator's output depends on its inputs alone: dropout
//! draws by Philox, from the step and the element's index. So a tensor that is computed again has the same bits.

mod observer;
mod schedule;

use std::sync::Arc;

use super::liveness::{Keeping, peak_bytes, step_bytes_of};
use super::update_share::UpdateShare;
use super::{Compiled, Engine, EngineError, Observer, Tensor};
use observer::Watching;
use schedule::{Schedule, schedule};
use tiebreak_contract::program::graph::Graph;
use tiebreak_contract::program::step::Program;

/// An engine that keeps fewer tensors while a graph runs, and computes them again where they are read later. Its bits, and its
/// name, are those of the engine inside. Observers see each node of the graph once, as they would without it.
///
/// A graph is run as it is if it has logged products, whose decisions belong to one computation, or if nothing is gained.
///
/// ```
/// use tiebreak_engine::Engine;
/// use tiebreak_engine::cpu::Cpu;
/// use tiebreak_engine::recompute::Recomputing;
///
/// let engine = Recomputing::new(Cpu::new(1)?);
/// assert_eq!(engine.describe(), Cpu::new(1)?.describe());
/// # Ok::<(), tiebreak_engine::EngineError>(())
/// ```
pub struct Recomputing<E> {
    engine: E,
}

/// A graph that is computed with repetitions.
struct Repeated {
    /// The graph that the inner engine runs.
    inner: Compiled,
    schedule: Schedule,
}

impl<E: Engine> Recomputing<E> {
    /// The engine that runs its graphs by `engine`.
    pub fn new(engine: E) -> Recomputing<E> {
        Recomputing { engine }
    }

    fn observed<T>(
        &mut self,
        compiled: &Compiled,
        observer: Option<&mut dyn Observer>,
        run: impl FnOnce(&mut E, &Compiled, Option<&mut dyn Observer>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let repeated = match compiled.of::<Kind>() {
            Kind::AsItIs(inner) => return run(&mut self.engine, inner, observer),
            Kind::Repeated(repeated) => repeated,
        };
        let mut watching = observer.map(|seen| Watching::new(seen, &compiled.graph, &repeated.schedule));
        let observer = watching.as_mut().map(|watching| watching as &mut dyn Observer);
        run(&mut self.engine, &repeated.inner, observer)
    }
}

enum Kind {
    AsItIs(Compiled),
    Repeated(Repeated),
}

impl<E: Engine> Engine for Recomputing<E> {
    crate::forward!(
        self => self.engine;
        describe, upload, read, roots, roots_later, read_each, binary64_roundings, is_on_host, put_outside, use_outside, keeps_outside,
        finish, release, as_any, download,
    );

    fn recomputes(&self) -> bool {
        true
    }

    fn compile(&mut self, graph: Arc<Graph>) -> Result<Compiled, EngineError> {
        let kind = match schedule(&graph) {
            None => Kind::AsItIs(self.engine.compile(graph.clone())?),
            Some((repeated, schedule)) => {
                let inner = self.engine.compile(Arc::new(repeated))?;
                Kind::Repeated(Repeated { inner, schedule })
            }
        };
        Ok(Compiled::new(graph, kind))
    }

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        self.observed(compiled, observer, |engine, compiled, observer| engine.run(compiled, inputs, observer))
    }

    fn run_owning(
        &mut self,
        compiled: &Compiled,
        inputs: Vec<Tensor>,
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        self.observed(compiled, observer, |engine, compiled, observer| {
            engine.run_owning(compiled, inputs, observer)
        })
    }
}

/// The engine, in a [`Recomputing`] one if `recomputes`.
pub fn engine<'e>(engine: impl Engine + 'e, recomputes: bool) -> Box<dyn Engine + 'e> {
    if recomputes { Box::new(Recomputing::new(engine)) } else { Box::new(engine) }
}

/// The most bytes of tensors that are alive at once in a step on a [`Recomputing`] engine, as
/// [`step_bytes`](super::liveness::step_bytes) has them for others.
pub fn step_bytes(program: &Program) -> u64 {
    step_bytes_with(program, true, Keeping::default())
}

/// The most bytes of tensors that are alive at once in a step, on a [`Recomputing`] engine if `recomputes`.
#[doc(hidden)] // for the layers above
pub fn step_bytes_with(program: &Program, recomputes: bool, keeping: Keeping) -> u64 {
    step_bytes_sharing(program, &UpdateShare::whole(program), recomputes, keeping)
}

/// [`step_bytes_with`] of a session that holds a share of the slots.
#[doc(hidden)] // for the layers above
pub fn step_bytes_sharing(program: &Program, share: &UpdateShare, recomputes: bool, keeping: Keeping) -> u64 {
    step_bytes_of(program, share, micro_batch_bytes(program, recomputes), keeping)
}

/// The most bytes of tensors that are alive at once while one micro-batch runs, on a [`Recomputing`] engine if `recomputes`.
#[doc(hidden)] // for the layers above
pub fn micro_batch_bytes(program: &Program, recomputes: bool) -> u64 {
    let repeated = if recomputes { schedule(&program.micro) } else { None };
    peak_bytes(repeated.as_ref().map_or(&program.micro, |(graph, _)| graph))
}

/// Nodes of a micro-batch that a [`Recomputing`] engine computes twice, and all nodes of the micro-batch.
pub fn repeated_nodes(program: &Program) -> (usize, usize) {
    let nodes = program.micro.nodes.len();
    let repeated = schedule(&program.micro).map_or(0, |(graph, _)| graph.nodes.len() - nodes);
    (repeated, nodes)
}
