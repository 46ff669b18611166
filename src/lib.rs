//! tiebreak: replay disputed steps of neural-network training bit for bit, on any GPU or CPU.
//!
//! Data flows one way, and so do imports: a module uses only what stands above it in this list.
//!
//! The *referee core* decides what is right, from bytes alone: [`arith`] says what a number is, [`program`] what a training step is,
//! [`commit`] what is promised, [`rounding`] which roundings are logged and which are legal, [`job`] what a run declares, [`dispute`]
//! what a verdict shows. It has no engine, no threads, no files and no randomness, and is all that is left without the feature `engine`.
//!
//! With `engine`, [`engine`] executes programs, [`observers`] log and replay rounding decisions meanwhile, [`run`] says what is on disk,
//! [`step`] is one step with all that its record promises, [`evaluate`] an evaluation; [`train`] and [`audit`] are what people do with them, and [`party`] answers the questions of a dispute. `gpu` and `cuda` add
//! engines, `cli` the command.

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
#[cfg(feature = "engine")]
pub mod observers;
mod parallel;
#[cfg(feature = "engine")]
pub mod party;
pub mod program;
pub mod rounding;
#[cfg(feature = "engine")]
pub mod run;
#[cfg(feature = "wgsl")]
pub mod shaders;
#[cfg(feature = "engine")]
pub mod step;
#[cfg(feature = "engine")]
pub mod train;
