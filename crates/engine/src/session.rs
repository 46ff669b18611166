//! A program on an engine: the session runs micro-batches, adds their gradients by the fixed tree, and updates the state.
//! Contract: `docs/ARITHMETIC.md`, section 7.

mod giving;
mod handed;
mod held;
mod kept;
mod load;
mod share;
mod tensors;

use std::sync::Arc;
use std::time::Instant;

pub use handed::Give;
use handed::Hand;
use held::Held;
pub use kept::KeptState;

use super::{Compiled, Engine, EngineError, Observer, Tensor};
use crate::update_share::UpdateShare;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::tree::{self, Operation};
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::graph::{Graph, TensorType};
use tiebreak_contract::program::logged::native_graph;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::step::{MicroBatch, Program};

/// The scalars of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepScalars {
    /// The step's number, from 1.
    pub step: u32,
    /// The run's Philox key.
    pub seed: [u32; 2],
    /// The learning rate, a binary32 pattern.
    pub learning_rate: u32,
}

/// The tensors of [`Program::gradients`], which a micro-batch or a sum of them yields.
pub struct Gradients(Vec<Tensor>);

impl Gradients {
    /// Gradients that are on the session's engine: the tensors of [`Program::gradients`], with their shapes.
    #[doc(hidden)] // for the layers above
    pub fn of(tensors: Vec<Tensor>) -> Gradients {
        Gradients(tensors)
    }

    /// The tensors, in the order of [`Program::gradients`].
    #[doc(hidden)] // for the layers above
    pub fn tensors(&self) -> &[Tensor] {
        &self.0
    }
}

/// The scalars a step yields, as binary32 patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepOutcome {
    /// The mean loss of the batch.
    pub loss: u32,
    /// The clip factor.
    pub clip: u32,
    /// The gradient's global norm before clipping.
    pub norm: u32,
}

impl StepOutcome {
    /// The scalars in the order of [`UnreadOutcome::tensors`].
    #[doc(hidden)] // for the layers above
    pub fn of([loss, clip, norm]: [u32; 3]) -> StepOutcome {
        StepOutcome { loss, clip, norm }
    }
}

/// The scalars of a step on its engine.
pub struct UnreadOutcome(Vec<Tensor>);

impl UnreadOutcome {
    /// The scalars: loss, clip factor, and norm.
    pub fn tensors(&self) -> &[Tensor] {
        &self.0
    }
}

/// Observes a whole step: it gives an observer for every graph that runs.
pub trait StepObserver {
    /// Called before a graph of the step runs. Without an observer, the graph runs unobserved.
    fn phase(&mut self, phase: Phase, graph: &Graph) -> Option<&mut dyn Observer>;
}

/// Observes nothing.
pub struct Unobserved;

impl StepObserver for Unobserved {
    fn phase(&mut self, _: Phase, _: &Graph) -> Option<&mut dyn Observer> {
        None
    }
}

