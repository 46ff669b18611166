//! Compute monitoring: how an inspector finds a large undeclared training run in a fleet of chips.
//!
//! Source: Shavit, "What does it take to catch a Chinchilla?" (arXiv 2303.11341), section 3 and appendices B and C;
//! docs/MONITORING.md lists the formulas, their errata and the command that prints each. Planning uses ordinary floating-point
//! numbers: no result of this crate is committed, and none decides a verdict.
//!
//! ```
//! use tiebreak_monitor::plan::samples;
//! use tiebreak_monitor::regime::{Fleet, Regime, TrainingRun};
//!
//! // 100,000 chips of 10^15 FLOP/s, a snapshot every ten days, an inspection every thirty.
//! let fleet = Fleet { chips: 100_000, flop_per_day: 1e15 * 86_400.0 };
//! let regime = Regime { fleet, rate: 0.1, period: 30.0 };
//! let run = TrainingRun { flop: 1.27e26, days: 30.0 };
//! let samples = samples(&regime, &run, 0.9)?;
//! assert_eq!((samples.first_order_per_year() as u64, samples.per_year(samples.formula) as u64), (60, 44));
//! // Drawing no chip twice needs fewer, and at least this whole number.
//! assert!((samples.exact as f64) < samples.formula.ceil() + 1.0);
//! # Ok::<(), tiebreak_monitor::regime::RegimeError>(())
//! ```
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

#![warn(missing_docs)]

pub mod beacon;
pub mod catalogue;
pub mod chip;
pub mod closed;
pub mod date;
pub mod detection;
pub mod draw;
mod header;
pub mod inspection;
pub mod interval;
pub mod matching;
pub mod pack;
pub mod plan;
pub mod promise;
pub mod randomness;
pub mod regime;
pub mod register;
pub mod rules;
pub mod screen;
pub mod simulate;
pub mod snapshot;
pub mod statement;
pub mod witness;
