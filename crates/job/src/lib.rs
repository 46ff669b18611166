//! A run's declaration: a job, which holds everything that decides the bits of a run, in TOML.
//!
//! - [`spec`] has the types of a job, and [`element`] the types of its data files' elements.
//! - [`reference`] lists every key for people.
//! - [`parse`] reads a job and names key and line of an error. The parser uses `check`, which compares a text with the
//!   list, and `suggest`, which guesses what was meant.
//! - `data_keys` names the errors in the table of data files.
//! - `sizes` refuses jobs that would not fit, and `program` gives the program.
//! - `canonical` keeps the settings that decide the records.
//! - [`identity`] derives the names of computation and run.
//! - [`initial`] gives the origin of the first state.
//! - [`manifest`] describes the files that a job reads, `hidden_tree` those that hide ([`hiding`]), and [`data`] draws its batches.
//! - [`opening`] shows single slices of files that hide, [`shard_opening`] shards of a state.
//!
//! A trainer and everybody who checks a trainer share this crate's definition of a run's names.
//!
//! The crate opens no file, starts no thread, draws no random number and runs no program. The input is texts and bytes, which are
//! parsed with bounds. Start with [`Job::parse`] and [`computation::Computation::derive`].
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod canonical;
mod check;
pub mod computation;
pub mod data;
mod data_keys;
pub mod element;
mod evaluable;
mod groups;
mod hidden_tree;
pub mod hiding;
pub mod identity;
mod init;
pub mod initial;
pub mod manifest;
pub mod opening;
pub mod parse;
mod program;
pub mod reference;
pub mod shard_opening;
mod sizes;
pub mod spec;
mod suggest;

pub use canonical::Setting;
pub use evaluable::Evaluable;
pub use parse::{JOB_MAX, JobError};
pub use sizes::error as size_error;
pub use spec::{
    BatchSpec, CheckpointSpec, CommitSpec, DataFiles, DataSpec, DigitsSpec, EvaluationSpec, Granularity, Job,
    Labelled, Masking, ModelJob, ProgramSource, Sampling, WeightNames,
};
