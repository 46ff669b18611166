//! What can be wrong with data.

use std::io;
use std::path::{Path, PathBuf};

use crate::commit::Malformed;

/// What can be wrong with data, by blame.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The file is not what its manifest or its format says.
    #[error("{}: {source}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Malformed,
    },
    /// The bytes could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The job's model does not fit its data.
    #[error("{0}")]
    Job(String),
}

impl DataError {
    pub(in crate::job) fn invalid(path: &Path, why: impl Into<String>) -> DataError {
        DataError::Malformed { path: path.to_path_buf(), source: Malformed::invalid("file", why) }
    }
}
