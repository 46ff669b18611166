//! What is on disk: data, transcripts, heads, checkpoints, traces. Reading never executes anything, never
//! follows links, and checks every size before it allocates. Layout: `docs/RUN-FORMAT.md`.

pub mod architectures;
pub mod arrays;
pub mod checked;
pub mod checkpoint;
pub mod companions;
pub mod create;
pub mod data;
pub mod dir;
pub mod disk;
mod error;
pub mod evaluation;
mod foreign;
pub mod gradients;
pub mod initial;
pub mod job;
pub mod job_files;
pub mod limits;
pub mod lock;
pub mod metrics;
pub mod mistaken;
pub mod paths;
pub mod released_config;
pub mod shell;
pub mod states;
mod tokenizer_ids;
pub mod traces;
pub mod transcript;
pub mod weights;

pub use error::RunError;
pub use job::{check_thresholds, program as read_program, read as read_job, read_logged as read_logged_job};
pub use job_files::JobFiles;