/// A training state on an engine. The session owns the engine (a `Session<'static>`, which other threads and languages can hold)
/// or borrows it.
///
/// ```
/// use std::sync::Arc;
///
/// use tiebreak_contract::arith::words::bytes_of;
/// use tiebreak_contract::program::init;
/// # use tiebreak_contract::program::models::{Input, Mlp, Model};
/// # use tiebreak_contract::program::operators::LossRule;
/// # use tiebreak_contract::program::optimizer::Optimizer;
/// # use tiebreak_contract::program::products::ProductTable;
/// # use tiebreak_contract::program::step::{Program, StepSpec};
/// use tiebreak_contract::program::step::MicroBatch;
/// use tiebreak_engine::cpu::Cpu;
/// use tiebreak_engine::session::{Session, StepScalars, Unobserved};
///
/// # let mlp = Mlp { inputs: 2, hidden: vec![], classes: 2, dropout: 0.0, normalize: None, image_mean: vec![], image_std: vec![], input: Input::Values };
/// # let program = Program::new(StepSpec {
/// #     model: Model::Mlp(mlp),
/// #     optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 },
/// #     clip_norm: None,
/// #     loss: LossRule::default(),
/// #     micro_batch: 2,
/// #     micro_batches: 1,
/// #     products: ProductTable::preset(),
/// # });
/// // `program`: a network of two numbers and two classes, in micro-batches of two.
/// let mut engine = Cpu::new(1)?;
/// let seed = [1, 2];
/// let state: Vec<Vec<u8>> = init::state(&program, seed).iter().map(|words| bytes_of(words)).collect();
/// let mut session = Session::new(&mut engine, Arc::new(program))?;
/// session.load(&state)?;
/// let numbers = [1.0f32, 0.0, 0.0, 1.0].map(f32::to_bits);
/// let batch = [MicroBatch { tensors: vec![bytes_of(&numbers), bytes_of(&[0, 1])] }];
/// let mut losses = Vec::new();
/// for step in 1..=10 {
///     let scalars = StepScalars { step, seed, learning_rate: 0.5f32.to_bits() };
///     let outcome = session.step(scalars, &batch, &mut Unobserved, |_, _, _| Ok(()))?;
///     losses.push(f32::from_bits(outcome.loss));
/// }
/// assert!(losses[9] < 0.5 * losses[0], "{losses:?}");
/// assert_ne!(session.download_state()?, state);
/// # Ok::<(), tiebreak_engine::EngineError>(())
/// ```
pub struct Session<'e> {
    engine: Box<dyn Engine + 'e>,
    program: Arc<Program>,
    /// True if logged products are native.
    native: bool,
    micro: Compiled,
    accumulate: Compiled,
    /// The tensors of the state that are held, in the order of [`Program::state`]; empty until a state is loaded.
    state: Vec<Tensor>,
    held: Held,
    /// The time at which the session stops.
    end: Option<Instant>,
}

