//! A model that a command evaluates, a run's or one of weights with a job, and the data that it is evaluated on.

use std::path::{Path, PathBuf};

use crate::cli::args::job::JobArgs;
use crate::cli::args::limits::Limits;
use crate::cli::args::place::{file_at, is_of_files, job_files, with_data};
use crate::cli::args::state::released;
use crate::cli::args::weight_files::{ModelFolder, is_one_file, is_released, weight_files};
use crate::cli::view::report::{Exit, Failure, named};
use tiebreak_contract::program::inference::Writer;
use tiebreak_contract::program::network::NetworkModel;
use tiebreak_contract::program::step::{Program, StateTensor, state_bytes};
use tiebreak_job::initial::Drawn;
use tiebreak_job::{Evaluable, Job};
use tiebreak_run::run::companions::Companions;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::evaluation::{self, EvaluationData};
use tiebreak_run::run::job_files::folder_and_name;
use tiebreak_run::run::{JobFiles, RunError, initial, network, read_job, read_program, state_files};

/// The arguments that name a model and data.
pub struct Named<'a> {
    /// A run, or weights.
    pub of: &'a Path,
    /// The job of weights.
    pub job: Option<&'a Path>,
    /// The network file of a program from a file. `None` if the command is not for such programs.
    pub network: Option<Option<&'a Path>>,
    /// The step of a run's checkpoint.
    pub step: Option<u32>,
    /// Data files, and a folder that has those of a run.
    pub data: &'a [PathBuf],
}

/// A model with its weights.
pub struct Subject {
    source: Source,
    /// The model of the network file and the file's text, if the job's program is a file.
    network: Option<Networked>,
    /// The parameters and buffers.
    pub model: Vec<Vec<u8>>,
    /// In words, whose state it is.
    pub whose: String,
}

enum Source {
    Run(Box<Run>),
    Files(Box<Weights>),
}

/// Weights with their job.
struct Weights {
    /// The folder of the weights.
    folder: ModelFolder,
    /// The files that the job names.
    files: JobFiles,
    text: String,
    job: Job,
    program: Program,
}

/// The model of a network file, and the file's text.
type Networked = (NetworkModel, String);

/// The model and the text of the network file, which has to give the job's program: the named one, else the one that belongs to the
/// job. A job of a model kind needs none.
fn network_of(
    named_by: Option<Option<&Path>>,
    (job, program): (&Job, &Program),
    own: impl FnOnce() -> Result<Option<Networked>, RunError>,
) -> Result<Option<Networked>, Failure> {
    let Some(path) = named_by else { return Ok(None) };
    match (job.model(), path) {
        (Some(_), None) => Ok(None),
        (Some(_), Some(_)) => {
            let why = "--network is for programs from files, and the job says which model it has";
            Err(Failure::new(Exit::Usage, why).help("leave --network out"))
        }
        (None, None) => own()?.map(Some).ok_or_else(|| {
            let why = "the job's program is a file, which says nothing of how its model is evaluated";
            Failure::new(Exit::Usage, why)
                .help("name the network file that gave the program with --network FILE")
        }),
        (None, Some(path)) => Ok(Some(network::named(path, program).map_err(named)?)),
    }
}

/// The network file that a job of weights names.
fn beside(files: &JobFiles, job: &Job, program: &Program) -> Result<Option<Networked>, RunError> {
    let path = job.network.as_ref().map(|name| files.path("network", name)).transpose()?;
    path.map(|path| network::named(&path, program)).transpose()
}

impl Subject {
    /// The model that arguments name.
    ///
    /// # Errors
    /// If there is no such model, or its files cannot be read.
    pub fn of(named: &Named, limits: &Limits) -> Result<Subject, Failure> {
        match named.job {
            Some(job) => Subject::of_weights(named, job, limits),
            None if named.of.is_file() || is_released(named.of) => {
                let why = "weights do not say what they are of: name their job with --job";
                Err(Failure::new(Exit::Usage, why)
                    .help("`tiebreak import FOLDER` writes the job of a released model"))
            }
            None => Subject::of_run(named, limits),
        }
    }

    /// The model that answers: a run's, or that of weights with a job.
    ///
    /// # Errors
    /// As [`Subject::of`].
    pub fn answering(
        of: &Path,
        (job, network): (Option<&Path>, Option<&Path>),
        step: Option<u32>,
        limits: &Limits,
    ) -> Result<Subject, Failure> {
        Subject::of(&Named { of, job, network: Some(network), step, data: &[] }, limits)
    }

