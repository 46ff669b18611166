//! The `[init]` table: the source of the initial state.

use serde::Deserialize;

/// The most bytes of `init.prefix`, which stands before every name.
const PREFIX_MAX: usize = 256;

/// The `[init]` table of a job: the source of the initial state. If it is absent or empty, the source is the seed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitSpec {
    /// Safetensors files of the parameters (and buffers), relative to the job file. Optimizer slots begin at zero.
    #[serde(default)]
    pub weights: Vec<String>,
    /// With `weights`: the safetensors file of the adapters, as PEFT writes it, relative to the job file.
    #[serde(default)]
    pub adapter: Option<String>,
    /// The names and layouts that the tensors have in these files.
    #[serde(default)]
    pub names: WeightNames,
    /// The prefix of every name in these files, as compiling or wrapping a model adds it.
    #[serde(default)]
    pub prefix: String,
    /// With `weights`: parameters and buffers that no file gives and that are drawn anew, as without files. The names may contain
    /// `*` for any characters.
    #[serde(default)]
    pub reinitialize: Vec<String>,
    /// The folder of a finished run of the same parameters, relative to the job file. The run's final state is the initial state.
    #[serde(default)]
    pub run: Option<String>,
    /// With `run`: takes the run's optimizer slots as well, in place of zeros.
    #[serde(default)]
    pub optimizer_state: bool,
}

/// Names and layouts of the tensors in files of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightNames {
    /// The program's own names.
    #[default]
    Program,
    /// The names of transformers, torchvision or `torch.nn.Sequential`, by the model's kind: [`Model::released`].
    Hf,
}

impl InitSpec {
    /// The files of weights, with that of the adapters behind the others.
    #[doc(hidden)] // for the layers above
    pub fn files(&self) -> impl Iterator<Item = &String> {
        self.weights.iter().chain(&self.adapter)
    }

    /// True if the adapters of a model are in no file, since other libraries keep them in a file of their own and the job names none.
    pub(super) fn draws_adapters(&self) -> bool {
        self.names == WeightNames::Hf && self.adapter.is_none()
    }

    /// The error in the table, if there is one: (key, why).
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
        if self.adapter.is_some() && self.weights.is_empty() {
            return Some((
                "adapter",
                "adapters stand beside weights: list their files in init.weights".into(),
            ));
        }
        if !self.reinitialize.is_empty() && self.weights.is_empty() {
            let why = "what no file of weights gives is drawn anyway; a finished run's model.safetensors is a file of weights: list it in init.weights";
            return Some(("reinitialize", why.into()));
        }
        None
    }
}
