//! A training step as three graphs: the gradient of a micro-batch, the sum of two gradients, and the update.
//!
//! A step over M micro-batches is the fixed tree over their gradients (`accumulate`), then `update`; so any number
//! of devices, or an auditor with one micro-batch, computes the same bits. Contract: section 7.

use super::builder::Builder;
use super::graph::{Graph, TensorId, TensorType};
use super::models::{Inputs, Loss, Model, Parameter};
use super::optimizer::{Optimizer, Rates, Trained, clip_factor, update};
use super::products::ProductTable;
use super::schedule;
use crate::arith::{DType, float};

/// The port names of the graphs. `{}` stands for a parameter's name.
pub mod port {
    /// f32 [1]: the micro-batch's share of the mean loss.
    pub const LOSS: &str = "loss";
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
    pub const NORM: &str = "norm";

    /// A parameter.
    pub fn parameter(name: &str) -> String {
        format!("param/{name}")
    }
    /// A parameter's gradient.
    pub fn gradient(name: &str) -> String {
        format!("grad/{name}")
    }
    /// An optimizer state tensor of a parameter.
    pub fn slot(slot: &str, name: &str) -> String {
        format!("{slot}/{name}")
    }
    /// A tensor of the micro-batch's data.
    pub fn batch(name: &str) -> String {
        format!("batch/{name}")
    }
    /// The left operand of `accumulate`.
    pub fn left(name: &str) -> String {
        format!("left/{name}")
    }
    /// The right operand of `accumulate`.
    pub fn right(name: &str) -> String {
        format!("right/{name}")
    }
}

/// Everything that decides the bits of a training step, apart from its data.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSpec {
    /// The model.
    pub model: Model,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The greatest gradient norm; `None` = no clipping (the factor is 1).
    pub clip_norm: Option<f32>,
    /// Samples of a micro-batch.
    pub micro_batch: u32,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// Digits and grids of the products, by class.
    pub products: ProductTable,
}

/// A tensor of the training state, in the order of state digests and checkpoints, or one of the gradients. Binary32.
#[derive(Clone, Debug, PartialEq)]
pub struct StateTensor {
    /// The port's name: `param/..`, an optimizer slot such as `m/..`, `grad/..` or `loss`.
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

/// The data of one micro-batch: canonical bytes of each tensor of [`Model::batch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroBatch {
    /// In the order of [`Model::batch`].
    pub tensors: Vec<Vec<u8>>,
}

/// The program of a job.
#[derive(Clone, Debug)]
pub struct Program {
    /// What the program was made from.
    pub spec: StepSpec,
    /// The model's parameters, in order.
    pub parameters: Vec<Parameter>,
    /// params, batch, scalars -> `grad/*`, `loss`.
    pub micro: Graph,
    /// `left/*` + `right/*` -> `grad/*`, `loss`.
    pub accumulate: Graph,
    /// params, slots, grads, scalars -> params, slots, `clip`, `norm`.
    pub update: Graph,
}

impl Program {
    /// Builds the three graphs of a step.
    pub fn new(spec: StepSpec) -> Program {
        let parameters = spec.model.parameters();
        Program {
            micro: micro_graph(&spec, &parameters),
            accumulate: sum_graph(&gradient_table(&parameters)),
            update: update_graph(&spec, &parameters),
            parameters,
            spec,
        }
    }

    /// The state in order: all parameters, then all of each optimizer slot.
    pub fn state(&self) -> Vec<StateTensor> {
        let mut table = Vec::new();
        let tensors = |prefix: &str, table: &mut Vec<StateTensor>| {
            for p in &self.parameters {
                table.push(StateTensor { name: port::slot(prefix, &p.name), shape: p.shape.clone() });
            }
        };
        tensors("param", &mut table);
        for slot in self.spec.optimizer.slots() {
            tensors(slot, &mut table);
        }
        table
    }

    /// What a micro-batch, or a sum of them, yields: every parameter's gradient, then the loss.
    pub fn gradients(&self) -> Vec<StateTensor> {
        gradient_table(&self.parameters)
    }

    /// Number of trained scalars.
    pub fn parameter_count(&self) -> u64 {
        self.spec.model.parameter_count()
    }

    /// Samples of a whole batch.
    pub fn batch(&self) -> u32 {
        self.spec.micro_batch * self.spec.micro_batches
    }

    /// The value of [`port::FACTOR`], a binary32 pattern.
    pub fn factor(&self) -> u32 {
        float::div(float::ONE, float::from_u32(self.batch() * self.spec.model.labels_per_sample()))
    }

    /// The values of [`port::CORRECTION1`] and [`port::CORRECTION2`] at a step (from 1), binary32 patterns.
    pub fn corrections(&self, step: u32) -> [u32; 2] {
        match self.spec.optimizer {
            Optimizer::Adamw { beta1, beta2, .. } => {
                [beta1, beta2].map(|beta| schedule::bias_correction(beta, step))
            }
            Optimizer::Sgd { .. } => [float::ONE; 2],
        }
    }
}

