//! A training step as three graphs: the gradient of a micro-batch, the sum of two gradients, and the update.
//!
//! A step over M micro-batches is the fixed tree over their gradients (`accumulate`), then `update`; so any number of devices, or
//! an auditor with one micro-batch, computes the same bits. The moments of batch normalisations go through the same tree, and are
//! pooled where gradients are added. Contract: section 7.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;

use super::builder::Builder;
use super::graph::{Graph, Port, TensorId, TensorType};
use super::models::{BatchTensor, Init, Inputs, Loss, Mode, Model, ModelParameter, Network, Statistic};
use super::operators::{LossRule, Moments, means_of_counted, pool, running};
use super::optimizer::{Optimizer, Rates, Trained, Treatment, clip_factor, own_rate, update};
use super::products::ProductTable;
use super::schedule;
use crate::arith::{DType, float};

/// The port names of the graphs. `{}` stands for a parameter's name.
pub mod port {
    /// f32 [1]: the micro-batch's share of the mean loss.
    pub const LOSS: &str = "loss";
    /// f32 [1]: the number of labels that count. A program has it if its step is several micro-batches and its loss ignores a
    /// label; then the update makes the means.
    pub(crate) const LABELS: &str = "labels";
    /// f32 [1]: 1 / the number of labels in the whole batch.
    pub const FACTOR: &str = "scalar/factor";
    /// u32 [2]: the run's Philox key.
    pub const SEED: &str = "scalar/seed";
    /// u32 [1]: the step, from 1.
    pub const STEP: &str = "scalar/step";
    /// u32 [1]: the first sample of the micro-batch in the whole batch.
    pub const FIRST_SAMPLE: &str = "scalar/first_sample";
    /// f32 [1]: the step's learning rate.
    pub const LEARNING_RATE: &str = "scalar/learning_rate";
    /// f32 [1]: AdamW's bias correction of the first moment.
    pub const CORRECTION1: &str = "scalar/correction1";
    /// f32 [1]: AdamW's bias correction of the second moment.
    pub const CORRECTION2: &str = "scalar/correction2";
    /// f32 [1]: the clip factor.
    pub const CLIP: &str = "clip";
    /// f32 [1]: the gradient's global norm before clipping.
    pub(crate) const NORM: &str = "norm";

    /// A parameter.
    pub fn parameter(name: &str) -> String {
        format!("param/{name}")
    }
    /// A buffer, which is state that is not trained; or a moment that a buffer is made from.
    pub fn buffer(name: &str) -> String {
        format!("buffer/{name}")
    }
    /// A parameter's gradient.
    pub fn gradient(name: &str) -> String {
        format!("grad/{name}")
    }
    /// An optimizer state tensor of a parameter.
    pub(crate) fn slot(slot: &str, name: &str) -> String {
        format!("{slot}/{name}")
    }
    /// A tensor of the micro-batch's data.
    pub fn batch(name: &str) -> String {
        format!("batch/{name}")
    }
    /// The left operand of `accumulate`.
    pub(crate) fn left(name: &str) -> String {
        format!("left/{name}")
    }
    /// The right operand of `accumulate`.
    pub(crate) fn right(name: &str) -> String {
        format!("right/{name}")
    }
}

/// Everything that decides the bits of a training step, apart from its data.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSpec<M = Model> {
    /// The model: one that a job names, or a pointer to any network.
    pub model: M,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The greatest gradient norm; `None` = no clipping (the factor is 1).
    pub clip_norm: Option<f32>,
    /// The rule for the loss's targets, and for the labels that count.
    pub loss: LossRule,
    /// Samples of a micro-batch.
    pub micro_batch: u32,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// Digits and grids of the products, by class.
    pub products: ProductTable,
}

/// [`StepSpec`] of whatever network.
type Step<'a> = StepSpec<&'a dyn Network>;

