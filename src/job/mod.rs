//! What a run declares: a job, everything that decides the bits of a run, in TOML.
//!
//! [`spec`] says what a job holds, [`reference`] lists every key for people, [`parse`] reads a job and names key and line of what is wrong (by way of `check`, which
//! holds a text to the list, and `suggest`, which says what may have been meant), `sizes` refuses what would not fit,
//! [`identity`] derives what a run of it is called, and [`data`] draws its batches. Nothing here opens a file.

mod check;
pub mod data;
pub mod identity;
pub mod parse;
pub mod reference;
mod sizes;
pub mod spec;
mod suggest;

pub use parse::{JOB_MAX, JobError};
pub use spec::{BatchSpec, CheckpointSpec, CommitSpec, DataSpec, DigitsSpec, Granularity, Job};
