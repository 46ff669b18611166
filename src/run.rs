//! Runs: read one, keep one in a folder, in memory or in a store of one's own.
//!
//! A run in memory, read again as a run in a folder is:
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
//! use tiebreak::run::dir::Run;
//!
//! let again = Run::of(Arc::new(memory.clone()))?;
//! assert_eq!((again.id, again.checkpoint_steps()?.last()), (run.id, Some(&3)));
//! assert!(memory.files().iter().any(|(name, _)| name == "transcript"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The head of a run, verified:
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
//! let last = run.head_sizes()?.into_iter().max().ok_or("a run has heads")?;
//! let (head, signed) = run.head(last, Some(&key.public()))?;
//! assert_eq!((head.run, signed), (run.id, tiebreak::commit::tree_head::Signed::By));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Arrays, as other libraries read them:
//!
//! ```
//! use tiebreak::arith::DType;
//! use tiebreak::arith::words::bytes_of;
//! use tiebreak::program::graph::TensorType;
//! use tiebreak::run::arrays::{Array, FloatType, read, write};
//!
//! let folder = tempfile::tempdir()?;
//! let ty = TensorType { dtype: DType::F32, shape: vec![2] };
//! let array = Array { name: "w".into(), ty, bytes: bytes_of(&[1.0f32, 2.0].map(f32::to_bits)) };
//! let path = folder.path().join("w.safetensors");
//! write(&path, std::slice::from_ref(&array), FloatType::F32)?;
//! assert_eq!(read(&path)?[0].bytes, array.bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[doc(inline)]
pub use tiebreak_run::run::{Contents, Folder, Held, Memory, RunError, Store, Stored, read_job};

/// Arrays in files, in and out.
pub mod arrays {
    #[doc(inline)]
    pub use tiebreak_run::run::arrays::{Array, FloatType, read, write};
}

/// Training states as safetensors files.
pub mod checkpoint {
    #[doc(inline)]
    pub use tiebreak_run::run::checkpoint::{digests, read};
}

/// A run in a store.
pub mod dir {
    #[doc(inline)]
    pub use tiebreak_run::run::dir::{Run, RunFile};
}

/// Files that appear whole or not at all.
pub mod disk {
    #[doc(inline)]
    pub use tiebreak_run::run::disk::Disk;
}

/// The data of evaluations.
pub mod evaluation {
    #[doc(inline)]
    pub use tiebreak_run::run::evaluation::{EvaluationData, of_run};
}

/// The metrics of a run, which are for people's charts.
pub mod metrics {
    #[doc(inline)]
    pub use tiebreak_run::run::metrics::points;
}

/// The salt key that a reader brings.
pub mod reader {
    #[doc(inline)]
    pub use tiebreak_run::run::reader::Salts;
}

/// The traces of steps.
pub mod traces {
    #[doc(inline)]
    pub use tiebreak_run::run::traces::read;
}

/// The transcript: all records of a run.
pub mod transcript {
    #[doc(inline)]
    pub use tiebreak_run::run::transcript::{Transcript, parse, read};
}
