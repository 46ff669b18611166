//! Audits: is a run what its job says, bit for bit?
//!
//! An auditor draws a sample of the segments:
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
//! use tiebreak::audit::checks;
//! use tiebreak::audit::plan::{Choice, plan};
//!
//! let checked = checks::always(&run, Some(&key.public()))?;
//! let choice = Choice::Sample { fraction: 0.5, seed: 1 };
//! let plan = plan(&run, &checked.checkpoints, 3, &choice);
//! assert!(!plan.segments.is_empty() && plan.segments.len() <= plan.of);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An auditor signs a report, and anybody reads it:
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
//! use tiebreak::audit::plan::{Choice, plan};
//! use tiebreak::audit::{audit, checks, report_file};
//!
//! let checked = checks::always(&run, Some(&key.public()))?;
//! let plan = plan(&run, &checked.checkpoints, 3, &Choice::Range(1, 3));
//! let (report, _) = audit(&run, &mut engine, checked, plan, None, &mut tiebreak::audit::Silent)?;
//! let auditor = PrivateKey::generate("auditor.example", [8; 32])?;
//! let file = report_file::encode(report, Some(&auditor));
//! let (_, signer) = report_file::decode(&file)?;
//! assert_eq!(signer.map(|key| key.name().to_string()), Some("auditor.example".to_string()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[doc(inline)]
pub use tiebreak_audit::{AuditError, Outcome, Progress, Report, Silent, audit, audit_in_jobs};

/// Files of a run that are missing or damaged, as a report lists them.
pub mod attachments {
    #[doc(inline)]
    pub use tiebreak_audit::attachments::Damaged;
}

/// The checks that need no replay, which every audit begins with.
pub mod checks {
    #[doc(inline)]
    pub use tiebreak_audit::checks::{Checked, Inconsistent, always, structure, weights};
}

/// Corrections of a run, as a report lists them.
pub mod corrections {
    #[doc(inline)]
    pub use tiebreak_audit::corrections::{Corrections, Listed, Side};
}

/// The ground on which an audit ends, as a value and as a sentence.
pub mod ground {
    #[doc(inline)]
    pub use tiebreak_audit::ground::{Differences, Explicable, Ground, NodeTile, RecordField};
}

/// The steps to replay: all, a range, or a random sample of the segments.
pub mod plan {
    #[doc(inline)]
    pub use tiebreak_audit::plan::{Choice, ReplayPlan, plan};
}

/// Reports as files, signed by their auditor.
pub mod report_file {
    #[doc(inline)]
    pub use tiebreak_audit::report_file::{Account, decode, encode};
}

/// Shards of one plan, which several auditors replay.
pub mod shard {
    #[doc(inline)]
    pub use tiebreak_audit::shard::Shard;
}
