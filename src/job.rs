//! Jobs: the declaration of a run, and the computation that it gives.
//!
//! A job is a text, and everything that it does not say has a default:
//!
//! ```
//! # let job_text = r#"
//! # steps = 3
//! # model = { kind = "gpt", vocabulary = 128, context = 4, layers = 1, heads = 1, width = 8 }
//! # data = { kind = "bytes", path = "text.txt" }
//! # optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
//! # schedule = { peak = 0.1 }
//! # batch = { micro_batch = 2 }
//! # "#;
//! use tiebreak::job::Job;
//!
//! let job = Job::parse("job.toml", job_text)?;
//! assert_eq!((job.steps, job.seed), (3, 0));
//! assert!(job.rounding.is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A wrong key is an error that names it:
//!
//! ```
//! # let job_text = r#"
//! # steps = 3
//! # model = { kind = "gpt", vocabulary = 128, context = 4, layers = 1, heads = 1, width = 8 }
//! # data = { kind = "bytes", path = "text.txt" }
//! # optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
//! # schedule = { peak = 0.1 }
//! # batch = { micro_batch = 2 }
//! # "#;
//! use tiebreak::job::Job;
//!
//! let error = Job::parse("job.toml", &job_text.replace("steps", "stpes")).unwrap_err();
//! assert!(error.to_string().contains("stpes"));
//! ```
//!
//! A learning rate is a bit pattern too:
//!
//! ```
//! # let job_text = r#"
//! # steps = 3
//! # model = { kind = "gpt", vocabulary = 128, context = 4, layers = 1, heads = 1, width = 8 }
//! # data = { kind = "bytes", path = "text.txt" }
//! # optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
//! # schedule = { peak = 0.1 }
//! # batch = { micro_batch = 2 }
//! # "#;
//! use tiebreak::job::Job;
//!
//! let schedule = Job::parse("job.toml", job_text)?.schedule;
//! assert_eq!(f32::from_bits(schedule.learning_rate(1, 3)), 0.1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Two jobs compute the same if their programs have one digest:
//!
//! ```
//! # let job_text = r#"
//! # steps = 3
//! # model = { kind = "gpt", vocabulary = 128, context = 4, layers = 1, heads = 1, width = 8 }
//! # data = { kind = "bytes", path = "text.txt" }
//! # optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
//! # schedule = { peak = 0.1 }
//! # batch = { micro_batch = 2 }
//! # "#;
//! use tiebreak::job::Job;
//! use tiebreak::job::identity::program_digest;
//!
//! let digest = |text: &str| Ok::<_, Box<dyn std::error::Error>>(program_digest(&Job::parse("job", text)?.program(None)?));
//! assert_eq!(digest(job_text)?, digest(&job_text.replace("steps = 3", "steps = 9"))?);
//! assert!(digest(job_text)? != digest(&job_text.replace("width = 8", "width = 16"))?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[doc(inline)]
pub use tiebreak_job::spec::{
    Augment, BatchSpec, CheckpointSpec, Cifar100Labels, CommitSpec, DataFiles, DataSpec, DigitsSpec,
    DisputeSpec, EvaluationSpec, Granularity, InitSpec, Job, Labelled, Masking, ModelJob, OptimizerSpec,
    ParameterGroup, ProgramSource, Sampling, WeightNames,
};
#[doc(inline)]
pub use tiebreak_job::{Evaluable, JOB_MAX, JobError, Setting, computation};

/// The samples of a batch.
pub mod data {
    #[doc(inline)]
    pub use tiebreak_job::data::{Dataset, batch_digest};
}

/// The elements of data files.
pub mod element {
    #[doc(inline)]
    pub use tiebreak_job::element::Element;
}

/// The names of a run and of a computation.
pub mod identity {
    #[doc(inline)]
    pub use tiebreak_job::identity::{CONTRACT, ComputationSummary, RunSummary, program_digest};
}

/// The origin of a run's first state.
pub mod initial {
    #[doc(inline)]
    pub use tiebreak_job::initial::{EarlierRun, InitialOrigin};
}

/// The data files of a run, by digests.
pub mod manifest {
    #[doc(inline)]
    pub use tiebreak_job::manifest::{DataError, DataFile, FileManifest, GroupTree, Source};
}