    /// A run's model, or its state after a step.
    fn of_run(named: &Named, limits: &Limits) -> Result<Subject, Failure> {
        let folders: Vec<&PathBuf> = named.data.iter().filter(|path| is_of_files(path)).collect();
        let run = with_data(limits.open_with_data(named.of, folders.first().copied())?, folders)?;
        let network = network_of(named.network, (run.job(), run.program()), || network::of_run(&run))?;
        run.within_memory("the model", run.state_memory())?;
        let model = released(&run, named.step)?;
        let whose = match named.step {
            Some(step) => format!("the state after step {step}, which its record commits"),
            None => "the released model, which the final record commits".into(),
        };
        Ok(Subject { source: Source::Run(Box::new(run)), network, model, whose })
    }

    /// Weights from a file or a folder, of a job's model.
    fn of_weights(named: &Named, job: &Path, limits: &Limits) -> Result<Subject, Failure> {
        let of = named.of;
        let files = job_files(job, &[])?;
        let (text, job) = read_job(job)?;
        let program = read_program(&files, &job)?.0;
        let network = network_of(named.network, (&job, &program), || beside(&files, &job, &program))?;
        // What the job draws anew when it trains is in these files, if they are of a model that was trained.
        let files_alone = Drawn::default();
        let released = &program.state()[..program.released()];
        limits.check("the model", state_bytes(released).saturating_mul(2))?;
        let (folder, found) = match is_one_file(of) {
            true => (ModelFolder::at(folder_of(of)?)?, vec![file_at(of)?]),
            false => {
                let folder = ModelFolder::at(of)?;
                let found = weight_files(&folder)?.0;
                (folder, found)
            }
        };
        let mut model = initial::from_weights(&found, &job, &program, &files_alone)?;
        model.truncate(program.released());
        let whose = format!("the weights in {}", of.display());
        let weights = Weights { folder, files, text, job, program };
        Ok(Subject { source: Source::Files(Box::new(weights)), network, model, whose })
    }

    /// A run's model after a step, by default after the last one whose state the run holds.
    ///
    /// # Errors
    /// As [`Subject::of`].
    pub fn of_state(
        of: &Path,
        network: Option<&Path>,
        step: Option<u32>,
        limits: &Limits,
    ) -> Result<Subject, Failure> {
        let run = limits.open(of)?;
        let network = network_of(Some(network), (run.job(), run.program()), || network::of_run(&run))?;
        let (step, mut files, table) = state_files::open(&run, step)?;
        run.within_memory("the model", run.state_memory())?;
        let released = &table[..run.program().released()];
        let model = released.iter().map(|tensor| files.tensor(tensor)).collect::<Result<_, _>>()?;
        let whose = format!("the state after step {step}, which its record commits");
        Ok(Subject { source: Source::Run(Box::new(run)), network, model, whose })
    }

    /// The model with which a job begins: that of the weights that the job names.
    ///
    /// # Errors
    /// If the job draws parameters, or as [`Subject::of`].
    pub fn of_job(named: &JobArgs, network: Option<&Path>, limits: &Limits) -> Result<Subject, Failure> {
        let (files, (text, job)) = (named.files()?, read_job(&named.job)?);
        let program = read_program(&files, &job)?.0;
        let network = network_of(Some(network), (&job, &program), || beside(&files, &job, &program))?;
        limits.check("the model", state_bytes(&program.state()).saturating_mul(2))?;
        if job.reinitialized().is_ok_and(|drawn| !drawn.is_empty()) {
            let why = "the job draws parameters from its seed, which depends on its data: train it, and name the run";
            return Err(Failure::new(Exit::Usage, why));
        }
        // Nothing is drawn, so that the key makes no difference.
        let Some((mut model, _)) = initial::of_job(&job, &program, &files, [0; 2])? else {
            let why = "the job begins from its seed: train it, and name the run";
            return Err(Failure::new(Exit::Usage, why));
        };
        model.truncate(program.released());
        let folder = ModelFolder::at(folder_of(&named.job)?)?;
        let weights = Weights { folder, files, text, job, program };
        let whose = "the weights that the job names".into();
        Ok(Subject { source: Source::Files(Box::new(weights)), network, model, whose })
    }

    /// The job.
    pub fn job(&self) -> &Job {
        match &self.source {
            Source::Run(run) => run.job(),
            Source::Files(of) => &of.job,
        }
    }

