//! What a job says, key by key.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::element::Element;
use crate::rounding::thresholds::Rounding;
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::models::{Input, Model};
use tiebreak_contract::program::operators::LossRule;
use tiebreak_contract::program::optimizer::{Decay, Optimizer};
use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
use tiebreak_contract::program::schedule::Schedule;
use tiebreak_contract::program::step::StepSpec;

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
    /// Evaluations while training. They decide no record.
    pub evaluation: Option<EvaluationSpec>,
    /// How long a dispute about the run may take. It decides no record.
    pub dispute: Option<DisputeSpec>,
}

/// Where a job's program comes from.
#[derive(Clone, Debug)]
pub enum ProgramSource {
    /// It is derived from a model kind and an optimizer.
    Model(Box<ModelJob>),
    /// It is read from a file with this path, relative to the job file: the bytes of [`tiebreak_contract::program::encoding::encode`].
    File(String),
}

/// What a job says of a program that is derived from a model kind.
#[derive(Clone, Debug)]
pub struct ModelJob {
    /// The model.
    pub model: Model,
    /// The optimizer, and how it treats each parameter.
    pub optimizer: OptimizerSpec,
    /// How many samples a step has.
    pub batch: BatchSpec,
    /// The greatest norm of a step's gradient.
    pub clip_norm: Option<f32>,
    /// Which targets the loss has, and which labels count.
    pub loss: LossRule,
    /// Digits and grid of every product.
    pub products: ProductTable,
    /// Which parameters training leaves as they are: names, with `*` for any characters.
    pub frozen: Vec<String>,
}

/// The `[optimizer]` table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct OptimizerSpec {
    /// Where weight decay enters.
    #[serde(default)]
    pub decay: Decay,
    /// Parameters that are treated in a way of their own. The first group that names a parameter has it.
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
    /// The names of its parameters, with `*` for any characters.
    pub parameters: Vec<String>,
    /// The weight decay of all of them, biases and gains too; absent = the optimizer's, for those that the model marks.
    #[serde(default)]
    pub weight_decay: Option<f32>,
    /// Their learning rate is this times the step's.
    #[serde(default = "factor_one")]
    pub rate_factor: f32,
}

fn factor_one() -> f32 {
    1.0
}

/// The `[data]` table: where samples come from, and how they are drawn.
#[derive(Clone, Debug, PartialEq, Deserialize)]
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
    /// The share of the samples, the last ones, that no step draws and that evaluations take; above 0 and below 1.
    #[serde(default)]
    pub validation_split: Option<f32>,
    /// The files.
    #[serde(flatten)]
    pub files: DataFiles,
}

impl DataSpec {
    /// The same kind of data from other files, none of which is drawn from: an evaluation takes all samples.
    ///
    /// # Errors
    /// If it takes another number of files.
    pub fn in_files(&self, names: &[String]) -> Result<DataSpec, String> {
        let files = self.files.with_paths(names)?;
        Ok(DataSpec { files, validation_split: None, ..self.clone() })
    }
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
    pub(crate) fn is_any(self) -> bool {
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

    /// The same kind of data from other files, which are named in the order of [`DataFiles::paths`].
    ///
    /// # Errors
    /// If it takes another number of files.
    pub(crate) fn with_paths(&self, names: &[String]) -> Result<DataFiles, String> {
        let wanted = match self {
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

    /// What a classifier's inputs are.
    pub fn input(&self) -> Input {
        match self {
            DataFiles::Arrays(arrays) if arrays.dtype.dtype() == DType::F32 => Input::Values,
            _ => Input::Pixels,
        }
    }
}

/// The most bytes of `init.prefix`, which stands before every name.
const PREFIX_MAX: usize = 256;

/// The `[init]` table of a job: from what the initial state is made. Absent, or empty: from the seed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitSpec {
    /// Safetensors files of the parameters (and buffers), relative to the job file. Optimizer slots begin at zero.
    #[serde(default)]
    pub weights: Vec<String>,
    /// Under which names, and in which layouts, these files have the tensors.
    #[serde(default)]
    pub names: WeightNames,
    /// What stands before every name in these files, as compiling or wrapping a model puts it there.
    #[serde(default)]
    pub prefix: String,
    /// With `weights`: parameters and buffers that no file gives, drawn anew as if there were no files: names, with `*` for any characters.
    #[serde(default)]
    pub reinitialize: Vec<String>,
    /// The folder of a finished run of the same parameters, relative to the job file: its final state.
    #[serde(default)]
    pub run: Option<String>,
    /// With `run`: also its optimizer slots, not zeros.
    #[serde(default)]
    pub optimizer_state: bool,
}

/// Names and layouts of the tensors in files of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightNames {
    /// The program's own.
    #[default]
    Program,
    /// Those of transformers, torchvision or `torch.nn.Sequential`, by the model's kind: [`Model::released`].
    Hf,
}

impl InitSpec {
    /// What is wrong, if anything: (key, why).
    pub(crate) fn error(&self) -> Option<(&'static str, String)> {
        if self.optimizer_state && self.run.is_none() {
            return Some((
                "optimizer_state",
                "only a run has an optimizer state: name one with init.run".into(),
            ));
        }
        if self.names != WeightNames::Program && self.weights.is_empty() {
            return Some(("names", "only files of weights have names: list them in init.weights".into()));
        }
        if !self.prefix.is_empty() && self.weights.is_empty() {
            return Some((
                "prefix",
                "only names in files of weights have one: list the files in init.weights".into(),
            ));
        }
        if self.prefix.len() > PREFIX_MAX {
            return Some((
                "prefix",
                format!("at most {PREFIX_MAX} bytes are read, there are {}", self.prefix.len()),
            ));
        }
        if !self.reinitialize.is_empty() && self.weights.is_empty() {
            let why = "what no file of weights gives is drawn anyway; a finished run's model.safetensors is a file of weights: list it in init.weights";
            return Some(("reinitialize", why.into()));
        }
        None
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
    /// Steps between evaluations; the last step has one too.
    pub every: u32,
    /// Files in place of those of the data, in their order; absent = the samples that `validation_split` keeps, or the training data without one.
    #[serde(default, deserialize_with = "some_paths")]
    pub files: Option<Vec<String>>,
    /// The first so many samples only; absent = all.
    #[serde(default)]
    pub samples: Option<u64>,
}

fn some_paths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    paths(deserializer).map(Some)
}

impl EvaluationSpec {
    /// Whether there is an evaluation after this step of a run of so many.
    pub fn is_due(&self, step: u32, steps: u32) -> bool {
        step > 0 && (step.is_multiple_of(self.every) || step == steps)
    }
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

/// The `[dispute]` table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DisputeSpec {
    /// Seconds that a step takes, by which a party's time for replays is measured.
    pub step_seconds: u32,
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
    pub(crate) fn products(&self, rounding: Option<&Rounding>) -> ProductTable {
        let default = match rounding {
            // What is rounded to a grid must be known well below the grid's steps.
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

impl ModelJob {
    /// What a step of the job is made from.
    pub fn step_spec(&self) -> StepSpec {
        StepSpec {
            model: self.model.clone(),
            optimizer: self.optimizer.optimizer.clone(),
            clip_norm: self.clip_norm,
            loss: self.loss,
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
