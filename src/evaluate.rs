//! Evaluations: one pass over samples in their order.
//!
//! Bytes that are no report of an evaluation are an error:
//!
//! ```
//! use tiebreak::evaluate::Report;
//!
//! assert!(Report::parse("{}").is_err());
//! ```
//!
//! A model that guesses has a perplexity of about its vocabulary:
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
//! use std::ops::ControlFlow::Continue;
//! use tiebreak::evaluate::Evaluator;
//! use tiebreak::job::ProgramSource;
//! use tiebreak::engine::Engine;
//! use tiebreak::arith::words::bytes_of;
//! use tiebreak::program::init;
//!
//! let ProgramSource::Model(model) = &run.job().source else { panic!("a model of this version") };
//! let evaluator = Evaluator::new(&mut engine, &**model, 2)?;
//! let kept = run.program().released();
//! let mut released = Vec::new();
//! for (tensor, words) in run.program().state().iter().zip(init::state(run.program(), run.key())).take(kept) {
//!     released.push(engine.upload(&tensor.ty(), &bytes_of(&words))?);
//! }
//! let found = evaluator.run(&mut engine, &released, &mut run.dataset()?, Some(4), &mut |_, _| Continue(()))?;
//! assert_eq!(found.samples, 4);
//! assert!((100.0..160.0).contains(&f32::from_bits(found.perplexity())));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[doc(inline)]
pub use tiebreak_run::evaluate::{Evaluation, Evaluator, Found, Report};
