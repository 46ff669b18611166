//! Models: from a job's `[model]` table to a loss graph and a table of parameters.

mod gpt;
mod mlp;

pub use gpt::{Gelu, Gpt};
pub use mlp::Mlp;

use serde::{Deserialize, Serialize};

use super::builder::Builder;
use super::graph::TensorId;
use super::operators::Dropout;
use crate::arith::DType;

/// The models a job can name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Model {
    /// A GPT-2 style decoder over tokens.
    Gpt(Gpt),
    /// A multi-layer perceptron that classifies images.
    Mlp(Mlp),
}

/// How a parameter begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    Zeros,
    Ones,
    /// `init.v1` of `docs/ARITHMETIC.md`: approximately normal with this standard deviation, from Philox.
    Normal {
        std: f32,
    },
}

/// One trained tensor, in the table's order. The order is part of the program.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub name: String,
    pub shape: Vec<u32>,
    pub init: Init,
    /// Whether weight decay applies (matrices yes, gains and biases no).
    pub decayed: bool,
}

/// The tensors of one micro-batch that come from data: (name, type, shape), the first dimension over samples.
pub struct BatchTensor {
    pub name: &'static str,
    pub dtype: DType,
    pub shape: Vec<u32>,
}

/// What a model's forward function is given besides its parameters.
pub struct Inputs {
    /// One tensor for each [`BatchTensor`].
    pub batch: Vec<TensorId>,
    /// f32 [1]: 1 / the number of labels in the whole batch.
    pub factor: TensorId,
    /// u32 [2], [1], [1]: see [`Dropout`].
    pub seed: TensorId,
    pub step: TensorId,
    pub first_sample: TensorId,
}

impl Inputs {
    fn dropout(&self, p: f32) -> Option<Dropout> {
        if p == 0.0 {
            return None;
        }
        let (threshold, scale) = Dropout::rates(p);
        Some(Dropout { seed: self.seed, step: self.step, first_sample: self.first_sample, threshold, scale })
    }
}

/// The result of a forward pass: where the gradient chain starts.
pub struct Loss {
    /// f32 [1].
    pub loss: TensorId,
    pub logits: TensorId,
    pub dlogits: TensorId,
}

impl Model {
    pub fn parameters(&self) -> Vec<Parameter> {
        match self {
            Model::Gpt(gpt) => gpt.parameters(),
            Model::Mlp(mlp) => mlp.parameters(),
        }
    }

    /// The data tensors of a micro-batch of `samples`.
    pub fn batch(&self, samples: u32) -> Vec<BatchTensor> {
        match self {
            Model::Gpt(gpt) => gpt.batch(samples),
            Model::Mlp(mlp) => mlp.batch(samples),
        }
    }

    /// Labels per sample: what the loss is averaged over.
    pub fn labels_per_sample(&self) -> u32 {
        match self {
            Model::Gpt(gpt) => gpt.context,
            Model::Mlp(_) => 1,
        }
    }

    /// Appends the forward pass of a micro-batch of `samples`.
    pub fn forward(&self, b: &mut Builder, samples: u32, parameters: &[TensorId], inputs: &Inputs) -> Loss {
        match self {
            Model::Gpt(gpt) => gpt.forward(b, samples, parameters, inputs),
            Model::Mlp(mlp) => mlp.forward(b, samples, parameters, inputs),
        }
    }

    /// What is wrong with the numbers, if anything: (key, why).
    pub fn error(&self) -> Option<(&'static str, String)> {
        match self {
            Model::Gpt(gpt) => gpt.error(),
            Model::Mlp(mlp) => mlp.error(),
        }
    }
}