/// A binary32 tensor: of the training state, in the order of state digests and checkpoints, or of the gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct StateTensor {
    /// The port's name: `param/..`, `buffer/..`, an optimizer slot such as `m/..`, `grad/..`, `labels` or `loss`.
    pub name: String,
    /// The dimensions.
    pub shape: Vec<u32>,
}

impl StateTensor {
    /// The tensor's type.
    pub fn ty(&self) -> TensorType {
        TensorType { dtype: DType::F32, shape: self.shape.clone() }
    }
}

/// The bytes of all tensors of a table.
pub fn state_bytes(state: &[StateTensor]) -> u64 {
    state.iter().map(|tensor| tensor.ty().bytes() as u64).sum()
}

/// The data of one micro-batch: canonical bytes of each tensor of [`Program::batch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroBatch {
    /// The bytes, in the order of [`Program::batch`].
    pub tensors: Vec<Vec<u8>>,
}

/// A parameter of a program. Binary32.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The name, unique among the parameters.
    pub name: String,
    /// The dimensions.
    pub shape: Vec<u32>,
    /// The initial values.
    pub init: Init,
    /// True if training leaves the parameter as it is: it has no gradient, no optimizer slots and no update.
    pub frozen: bool,
}

/// A tensor of the state that changes without a gradient. Binary32.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// The name, unique among the buffers.
    pub name: String,
    /// The dimensions.
    pub shape: Vec<u32>,
    /// The initial values.
    pub init: Init,
}

/// The computation of a step in a run: all that the program digest covers.
///
/// ```
/// use tiebreak_contract::program::models::Model;
/// use tiebreak_contract::program::operators::LossRule;
/// use tiebreak_contract::program::optimizer::Optimizer;
/// use tiebreak_contract::program::products::ProductTable;
/// use tiebreak_contract::program::step::{Program, StepSpec};
///
/// let model: Model = serde_json::from_str(r#"{"kind": "mlp", "inputs": 6, "hidden": [4], "classes": 3}"#)?;
/// let program = Program::new(StepSpec {
///     model,
///     optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 },
///     clip_norm: None,
///     loss: LossRule::default(),
///     micro_batch: 2,
///     micro_batches: 3,
///     products: ProductTable::preset(),
/// });
/// // Weights and biases of two layers; the state holds a momentum for each, too.
/// assert_eq!(program.parameter_count(), 6 * 4 + 4 + 4 * 3 + 3);
/// assert_eq!((program.parameters.len(), program.state().len()), (4, 8));
/// assert_eq!(program.samples(), 6);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Samples of a micro-batch.
    pub micro_batch: u32,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// Labels of a sample: the loss is averaged over them.
    pub labels_per_sample: u32,
    /// The betas of the bias corrections, binary32 patterns: AdamW's two, none for SGD.
    pub corrections: Vec<u32>,
    /// The tensors of a micro-batch that come from data.
    pub batch: Vec<BatchTensor>,
    /// The parameters, in order.
    pub parameters: Vec<Parameter>,
    /// The buffers, in order.
    pub buffers: Vec<Buffer>,
    /// The names of the state tensors that the optimizer keeps for each trained parameter; each tensor is +0 at first.
    pub slots: Vec<String>,
    /// params, buffers, batch, scalars -> `grad/*` of trained parameters, moments, `labels` if the program counts labels, `loss`.
    pub micro: Graph,
    /// `left/*` + `right/*` -> `grad/*`, moments, `labels`, `loss`.
    pub accumulate: Graph,
    /// params, buffers, slots, grads, moments, scalars -> trained params, buffers, slots, `clip`, `norm`. If
    /// the program counts labels, `labels` is an input too, and `loss` is an input and an output.
    pub update: Graph,
}

impl Program {
    /// Builds the three graphs of a step. Every parameter is trained, or every adapter if the model has any.
    pub fn new(spec: StepSpec) -> Program {
        Program::with_frozen(spec, |_| false)
    }