impl<'e> Session<'e> {
    /// A session that computes the program as written, logged products exactly. The session has no state yet.
    ///
    /// # Errors
    /// If the engine cannot compile one of the program's graphs.
    pub fn new(engine: impl Engine + 'e, program: Arc<Program>) -> Result<Session<'e>, EngineError> {
        let micro = program.micro.clone();
        Session::with_micro(engine, program, micro, false)
    }

    /// A session whose logged products, if any, are computed by the engine's native kernels. A trainer of the logged profile runs
    /// such a session.
    ///
    /// # Errors
    /// If the engine cannot compile one of the program's graphs.
    pub fn native(engine: impl Engine + 'e, program: Arc<Program>) -> Result<Session<'e>, EngineError> {
        let micro = native_graph(&program.micro);
        Session::with_micro(engine, program, micro, true)
    }

    fn with_micro(
        engine: impl Engine + 'e,
        program: Arc<Program>,
        micro: Graph,
        native: bool,
    ) -> Result<Session<'e>, EngineError> {
        let mut engine: Box<dyn Engine + 'e> = Box::new(engine);
        let micro = engine.compile(Arc::new(micro))?;
        let accumulate = engine.compile(Arc::new(program.accumulate.clone()))?;
        let held = Held::of(UpdateShare::whole(&program), &mut *engine)?;
        let state = Vec::new();
        Ok(Session { engine, program, native, micro, accumulate, state, held, end: None })
    }

    /// True if logged products are computed by the engine's native kernels.
    #[doc(hidden)] // for the layers above
    pub fn is_native(&self) -> bool {
        self.native
    }

    /// Computes logged products exactly from now on.
    ///
    /// # Errors
    /// If the engine cannot compile the program's graph.
    #[doc(hidden)] // for the layers above
    pub fn compute_exactly(&mut self) -> Result<(), EngineError> {
        if self.native {
            self.engine.release();
            self.micro = self.engine.compile(Arc::new(self.program.micro.clone()))?;
            self.native = false;
        }
        Ok(())
    }

    /// Runs no further graph after `end`: a method that would run one fails with [`EngineError::OutOfTime`].
    #[doc(hidden)] // for the layers above
    pub fn stop_at(&mut self, end: Option<Instant>) {
        self.end = end;
    }

    fn in_time(&self) -> Result<(), EngineError> {
        match self.end {
            Some(end) if Instant::now() > end => Err(EngineError::OutOfTime),
            _ => Ok(()),
        }
    }

    /// The engine that the session runs on.
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// The engine, for callers that run other graphs beside the program's, on tensors of their own.
    pub fn engine_mut(&mut self) -> &mut dyn Engine {
        &mut *self.engine
    }

    /// The program that the session runs.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Copies the whole state out, in order.
    ///
    /// # Errors
    /// If the engine cannot read a tensor.
    pub fn download_state(&mut self) -> Result<Vec<Vec<u8>>, EngineError> {
        let mut state = Vec::with_capacity(self.state.len());
        self.visit_state(|_, bytes| state.push(bytes.to_vec()))?;
        Ok(state)
    }

    fn upload_words(&mut self, dtype: DType, values: &[u32]) -> Result<Tensor, EngineError> {
        self.engine.upload(&TensorType { dtype, shape: vec![values.len() as u32] }, &bytes_of(values))
    }

    /// The gradient and loss share of micro-batch `index`.
    ///
    /// # Errors
    /// If the engine fails, or the observer stops the run.
    ///
    /// # Panics
    /// If `batch` has not as many tensors as the model's, or no state is loaded.
    pub fn micro_batch(
        &mut self,
        scalars: StepScalars,
        index: u32,
        batch: &MicroBatch,
        observer: &mut dyn StepObserver,
    ) -> Result<Gradients, EngineError> {
        self.micro_batch_handing(scalars, index, batch, observer, None)
    }

    /// [`Session::micro_batch`], which hands out the gradients if it is to.
    fn micro_batch_handing(
        &mut self,
        scalars: StepScalars,
        index: u32,
        batch: &MicroBatch,
        observer: &mut dyn StepObserver,
        hand: Option<Hand>,
    ) -> Result<Gradients, EngineError> {
        self.in_time()?;
        let factor = self.program.factor();
        let first_sample = index * self.program.micro_batch;
        let read = self.program.released();
        let mut inputs = self.state[..read].to_vec();
        assert_eq!(
            self.program.batch.len(),
            batch.tensors.len(),
            "a micro-batch has every tensor of its program"
        );
        for (tensor, bytes) in self.program.batch.iter().zip(&batch.tensors) {
            inputs.push(self.engine.upload(&tensor.ty(), bytes)?);
        }
        inputs.push(self.upload_words(DType::F32, &[factor])?);
        inputs.push(self.upload_words(DType::U32, &scalars.seed)?);
        inputs.push(self.upload_words(DType::U32, &[scalars.step])?);
        inputs.push(self.upload_words(DType::U32, &[first_sample])?);
        let (micro, observer) = (&self.micro, observer.phase(Phase::Micro(index), &self.micro.graph));
        let start = |engine: &mut dyn Engine, observer: Option<&mut dyn Observer>| {
            engine.run(micro, &inputs, observer)
        };
        Ok(Gradients(handed::run(&mut *self.engine, micro, start, observer, hand)?))
    }

    /// Adds two gradients. The engine may free each tensor of theirs as soon as it is added.
    ///
    /// # Errors
    /// If the engine fails, or the observer stops the run.
    pub fn accumulate(
        &mut self,
        index: u32,
        left: Gradients,
        right: Gradients,
        observer: &mut dyn StepObserver,
    ) -> Result<Gradients, EngineError> {
        self.accumulate_handing(index, left, right, observer, None)
    }

    /// [`Session::accumulate`], which hands out the sum if it is to.
    fn accumulate_handing(
        &mut self,
        index: u32,
        left: Gradients,
        right: Gradients,
        observer: &mut dyn StepObserver,
        hand: Option<Hand>,
    ) -> Result<Gradients, EngineError> {
        self.in_time()?;
        let inputs: Vec<Tensor> = left.0.into_iter().zip(right.0).flat_map(|(l, r)| [l, r]).collect();
        let sum = &self.accumulate;
        let observer = observer.phase(Phase::Accumulate(index), &sum.graph);
        let start = |engine: &mut dyn Engine, observer: Option<&mut dyn Observer>| {
            engine.run_owning(sum, inputs, observer)
        };
        Ok(Gradients(handed::run(&mut *self.engine, sum, start, observer, hand)?))
    }

    /// Evaluates a part of the accumulation tree. Terms take `batches`, in order; the result is the final stack. `micro_root`
    /// sees each micro-batch's gradients as soon as they are computed.
    ///
    /// # Errors
    /// If the engine or `micro_root` fails, or the observer stops the run.
    ///
    /// # Panics
    /// If there are fewer batches than terms, or an addition has no operands.
    #[doc(hidden)] // for the layers above
    pub fn partial_sums(
        &mut self,
        scalars: StepScalars,
        operations: impl IntoIterator<Item = Operation>,
        batches: &[MicroBatch],
        observer: &mut dyn StepObserver,
        micro_root: impl FnMut(&mut Session<'e>, u32, &Gradients) -> Result<(), EngineError>,
    ) -> Result<Vec<Gradients>, EngineError> {
        let operations: Vec<Operation> = operations.into_iter().collect();
        self.evaluate(scalars, &operations, batches, observer, micro_root, None)
    }

    /// [`Session::partial_sums`]. What `give` takes is not in the result: its place there is empty.
    fn evaluate(
        &mut self,
        scalars: StepScalars,
        operations: &[Operation],
        batches: &[MicroBatch],
        observer: &mut dyn StepObserver,
        mut micro_root: impl FnMut(&mut Session<'e>, u32, &Gradients) -> Result<(), EngineError>,
        mut give: Option<&mut Give>,
    ) -> Result<Vec<Gradients>, EngineError> {
        let mut batches = batches.iter();
        let mut waiting: Vec<Gradients> = Vec::new();
        for (&operation, place) in operations.iter().zip(handed::final_places(operations)) {
            let hand = handed::hand(&mut give, place);
            let is_handed = hand.is_some();
            let node = match operation {
                Operation::Term(index) => {
                    // Nobody reads a sum that waits while a micro-batch runs.
                    if let Some(Gradients(last)) = waiting.last_mut() {
                        self.put_outside(last)?;
                    }
                    let batch = batches.next().expect("every term has a micro-batch");
                    let gradients = self.micro_batch_handing(scalars, index, batch, observer, hand)?;
                    micro_root(self, index, &gradients)?;
                    gradients
                }
                Operation::Add(index) => {
                    let right = waiting.pop().expect("an addition has two operands");
                    let left = waiting.pop().expect("an addition has two operands");
                    self.accumulate_handing(index, left, right, observer, hand)?
                }
            };
            waiting.push(if is_handed { Gradients(Vec::new()) } else { node });
        }
        Ok(waiting)
    }

    /// Runs a whole step. `micro_root` sees each micro-batch's gradients as soon as they are computed.
    ///
    /// # Errors
    /// If the engine or `micro_root` fails, or the observer stops the run.
    ///
    /// # Panics
    /// If there are no batches, or no state is loaded.
    pub fn step(
        &mut self,
        scalars: StepScalars,
        batches: &[MicroBatch],
        observer: &mut dyn StepObserver,
        micro_root: impl FnMut(&mut Session<'e>, u32, &Gradients) -> Result<(), EngineError>,
    ) -> Result<StepOutcome, EngineError> {
        let total = self.whole_gradient(scalars, batches, observer, micro_root)?;
        self.update(scalars, &total, observer)
    }

    /// The gradient of a whole step, from which [`Session::update`] continues.
    ///
    /// # Errors
    /// If the engine or `micro_root` fails, or the observer stops the run.
    ///
    /// # Panics
    /// If there are no batches, or no state is loaded.
    #[doc(hidden)] // for the layers above
    pub fn whole_gradient(
        &mut self,
        scalars: StepScalars,
        batches: &[MicroBatch],
        observer: &mut dyn StepObserver,
        micro_root: impl FnMut(&mut Session<'e>, u32, &Gradients) -> Result<(), EngineError>,
    ) -> Result<Gradients, EngineError> {
        let operations = tree::operations(batches.len() as u32);
        let mut sums = self.partial_sums(scalars, operations, batches, observer, micro_root)?;
        Ok(sums.pop().expect("a step has at least one micro-batch"))
    }

    /// The loss in a whole gradient, a binary32 pattern. If the program counts labels, the loss is not a mean yet.
    ///
    /// # Errors
    /// If the engine cannot read the loss.
    ///
    /// # Panics
    /// If there is no loss.
    pub fn loss(&mut self, total: &Gradients) -> Result<u32, EngineError> {
        self.scalar(total.0.last().expect("the loss is the last of what a micro-batch yields"))
    }

    /// The update of the state from a step's whole gradient. The engine may free the old state as the new one is made, so that it
    /// need not hold both.
    ///
    /// # Errors
    /// If the engine fails, or the observer stops the run. Then the session holds no state until one is loaded.
    pub fn update(
        &mut self,
        scalars: StepScalars,
        total: &Gradients,
        observer: &mut dyn StepObserver,
    ) -> Result<StepOutcome, EngineError> {
        let outcome = self.update_unread(scalars, total, observer)?;
        let mut words = [0; 3];
        self.engine.read_each(&outcome.0, &mut |i, bytes| words[i] = word(bytes))?;
        Ok(StepOutcome::of(words))
    }

    /// [`Session::update`], whose scalars nobody has read: a caller reads them with other tensors of the engine.
    ///
    /// # Errors
    /// As [`Session::update`].
    #[doc(hidden)] // for the layers above
    pub fn update_unread(
        &mut self,
        scalars: StepScalars,
        total: &Gradients,
        observer: &mut dyn StepObserver,
    ) -> Result<UnreadOutcome, EngineError> {
        self.in_time()?;
        let (gradients, loss) = total.0.split_at(self.program.updated_from());
        let corrections = self.program.bias_corrections(scalars.step);
        let mut rates = Vec::with_capacity(3);
        for value in [scalars.learning_rate, corrections[0], corrections[1]] {
            rates.push(self.upload_words(DType::F32, &[value])?);
        }
        let Held { places, made, read, update } = &self.held;
        let kept: Vec<Option<Tensor>> = places
            .iter()
            .zip(&self.state)
            .map(|(place, tensor)| made.binary_search(place).is_err().then(|| tensor.clone()))
            .collect();
        let mut given: Vec<Option<Tensor>> = vec![None; self.program.state().len()];
        let state = std::mem::take(&mut self.state);
        places.iter().zip(state).for_each(|(&place, tensor)| given[place] = Some(tensor));
        given.extend(gradients.iter().cloned().chain(rates).map(Some));
        let take = |place: &usize| given[*place].take().expect("a session holds what its update reads");
        let inputs = read.iter().map(take).collect();
        drop(given);
        let observer = observer.phase(Phase::Update, &update.graph);
        let mut outputs = self.engine.run_owning(update, inputs, observer)?;
        let scalars = outputs.split_off(outputs.len() - if loss.is_empty() { 3 } else { 2 });
        // The loss is the one in the sum, or the first scalar that the update makes.
        let scalars: Vec<Tensor> = loss.iter().cloned().chain(scalars).take(3).collect();
        let mut made = outputs.into_iter();
        let new = |kept: Option<Tensor>| {
            kept.or_else(|| made.next()).expect("the update makes every state tensor that it does not keep")
        };
        self.state = kept.into_iter().map(new).collect();
        Ok(UnreadOutcome(scalars))
    }

    /// Puts tensors outside of memory, if the engine does so.
    fn put_outside(&mut self, tensors: &mut Vec<Tensor>) -> Result<(), EngineError> {
        for tensor in tensors {
            *tensor = self.engine.put_outside(tensor.clone())?;
        }
        Ok(())
    }

    fn scalar(&mut self, tensor: &Tensor) -> Result<u32, EngineError> {
        let mut value = 0;
        self.engine.read(tensor, &mut |bytes| value = word(bytes))?;
        Ok(value)
    }
}

/// A scalar's pattern.
fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("a scalar has four bytes"))
}
