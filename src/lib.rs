//! tiebreak: replay disputed steps of neural-network training bit for bit, on any GPU or CPU.
//!
//! Data flows one way, and so do imports: each layer is a crate under `crates/`, and this one is the facade over them and the command.
//!
//! The *referee core* decides what is right, from bytes alone: [`arith`] says what a number is, [`program`] what a training step is,
//! [`commit`] what is promised, [`rounding`] which roundings are logged and which are legal, [`job`] what a run declares, [`dispute`]
//! what a verdict shows. It has no engine, no threads, no files and no randomness, and is all that is left without the feature `engine`.
//!
//! With `engine`, [`engine`] executes programs, [`observers`] log and replay rounding decisions meanwhile, [`run`] says what is on disk,
//! [`step`] is one step with all that its record promises, [`evaluate`] an evaluation; [`train`] and [`audit`] are what people do with them.
//! `gpu` and `cuda` add engines, `game` the parties of a dispute ([`party`]) and their game between machines ([`net`]), `cli` the command.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "engine")]
pub mod engine;

#[cfg(feature = "engine")]
pub use tiebreak_audit as audit;
pub use tiebreak_contract::{arith, program};
pub use tiebreak_dispute as dispute;
#[cfg(feature = "game")]
pub use tiebreak_game::{net, party};
pub use tiebreak_record::{commit, job, rounding};
#[cfg(feature = "engine")]
pub use tiebreak_run::{evaluate, observers, run, step};
#[cfg(feature = "wgsl")]
pub use tiebreak_shaders as shaders;
#[cfg(feature = "engine")]
pub use tiebreak_train as train;