    /// [`Program::new`], with the parameters frozen whose names `frozen` picks.
    #[doc(hidden)] // for the layers above
    pub fn with_frozen(spec: StepSpec, frozen: impl Fn(&str) -> bool) -> Program {
        let optimizer = spec.optimizer.clone();
        let treatment = |row: &ModelParameter| Treatment {
            frozen: frozen(&row.name),
            ..optimizer.treatment(row.decayed)
        };
        let treatments = spec.model.parameters().iter().map(treatment).collect();
        Program::with_treatments(spec, treatments)
    }

    /// [`Program::new`], with a given treatment of each parameter, in the order of the model's table.
    #[doc(hidden)] // for the layers above
    pub fn with_treatments<M>(spec: StepSpec<M>, treatments: Vec<Treatment>) -> Program
    where
        M: Deref<Target = dyn Network>,
    {
        let StepSpec { model, optimizer, clip_norm, loss, micro_batch, micro_batches, products } = spec;
        let model = &*model;
        let spec = Step { model, optimizer, clip_norm, loss, micro_batch, micro_batches, products };
        let (rows, frozen) = (spec.model.parameters(), spec.model.frozen());
        let parameters: Vec<Parameter> = (0..)
            .zip(rows.iter().zip(&treatments))
            .map(|(number, (ModelParameter { name, shape, init, .. }, treatment))| Parameter {
                name: name.clone(),
                shape: shape.clone(),
                init: *init,
                frozen: treatment.frozen || number < frozen,
            })
            .collect();
        let corrections = match spec.optimizer {
            Optimizer::Adamw { beta1, beta2, .. } => vec![beta1.to_bits(), beta2.to_bits()],
            Optimizer::Sgd { .. } => Vec::new(),
        };
        Program {
            micro_batch: spec.micro_batch,
            micro_batches: spec.micro_batches,
            labels_per_sample: spec.model.labels_per_sample(),
            corrections,
            batch: spec.model.batch(spec.micro_batch),
            slots: spec.optimizer.slots().iter().map(|slot| slot.to_string()).collect(),
            buffers: spec.model.statistics().iter().flat_map(running_buffers).collect(),
            micro: micro_graph(&spec, &parameters),
            accumulate: accumulate_graph(&parameters, &spec.model.statistics(), counts_labels(&spec)),
            update: update_graph(&spec, &treatments, &parameters),
            parameters,
        }
    }

    /// The state in order: all parameters, all buffers, then each optimizer slot of all trained parameters.
    pub fn state(&self) -> Vec<StateTensor> {
        self.state_with_init().into_iter().map(|(tensor, _)| tensor).collect()
    }

    /// [`Program::state`], with the initial values of each tensor.
    #[doc(hidden)] // for the layers above
    pub fn state_with_init(&self) -> Vec<(StateTensor, Init)> {
        let entry = |name: String, shape: &[u32], init| (StateTensor { name, shape: shape.to_vec() }, init);
        let parameters = self.parameters.iter().map(|p| entry(port::parameter(&p.name), &p.shape, p.init));
        let buffers = self.buffers.iter().map(|b| entry(port::buffer(&b.name), &b.shape, b.init));
        let slots = self.slots.iter().flat_map(|slot| {
            let trained = self.parameters.iter().filter(|p| !p.frozen);
            trained.map(|p| entry(port::slot(slot, &p.name), &p.shape, Init::Zeros))
        });
        parameters.chain(buffers).chain(slots).collect()
    }

    /// For every tensor of [`Program::state`], true if the update leaves it as it is: the frozen parameters.
    pub fn kept(&self) -> Vec<bool> {
        let mut kept: Vec<bool> = self.parameters.iter().map(|p| p.frozen).collect();
        kept.resize(self.state().len(), false);
        kept
    }

