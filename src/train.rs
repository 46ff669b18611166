//! Training: begin a run, continue it, and watch it.
//!
//! Whoever watches sees each record:
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
//! # let beginning = Beginning { job: &job, data_root: None, out, key: Some(&key), challenge: None, logged: false, nonce: [1; 16] };
//! # let run = begin(&beginning)?;
//! # let mut engine = Cpu::new(1)?;
//! use tiebreak::commit::record::StepRecord;
//! use tiebreak::train::Progress;
//!
//! struct Losses(Vec<f32>);
//!
//! impl Progress for Losses {
//!     fn step(&mut self, record: &StepRecord, _norm: u32) {
//!         self.0.push(f32::from_bits(record.loss));
//!     }
//! }
//!
//! let mut losses = Losses(Vec::new());
//! train(&run, &mut engine, Some(&key), &mut losses)?;
//! assert_eq!(losses.0.len(), 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Training again continues from the files that are there:
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
//! # let beginning = Beginning { job: &job, data_root: None, out, key: Some(&key), challenge: None, logged: false, nonce: [1; 16] };
//! # let run = begin(&beginning)?;
//! # let mut engine = Cpu::new(1)?;
//! # train(&run, &mut engine, Some(&key), &mut tiebreak::train::Silent)?;
//! let again = train(&run, &mut engine, Some(&key), &mut tiebreak::train::Silent)?;
//! assert_eq!(again, train(&run, &mut engine, Some(&key), &mut tiebreak::train::Silent)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "testing")]
#[doc(inline)]
pub use tiebreak_train::train_as;
#[doc(inline)]
pub use tiebreak_train::{Beginning, Progress, Silent, TrainError, begin, disk_needed, train};

/// Trainers who cheat, for tests and demonstrations.
#[cfg(feature = "testing")]
pub mod cheat {
    #[doc(inline)]
    pub use tiebreak_train::cheat::{Cheat, CheatKind};
}

/// What a trainer does at each step: as the job says, or otherwise.
pub mod conduct {
    #[doc(inline)]
    pub use tiebreak_train::conduct::{Conduct, Honest};
}

/// The errors of several processes, which train by the command.
pub mod ranks {
    #[doc(inline)]
    pub use tiebreak_train::ranks::{Difference, RankError};
}
