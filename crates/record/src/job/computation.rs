//! A computation: derived from a job, its program and a summary of the remaining inputs, from any source and by anybody.

use super::canonical::Setting;
use super::identity::{ComputationSummary, computation_settings, other_contract, philox_key, program_digest};
use super::{JOB_MAX, Job, JobError};
use crate::commit::Malformed;
use crate::commit::digest::Digest;
use tiebreak_contract::program::step::Program;

/// A computation, derived: no field rests on anybody's word.
#[derive(Clone, Debug)]
pub struct Computation {
    /// The job.
    pub job: Job,
    /// The job's program.
    pub program: Program,
    /// The summary that names the computation, beside its job.
    pub summary: ComputationSummary,
    /// The seed of all randomness.
    pub seed: Digest,
    /// The computation's name: H(contract, canonical job, program, data, initial state, challenge).
    pub id: Digest,
}

/// The reasons why a computation cannot be derived.
#[derive(Debug, thiserror::Error)]
pub enum ComputationError {
    /// The job is longer than any job may be.
    #[error("the job has more than {JOB_MAX} bytes")]
    TooLong,
    /// The job is wrong.
    #[error(transparent)]
    Job(JobError),
    /// The program file is wrong or missing.
    #[error(transparent)]
    Program(JobError),
    /// The job's program is not the one that the summary names.
    #[error(
        "the program digest is not that of the job: it is {named}, and the job gives {derived}; the trainer ran another program or \
         another version"
    )]
    OtherProgram {
        /// The digest that the summary names.
        named: Digest,
        /// The digest of the program that follows from the job.
        derived: Digest,
    },
    /// The summary follows another contract.
    #[error(transparent)]
    Contract(Malformed),
}

impl Computation {
    /// Derives the computation of a job's text. `name` is the job's name in errors. `program_file` gives the bytes of the program
    /// file. A job that names such a file needs them. For a job with a model kind they are compared with the program of that
    /// kind.
    ///
    /// # Errors
    /// If the text is no job, the bytes are no program or do not fit the job, or `summary` follows another contract or names another program.
    ///
    /// ```
    /// use tiebreak_record::commit::digest::Digest;
    /// use tiebreak_record::job::computation::Computation;
    /// use tiebreak_record::job::identity::{CONTRACT, ComputationSummary, program_digest};
    ///
    /// let job = r#"
    /// steps = 8
    /// model = { kind = "mlp", inputs = 6, hidden = [4], classes = 3 }
    /// data = { kind = "idx", images = "images", labels = "labels" }
    /// optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
    /// schedule = { peak = 0.5 }
    /// batch = { micro_batch = 2, micro_batches = 3 }
    /// "#;
    /// // A run's `run.json` says this, and so does a verdict; nothing is read from a disk.
    /// let (_, program) = Computation::parsed("job", job, None)?;
    /// let summary = ComputationSummary {
    ///     contract: CONTRACT.into(),
    ///     challenge: None,
    ///     program: program_digest(&program),
    ///     data: Digest([1; 32]),
    ///     initial: Digest([2; 32]),
    /// };
    /// let computation = Computation::derive("job", job, None, summary.clone())?;
    /// // How the text is written names nothing.
    /// let same = Computation::derive("job", &format!("# mine\n{job}"), None, summary.clone())?;
    /// assert_eq!(computation.id, same.id);
    /// // A summary of another program is refused: nobody's word is taken.
    /// let other = ComputationSummary { program: Digest([3; 32]), ..summary };
    /// assert!(Computation::derive("job", job, None, other).is_err());
    /// # Ok::<(), tiebreak_record::job::computation::ComputationError>(())
    /// ```
    pub fn derive(
        name: &str,
        job: &str,
        program_file: Option<&[u8]>,
        summary: ComputationSummary,
    ) -> Result<Computation, ComputationError> {
        if let Some(other) = other_contract("computation", &summary.contract) {
            return Err(ComputationError::Contract(other));
        }
        let (job, program) = Computation::parsed(name, job, program_file)?;
        let (named, derived) = (summary.program, program_digest(&program));
        if derived != named {
            return Err(ComputationError::OtherProgram { named, derived });
        }
        let (seed, id) = summary.identity(&job).map_err(ComputationError::Contract)?;
        Ok(Computation { job, program, summary, seed, id })
    }

    /// A job and its program alone, without a summary.
    ///
    /// # Errors
    /// As [`Computation::derive`], except for the errors about the summary.
    pub fn parsed(
        name: &str,
        job: &str,
        program_file: Option<&[u8]>,
    ) -> Result<(Job, Program), ComputationError> {
        if job.len() as u64 > JOB_MAX {
            return Err(ComputationError::TooLong);
        }
        let job = match program_file {
            Some(_) => Job::of_run(name, job),
            None => Job::parse(name, job),
        };
        let job = job.map_err(ComputationError::Job)?;
        let program = job.program(program_file).map_err(ComputationError::Program)?;
        Ok((job, program))
    }

    /// The Philox key of the seed.
    pub fn key(&self) -> [u32; 2] {
        philox_key(&self.seed)
    }

    /// The settings that the computation is made of, in words.
    pub fn settings(&self) -> Vec<Setting> {
        computation_settings(&self.job, &self.summary)
    }
}
