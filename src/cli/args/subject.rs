//! A model that a command evaluates, a run's or one of weights with a job, and the data that it is evaluated on.

use std::path::{Path, PathBuf};

use crate::cli::args::job::JobArgs;
use crate::cli::args::limits::Limits;
use crate::cli::args::state::released;
use crate::cli::view::report::{Exit, Failure};
use tiebreak_contract::program::step::{Program, StateTensor};
use tiebreak_record::job::initial::Drawn;
use tiebreak_record::job::{Job, ModelJob};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::evaluation::{self, EvaluationData};
use tiebreak_run::run::{JobFiles, initial, read_job, read_program};

/// The arguments that name a model and data.
pub struct Named<'a> {
    /// A run, or weights.
    pub of: &'a Path,
    /// The job of weights.
    pub job: Option<&'a Path>,
    /// The step of a run's checkpoint.
    pub step: Option<u32>,
    /// Data files, and a folder that has those of a run.
    pub data: &'a [PathBuf],
}

/// A model with its weights.
pub struct Subject {
    source: Source,
    /// The parameters and buffers.
    pub model: Vec<Vec<u8>>,
    /// In words, whose state it is.
    pub whose: String,
}

enum Source {
    Run(Box<Run>),
    Files(JobFiles, (String, Box<Job>), Box<Program>),
}

fn only_models() -> Failure {
    let why =
        "a program from a file says nothing of how its model is evaluated; only jobs of a model kind can be";
    Failure::new(Exit::Usage, why)
}

impl Subject {
    /// The model that arguments name.
    ///
    /// # Errors
    /// If there is no such model, or its files cannot be read.
    pub fn of(named: &Named, limits: &Limits) -> Result<Subject, Failure> {
        match named.job {
            Some(job) => Subject::of_weights(named.of, job),
            None if named.of.is_file() => {
                let why = "a file of weights does not say what it is of: name its job with --job";
                Err(Failure::new(Exit::Usage, why))
            }
            None => Subject::of_run(named, limits),
        }
    }

    /// A run's model, or its state after a step.
    fn of_run(named: &Named, limits: &Limits) -> Result<Subject, Failure> {
        let folders: Vec<PathBuf> = named.data.iter().filter(|path| path.is_dir()).cloned().collect();
        let run = limits.open_with_data(named.of, folders.first())?.with_data(folders);
        run.job().model().ok_or_else(only_models)?;
        run.within_memory("the model", run.state_memory())?;
        let model = released(&run, named.step)?;
        let whose = match named.step {
            Some(step) => format!("the state after step {step}, which its record commits"),
            None => "the released model, which the final record commits".into(),
        };
        Ok(Subject { source: Source::Run(Box::new(run)), model, whose })
    }

    /// Weights from a file, of a job's model.
    fn of_weights(of: &Path, job: &Path) -> Result<Subject, Failure> {
        let files = JobArgs { job: job.to_path_buf(), data_root: None }.files()?;
        let (text, job) = read_job(job)?;
        job.model().ok_or_else(only_models)?;
        let program = read_program(&files, &job)?.0;
        // What the job draws anew when it trains is in these files, if they are of a model that was trained.
        let files_alone = Drawn::default();
        let mut model = initial::from_weights(&[of.to_path_buf()], &job, &program, &files_alone)?;
        model.truncate(program.released());
        let whose = format!("the weights in {}", of.display());
        Ok(Subject { source: Source::Files(files, (text, Box::new(job)), Box::new(program)), model, whose })
    }

    /// The job.
    pub fn job(&self) -> &Job {
        match &self.source {
            Source::Run(run) => run.job(),
            Source::Files(_, (_, job), _) => job,
        }
    }

    /// The job's text.
    pub fn job_text(&self) -> &str {
        match &self.source {
            Source::Run(run) => &run.job_text,
            Source::Files(_, (text, _), _) => text,
        }
    }

    /// The job's model.
    pub fn of_model(&self) -> Result<&ModelJob, Failure> {
        self.job().model().ok_or_else(only_models)
    }

    /// The job's program.
    pub fn program(&self) -> &Program {
        match &self.source {
            Source::Run(run) => run.program(),
            Source::Files(_, _, program) => program,
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
        let is_folder = |path: &PathBuf| matches!(self.source, Source::Run(_)) && path.is_dir();
        if named.iter().any(|path| !is_folder(path)) {
            let names: Vec<String> = named.iter().map(|path| path.to_string_lossy().into_owned()).collect();
            let spec = job.data.in_files(&names);
            let spec = spec.map_err(|why| Failure::new(Exit::Usage, format!("--data: {why}")))?;
            return Ok(evaluation::open_named(&spec, named, &sample)?);
        }
        match &self.source {
            Source::Run(run) => Ok(evaluation::of_run(run)?),
            Source::Files(files, ..) => {
                let spec = match job.evaluation.as_ref().and_then(|e| e.files.as_ref()) {
                    Some(names) => job.data.in_files(names).map_err(|why| Failure::new(Exit::Usage, why))?,
                    None => job.data.clone(),
                };
                let paths = spec.files.paths().into_iter().map(|name| files.path("evaluation.files", name));
                let paths = paths.collect::<Result<Vec<_>, _>>()?;
                Ok(evaluation::open_named(&spec, &paths, &sample)?)
            }
        }
    }
}
