//! The samples of predictions, as options name them.

use std::path::{Path, PathBuf};

use crate::cli::args::limits::Limits;
use crate::cli::args::subject::{Named, Subject};
use crate::cli::view::report::{Failure, named};
use tiebreak_contract::program::models::BatchTensor;
use tiebreak_engine::{Engine, Tensor};
use tiebreak_run::predict::Inputs;
use tiebreak_run::run::arrays::{self, Array};
use tiebreak_run::run::{RunError, shell};

/// The samples of predictions.
#[derive(clap::Args, Clone, Default)]
pub struct DataArgs {
    /// Data file with labels, as `tiebreak eval` takes it; once for each.
    ///
    /// Without --data and --inputs the samples are those of `tiebreak eval`. Labels change no prediction.
    #[arg(long, value_name = "FILE")]
    pub data: Vec<PathBuf>,
    /// A .npy file of inputs without labels.
    ///
    /// The array is [samples, ...], floats or pixels, as the job's data are; of a decoder tokens [samples, positions of the context].
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub inputs: Option<PathBuf>,
    /// Job that says which model weights are of, and how data are read.
    #[arg(long, value_name = "JOB")]
    pub job: Option<PathBuf>,
    /// Network file of a program from a file, as tiebreak.capture writes it.
    ///
    /// The network has to give the job's program. The default is the file that the run keeps, or that the job of weights names.
    #[arg(long, value_name = "FILE")]
    pub network: Option<PathBuf>,
}

impl DataArgs {
    /// The model that these arguments and others name.
    pub fn subject(&self, of: &Path, step: Option<u32>, limits: &Limits) -> Result<Subject, Failure> {
        let (job, network) = (self.job.as_deref(), Some(self.network.as_deref()));
        Subject::of(&Named { of, job, network, step, data: &self.data }, limits)
    }

    /// The samples.
    pub fn inputs(&self, subject: &Subject) -> Result<Inputs, Failure> {
        let Some(path) = &self.inputs else {
            return Ok(Inputs::Data(Box::new(subject.data(&self.data)?.dataset)));
        };
        inputs_of(path, &subject.of_model().network().batch(1)[0])
    }

    /// The files that say which model it is.
    pub fn model(&self) -> (Option<&Path>, Option<&Path>) {
        (self.job.as_deref(), self.network.as_deref())
    }

    /// The option that names samples, if one is given.
    pub fn given_of_data(&self) -> Option<&'static str> {
        let of_data = (!self.data.is_empty()).then_some("--data");
        of_data.or(self.inputs.as_ref().map(|_| "--inputs"))
    }

    /// The first of these options but --job that is given, if one is.
    pub fn given_beside_job(&self) -> Option<&'static str> {
        self.given_of_data().or(self.network.as_ref().map(|_| "--network"))
    }

    /// The options again, as another command needs them.
    pub fn words(&self) -> Vec<String> {
        let job = self.job.iter().map(|job| format!("--job {}", shell::path(job)));
        let data = self.data.iter().map(|data| format!("--data {}", shell::path(data)));
        let inputs = self.inputs.iter().map(|inputs| format!("--inputs {}", shell::path(inputs)));
        let network = self.network.iter().map(|network| format!("--network {}", shell::path(network)));
        job.chain(network).chain(data).chain(inputs).collect()
    }
}

/// The samples of a file of inputs without labels. `wanted` is the batch tensor of one sample.
pub fn inputs_of(path: &Path, wanted: &BatchTensor) -> Result<Inputs, Failure> {
    let [array] = <[Array; 1]>::try_from(arrays::read(path).map_err(named)?)
        .map_err(|_| RunError::invalid(path, "a file of one array is wanted"))?;
    Ok(Inputs::of_array(array, wanted).map_err(|why| RunError::invalid(path, why))?)
}

/// The parameters and buffers of a model on an engine.
pub fn upload(engine: &mut dyn Engine, subject: &Subject) -> Result<Vec<Tensor>, Failure> {
    let table = subject.table();
    let tensors = table.iter().zip(&subject.model).map(|(tensor, bytes)| engine.upload(&tensor.ty(), bytes));
    Ok(tensors.collect::<Result<_, _>>()?)
}
