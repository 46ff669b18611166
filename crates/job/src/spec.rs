//! The contents of a job, key by key.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::element::Element;
pub use super::init::{InitSpec, WeightNames};
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::models::{Input, Model};
use tiebreak_contract::program::operators::LossRule;
use tiebreak_contract::program::optimizer::{Decay, Optimizer};
use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
use tiebreak_contract::program::schedule::Schedule;
use tiebreak_record::rounding::thresholds::Rounding;

/// A parsed and validated job.
#[derive(Clone, Debug)]
pub struct Job {
    /// Training steps of the run.
    pub steps: u32,
    /// Any number. The trainer chooses it as randomness, unless a challenge is given when training starts.
    pub seed: u64,
    /// The source of the initial state.
    pub init: InitSpec,
    /// The source of the program to be trained.
    pub source: ProgramSource,
    /// The path of the network file that gave a program file. It decides no record.
    pub network: Option<String>,
    /// The files of the samples.
    pub data: DataSpec,
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// The logged profile: products may be computed by native kernels. Absent = the exact profile.
    pub rounding: Option<Rounding>,
    /// The granularity of commitments, and how often they are signed.
    pub commit: CommitSpec,
    /// The cadence at which the state is written.
    pub checkpoint: CheckpointSpec,
    /// Evaluations while training. Evaluations decide no record.
    pub evaluation: Option<EvaluationSpec>,
    /// The bound on the time of a dispute about the run. The bound decides no record.
    pub dispute: Option<DisputeSpec>,
}

/// The source of a job's program.
#[derive(Clone, Debug)]
pub enum ProgramSource {
    /// A model kind and an optimizer, from which the program is derived.
    Model(Box<ModelJob>),
    /// A file with the bytes of [`tiebreak_contract::program::encoding::encode`]: its path, relative to the job file.
    File(String),
}

/// The part of a job that describes a program derived from a model kind.
#[derive(Clone, Debug)]
pub struct ModelJob {
    /// The model.
    pub model: Model,
    /// The optimizer, and how it treats each parameter.
    pub optimizer: OptimizerSpec,
    /// The number of samples of a step.
    pub batch: BatchSpec,
    /// The greatest norm of a step's gradient.
    pub clip_norm: Option<f32>,
    /// The rule for the loss's targets, and for the labels that count.
    pub loss: LossRule,
    /// Digits and grid of every product.
    pub products: ProductTable,
    /// The parameters that training leaves as they are: names, with `*` for any characters.
    pub frozen: Vec<String>,
}

/// The `[optimizer]` table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct OptimizerSpec {
    /// The point where weight decay enters.
    #[serde(default)]
    pub decay: Decay,
    /// Parameters with a treatment of their own. If several groups name a parameter, the first one counts.
    #[serde(default, rename = "group")]
    pub groups: Vec<ParameterGroup>,
    /// The optimizer.
    #[serde(flatten)]
    pub optimizer: Optimizer,
}

/// An `[[optimizer.group]]` table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParameterGroup {
    /// The names of the group's parameters, with `*` for any characters.
    pub parameters: Vec<String>,
    /// The weight decay of all these parameters, biases and gains included; absent = the optimizer's decay, for the parameters
    /// that the model marks.
    #[serde(default)]
    pub weight_decay: Option<f32>,
    /// The parameters' learning rate is this factor times the step's rate.
    #[serde(default = "factor_one")]
    pub rate_factor: f32,
}

fn factor_one() -> f32 {
    1.0
}

/// The `[data]` table: the source of samples, and the way they are drawn.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct DataSpec {
    /// The way a batch's samples are drawn.
    #[serde(default)]
    pub sampling: Sampling,
    /// True if a run holds a copy of the files; otherwise it holds only the hashes that check them.
    #[serde(default = "yes")]
    pub copy: bool,
    /// The random moves of images as they are drawn.
    #[serde(default)]
    pub augment: Augment,
    /// The tokens that a masked language model has to find.
    #[serde(default)]
    pub masking: Option<Masking>,
    /// The share of the samples, from the end, that no step draws and that evaluations take; above 0 and below 1.
    #[serde(default)]
    pub validation_split: Option<f32>,
    /// The label of the targets that a mask does not count, and of tokens that are not masked: the job's `loss.ignore`.
    #[serde(skip)]
    pub uncounted: Option<u32>,
    /// The files.
    #[serde(flatten)]
    pub files: DataFiles,
}

impl DataSpec {
    /// The same kind of data from other files. No step draws from them: an evaluation takes all samples.
    ///
    /// # Errors
    /// If the kind of data takes another number of files.
    #[doc(hidden)] // for the layers above
    pub fn in_files(&self, names: &[String]) -> Result<DataSpec, String> {
        let files = self.files.with_paths(names)?;
        Ok(DataSpec { files, validation_split: None, ..self.clone() })
    }
}

