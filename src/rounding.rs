//! Logged roundings: the rule of near ties, and the proved bound of legal ones.
//!
//! A sum's error has a proved bound, which grows with its terms:
//!
//! ```
//! use tiebreak::rounding::legal::Accumulation;
//!
//! let any_order = Accumulation::Binary32;
//! assert!(any_order.gamma(64) < any_order.gamma(4096));
//! ```
//!
//! The `[rounding]` table alone makes a job one of the logged profile:
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
//! let logged = Job::parse("job.toml", &format!("{job_text}[rounding]\n"))?;
//! assert!(logged.rounding.is_some_and(|rounding| rounding.error().is_none()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[doc(inline)]
pub use tiebreak_record::rounding::{BITS_MAX, Decision};

/// The proved bound of legal roundings.
pub mod legal {
    #[doc(inline)]
    pub use tiebreak_record::rounding::legal::{Accumulation, Illegal};
}

/// The log of one step.
pub mod log {
    #[doc(inline)]
    pub use tiebreak_record::rounding::log::Log;
}

/// The thresholds from which roundings are logged.
pub mod thresholds {
    #[doc(inline)]
    pub use tiebreak_record::rounding::thresholds::{Preset, Rounding};
}
