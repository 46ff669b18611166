//! Errors about files.

use std::path::{Path, PathBuf};

use tiebreak_record::commit::Malformed;
use tiebreak_record::job::JobError;
use tiebreak_record::job::manifest::DataError;

/// Errors about files, by blame.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The file is not what it should be: the fault of whoever made it.
    #[error("{}: {source}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The defect of the file.
        source: Malformed,
    },
    /// The job file is wrong: the user's to mend.
    #[error("{0}")]
    Job(String),
    /// This machine could not read or write.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The operation would take more memory than the reader's limit.
    #[error("{0}")]
    Limit(String),
    /// The command cannot be done on this run as it is.
    #[error("{0}")]
    Refused(String),
}

impl From<JobError> for RunError {
    fn from(error: JobError) -> RunError {
        RunError::Job(error.0)
    }
}

impl From<DataError> for RunError {
    fn from(error: DataError) -> RunError {
        match error {
            DataError::Malformed { path, source } => RunError::Malformed { path, source },
            DataError::Io { path, source } => RunError::Io { path, source },
            DataError::Job(why) => RunError::Job(why),
        }
    }
}

impl RunError {
    /// The file or folder that the error is about, if it is about one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            RunError::Malformed { path, .. } | RunError::Io { path, .. } => Some(path),
            RunError::Job(_) | RunError::Limit(_) | RunError::Refused(_) => None,
        }
    }

    /// The error that the file at `path` is malformed.
    pub fn malformed(path: &Path, source: Malformed) -> RunError {
        RunError::Malformed { path: path.to_path_buf(), source }
    }

    /// The error that the file at `path` breaks a rule, which `why` names.
    pub fn invalid(path: &Path, why: impl Into<String>) -> RunError {
        RunError::malformed(path, Malformed::invalid("file", why))
    }

    /// The error that the system refuses to read or write `path`, or the [`Malformed`] that the error carries; for `map_err`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> RunError + '_ {
        move |source| match source.downcast() {
            Ok(malformed) => RunError::malformed(path, malformed),
            Err(source) => RunError::Io { path: path.to_path_buf(), source },
        }
    }
}
