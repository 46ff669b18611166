//! The files of a run: data, transcripts, heads, checkpoints, traces, in a [`Store`]. Reading never executes anything, never
//! follows links, and checks every size before it allocates. Layout: `docs/RUN-FORMAT.md`.

pub mod adapter_config;
pub mod architectures;
pub mod arrays;
pub mod checked;
pub mod checkpoint;
pub mod companions;
mod config_keys;
pub mod create;
pub mod data;
mod decoder_config;
pub mod dir;
pub mod disk;
mod encoder_config;
mod error;
pub mod evaluation;
mod folder;
mod foreign;
mod frozen;
pub mod gradients;
pub mod hidden;
pub mod index;
pub mod initial;
pub mod job;
pub mod job_files;
pub mod limits;
mod listing;
mod lock;
mod memory;
pub mod metrics;
pub mod mistaken;
pub mod names;
pub mod network;
pub mod paths;
pub mod reader;
pub mod released_config;
mod run_file;
pub mod shell;
pub mod spilled;
pub mod state_files;
pub mod states;
mod store;
mod stored;
mod tokenizer_ids;
pub mod traces;
pub mod transcript;
mod vision_config;
pub mod weights;
pub mod withdraw;

pub use error::{OfContents, RunError};
pub use folder::Folder;
pub use job::{check_thresholds, program as read_program, read as read_job, read_logged as read_logged_job};
pub use job_files::JobFiles;
#[doc(hidden)] // the command's alone
pub use listing::is_run_file;
pub use memory::Memory;
#[doc(hidden)] // for the layers above
pub use store::Promise;
pub use store::{Contents, Held, Store, not_plain};
pub use stored::{Reading, Stored};
