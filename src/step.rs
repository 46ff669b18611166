//! One step with all that its record promises, with or without a folder.
//!
//! A step needs no folder, and an auditor's engine need not be the trainer's:
//!
//! ```
//! use std::sync::Arc;
//! use tiebreak::arith::words::bytes_of;
//! use tiebreak::commit::digest::Digest;
//! use tiebreak::engine::{Engine, EngineError, cpu::Cpu, reference::Reference, session::Session};
//! use tiebreak::job::computation::Computation;
//! use tiebreak::job::identity::{CONTRACT, ComputationSummary, program_digest};
//! use tiebreak::program::{init, step::MicroBatch};
//! use tiebreak::step::{Roundings, StepRequest, Watch, scalars};
//!
//! let job = r#"
//! steps = 8
//! model = { kind = "mlp", inputs = 2, hidden = [], classes = 2 }
//! data = { kind = "idx", images = "images", labels = "labels" }
//! optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
//! schedule = { peak = 0.5 }
//! batch = { micro_batch = 2 }
//! "#;
//! let (_, program) = Computation::parsed("job", job, None)?;
//! let [data, initial] = [Digest([0; 32]); 2]; // a run's are those of its files
//! let summary =
//!     ComputationSummary { contract: CONTRACT.into(), challenge: None, program: program_digest(&program), data, initial };
//! let computation = Computation::derive("job", job, None, summary)?;
//!
//! let batch = [MicroBatch { tensors: vec![bytes_of(&[255, 0, 0, 255]), bytes_of(&[0, 1])] }];
//! let record = |engine: &mut dyn Engine| {
//!     let mut session = Session::new(engine, Arc::new(computation.program.clone()))?;
//!     session.load_each(|i| bytes_of(&init::state_tensor(&computation.program, computation.key(), i)))?;
//!     let request = StepRequest::new(&computation, scalars(&computation, 1), &batch);
//!     Ok::<_, EngineError>(request.run(&mut session, Roundings::Logged, &Watch::default())?.record)
//! };
//! assert_eq!(record(&mut Cpu::new(1)?)?, record(&mut Reference)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[doc(inline)]
pub use tiebreak_run::step::{CommittedStep, Roundings, StepError, StepRequest, Watch, scalars};

/// Values that are no numbers any more.
pub mod finite {
    #[doc(inline)]
    pub use tiebreak_run::step::finite::{FirstValue, LossesNotFinite, NotFinite, Place};
}