    /// The tensors that a micro-batch, or a sum of micro-batches, yields. The tensors are every trained parameter's gradient, the
    /// moments of each of [`Program::statistics`], the labels if the micro graph counts them, and the loss.
    pub fn gradients(&self) -> Vec<StateTensor> {
        let moments = self.statistics().iter().flat_map(moment_table).collect::<Vec<_>>();
        let scalars = scalar_table(self.counts_labels());
        gradient_table(&self.parameters).into_iter().chain(moments).chain(scalars).collect()
    }

    /// The number of tensors of [`Program::gradients`], from the first, that the update reads. The update reads all if it counts
    /// labels; else all but the loss, which is then the step's loss unchanged.
    #[doc(hidden)] // for the layers above
    pub fn updated_from(&self) -> usize {
        self.gradients().len() - usize::from(!self.counts_labels())
    }

    /// True if the micro graph counts labels, with an output `labels`. Then the update makes means of all sums over
    /// micro-batches.
    pub(crate) fn counts_labels(&self) -> bool {
        self.micro.output(port::LABELS).is_some()
    }

    /// The statistics that the micro graph yields. Each begins with an output `buffer/NAME.count`; the next output has an element
    /// for each column.
    pub fn statistics(&self) -> Vec<Statistic> {
        let statistic = |pair: &[Port]| {
            let name = pair[0].name.strip_prefix("buffer/")?.strip_suffix(".count")?.to_string();
            let channels = self.micro.tensors.get(pair[1].tensor.0 as usize)?.len();
            Some(Statistic { name, channels: channels as u32 })
        };
        self.micro.outputs.windows(2).filter_map(statistic).collect()
    }

    /// The graph that adds two gradients, derived from [`Program::gradients`].
    pub(crate) fn due_accumulate(&self) -> Graph {
        accumulate_graph(&self.parameters, &self.statistics(), self.counts_labels())
    }

    /// Number of scalars of all parameters, frozen ones included.
    pub fn parameter_count(&self) -> u64 {
        let scalars = |p: &Parameter| p.shape.iter().fold(1u64, |n, &d| n.saturating_mul(d.into()));
        self.parameters.iter().map(scalars).fold(0, u64::saturating_add)
    }

    /// The number of the state's first tensors that a released model holds: the parameters and the buffers.
    pub fn released(&self) -> usize {
        self.parameters.len() + self.buffers.len()
    }

    /// The batch tensors of one sample.
    pub fn sample(&self) -> Vec<BatchTensor> {
        let mut tensors = self.batch.clone();
        tensors.iter_mut().for_each(|tensor| tensor.shape[0] /= self.micro_batch);
        tensors
    }

    /// Samples of a whole batch.
    pub fn samples(&self) -> u32 {
        self.micro_batch * self.micro_batches
    }

    /// The value of [`port::FACTOR`], a binary32 pattern.
    #[doc(hidden)] // for the layers above
    pub fn factor(&self) -> u32 {
        float::div(float::ONE, float::from_u32(self.samples() * self.labels_per_sample))
    }

    /// The values of [`port::CORRECTION1`] and [`port::CORRECTION2`] at a step (from 1), binary32 patterns: 1 where there is no beta.
    #[doc(hidden)] // for the layers above
    pub fn bias_corrections(&self, step: u32) -> [u32; 2] {
        [0, 1].map(|i| {
            let beta = self.corrections.get(i);
            beta.map_or(float::ONE, |&beta| schedule::bias_correction(f32::from_bits(beta), step))
        })
    }
}

fn parameter_input(b: &mut Builder, name: &str, shape: &[u32]) -> TensorId {
    b.input(port::parameter(name), DType::F32, shape)
}

/// The running averages of a batch normalisation, with mean 0 and variance 1 at first.
fn running_buffers(statistic: &Statistic) -> [Buffer; 2] {
    let [mean, variance] = statistic.running();
    let buffer = |name, init| Buffer { name, shape: vec![statistic.channels], init };
    [buffer(mean, Init::Zeros), buffer(variance, Init::Ones)]
}

