//! The logged profile: rounding decisions of a trainer, taken from a log and counted.
//!
//! A trainer with native products logs decisions, and an auditor takes them from the log:
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
//! # use std::sync::Arc;
//! # use tiebreak::commit::keys::PrivateKey;
//! # use tiebreak::engine::cpu::Cpu;
//! # use tiebreak::run::Memory;
//! # use tiebreak::train::{Beginning, begin, train};
//! # let folder = tempfile::tempdir()?;
//! # let job = folder.path().join("job.toml");
//! # std::fs::write(&job, job_text)?;
//! # std::fs::write(folder.path().join("text.txt"), "to be or not to be, that is the question")?;
//! # let key = PrivateKey::generate("trainer.example", [7; 32])?;
//! # let memory = Memory::default();
//! # let out = Arc::new(memory.clone());
//! # let beginning = Beginning { job: &job, data_root: None, out, key: Some(&key), challenge: None, logged: true, nonce: [1; 16] };
//! # let run = begin(&beginning)?;
//! # let mut engine = Cpu::new(1)?;
//! use tiebreak::audit::plan::{Choice, plan};
//! use tiebreak::audit::{audit, checks};
//! use tiebreak::engine::cpu::Native;
//!
//! let mut native = Cpu::new(1)?.with_native(Native::Gemm);
//! train(&run, &mut native, Some(&key), &mut tiebreak::train::Silent)?;
//! let checked = checks::always(&run, Some(&key.public()))?;
//! let plan = plan(&run, &checked.checkpoints, 3, &Choice::All);
//! let (report, verdict) = audit(&run, &mut engine, checked, plan, None, &mut tiebreak::audit::Silent)?;
//! assert_eq!((report.steps_replayed(), verdict), (3, None)); // the engine's exact products, with the log, give the trainer's bits
//! assert!(report.rounding.is_some_and(|tally| tally.elements > 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

/// The choices that a log's rule leaves to a trainer.
pub mod choices {
    #[doc(inline)]
    pub use tiebreak_run::observers::choices::{Choices, Look};
}

/// The trainer's side.
pub mod record {
    #[doc(inline)]
    pub use tiebreak_run::observers::record::Logged;
}

/// The auditor's side.
pub mod replay {
    #[doc(inline)]
    pub use tiebreak_run::observers::replay::Replayer;
}

/// The decisions of a log, counted.
pub mod tally {
    #[doc(inline)]
    pub use tiebreak_run::observers::tally::{Hidden, Margins, Tally};
}