/// The way a batch's samples are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampling {
    /// Every sample once in an epoch, and each epoch in an order of its own.
    #[default]
    Permutation,
    /// Every place of a batch draws from all samples.
    WithReplacement,
    /// The samples in the order of the files, each once in an epoch, no two with a common element. The seed does not depend on the
    /// data.
    InOrder,
}

/// The random moves of images as they are drawn; by default there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Augment {
    /// Pixels of zeros around an image; an image of the old size is cut from the result: 0 to [`CROP_MAX`].
    #[serde(default)]
    pub crop: u32,
    /// True if images are mirrored, left to right, with probability one half.
    #[serde(default)]
    pub flip: bool,
}

/// The most pixels of zeros around an image.
pub const CROP_MAX: u32 = 1 << 8;

impl Augment {
    /// True if images are moved.
    pub(crate) fn is_any(self) -> bool {
        self != Augment::default()
    }
}

/// The tokens that a masked language model has to find: which positions are chosen, and what stands there in the inputs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Masking {
    /// The probability that a position is chosen.
    #[serde(default = "chosen")]
    pub probability: f32,
    /// The token that stands for a masked one.
    pub token: u32,
    /// The share of the chosen positions that get [`Masking::token`].
    #[serde(default = "masked_share")]
    pub mask_share: f32,
    /// The share of the chosen positions that get a random token; the others keep theirs.
    #[serde(default = "random_share")]
    pub random_share: f32,
    /// Tokens that are never chosen.
    #[serde(default)]
    pub never: Vec<u32>,
}

fn chosen() -> f32 {
    0.15
}

fn masked_share() -> f32 {
    0.8
}

fn random_share() -> f32 {
    0.1
}

/// The files of the samples. Paths are relative to the job file; a file that ends in `.gz` is unpacked when a run is created.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum DataFiles {
    /// Files of bytes; each byte is a token.
    Bytes {
        /// The files. A sample is a window inside one file.
        #[serde(alias = "path", deserialize_with = "paths")]
        paths: Vec<String>,
    },
    /// Files of token ids: `.npy`, or the raw ids.
    Tokens {
        /// The files. A sample is a window inside one file.
        #[serde(alias = "path", deserialize_with = "paths")]
        paths: Vec<String>,
        /// The type of the ids: U16 or U32.
        dtype: Element,
        /// A file of bytes for each file of ids: 1 where the loss counts a token as a target, else 0. Empty: every one counts.
        #[serde(default, alias = "mask", deserialize_with = "paths")]
        masks: Vec<String>,
        /// True if no token is in two windows: they begin at the first token, and at each one behind a window. Otherwise at every
        /// token that a whole window follows.
        #[serde(default, rename = "windows", deserialize_with = "separate")]
        separate: bool,
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
        /// The label that is learned.
        labels: Cifar100Labels,
    },
    /// An array of samples, and one of their labels.
    Arrays(Labelled),
}

/// Reads the key `data.windows`.
fn separate<'de, D: serde::Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Windows {
        Every,
        Separate,
    }
    Ok(matches!(Windows::deserialize(from)?, Windows::Separate))
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
    pub(crate) fn name(self) -> &'static str {
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
    /// The file of labels: [samples], integers. The file may be that of the inputs.
    pub labels: String,
    /// The inputs' elements: U8 (pixels), U16 or U32 (token ids of a program file), F16, BF16 or F32.
    pub dtype: Element,
    /// The inputs' name in a safetensors file.
    #[serde(default)]
    pub inputs_tensor: Option<String>,
    /// The labels' name in a safetensors file.
    #[serde(default)]
    pub labels_tensor: Option<String>,
}

impl Labelled {
    /// True if the inputs are token ids.
    pub(super) fn has_ids(&self) -> bool {
        matches!(self.dtype, Element::U16 | Element::U32)
    }
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
    #[doc(hidden)] // for the layers above
    pub fn paths(&self) -> Vec<&str> {
        self.named().into_iter().map(|(_, path)| path).collect()
    }