/// The inputs of the running averages of each of a model's batch normalisations.
fn buffer_inputs(b: &mut Builder, model: &dyn Network) -> Vec<[TensorId; 2]> {
    let input = |b: &mut Builder, t: Buffer| b.input(port::buffer(&t.name), DType::F32, &t.shape);
    model.statistics().iter().map(|statistic| running_buffers(statistic).map(|t| input(b, t))).collect()
}

/// A builder with a model's inputs and forward pass in it.
pub(super) struct Pass {
    pub builder: Builder,
    /// The parameters' tensors.
    pub parameters: Vec<TensorId>,
    /// The tensors of [`crate::program::models::Network::batch`]: inputs, and labels.
    pub batch: Vec<TensorId>,
    /// The result of the forward pass.
    pub loss: Loss,
}

/// A model's forward pass over `samples` of a micro-batch, and the number of micro-batches of a step.
pub(super) fn forward(
    mode: Mode,
    model: &dyn Network,
    loss: LossRule,
    products: &ProductTable,
    [samples, micro_batches]: [u32; 2],
) -> Pass {
    let mut b = Builder::new(products.clone());
    let ids =
        model.parameters().iter().map(|p| parameter_input(&mut b, &p.name, &p.shape)).collect::<Vec<_>>();
    let averages = buffer_inputs(&mut b, model);
    let batch = model.batch(samples);
    let batch: Vec<TensorId> =
        batch.iter().map(|t| b.input(port::batch(&t.name), t.dtype, &t.shape)).collect();
    let inputs = Inputs {
        mode,
        loss,
        part: micro_batches > 1,
        batch: batch.clone(),
        averages,
        factor: b.input(port::FACTOR, DType::F32, &[1]),
        seed: b.input(port::SEED, DType::U32, &[2]),
        step: b.input(port::STEP, DType::U32, &[1]),
        first_sample: b.input(port::FIRST_SAMPLE, DType::U32, &[1]),
    };
    let loss = model.forward(&mut b, samples, &ids, &inputs);
    Pass { builder: b, parameters: ids, batch, loss }
}

fn micro_graph(spec: &Step, parameters: &[Parameter]) -> Graph {
    let Pass { builder: mut b, parameters: ids, loss, .. } = forward(
        Mode::Training,
        spec.model,
        spec.loss,
        &spec.products,
        [spec.micro_batch, spec.micro_batches],
    );
    let gradients = b.backward(loss.logits, loss.dlogits);
    let mut named = HashSet::new();
    for (p, id) in parameters.iter().zip(&ids).filter(|(p, _)| !p.frozen) {
        let gradient = gradients[id];
        // Two biases that are added to one sum share one gradient.
        let own =
            if named.insert(gradient) { gradient } else { b.scoped(&p.name, |b| b.duplicate(gradient)) };
        b.output(port::gradient(&p.name), own);
    }
    for (statistic, moments) in spec.model.statistics().iter().zip(&loss.moments) {
        output_moments(&mut b, statistic, moments);
    }
    if let Some(counted) = loss.counted {
        b.output(port::LABELS, counted);
    }
    b.output(port::LOSS, loss.loss);
    b.finish()
}

fn output_moments(b: &mut Builder, statistic: &Statistic, moments: &Moments) {
    let Moments { count, mean, m2 } = *moments;
    for (entry, tensor) in moment_table(statistic).into_iter().zip([count, mean, m2]) {
        b.output(entry.name, tensor);
    }
}

fn gradient_table(parameters: &[Parameter]) -> Vec<StateTensor> {
    let gradient = |p: &Parameter| StateTensor { name: port::gradient(&p.name), shape: p.shape.clone() };
    parameters.iter().filter(|p| !p.frozen).map(gradient).collect()
}

fn moment_table(statistic: &Statistic) -> [StateTensor; 3] {
    statistic.moments().map(|(name, shape)| StateTensor { name: port::buffer(&name), shape })
}

