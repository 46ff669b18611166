//! What a job says, key by key.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Deserializer};

use super::element::Element;
use crate::arith::DType;
use crate::program::models::{Input, Model};
use crate::program::optimizer::Optimizer;
use crate::program::products::{ProductClass, ProductDigits, ProductTable};
use crate::program::schedule::Schedule;
use crate::program::step::StepSpec;
use crate::rounding::thresholds::Rounding;

/// A parsed and validated job.
#[derive(Clone, Debug)]
pub struct Job {
    /// Training steps of the run.
    pub steps: u32,
    /// Any number; a trainer's own choice of randomness unless a challenge is given when training starts.
    pub seed: u64,
    /// From what the initial state is made.
    pub init: InitSpec,
    /// What is trained.
    pub source: ProgramSource,
    /// The files of the samples.
    pub data: DataSpec,
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// The logged profile: products may be computed by native kernels. Absent = the exact profile.
    pub rounding: Option<Rounding>,
    /// What is committed, and how often it is signed.
    pub commit: CommitSpec,
    /// How often the state is written.
    pub checkpoint: CheckpointSpec,
}

/// Where a job's program comes from.
#[derive(Clone, Debug)]
pub enum ProgramSource {
    /// It is derived from a model kind and an optimizer.
    Model(Box<ModelJob>),
    /// It is read from a file with this path, relative to the job file: the bytes of [`crate::program::encoding::encode`].
    File(String),
}

/// What a job says of a program that is derived from a model kind.
#[derive(Clone, Debug)]
pub struct ModelJob {
    /// The model.
    pub model: Model,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// How many samples a step has.
    pub batch: BatchSpec,
    /// The greatest norm of a step's gradient.
    pub clip_norm: Option<f32>,
    /// Digits and grid of every product.
    pub products: ProductTable,
    /// Which parameters training leaves as they are: names, with `*` for any characters.
    pub frozen: Vec<String>,
}

/// The `[data]` table: where samples come from, and how they are drawn.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct DataSpec {
    /// How a batch's samples are drawn.
    #[serde(default)]
    pub sampling: Sampling,
    /// Whether a run holds a copy of the files, or only what checks them.
    #[serde(default = "yes")]
    pub copy: bool,
    /// How images are moved at random as they are drawn.
    #[serde(default)]
    pub augment: Augment,
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

/// How images are moved at random as they are drawn; by default not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Augment {
    /// Pixels of zeros around an image, out of which one of its size is cut: 0 to [`CROP_MAX`].
    #[serde(default)]
    pub crop: u32,
    /// Whether every second image is mirrored, left to right.
    #[serde(default)]
    pub flip: bool,
}

/// The most pixels of zeros around an image.
pub const CROP_MAX: u32 = 1 << 8;

impl Augment {
    /// Whether images are moved.
    pub fn is_any(self) -> bool {
        self != Augment::default()
    }
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
    /// Records of CIFAR-100's binary format: two labels and 3072 bytes.
    Cifar100 {
        /// The files.
        #[serde(alias = "path", deserialize_with = "paths")]
        paths: Vec<String>,
        /// Which of the two labels is learned.
        labels: Cifar100Labels,
    },
    /// An array of samples, and one of their labels.
    Arrays(Labelled),
}

/// The labels of a record of CIFAR-100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cifar100Labels {
    /// One of 20 superclasses: the first byte.
    Coarse,
    /// One of 100 classes: the second byte.
    Fine,
}

