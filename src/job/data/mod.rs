//! Data: files that are checked as they are read, and the batch of a step.
//!
//! Whoever reads a byte range reads and checks the chunks it touches, so an auditor needs only those of the steps that are replayed, and
//! a referee only those that a verdict carries. Where the bytes come from is for others to say ([`Source`]).

mod batch;
mod error;
mod file;
pub mod layout;
pub mod npy;
pub mod safetensors;
mod sampling;

pub use batch::{Dataset, batch_digest, batch_leaves};
pub use error::DataError;
pub use file::{CHUNK_BYTES, DataFile, FILE_MAX, FileManifest, Source, data_digest};
pub use sampling::{Place, Sampler};