/// The scalars that micro-batches yield, in order.
fn scalar_table(counts_labels: bool) -> impl Iterator<Item = StateTensor> {
    let names = if counts_labels { &[port::LABELS, port::LOSS][..] } else { &[port::LOSS] };
    names.iter().map(|name| StateTensor { name: name.to_string(), shape: vec![1] })
}

/// [`Program::counts_labels`] of a program that is not built yet.
fn counts_labels(spec: &Step) -> bool {
    spec.loss.ignore.is_some() && spec.micro_batches > 1
}

fn left_and_right(b: &mut Builder, tensor: &StateTensor) -> [TensorId; 2] {
    [port::left(&tensor.name), port::right(&tensor.name)].map(|name| b.input(name, DType::F32, &tensor.shape))
}

fn append_sum(b: &mut Builder, tensor: &StateTensor) {
    let [left, right] = left_and_right(b, tensor);
    let sum = b.scoped("accumulate", |b| b.scoped(&tensor.name, |b| b.add(left, right)));
    b.output(tensor.name.clone(), sum);
}

fn append_pool(b: &mut Builder, statistic: &Statistic) {
    let table = moment_table(statistic);
    let [count, mean, m2] = [0, 1, 2].map(|i| left_and_right(b, &table[i]));
    let [left, right] = [0, 1].map(|side| Moments { count: count[side], mean: mean[side], m2: m2[side] });
    let name = port::buffer(&statistic.name);
    let pooled = b.scoped("accumulate", |b| b.scoped(&name, |b| pool(b, left, right)));
    output_moments(b, statistic, &pooled);
}

/// The sums of pairs of tensors, one node each, in order: `left/*` + `right/*` -> `*`.
pub fn sum_graph(tensors: &[StateTensor]) -> Graph {
    let mut b = Builder::new(ProductTable::two_and_three());
    tensors.iter().for_each(|tensor| append_sum(&mut b, tensor));
    b.finish()
}

/// [`sum_graph`] of gradients, of labels if they are counted, and of the loss, with the moments pooled between.
fn accumulate_graph(parameters: &[Parameter], statistics: &[Statistic], counts_labels: bool) -> Graph {
    let mut b = Builder::new(ProductTable::two_and_three());
    gradient_table(parameters).iter().for_each(|tensor| append_sum(&mut b, tensor));
    statistics.iter().for_each(|statistic| append_pool(&mut b, statistic));
    scalar_table(counts_labels).for_each(|tensor| append_sum(&mut b, &tensor));
    b.finish()
}

