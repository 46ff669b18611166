//! A computation: derived from a job, its program and a summary of the remaining inputs, from any source and by anybody.

use super::canonical::Setting;
use super::data::{batch_leaves, rooted};
use super::hiding::HIDING;
use super::identity::{
    ComputationSummary, computation_settings, other_contract, philox_key, program_digest, seed_of, sown,
};
use super::{JOB_MAX, Job, JobError};
use tiebreak_contract::program::step::{MicroBatch, Program, StateTensor};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::StepRecord;
use tiebreak_record::commit::salts::{Kind, SaltKey};
use tiebreak_record::commit::state::StateRoots;

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
    /// The key of the salts, if commitments hide and the key is at hand. Without it the seed is none, and no commitment can be
    /// computed.
    pub salts: Option<SaltKey>,
}

/// The seed of a computation whose commitments hide: only who has the key knows it.
#[doc(hidden)] // for the layers above
pub fn hidden_seed(
    salts: &SaltKey,
    job: &Job,
    program: &Digest,
    data: &Digest,
    challenge: Option<&Digest>,
) -> Digest {
    seed_of(job, program, &salts.salted(Kind::Seed, 0, 0, &sown(job, data)), challenge)
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
    /// The commitments hide, and the reader has no key of the salts.
    #[error(
        "commit.scheme is {HIDING}: the run's commitments hide, and only `tiebreak verify`, `audit`, `reveal`, `monitor reveals` and \
         `train --resume` read such a run; there are no disputes about it, and verdicts on records alone"
    )]
    Hidden,
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
    /// use tiebreak_job::computation::Computation;
    /// use tiebreak_job::identity::{CONTRACT, ComputationSummary, program_digest};
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
    /// # Ok::<(), tiebreak_job::computation::ComputationError>(())
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
        if job.hides() {
            return Err(ComputationError::Hidden);
        }
        let (seed, id) = summary.identity(&job).map_err(ComputationError::Contract)?;
        Ok(Computation { job, program, summary, seed, id, salts: None })
    }

    /// [`Computation::derive`] for a job whose commitments hide. Without the key only its name and its program are known.
    ///
    /// # Errors
    /// As [`Computation::derive`]; also if the commitments of the job do not hide.
    #[doc(hidden)] // for the layers above
    pub fn hidden(
        name: &str,
        job: &str,
        program_file: Option<&[u8]>,
        summary: ComputationSummary,
        salts: Option<SaltKey>,
    ) -> Result<Computation, ComputationError> {
        if let Some(other) = other_contract("computation", &summary.contract) {
            return Err(ComputationError::Contract(other));
        }
        let (job, program) = Computation::parsed(name, job, program_file)?;
        if !job.hides() {
            let scheme = job.commit.scheme;
            let why = format!("{name}: commit.scheme is {scheme}; {HIDING} is wanted where a salt key is");
            return Err(ComputationError::Job(JobError(why)));
        }
        let (named, derived) = (summary.program, program_digest(&program));
        if derived != named {
            return Err(ComputationError::OtherProgram { named, derived });
        }
        let (public, id) = summary.identity(&job).map_err(ComputationError::Contract)?;
        let seed = salts.as_ref().map_or(public, |salts| {
            hidden_seed(salts, &job, &summary.program, &summary.data, summary.challenge.as_ref())
        });
        Ok(Computation { job, program, summary, seed, id, salts })
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

    /// The roots of a state, whole or its first tensors, after a step. `digests` are those of its tensors.
    #[doc(hidden)] // for the layers above
    pub fn state_roots(&self, step: u32, table: &[StateTensor], digests: &[Digest]) -> StateRoots {
        match &self.salts {
            None => StateRoots::of(table, digests),
            Some(salts) => StateRoots::of(table, &salts.each(Kind::State, step.into(), digests)),
        }
    }

    /// The digest of the state after a step. `digests` are those of its tensors, in the table's order.
    #[doc(hidden)] // for the layers above
    pub fn state_digest(&self, step: u32, table: &[StateTensor], digests: &[Digest]) -> Digest {
        self.state_roots(step, table, digests).digest()
    }

    /// The digest of a step's batch.
    #[doc(hidden)] // for the layers above
    pub fn batch_digest(&self, step: u32, batch: &[MicroBatch]) -> Digest {
        let (names, digests): (Vec<_>, Vec<_>) = batch_leaves(&self.program, batch).into_iter().unzip();
        match &self.salts {
            None => rooted(&names, &digests),
            Some(salts) => rooted(&names, &salts.each(Kind::Batch, step.into(), &digests)),
        }
    }

    /// The committed root of a micro-batch's gradients, from their plain root.
    #[doc(hidden)] // for the layers above
    pub fn gradient_root(&self, step: u32, micro: u32, plain: Digest) -> Digest {
        match &self.salts {
            None => plain,
            Some(salts) => salts.salted(Kind::Gradients, step.into(), micro.into(), &plain),
        }
    }

    /// The record as a transcript has it, from the one that was computed; and the other way round.
    #[doc(hidden)] // for the layers above
    pub fn masked(&self, record: StepRecord) -> StepRecord {
        let Some(salts) = &self.salts else { return record };
        let masked = |kind, word| salts.masked(kind, record.step, word);
        StepRecord { loss: masked(Kind::Loss, record.loss), clip: masked(Kind::Clip, record.clip), ..record }
    }

    /// A record of the transcript with its scalars as they were computed; `None` if they are hidden from this reader.
    #[doc(hidden)] // for the layers above
    pub fn shown(&self, record: &StepRecord) -> Option<StepRecord> {
        (!self.is_closed()).then(|| self.masked(record.clone()))
    }

    /// True if the commitments hide, and the key is not at hand.
    #[doc(hidden)] // for the layers above
    pub fn is_closed(&self) -> bool {
        self.job.hides() && self.salts.is_none()
    }

    /// The settings that the computation is made of, in words.
    #[doc(hidden)] // for the layers above
    pub fn settings(&self) -> Vec<Setting> {
        computation_settings(&self.job, &self.summary)
    }
}
