//! Models: from a job's `[model]` table to a loss graph and a table of parameters.

mod gpt;
mod mlp;
pub mod released;
mod resnet;

pub use gpt::{Gelu, Gpt};
pub use mlp::Mlp;
pub use resnet::{Convolution, Norm, Resnet};

use serde::{Deserialize, Serialize};

use super::builder::Builder;
use super::expr::Body;
use super::graph::{TensorId, TensorType};
use super::operators::{Dropout, Moments};
use crate::arith::DType;

/// The models a job can name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Model {
    /// A GPT-2 style decoder over tokens.
    Gpt(Gpt),
    /// A multi-layer perceptron that classifies images.
    Mlp(Mlp),
    /// A residual convolutional network that classifies images.
    Resnet(Resnet),
}

/// How a parameter begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// +0.
    Zeros,
    /// 1.
    Ones,
    /// `init.v1` of `docs/ARITHMETIC.md`: approximately normal with this standard deviation, from Philox.
    Normal {
        /// The standard deviation.
        std: f32,
    },
}

/// One tensor that may be trained, in the table's order. The order is part of the program.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelParameter {
    /// The name, unique in the model.
    pub name: String,
    /// The dimensions.
    pub shape: Vec<u32>,
    /// The initial values.
    pub init: Init,
    /// Whether weight decay applies (matrices yes, gains and biases no).
    pub decayed: bool,
}

/// Moments of columns that a micro-batch yields beside the gradients: those that a batch normalisation sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistic {
    /// The name of the batch normalisation, unique in the program.
    pub name: String,
    /// The number of columns.
    pub channels: u32,
}

impl Statistic {
    /// The names and shapes of [`Moments`]' tensors, in their order.
    pub fn moments(&self) -> [(String, Vec<u32>); 3] {
        let Statistic { name, channels } = self;
        [("count", 1), ("mean", *channels), ("m2", *channels)]
            .map(|(part, columns)| (format!("{name}.{part}"), vec![columns]))
    }

    /// The names of the running averages of mean and variance.
    pub fn running(&self) -> [String; 2] {
        ["running_mean", "running_var"].map(|part| format!("{}.{part}", self.name))
    }
}

/// A tensor of one micro-batch that comes from data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchTensor {
    /// The name, unique in the batch.
    pub name: String,
    /// The elements' type: U32 or F32.
    pub dtype: DType,
    /// The dimensions, samples first.
    pub shape: Vec<u32>,
    /// What the numbers of a U32 tensor must be below; 0 for F32, whose values have no bound.
    pub below: u32,
}

impl BatchTensor {
    /// The tensor's type.
    pub fn ty(&self) -> TensorType {
        TensorType { dtype: self.dtype, shape: self.shape.clone() }
    }
}

impl BatchTensor {
    fn u32(name: &str, shape: Vec<u32>, below: u32) -> BatchTensor {
        BatchTensor { name: name.into(), dtype: DType::U32, shape, below }
    }
}

/// What the inputs of a classifier are. A job's data decide it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Input {
    /// Bytes, which the model maps to 0..=1: the batch tensor `pixels`, U32.
    #[default]
    Pixels,
    /// Numbers that the model takes as they are: the batch tensor `values`, F32.
    Values,
}

/// What a model's forward function is given besides its parameters.
pub struct Inputs {
    /// One tensor for each [`BatchTensor`].
    pub batch: Vec<TensorId>,
    /// f32 [1]: 1 / the number of labels in the whole batch.
    pub factor: TensorId,
    /// u32 [2]: the run's Philox key, see [`Dropout`].
    pub seed: TensorId,
    /// u32 [1]: the step, from 1.
    pub step: TensorId,
    /// u32 [1]: the first sample of the micro-batch in the whole batch.
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
    /// f32 [N, classes]: the model's output before softmax.
    pub logits: TensorId,
    /// f32 [N, classes]: the gradient of the loss.
    pub dlogits: TensorId,
    /// The moments of each of [`Model::statistics`].
    pub moments: Vec<Moments>,
}

