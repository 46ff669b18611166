//! Models: from a job's `[model]` table to a loss graph and a table of parameters. A model is a file of this folder that
//! implements [`Network`], and a line in the list below, which also declares the file.

mod images;
mod lora;
pub mod nodes;
pub mod normalize;
pub mod released;
mod sizes;
mod text;

pub use lora::Lora;
pub use normalize::{Normalization, Normalize};
pub use sizes::{ProductSize, Sizes};
pub(super) use text::Text;
use text::{document_error, window_error};

use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

use self::released::Released;
use super::builder::Builder;
use super::expr::Body;
use super::graph::{TensorId, TensorType};
use super::keys::Key;
use super::operators::{Dropout, LossRule, Moments, cross_entropy_by, cross_entropy_of_part, dropout};
use crate::arith::DType;

/// Makes [`Model`] from a list of models. A line gives the module, the model's type, the types of its keys, and a few words about
/// the model. The last lines name the types of tables that several models have.
macro_rules! models {
    ($(mod $module:ident; $variant:ident $(, $part:ident)*: $about:literal;)* $(table $table:ident;)*) => {
        $(mod $module;
        pub use $module::{$variant $(, $part)*};)*

        /// The models a job can name, by the names of their modules.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
        pub enum Model {
            $(#[doc = $about] $variant($variant)),*
        }

        impl Deref for Model {
            type Target = dyn Network;

            fn deref(&self) -> &(dyn Network + 'static) {
                match self {
                    $(Model::$variant(network) => network),*
                }
            }
        }

        impl DerefMut for Model {
            fn deref_mut(&mut self) -> &mut (dyn Network + 'static) {
                match self {
                    $(Model::$variant(network) => network),*
                }
            }
        }

        /// The models' names in a job.
        pub const KINDS: &[&str] = &[$(stringify!($module)),*];

        /// A sentence about the models.
        pub const KINDS_ARE: &str = concat!("The model." $(, " `", stringify!($module), "`: ", $about, ".")*);

        /// The keys of each model, in the order of [`KINDS`], and those of adapters.
        pub fn keys() -> impl Iterator<Item = &'static [Key]> {
            [$($variant::keys(),)* $($table::keys()),*].into_iter()
        }

        /// Small models of every kind: [`Network::small`].
        pub(super) fn small(second: u32) -> Vec<Model> {
            [$($variant::small(second).into_iter().map(Model::$variant).collect::<Vec<_>>()),*].concat()
        }
    };
}

models! {
    mod gpt; Gpt, Gelu: "a decoder over tokens";
    mod llama; Llama: "a decoder over tokens with rotary positions, as Llama's";
    mod mlp; Mlp: "a multi-layer perceptron; without hidden layers, logistic regression";
    mod resnet; Resnet, Block, Blocks, Norm, Order, Stem: "a residual network of convolutions over images";
    mod vgg11; Vgg11, VggNorm: "a network of eight convolutions and three linear layers over images";
    mod bert; Bert, BertForm: "an encoder that learns masked tokens, or classifies sequences, as BERT and DistilBERT do";
    mod vit; Vit: "a vision transformer: an encoder over patches of images, which classifies them";
    table Lora;
}

impl Model {
    /// The error in the numbers, if there is one: (key, why).
    #[doc(hidden)] // for the layers above
    pub fn error(&self) -> Option<(&'static str, String)> {
        let numbers = serde_json::to_value(self).expect("a model's numbers are JSON");
        let of_kind = keys().flatten().filter(|key| key.kind.is_some_and(|kind| numbers["kind"] == kind));
        let outside = |key: &Key| Some((key.name(), key.ty.error(numbers.get(key.name())?)?));
        of_kind.into_iter().find_map(outside).or_else(|| self.contradiction())
    }
}

/// The initial values of a parameter.
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
    /// `uniform.v1` of `docs/ARITHMETIC.md`: uniform between the negative of this number and the number, from Philox.
    Uniform {
        /// The bound.
        bound: f32,
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
    /// True if weight decay applies (to matrices, not to gains and biases).
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
    pub(crate) fn moments(&self) -> [(String, Vec<u32>); 3] {
        let Statistic { name, channels } = self;
        [("count", 1), ("mean", *channels), ("m2", *channels)]
            .map(|(part, columns)| (format!("{name}.{part}"), vec![columns]))
    }

    /// The names of the running averages of mean and variance.
    #[doc(hidden)] // for the layers above
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
    /// The bound that the numbers of a U32 tensor must be below; 0 for F32, whose values have no bound.
    pub below: u32,
}

impl BatchTensor {
    /// The tensor's type.
    pub fn ty(&self) -> TensorType {
        TensorType { dtype: self.dtype, shape: self.shape.clone() }
    }
}

