//! What a run declares: a job, everything that decides the bits of a run, in TOML.
//!
//! [`spec`] says what a job holds ([`element`]: of what its data files are), [`parse`] reads one and names key and line of what is wrong, `sizes` refuses what would not fit,
//! [`identity`] derives what a run of it is called, and [`data`] draws its batches. Nothing here opens a file.

pub mod data;
pub mod element;
pub mod identity;
pub mod parse;
mod sizes;
pub mod spec;

pub use parse::{JOB_MAX, JobError};
pub use spec::{
    BatchSpec, CheckpointSpec, CommitSpec, DataFiles, DataSpec, DigitsSpec, Granularity, Job, Labelled,
    Sampling,
};