fn update_graph(spec: &Step, treatments: &[Treatment], parameters: &[Parameter]) -> Graph {
    let mut b = Builder::new(ProductTable::two_and_three());
    let ids: Vec<TensorId> = parameters.iter().map(|p| parameter_input(&mut b, &p.name, &p.shape)).collect();
    let averages = buffer_inputs(&mut b, spec.model);
    let all = parameters.iter().zip(&ids).zip(treatments);
    let trained: Vec<(&Parameter, TensorId, Treatment)> =
        all.filter(|((p, _), _)| !p.frozen).map(|((p, &id), treatment)| (p, id, *treatment)).collect();
    let inputs = |b: &mut Builder, prefix: &str| -> Vec<TensorId> {
        trained.iter().map(|(p, ..)| b.input(port::slot(prefix, &p.name), DType::F32, &p.shape)).collect()
    };
    let slots: Vec<Vec<TensorId>> = spec.optimizer.slots().iter().map(|slot| inputs(&mut b, slot)).collect();
    let mut gradients = inputs(&mut b, "grad");
    let moments: Vec<Moments> = spec.model.statistics().iter().map(|s| moment_inputs(&mut b, s)).collect();
    let sums =
        counts_labels(spec).then(|| [port::LABELS, port::LOSS].map(|name| b.input(name, DType::F32, &[1])));
    let [learning_rate, correction1, correction2] =
        [port::LEARNING_RATE, port::CORRECTION1, port::CORRECTION2]
            .map(|name| b.input(name, DType::F32, &[1]));
    let loss = sums.map(|sums| step_means(&mut b, spec, sums, &mut gradients));
    // Without clipping the bound is infinity, which no norm exceeds.
    let max_norm = spec.clip_norm.unwrap_or(f32::INFINITY);
    let (clip, norm) = b.scoped("clip", |b| clip_factor(b, &gradients, max_norm));
    let mut own_rates = HashMap::new();
    for (_, _, Treatment { rate_factor, .. }) in &trained {
        let make = || b.scoped("update", |b| own_rate(b, learning_rate, *rate_factor));
        own_rates.entry(rate_factor.to_bits()).or_insert_with(make);
    }
    let mut new_slots = vec![Vec::new(); slots.len()];
    for (i, (p, id, treatment)) in trained.iter().enumerate() {
        let state: Vec<TensorId> = slots.iter().map(|s| s[i]).collect();
        let (parameter, state) = b.scoped("update", |b| {
            b.scoped(&p.name, |b| {
                let learning_rate = own_rates[&treatment.rate_factor.to_bits()];
                let rates = Rates { learning_rate, correction1, correction2, clip };
                let (treatment, gradient) = (*treatment, gradients[i]);
                let trained = Trained { parameter: *id, treatment, gradient, state: &state };
                update(b, &spec.optimizer, rates, trained)
            })
        });
        b.output(port::parameter(&p.name), parameter);
        for (all, one) in new_slots.iter_mut().zip(state) {
            all.push(one);
        }
    }
    output_running(&mut b, spec.model, &averages, &moments);
    for (slot, tensors) in spec.optimizer.slots().iter().zip(new_slots) {
        for ((p, ..), tensor) in trained.iter().zip(tensors) {
            b.output(port::slot(slot, &p.name), tensor);
        }
    }
    if let Some(loss) = loss {
        b.output(port::LOSS, loss);
    }
    b.output(port::CLIP, clip);
    b.output(port::NORM, norm);
    b.finish()
}

/// Turns the sums of gradients into means over the labels that count. Returns the mean loss, made in the same way.
fn step_means(
    b: &mut Builder,
    spec: &Step,
    [count, loss]: [TensorId; 2],
    gradients: &mut Vec<TensorId>,
) -> TensorId {
    let labels = spec.micro_batch * spec.micro_batches * spec.model.labels_per_sample();
    let sums = [gradients.as_slice(), &[loss]].concat();
    *gradients = b.scoped("mean", |b| means_of_counted(b, labels, count, &sums));
    gradients.pop().expect("the loss is the last of the sums")
}

fn moment_inputs(b: &mut Builder, statistic: &Statistic) -> Moments {
    let [count, mean, m2] = moment_table(statistic).map(|t| b.input(t.name, DType::F32, &t.shape));
    Moments { count, mean, m2 }
}

/// Appends the running averages after a step with these moments.
fn output_running(b: &mut Builder, model: &dyn Network, averages: &[[TensorId; 2]], moments: &[Moments]) {
    for ((statistic, averages), moments) in model.statistics().iter().zip(averages).zip(moments) {
        let new = b.scoped("update", |b| {
            b.scoped(&statistic.name, |b| running(b, *averages, *moments, model.norm_momentum()))
        });
        for (name, tensor) in statistic.running().iter().zip(new) {
            b.output(port::buffer(name), tensor);
        }
    }
}

/// The logits of a batch of `samples` in evaluation. The inputs are params, buffers, `batch/*` and the scalars of a micro-batch;
/// the output is `logits`.
pub fn inference_graph(model: &dyn Network, products: &ProductTable, samples: u32) -> Graph {
    let Pass { builder: mut b, loss, .. } =
        forward(Mode::Evaluation, model, LossRule::default(), products, [samples, 1]);
    b.output("logits", loss.logits);
    b.finish()
}
