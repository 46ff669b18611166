//! tiebreak: replay disputed steps of neural-network training bit for bit, on any GPU or CPU.
//!
//! Data flows one way, and so do imports: a module uses only what stands above it in this list.
//! `arith` says what a number is, `program` what a training step is, `engine` executes it, `commit` says what is
//! promised, `rounding` logs and judges rounding decisions, `run` says what is on disk; `train`, `audit` and `dispute` are what people do with them.

#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod arith;
pub mod audit;
pub mod cli;
pub mod commit;
pub mod dispute;
pub mod engine;
pub mod program;
pub mod rounding;
pub mod run;
pub mod shaders;
pub mod train;