fn parameter_inputs(b: &mut Builder, parameters: &[Parameter]) -> Vec<TensorId> {
    parameters.iter().map(|p| b.input(port::parameter(&p.name), DType::F32, &p.shape)).collect()
}

/// A builder with a model's inputs and forward pass in it, over `samples`; the parameters' tensors, and the result.
fn forward(model: &Model, products: &ProductTable, samples: u32) -> (Builder, Vec<TensorId>, Loss) {
    let mut b = Builder::new(products.clone());
    let ids = parameter_inputs(&mut b, &model.parameters());
    let batch = model.batch(samples);
    let batch = batch.iter().map(|t| b.input(port::batch(&t.name), t.dtype, &t.shape)).collect();
    let inputs = Inputs {
        batch,
        factor: b.input(port::FACTOR, DType::F32, &[1]),
        seed: b.input(port::SEED, DType::U32, &[2]),
        step: b.input(port::STEP, DType::U32, &[1]),
        first_sample: b.input(port::FIRST_SAMPLE, DType::U32, &[1]),
    };
    let loss = model.forward(&mut b, samples, &ids, &inputs);
    (b, ids, loss)
}

fn micro_graph(spec: &StepSpec, parameters: &[Parameter]) -> Graph {
    let (mut b, ids, loss) = forward(&spec.model, &spec.products, spec.micro_batch);
    let gradients = b.backward(loss.logits, loss.dlogits);
    for (p, id) in parameters.iter().zip(&ids) {
        b.output(port::gradient(&p.name), gradients[id]);
    }
    b.output(port::LOSS, loss.loss);
    b.finish()
}

fn gradient_table(parameters: &[Parameter]) -> Vec<StateTensor> {
    let gradient = |p: &Parameter| StateTensor { name: port::gradient(&p.name), shape: p.shape.clone() };
    let loss = StateTensor { name: port::LOSS.to_string(), shape: vec![1] };
    parameters.iter().map(gradient).chain([loss]).collect()
}

/// The sums of pairs of tensors, one node each, in order: `left/*` + `right/*` -> `*`.
pub fn sum_graph(tensors: &[StateTensor]) -> Graph {
    let mut b = Builder::new(ProductTable::preset());
    for StateTensor { name, shape } in tensors {
        let left = b.input(port::left(name), DType::F32, shape);
        let right = b.input(port::right(name), DType::F32, shape);
        let sum = b.scoped("accumulate", |b| b.scoped(name, |b| b.add(left, right)));
        b.output(name.clone(), sum);
    }
    b.finish()
}

fn update_graph(spec: &StepSpec, parameters: &[Parameter]) -> Graph {
    let mut b = Builder::new(ProductTable::preset());
    let ids = parameter_inputs(&mut b, parameters);
    let slots: Vec<Vec<TensorId>> = spec
        .optimizer
        .slots()
        .iter()
        .map(|slot| {
            parameters.iter().map(|p| b.input(port::slot(slot, &p.name), DType::F32, &p.shape)).collect()
        })
        .collect();
    let gradients: Vec<TensorId> =
        parameters.iter().map(|p| b.input(port::gradient(&p.name), DType::F32, &p.shape)).collect();
    let [learning_rate, correction1, correction2] =
        [port::LEARNING_RATE, port::CORRECTION1, port::CORRECTION2]
            .map(|name| b.input(name, DType::F32, &[1]));
    // Without clipping the bound is infinity, which no norm exceeds.
    let max_norm = spec.clip_norm.unwrap_or(f32::INFINITY);
    let (clip, norm) = b.scoped("clip", |b| clip_factor(b, &gradients, max_norm));
    let rates = Rates { learning_rate, correction1, correction2, clip };
    let mut new_slots = vec![Vec::new(); slots.len()];
    for (i, p) in parameters.iter().enumerate() {
        let state: Vec<TensorId> = slots.iter().map(|s| s[i]).collect();
        let (parameter, state) = b.scoped("update", |b| {
            b.scoped(&p.name, |b| {
                let trained =
                    Trained { parameter: ids[i], decayed: p.decayed, gradient: gradients[i], state: &state };
                update(b, &spec.optimizer, rates, trained)
            })
        });
        b.output(port::parameter(&p.name), parameter);
        for (all, one) in new_slots.iter_mut().zip(state) {
            all.push(one);
        }
    }
    for (slot, tensors) in spec.optimizer.slots().iter().zip(new_slots) {
        for (p, tensor) in parameters.iter().zip(tensors) {
            b.output(port::slot(slot, &p.name), tensor);
        }
    }
    b.output(port::CLIP, clip);
    b.output(port::NORM, norm);
    b.finish()
}

/// The logits of a batch of `samples` for generation: inputs params and `batch/*`, output `logits`. Dropout is off.
pub fn inference_graph(model: &Model, products: &ProductTable, samples: u32) -> Graph {
    let mut model = model.clone();
    match &mut model {
        Model::Gpt(gpt) => gpt.dropout = 0.0,
        Model::Mlp(mlp) => mlp.dropout = 0.0,
        Model::Resnet(_) => {}
    }
    let (mut b, _, loss) = forward(&model, products, samples);
    b.output("logits", loss.logits);
    b.finish()
}