    /// The text that the model follows from: the job's, or the network file's.
    pub fn model_text(&self) -> &str {
        match (&self.network, &self.source) {
            (Some((_, text)), _) => text,
            (None, Source::Run(run)) => &run.job_text,
            (None, Source::Files(of)) => &of.text,
        }
    }

    /// True if the model is that of a network file.
    pub fn is_of_network(&self) -> bool {
        self.network.is_some()
    }

    /// The model that the job says, or the network file.
    pub fn of_model(&self) -> &dyn Evaluable {
        match &self.network {
            Some((model, _)) => model,
            None => self.job().model().expect("a job without a model has a network file"),
        }
    }

    /// The model that writes text, and the number of its tokens.
    ///
    /// # Errors
    /// If the model is no decoder.
    pub fn writer(&self) -> Result<(Writer<'_>, u32), Failure> {
        let writer = match &self.network {
            Some((model, _)) => {
                let refused = |why: String| {
                    Failure::new(Exit::Usage, format!("the network writes no text: {why}"))
                        .help("`tiebreak predict` gives the classes of its samples")
                };
                Writer::of_network(model).map_err(refused)?
            }
            None => {
                let job = self.job().model().ok_or_else(no_language_model)?;
                Writer::Job(&job.model, &job.products)
            }
        };
        writer.vocabulary().map(|classes| (writer, classes)).ok_or_else(no_language_model)
    }

    /// The folder of the tokenizer that belongs to the model, and the files of it: those that a run keeps, or those beside the
    /// weights.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn companions(&self) -> Result<(PathBuf, Companions), Failure> {
        match &self.source {
            Source::Run(run) => Ok((run.layout.companions(), Companions::of_run(run)?)),
            Source::Files(of) => Ok((of.folder.path().to_path_buf(), of.folder.companions()?)),
        }
    }

    /// The job's program.
    pub fn program(&self) -> &Program {
        match &self.source {
            Source::Run(run) => run.program(),
            Source::Files(of) => &of.program,
        }
    }

    /// The names and types of the model's tensors.
    pub fn table(&self) -> Vec<StateTensor> {
        let mut table = self.program().state();
        table.truncate(self.program().released());
        table
    }

    /// Bytes of the model.
    pub fn bytes(&self) -> u64 {
        self.model.iter().map(|tensor| tensor.len() as u64).sum()
    }

    /// The data files of the command line, read as the job's are; without any, those of the job's evaluations.
    ///
    /// # Errors
    /// If a file cannot be read, or does not fit the model.
    pub fn data(&self, named: &[PathBuf]) -> Result<EvaluationData, Failure> {
        let (job, sample) = (self.job(), self.program().sample());
        let is_folder = |path: &PathBuf| matches!(self.source, Source::Run(_)) && is_of_files(path);
        if named.iter().any(|path| !is_folder(path)) {
            let names: Vec<String> = named.iter().map(|path| path.to_string_lossy().into_owned()).collect();
            let spec = job.data.in_files(&names);
            let spec = spec.map_err(|why| Failure::new(Exit::Usage, format!("--data: {why}")))?;
            return Ok(evaluation::open_named(&spec, named, &sample)?);
        }
        match &self.source {
            Source::Run(run) => Ok(evaluation::of_run(run)?),
            Source::Files(of) => {
                let spec = match job.evaluation.as_ref().and_then(|e| e.files.as_ref()) {
                    Some(names) => job.data.in_files(names).map_err(|why| Failure::new(Exit::Usage, why))?,
                    None => job.data.clone(),
                };
                let paths =
                    spec.files.paths().into_iter().map(|name| of.files.path("evaluation.files", name));
                let paths = paths.collect::<Result<Vec<_>, _>>()?;
                Ok(evaluation::open_named(&spec, &paths, &sample)?)
            }
        }
    }
}

/// The folder that a file lies in.
fn folder_of(file: &Path) -> Result<&Path, Failure> {
    if tiebreak_remote::is_address(file) {
        let address = file.to_str().unwrap_or_default();
        return Ok(Path::new(folder_and_name(address)?.0));
    }
    // The name of a file alone is one of the current folder.
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok(folder.unwrap_or(Path::new(".")))
}

/// The error of a model that is no decoder.
pub fn no_language_model() -> Failure {
    Failure::new(
        Exit::Usage,
        "only decoders write text: models of the kinds gpt and llama, and network files of decoders",
    )
}
