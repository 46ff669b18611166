//! What a run declares: a job, everything that decides the bits of a run, in TOML.
//!
//! [`spec`] says what a job holds ([`element`]: of what its data files are), [`reference`] lists every key for people, [`parse`] reads a job and names key and line of
//! what is wrong (by way of `check`, which holds a text to the list, and `suggest`, which says what may have been meant), `sizes` refuses what would not fit,
//! `program` gives the program, `canonical` keeps what decides the records, [`identity`] derives what computation and run are called, [`initial`] says where the first
//! state comes from, [`manifest`] says what files it reads, and [`data`] draws its batches. Nothing here opens a file.

pub mod canonical;
mod check;
pub mod computation;
pub mod data;
pub mod element;
mod groups;
pub mod identity;
pub mod initial;
pub mod manifest;
pub mod parse;
mod program;
pub mod reference;
mod sizes;
pub mod spec;
mod suggest;

pub use canonical::Setting;
pub use parse::{JOB_MAX, JobError};
pub use sizes::error as size_error;
pub use spec::{
    BatchSpec, CheckpointSpec, CommitSpec, DataFiles, DataSpec, DigitsSpec, EvaluationSpec, Granularity, Job,
    Labelled, ModelJob, ProgramSource, Sampling, WeightNames,
};