/// The name of the batch tensor of token ids that have one label, of a model.
#[doc(hidden)] // for the layers above
pub const IDS: &str = "ids";

impl BatchTensor {
    fn u32(name: &str, shape: Vec<u32>, below: u32) -> BatchTensor {
        BatchTensor { name: name.into(), dtype: DType::U32, shape, below }
    }

    /// The batch of a decoder: `count` tokens below `vocabulary`, each with the one that follows.
    fn tokens_and_labels(count: u32, vocabulary: u32) -> Vec<BatchTensor> {
        ["tokens", "labels"].map(|name| BatchTensor::u32(name, vec![count], vocabulary)).into()
    }
}

/// The kind of a classifier's inputs. A job's data decide it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Input {
    /// Bytes, which the model maps to 0..=1: the batch tensor `pixels`, U32.
    #[default]
    Pixels,
    /// Numbers that the model takes as they are: the batch tensor `values`, F32.
    Values,
}

/// The purpose of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Training: dropout draws, and a batch normalisation takes the moments of its micro-batch.
    Training,
    /// Using a trained model: there is no dropout, and a batch normalisation takes its running averages. An evaluation has no
    /// gradient.
    Evaluation,
}

/// The inputs of a model's forward function besides its parameters.
pub struct Inputs {
    /// The purpose of the pass.
    pub mode: Mode,
    /// The rule for the loss's targets and for the labels that count. An evaluation's targets are not smoothed.
    pub loss: LossRule,
    /// True if the micro-batch is one of several. Then the forward pass counts labels to ignore, and the update makes the mean
    /// over the step's labels.
    pub part: bool,
    /// One tensor for each [`BatchTensor`].
    pub batch: Vec<TensorId>,
    /// The running mean and variance, f32 [channels] each, for each of [`Network::statistics`].
    pub averages: Vec<[TensorId; 2]>,
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
    /// The loss of these logits, the end of every classifier (a model of text is one too).
    fn loss(&self, b: &mut Builder, logits: TensorId, labels: TensorId, moments: Vec<Moments>) -> Loss {
        let mut rule = self.loss;
        if self.mode == Mode::Evaluation {
            rule.smoothing = 0.0;
        }
        let (loss, dlogits, counted) = b.scoped("loss", |b| match rule.ignore {
            Some(ignored) if self.part => {
                let inputs = [logits, labels, self.factor];
                let [loss, dlogits, count] = cross_entropy_of_part(b, rule.smoothing, ignored, inputs);
                (loss, dlogits, Some(count))
            }
            _ => {
                let (loss, dlogits) = cross_entropy_by(b, rule, logits, labels, self.factor);
                (loss, dlogits, None)
            }
        });
        Loss { loss, logits, dlogits, counted, moments }
    }

    /// x after a dropout with probability `p`, or x itself where nothing is dropped. `number` is the dropout's in its program.
    fn dropped(&self, b: &mut Builder, p: f32, [samples, number]: [u32; 2], x: TensorId) -> TensorId {
        self.dropout(p).map_or(x, |drop| b.scoped("dropout", |b| dropout(b, drop, samples, number, x)))
    }

    fn dropout(&self, p: f32) -> Option<Dropout> {
        if p == 0.0 || self.mode == Mode::Evaluation {
            return None;
        }
        let (threshold, scale) = Dropout::rates(p);
        Some(Dropout { seed: self.seed, step: self.step, first_sample: self.first_sample, threshold, scale })
    }
}

/// The result of a forward pass; the chain of gradients starts from it.
pub struct Loss {
    /// f32 [1].
    pub loss: TensorId,
    /// f32 [N, classes]: the model's output before softmax.
    pub logits: TensorId,
    /// f32 [N, classes]: the gradient of the loss.
    pub dlogits: TensorId,
    /// f32 [1]: the number of labels that count, if a label is ignored and the micro-batch is a part of the batch.
    pub counted: Option<TensorId>,
    /// The moments for each of [`Network::statistics`]; an evaluation has none.
    pub moments: Vec<Moments>,
}

/// The interface of a model to everything outside of this folder.
pub trait Network {
    /// The keys of its job table, in the order in which pages list them.
    fn keys() -> &'static [Key]
    where
        Self: Sized;

    /// Small models that together have every body of the model. `second` is 0 or 1. The other value of `second` changes every
    /// number that a body may depend on, and nothing else. So the constants of bodies that depend on a model's numbers can be
    /// found.
    fn small(second: u32) -> Vec<Self>
    where
        Self: Sized;