    /// The files, in order, each once, with the key that names it.
    #[doc(hidden)] // for the layers above
    pub fn named(&self) -> Vec<(&'static str, &str)> {
        fn all<'a>(key: &'static str, paths: &'a [String]) -> impl Iterator<Item = (&'static str, &'a str)> {
            paths.iter().map(move |path| (key, path.as_str()))
        }
        match self {
            DataFiles::Bytes { paths } | DataFiles::Cifar10 { paths } | DataFiles::Cifar100 { paths, .. } => {
                all("data.path", paths).collect()
            }
            DataFiles::Tokens { paths, masks, .. } => {
                all("data.path", paths).chain(all("data.mask", masks)).collect()
            }
            DataFiles::Idx { images, labels } => vec![("data.images", images), ("data.labels", labels)],
            DataFiles::Arrays(Labelled { inputs, labels, .. }) => match inputs == labels {
                true => vec![("data.inputs", inputs)],
                false => vec![("data.inputs", inputs), ("data.labels", labels)],
            },
        }
    }

    /// The same kind of data from other files, which are named in the order of [`DataFiles::paths`].
    ///
    /// # Errors
    /// If the kind of data takes another number of files.
    pub(crate) fn with_paths(&self, names: &[String]) -> Result<DataFiles, String> {
        let wanted = match self {
            // As many masks as files of tokens.
            DataFiles::Tokens { masks, .. } if !masks.is_empty() => names.len().max(1).next_multiple_of(2),
            DataFiles::Bytes { .. }
            | DataFiles::Tokens { .. }
            | DataFiles::Cifar10 { .. }
            | DataFiles::Cifar100 { .. } => names.len().max(1),
            DataFiles::Idx { .. } | DataFiles::Arrays(_) => self.paths().len(),
        };
        if names.len() != wanted {
            let own = self.paths().join(", ");
            return Err(format!(
                "{} files are named; {wanted} are wanted, in the place of {own}",
                names.len()
            ));
        }
        let (first, last) = (&names[0], &names[wanted - 1]);
        let mut other = self.clone();
        match &mut other {
            DataFiles::Tokens { paths, masks, .. } if !masks.is_empty() => {
                let (tokens, of_tokens) = names.split_at(wanted / 2);
                (*paths, *masks) = (tokens.to_vec(), of_tokens.to_vec());
            }
            DataFiles::Bytes { paths }
            | DataFiles::Tokens { paths, .. }
            | DataFiles::Cifar10 { paths }
            | DataFiles::Cifar100 { paths, .. } => *paths = names.to_vec(),
            DataFiles::Idx { images, labels } => (*images, *labels) = (first.clone(), last.clone()),
            DataFiles::Arrays(Labelled { inputs, labels, .. }) => {
                (*inputs, *labels) = (first.clone(), last.clone());
            }
        }
        Ok(other)
    }

    /// The kind of a classifier's inputs.
    #[doc(hidden)] // for the layers above
    pub fn input(&self) -> Input {
        match self {
            DataFiles::Arrays(arrays) if arrays.dtype.dtype() == DType::F32 => Input::Values,
            _ => Input::Pixels,
        }
    }
}

/// The most samples of a batch.
pub(super) const BATCH_MAX: u64 = 1 << 24;
/// The most micro-batches of a step.
pub(super) const MICRO_BATCHES_MAX: u32 = 1 << 16;

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

/// The `[evaluation]` table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationSpec {
    /// Steps between evaluations; the last step has an evaluation too.
    pub every: u32,
    /// Files that replace the data's files, in their order. Absent = the samples that `validation_split` keeps, or the training
    /// data without a split.
    #[serde(default, deserialize_with = "some_paths")]
    pub files: Option<Vec<String>>,
    /// The number of samples, from the first; absent = all.
    #[serde(default)]
    pub samples: Option<u64>,
}

fn some_paths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    paths(deserializer).map(Some)
}

impl EvaluationSpec {
    /// True if there is an evaluation after this step of a run of `steps` steps.
    #[doc(hidden)] // for the layers above
    pub fn is_due(&self, step: u32, steps: u32) -> bool {
        step > 0 && (step.is_multiple_of(self.every) || step == steps)
    }
}

/// Digits of the products: a preset or one number for all products, then changes by class.
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

/// The granularity at which steps are committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// The state after each step.
    Step,
    /// Also the gradient of each micro-batch, so that a single micro-batch can be replayed.
    #[default]
    Microbatch,
    /// Also the output of every operator, so that a verdict can name an operator and a tile.
    Operator,
}

/// The `[commit]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitSpec {
    /// The granularity at which steps are committed.
    #[serde(default)]
    pub granularity: Granularity,
    /// Steps between signed heads.
    #[serde(default = "ten")]
    pub head_every: u32,
    /// The hashing of leaves: 0 = plain; 1 = salted, so that nobody without the salt key can test a guess.
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

/// The `[dispute]` table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DisputeSpec {
    /// Seconds that a step takes; a party's time for replays is measured by it.
    pub step_seconds: u32,
}

/// The `[checkpoint]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointSpec {
    /// Steps between checkpoints: an auditor replays whole segments from one to the next.
    pub every: u32,
    /// The number of checkpoints to keep besides the first and the last; absent = all.
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
    pub(crate) fn products(&self, rounding: Option<&Rounding>) -> ProductTable {
        let default = match rounding {
            // A product that is rounded to a grid must be known well below the grid's steps.
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

#[doc(hidden)] // for the layers above
impl Job {
    /// True if the state after this step is kept (step 0 is the initial state).
    pub fn is_checkpoint(&self, step: u32) -> bool {
        step.is_multiple_of(self.checkpoint.every) || step == self.steps
    }

    /// True if a trainer publishes a head over so many records.
    pub fn has_head(&self, size: u64) -> bool {
        let (steps, every) = (u64::from(self.steps), u64::from(self.commit.head_every));
        size == 1 || size == steps + 2 || (2..=steps).contains(&size) && (size - 1).is_multiple_of(every)
    }
}
