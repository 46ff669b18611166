//! What a job says, key by key, and the program that it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::element::Element;
use crate::arith::DType;
use crate::program::models::{Input, Model};
use crate::program::optimizer::Optimizer;
use crate::program::products::{ProductClass, ProductDigits, ProductTable};
use crate::program::schedule::Schedule;
use crate::program::step::{Program, StepSpec};
use crate::rounding::thresholds::Rounding;

/// A parsed and validated job.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Training steps of the run.
    pub steps: u32,
    /// Any number; a trainer's own choice of randomness unless a challenge is given when training starts.
    #[serde(default)]
    pub seed: u64,
    /// The model.
    pub model: Model,
    /// The files of the samples.
    pub data: DataSpec,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// How many samples a step has.
    pub batch: BatchSpec,
    /// The greatest norm of a step's gradient.
    #[serde(default)]
    pub clip_norm: Option<f32>,
    /// Digits of the products.
    #[serde(default)]
    pub digits: DigitsSpec,
    /// The logged profile: products may be computed by native kernels. Absent = the exact profile.
    #[serde(default)]
    pub rounding: Option<Rounding>,
    /// What is committed, and how often it is signed.
    #[serde(default)]
    pub commit: CommitSpec,
    /// How often the state is written.
    #[serde(default)]
    pub checkpoint: CheckpointSpec,
}

/// The `[data]` table: where samples come from, and how they are drawn.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct DataSpec {
    /// How a batch's samples are drawn.
    #[serde(default)]
    pub sampling: Sampling,
    /// The files.
    #[serde(flatten)]
    pub files: DataFiles,
}

/// How a batch's samples are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampling {
    /// Every sample once an epoch, each epoch in an order of its own.
    #[default]
    Permutation,
    /// Every place draws from all samples.
    WithReplacement,
}

/// The files of the samples. Paths are relative to the job file; one that ends in `.gz` is unpacked when a run is created.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum DataFiles {
    /// Files of bytes; each byte is a token.
    Bytes {
        /// The files. A sample is a window inside one of them.
        #[serde(alias = "path", deserialize_with = "paths")]
        paths: Vec<String>,
    },
    /// Files of token ids: `.npy`, or nothing but the ids.
    Tokens {
        /// The files. A sample is a window inside one of them.
        #[serde(alias = "path", deserialize_with = "paths")]
        paths: Vec<String>,
        /// U16 or U32.
        dtype: Element,
    },
    /// Images and labels in the IDX format of MNIST.
    Idx {
        /// The file of images.
        images: String,
        /// The file of labels.
        labels: String,
    },
    /// Records of CIFAR-10's binary format: a label and 3072 bytes.
    Cifar10 {
        /// The files.
        #[serde(alias = "path", deserialize_with = "paths")]
        paths: Vec<String>,
    },
    /// An array of samples, and one of their labels.
    Arrays(Labelled),
}

/// Arrays in `.npy` or `.safetensors` files; their first dimension is over samples.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Labelled {
    /// The file of inputs: [samples, ...].
    pub inputs: String,
    /// The file of labels: [samples], integers. It may be the same.
    pub labels: String,
    /// The inputs' elements: U8 (pixels), F16, BF16 or F32.
    pub dtype: Element,
    /// The inputs' name in a safetensors file.
    #[serde(default)]
    pub inputs_tensor: Option<String>,
    /// The labels' name in a safetensors file.
    #[serde(default)]
    pub labels_tensor: Option<String>,
}

/// One path, or a list.
fn paths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a path, or a list of paths, is wanted")]
    enum Paths {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Paths::deserialize(deserializer)? {
        Paths::One(path) => vec![path],
        Paths::Many(paths) => paths,
    })
}

impl DataFiles {
    /// The files, in order, each once.
    pub fn paths(&self) -> Vec<&str> {
        match self {
            DataFiles::Bytes { paths } | DataFiles::Tokens { paths, .. } | DataFiles::Cifar10 { paths } => {
                paths.iter().map(String::as_str).collect()
            }
            DataFiles::Idx { images, labels } => vec![images, labels],
            DataFiles::Arrays(Labelled { inputs, labels, .. }) if inputs == labels => vec![inputs],
            DataFiles::Arrays(Labelled { inputs, labels, .. }) => vec![inputs, labels],
        }
    }

    /// What a classifier's inputs are.
    pub fn input(&self) -> Input {
        match self {
            DataFiles::Arrays(arrays) if arrays.dtype.dtype() == DType::F32 => Input::Values,
            _ => Input::Pixels,
        }
    }
}

/// The `[batch]` table: the samples of a step.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchSpec {
    /// Samples of a micro-batch.
    pub micro_batch: u32,
    /// Micro-batches of a step.
    #[serde(default = "one")]
    pub micro_batches: u32,
}

fn one() -> u32 {
    1
}

/// Digits of the products: a preset, or the same number everywhere, then changes by class.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DigitsSpec {
    /// 1 to 4 for all products; absent = the default preset.
    #[serde(default)]
    pub all: Option<u8>,
    /// Classes with digits of their own.
    #[serde(default)]
    pub class: BTreeMap<ProductClass, ProductDigits>,
}

/// How finely steps are committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// The state after each step.
    Step,
    /// Also the gradient of each micro-batch, so that one can be replayed alone.
    #[default]
    Microbatch,
    /// Also the output of every operator, so that a verdict can name an operator and a tile.
    Operator,
}

/// The `[commit]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitSpec {
    /// How finely steps are committed.
    #[serde(default)]
    pub granularity: Granularity,
    /// Steps between signed heads.
    #[serde(default = "ten")]
    pub head_every: u32,
}

fn ten() -> u32 {
    10
}

impl Default for CommitSpec {
    fn default() -> CommitSpec {
        CommitSpec { granularity: Granularity::default(), head_every: ten() }
    }
}

/// The `[checkpoint]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointSpec {
    /// Steps between checkpoints: an auditor replays whole segments from one to the next.
    pub every: u32,
    /// How many to keep besides the first and the last; absent = all.
    #[serde(default)]
    pub keep: Option<u32>,
}

impl Default for CheckpointSpec {
    fn default() -> CheckpointSpec {
        CheckpointSpec { every: 100, keep: None }
    }
}

impl Job {
    /// The digits and grid of every product.
    pub fn products(&self) -> ProductTable {
        // What is rounded to a grid must be known well below the grid's steps.
        let default = match self.rounding {
            Some(_) => ProductTable::logged_preset,
            None => ProductTable::preset,
        };
        let mut table = self.digits.all.map_or_else(default, ProductTable::uniform);
        for (class, digits) in &self.digits.class {
            table.set(*class, *digits);
        }
        if let Some(rounding) = &self.rounding {
            rounding.apply(&mut table);
        }
        table
    }

    /// The program that the job is: the graphs of a training step.
    pub fn program(&self) -> Program {
        Program::new(StepSpec {
            model: self.model.clone(),
            optimizer: self.optimizer.clone(),
            clip_norm: self.clip_norm,
            micro_batch: self.batch.micro_batch,
            micro_batches: self.batch.micro_batches,
            products: self.products(),
        })
    }

    /// Whether a state is kept after this step (step 0 is the initial state).
    pub fn is_checkpoint(&self, step: u32) -> bool {
        step.is_multiple_of(self.checkpoint.every) || step == self.steps
    }
}
