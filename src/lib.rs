//! tiebreak: replay disputed steps of neural-network training bit for bit, on any GPU or CPU.
//!
//! This package is the facade over the layers, which are crates under `crates/`, and the command. Data flows one way, and so do imports.
//!
//! | to | take | features |
//! |---|---|---|
//! | compute a number as the contract has it | [`arith`] | |
//! | make a graph, its gradient, a model, a training step | [`program`] | |
//! | read a job, know what a run is called | [`job`], [`job::computation::Computation`] | |
//! | commit to tensors and records, sign, prove | [`commit`] | |
//! | read the thresholds of a job and the log of a step, bound legal roundings | [`rounding`] | |
//! | check a verdict from its bytes alone, referee a dispute | [`dispute`] | |
//! | run a graph or a step on a CPU | [`engine::cpu::Cpu`], [`engine::session`] | `engine` |
//! | run it on a GPU | `engine::gpu` | `gpu`, `cuda` |
//! | compute a step with all that its record promises | [`step::StepRequest`] | `engine` |
//! | read a run's folder, evaluate its model | [`run::dir::Run`], [`evaluate`] | `engine` |
//! | take rounding decisions from a log, and count them | [`observers`] | `engine` |
//! | train | [`train`] | `engine` |
//! | audit | [`audit`] | `engine` |
//! | answer in a dispute, and ask | [`party`], [`net`] | `game` |
//! | call the command | [`cli::run`] | `cli` |
//!
//! Without any feature the crate is the *referee core*, the first six rows: it decides what is right from bytes alone, and has no engine, no
//! threads, no files and no randomness. No feature changes a bit of any result.
//!
//! The modules list by name what somebody outside uses. The layers have more, for each other and for the command, and promise no stability.
//!
//! # Two engines, one result
//!
//! ```
//! # #[cfg(feature = "engine")] {
//! use std::sync::Arc;
//! use tiebreak::arith::DType;
//! use tiebreak::arith::words::bytes_of;
//! use tiebreak::engine::{cpu::Cpu, outputs_of, reference::Reference};
//! use tiebreak::program::builder::Builder;
//! use tiebreak::program::operators::{LinearClasses, linear, relu};
//! use tiebreak::program::products::ProductTable;
//!
//! let mut b = Builder::new(ProductTable::preset());
//! let x = b.input("x", DType::F32, &[2, 4]);
//! let w = b.input("w", DType::F32, &[3, 4]);
//! let dy = b.input("dy", DType::F32, &[2, 3]);
//! let y = linear(&mut b, LinearClasses::HIDDEN, x, w, None);
//! let y = relu(&mut b, y);
//! let gradients = b.backward(y, dy);
//! b.output("dw", gradients[&w]);
//! let graph = Arc::new(b.finish());
//!
//! let numbers = |count: u32| bytes_of(&(0..count).map(|i| (0.3 * i as f32 - 1.0).to_bits()).collect::<Vec<_>>());
//! let inputs = [numbers(8), numbers(12), numbers(6)];
//! assert_eq!(outputs_of(&mut Cpu::new(0)?, &graph, &inputs)?, outputs_of(&mut Reference, &graph, &inputs)?);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A run and its audit
//!
//! ```
//! # #[cfg(feature = "engine")] {
//! use tiebreak::audit::plan::{Choice, plan};
//! use tiebreak::audit::{Outcome, audit, checks};
//! use tiebreak::commit::keys::PrivateKey;
//! use tiebreak::engine::cpu::Cpu;
//! use tiebreak::run::Folder;
//! use tiebreak::train::{Beginning, begin, train};
//!
//! let folder = tempfile::tempdir()?;
//! let job = folder.path().join("job.toml");
//! std::fs::write(&job, r#"
//! steps = 3
//! model = { kind = "gpt", vocabulary = 128, context = 4, layers = 1, heads = 1, width = 8 }
//! data = { kind = "bytes", path = "text.txt" }
//! optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
//! schedule = { peak = 0.1 }
//! batch = { micro_batch = 2 }
//! "#)?;
//! std::fs::write(folder.path().join("text.txt"), "to be or not to be, that is the question")?;
//!
//! let key = PrivateKey::generate("trainer.example", [7; 32])?; // take the system's randomness, and for the nonce too
//! let beginning = Beginning {
//!     job: &job,
//!     data_root: None,
//!     out: Folder::at(&folder.path().join("run")),
//!     key: Some(&key),
//!     challenge: None,
//!     logged: false,
//!     nonce: [1; 16],
//! };
//! let mut engine = Cpu::new(1)?;
//! let run = begin(&beginning)?;
//! train(&run, &mut engine, Some(&key), &mut tiebreak::train::Silent)?;
//!
//! // An auditor has the folder and the trainer's public key.
//! let checked = checks::always(&run, Some(&key.public()))?;
//! let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
//! let (report, verdict) = audit(&run, &mut engine, checked, plan, None, &mut tiebreak::audit::Silent)?;
//! assert_eq!((report.outcome.clone(), report.steps_replayed()), (Outcome::Matches, 3));
//! assert!(verdict.is_none());
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A cheat, convicted
//!
//! A trainer who cheats is there with the feature `testing` alone.
//!
//! ```
//! # #[cfg(feature = "testing")] {
//! # use tiebreak::audit::plan::{Choice, plan};
//! # use tiebreak::audit::{audit, checks};
//! # use tiebreak::commit::keys::PrivateKey;
//! # use tiebreak::engine::cpu::Cpu;
//! # use tiebreak::engine::reference::Reference;
//! # use tiebreak::run::Folder;
//! # use tiebreak::train::{Beginning, begin, train_as};
//! use tiebreak::dispute::verdict::{Ruling, Verdict};
//! use tiebreak::train::cheat::Cheat;
//! # let folder = tempfile::tempdir()?;
//! # let job = folder.path().join("job.toml");
//! # std::fs::write(&job, r#"
//! # steps = 3
//! # model = { kind = "gpt", vocabulary = 128, context = 4, layers = 1, heads = 1, width = 8 }
//! # data = { kind = "bytes", path = "text.txt" }
//! # optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
//! # schedule = { peak = 0.1 }
//! # batch = { micro_batch = 2 }
//! # commit = { granularity = "operator" }
//! # "#)?;
//! # std::fs::write(folder.path().join("text.txt"), "to be or not to be, that is the question")?;
//! # let key = PrivateKey::generate("trainer.example", [7; 32])?;
//! # let out = Folder::at(&folder.path().join("run"));
//! # let beginning =
//! #     Beginning { job: &job, data_root: None, out, key: Some(&key), challenge: None, logged: false, nonce: [1; 16] };
//! # let run = begin(&beginning)?;
//! # let mut engine = Cpu::new(1)?;
//!
//! // One element of one operator's output is off in step 2, and every record says what an honest trainer's would.
//! let mut cheat: Cheat = "operator@2".parse()?;
//! train_as(&run, &mut engine, Some(&key), &mut cheat, &mut tiebreak::train::Silent)?;
//! # let checked = checks::always(&run, Some(&key.public()))?;
//! # let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
//!
//! // The auditor's engine need not be the trainer's.
//! let (_, verdict) = audit(&run, &mut Reference, checked, plan, None, &mut tiebreak::audit::Silent)?;
//! let file = verdict.ok_or("there is a difference")?.to_bytes();
//!
//! // Whoever gets the file needs neither the run nor an engine.
//! match Verdict::from_bytes(&file)?.check(Some(&key.public()))? {
//!     Ruling::Convicts(finding) => assert_eq!(finding.step, 2),
//!     other => panic!("{other:?}"),
//! }
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod arith;
#[cfg(feature = "engine")]
pub mod audit;
#[cfg(feature = "cli")]
pub mod cli;
pub mod commit;
pub mod dispute;
#[cfg(feature = "engine")]
pub mod engine;
#[cfg(feature = "engine")]
pub mod evaluate;
pub mod job;
#[cfg(feature = "game")]
pub mod net;
#[cfg(feature = "engine")]
pub mod observers;
#[cfg(feature = "game")]
pub mod party;
pub mod program;
pub mod rounding;
#[cfg(feature = "engine")]
pub mod run;
#[cfg(any(feature = "gpu", feature = "cuda"))]
pub mod shaders;
#[cfg(feature = "engine")]
pub mod step;
#[cfg(feature = "engine")]
pub mod train;