    /// The error in numbers that are each within the bounds of their keys, if there is one: (key, why).
    fn contradiction(&self) -> Option<(&'static str, String)>;

    /// The sizes that must be small enough before a graph of `samples` is built. The caller has found no error by
    /// [`Model::error`].
    fn sizes(&self, samples: u64) -> Sizes;

    /// The trained tensors, in the order of the program.
    fn parameters(&self) -> Vec<ModelParameter>;

    /// The number of the table's first parameters that training leaves as they are: all but the adapters of a model that has any.
    fn frozen(&self) -> usize {
        0
    }

    /// The tensors of the adapters' file in PEFT's names and layouts; none if the model has no adapters.
    #[doc(hidden)] // for the layers above
    fn adapters(&self) -> Vec<Released> {
        Vec::new()
    }

    /// The weights that have adapters, each with its A and B, by their names; none if the model has no adapters. The number is the
    /// factor of B A.
    #[doc(hidden)] // for the layers above
    fn merges(&self) -> (f32, Vec<[String; 3]>) {
        (1.0, Vec::new())
    }

    /// The statistics of the model's batch normalisations, in the order of the parameters.
    fn statistics(&self) -> Vec<Statistic> {
        Vec::new()
    }

    /// The momentum: the fraction by which a step moves running averages towards its own moments.
    fn norm_momentum(&self) -> f32 {
        0.0
    }

    /// The data tensors of a micro-batch of `samples`.
    fn batch(&self, samples: u32) -> Vec<BatchTensor>;

    /// Sets the kind of a classifier's inputs. A model of tokens has only one kind.
    fn take(&mut self, _: Input) {}

    /// The constants by which a model of images normalises bytes; `None` for a model without these keys.
    fn normalization(&self) -> Option<Normalization<'_>> {
        None
    }

    /// Sets the constants by which a model of images normalises bytes: a name, or a mean and a standard deviation for each plane.
    fn normalize(&mut self, _: Option<Normalize>, _: [Vec<f32>; 2]) {}

    /// Sets a classifier's number of classes. Returns the patterns of its head's parameters; none for a model without a classifier.
    fn reclassify(&mut self, _: u32) -> Vec<String> {
        Vec::new()
    }

    /// Labels per sample: the loss is averaged over them.
    fn labels_per_sample(&self) -> u32 {
        1
    }

    /// True if the model learns the tokens that its inputs mask, not those that follow.
    fn learns_masked(&self) -> bool {
        false
    }

    /// Appends the forward pass of a micro-batch of `samples`; `parameters` are in the order of [`Network::parameters`].
    fn forward(&self, b: &mut Builder, samples: u32, parameters: &[TensorId], inputs: &Inputs) -> Loss;

    /// The tensors of the model's files in the names and layouts of transformers, torchvision or `torch.nn.Sequential`, without
    /// those of adapters; `None` if none of them has such a model.
    fn released(&self) -> Option<Vec<Released>> {
        None
    }

    /// Number of trained scalars.
    fn parameter_count(&self) -> u64 {
        let scalars = |p: ModelParameter| p.shape.iter().fold(1u64, |n, &d| n.saturating_mul(d.into()));
        self.parameters().into_iter().map(scalars).fold(0, u64::saturating_add)
    }
}

/// The methods of [`Network`] that the keys `normalize`, `image_mean` and `image_std` of a model give.
macro_rules! normalizes {
    () => {
        fn normalization(&self) -> Option<Normalization<'_>> {
            Some(Normalization { preset: self.normalize, mean: &self.image_mean, std: &self.image_std })
        }

        fn normalize(&mut self, preset: Option<Normalize>, constants: [Vec<f32>; 2]) {
            self.normalize = preset;
            [self.image_mean, self.image_std] = constants;
        }
    };
}
use normalizes;

/// A cursor over the tensors of parameters, in the order of the table.
struct Cursor<'a>(std::slice::Iter<'a, TensorId>);

impl Cursor<'_> {
    fn next(&mut self) -> TensorId {
        *self.0.next().expect("the table of parameters and the forward pass list the same")
    }
}

/// The batch of a classifier: inputs of this shape, and a label for each sample.
fn classified(samples: u32, input: Input, shape: &[u32], classes: u32) -> Vec<BatchTensor> {
    let shape = [&[samples], shape].concat();
    let inputs = match input {
        Input::Pixels => BatchTensor::u32("pixels", shape, 256),
        Input::Values => BatchTensor { name: "values".into(), dtype: DType::F32, shape, below: 0 },
    };
    vec![inputs, BatchTensor::u32("labels", vec![samples], classes)]
}

/// The map from pixel bytes to 0..=1.
fn pixel_body() -> Body {
    Body::new("pixel.v1", |w| {
        let (pixel, full) = (w.input(0), w.f(255.0));
        let value = w.from_u(pixel);
        w.div(value, full)
    })
}