impl Cifar100Labels {
    /// The name in job files.
    pub fn name(self) -> &'static str {
        match self {
            Cifar100Labels::Coarse => "coarse",
            Cifar100Labels::Fine => "fine",
        }
    }
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
        self.named().into_iter().map(|(_, path)| path).collect()
    }

    /// The files, in order, each once, with the key that names it.
    pub fn named(&self) -> Vec<(&'static str, &str)> {
        match self {
            DataFiles::Bytes { paths }
            | DataFiles::Tokens { paths, .. }
            | DataFiles::Cifar10 { paths }
            | DataFiles::Cifar100 { paths, .. } => {
                paths.iter().map(|path| ("data.path", path.as_str())).collect()
            }
            DataFiles::Idx { images, labels } => vec![("data.images", images), ("data.labels", labels)],
            DataFiles::Arrays(Labelled { inputs, labels, .. }) => match inputs == labels {
                true => vec![("data.inputs", inputs)],
                false => vec![("data.inputs", inputs), ("data.labels", labels)],
            },
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

/// The `[init]` table of a job: from what the initial state is made. Absent, or empty: from the seed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitSpec {
    /// Safetensors files of the parameters (and buffers), relative to the job file. Optimizer slots begin at zero.
    #[serde(default)]
    pub weights: Vec<String>,
    /// The folder of a finished run of the same parameters, relative to the job file: its final state.
    #[serde(default)]
    pub run: Option<String>,
    /// With `run`: also its optimizer slots, not zeros.
    #[serde(default)]
    pub optimizer_state: bool,
}

impl InitSpec {
    /// What is wrong, if anything: (key, why).
    pub fn error(&self) -> Option<(&'static str, String)> {
        if self.optimizer_state && self.run.is_none() {
            return Some((
                "optimizer_state",
                "only a run has an optimizer state: name one with init.run".into(),
            ));
        }
        None
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

fn yes() -> bool {
    true
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
    /// How leaves are hashed: 0 = as they are. Other numbers are reserved for salted leaves, which hide small tensors.
    #[serde(default)]
    pub scheme: u32,
}

fn ten() -> u32 {
    10
}

impl Default for CommitSpec {
    fn default() -> CommitSpec {
        CommitSpec { granularity: Granularity::default(), head_every: ten(), scheme: 0 }
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

impl DigitsSpec {
    /// The digits and grid of every product, with the grid of `rounding` if the job is of the logged profile.
    pub fn products(&self, rounding: Option<&Rounding>) -> ProductTable {
        // What is rounded to a grid must be known well below the grid's steps.
        let default = match rounding {
            Some(_) => ProductTable::logged_preset,
            None => ProductTable::preset,
        };
        let mut table = self.all.map_or_else(default, ProductTable::uniform);
        for (class, digits) in &self.class {
            table.set(*class, *digits);
        }
        if let Some(rounding) = rounding {
            rounding.apply(&mut table);
        }
        table
    }
}

/// The most names of frozen parameters that have a `*`: each is compared with every name of the model.
const PATTERNS_MAX: usize = 256;
/// The most bytes of one that has. No model has longer names.
const PATTERN_BYTES_MAX: usize = 256;

/// Whether a pattern, in which `*` stands for any characters, is the name.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(last) = parts.next_back() else { return pattern == name };
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

impl ModelJob {
    /// The names of the frozen parameters.
    ///
    /// # Errors
    /// If a pattern matches no parameter, too many are no plain names, or every parameter is frozen.
    pub fn frozen_names(&self) -> Result<HashSet<String>, String> {
        if self.frozen.iter().filter(|pattern| pattern.contains('*')).count() > PATTERNS_MAX {
            return Err(format!("at most {PATTERNS_MAX} names may have a `*`"));
        }
        let names: Vec<String> = self.model.parameters().into_iter().map(|p| p.name).collect();
        let plain: HashSet<&String> = names.iter().collect();
        let mut frozen = HashSet::new();
        for pattern in &self.frozen {
            let found: Vec<&String> = match pattern.contains('*') {
                false => plain.get(pattern).copied().into_iter().collect(),
                true if pattern.len() > PATTERN_BYTES_MAX => Vec::new(),
                true => names.iter().filter(|name| matches(pattern, name)).collect(),
            };
            if found.is_empty() {
                let some = names.iter().take(8).map(String::as_str).collect::<Vec<_>>().join(", ");
                return Err(format!("no parameter is named {pattern:?}; the model has {some}, ..."));
            }
            frozen.extend(found.into_iter().cloned());
        }
        if frozen.len() == names.len() {
            return Err("every parameter is frozen, so there is nothing to train".into());
        }
        Ok(frozen)
    }

    /// What a step of the job is made from.
    pub fn step_spec(&self) -> StepSpec {
        StepSpec {
            model: self.model.clone(),
            optimizer: self.optimizer.clone(),
            clip_norm: self.clip_norm,
            micro_batch: self.batch.micro_batch,
            micro_batches: self.batch.micro_batches,
            products: self.products.clone(),
        }
    }
}

impl Job {
    /// The model kind that the job's program is derived from; `None` if the program is a file.
    pub fn model(&self) -> Option<&ModelJob> {
        match &self.source {
            ProgramSource::Model(model) => Some(model),
            ProgramSource::File(_) => None,
        }
    }

    /// The path of the job's program file, relative to the job file.
    pub fn program_file(&self) -> Option<&str> {
        match &self.source {
            ProgramSource::Model(_) => None,
            ProgramSource::File(path) => Some(path),
        }
    }

    /// Whether the program never clips its gradients, so that every clip factor is 1. Only a model kind says so; a file's graphs do.
    pub fn never_clips(&self) -> bool {
        self.model().is_some_and(|model| model.clip_norm.is_none())
    }

    /// Whether a state is kept after this step (step 0 is the initial state).
    pub fn is_checkpoint(&self, step: u32) -> bool {
        step.is_multiple_of(self.checkpoint.every) || step == self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_names() {
        for (pattern, name, expected) in [
            ("wte", "wte", true),
            ("wte", "wte2", false),
            ("block0.*", "block0.attention.query", true),
            ("block0.*", "block01.attention", false),
            ("*.gain", "block0.ln1.gain", true),
            ("*.gain", "block0.ln1.bias", false),
            ("*.ln*.gain", "block0.ln1.gain", true),
            ("a*a", "a", false),
            ("*", "", true),
            ("**", "anything", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