impl Model {
    /// The trained tensors, in the order of the program.
    pub fn parameters(&self) -> Vec<ModelParameter> {
        match self {
            Model::Gpt(gpt) => gpt.parameters(),
            Model::Mlp(mlp) => mlp.parameters(),
            Model::Resnet(resnet) => resnet.parameters(),
        }
    }

    /// The statistics of its batch normalisations, in the order of the parameters.
    pub fn statistics(&self) -> Vec<Statistic> {
        match self {
            Model::Gpt(_) | Model::Mlp(_) => Vec::new(),
            Model::Resnet(resnet) => resnet.statistics(),
        }
    }

    /// The part by which a step moves running averages towards its own moments.
    pub fn norm_momentum(&self) -> f32 {
        match self {
            Model::Gpt(_) | Model::Mlp(_) => 0.0,
            Model::Resnet(resnet) => resnet.norm_momentum,
        }
    }

    /// Number of trained scalars.
    pub fn parameter_count(&self) -> u64 {
        let scalars = |p: ModelParameter| p.shape.iter().fold(1u64, |n, &d| n.saturating_mul(d.into()));
        self.parameters().into_iter().map(scalars).fold(0, u64::saturating_add)
    }

    /// The data tensors of a micro-batch of `samples`.
    pub fn batch(&self, samples: u32) -> Vec<BatchTensor> {
        match self {
            Model::Gpt(gpt) => gpt.batch(samples),
            Model::Mlp(mlp) => mlp.batch(samples),
            Model::Resnet(resnet) => resnet.batch(samples),
        }
    }

    /// Has a classifier take inputs of this kind. A model of tokens has no other.
    pub(crate) fn take(&mut self, input: Input) {
        match self {
            Model::Gpt(_) => {}
            Model::Mlp(mlp) => mlp.input = input,
            Model::Resnet(resnet) => resnet.input = input,
        }
    }

    /// Labels per sample: what the loss is averaged over.
    pub fn labels_per_sample(&self) -> u32 {
        match self {
            Model::Gpt(gpt) => gpt.context,
            Model::Mlp(_) | Model::Resnet(_) => 1,
        }
    }

    /// Appends the forward pass of a micro-batch of `samples`.
    pub fn forward(&self, b: &mut Builder, samples: u32, parameters: &[TensorId], inputs: &Inputs) -> Loss {
        match self {
            Model::Gpt(gpt) => gpt.forward(b, samples, parameters, inputs),
            Model::Mlp(mlp) => mlp.forward(b, samples, parameters, inputs),
            Model::Resnet(resnet) => resnet.forward(b, samples, parameters, inputs),
        }
    }

    /// The tensors of its files in transformers', torchvision's or `torch.nn.Sequential`'s names and layouts; `None` if none of them has such a model.
    pub fn released(&self) -> Option<Vec<released::Released>> {
        match self {
            Model::Gpt(gpt) => Some(gpt.released()),
            Model::Mlp(mlp) => Some(mlp.released()),
            Model::Resnet(_) => None,
        }
    }

    /// What is wrong with the numbers, if anything: (key, why).
    pub fn error(&self) -> Option<(&'static str, String)> {
        match self {
            Model::Gpt(gpt) => gpt.error(),
            Model::Mlp(mlp) => mlp.error(),
            Model::Resnet(resnet) => resnet.error(),
        }
    }
}

/// The batch of a classifier: inputs of this shape, and a label for each.
fn classified(samples: u32, input: Input, shape: &[u32], classes: u32) -> Vec<BatchTensor> {
    let shape = [&[samples], shape].concat();
    let inputs = match input {
        Input::Pixels => BatchTensor::u32("pixels", shape, 256),
        Input::Values => BatchTensor { name: "values".into(), dtype: DType::F32, shape, below: 0 },
    };
    vec![inputs, BatchTensor::u32("labels", vec![samples], classes)]
}

/// Pixel bytes to 0..=1.
fn pixel_body() -> Body {
    Body::new("pixel.v1", |w| {
        let (pixel, full) = (w.input(0), w.f(255.0));
        let value = w.from_u(pixel);
        w.div(value, full)
    })
}
