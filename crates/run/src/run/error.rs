//! Errors about files.

use std::path::{Path, PathBuf};

use tiebreak_job::JobError;
use tiebreak_job::manifest::DataError;
use tiebreak_record::commit::Malformed;

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
    /// There is no file where a job file is named.
    #[error("{}: there is no such job file", path.display())]
    NoJob {
        /// The path that was looked at.
        path: PathBuf,
    },
    /// The folder that is named holds no run.
    #[error("{} is not a run: it has no run.json", folder.display())]
    NoRun {
        /// The folder.
        folder: PathBuf,
    },
    /// Another process writes to the run.
    #[error("{} is being written by {holder}", folder.display())]
    Locked {
        /// The run's folder.
        folder: PathBuf,
        /// The process, in words.
        holder: String,
    },
    /// A trainer's key is given for a run that names none, and that key signed nothing afterwards.
    #[error("{}: the run is unsigned, and {given} did not sign it afterwards", path.display())]
    Unsigned {
        /// The head that carries no such signature.
        path: PathBuf,
        /// The name of the key that is given.
        given: String,
    },
    /// The run names another trainer's key than the one that is given.
    #[error("{}: the run names the trainer key {named}; the one that is given is {given}", path.display())]
    OtherKey {
        /// The file that names it.
        path: PathBuf,
        /// The key that the run names.
        named: String,
        /// The key that is given.
        given: String,
    },
    /// Reading the run would take more memory than the reader allows.
    #[error("{what}: {needed} bytes of memory are needed, the limit is {limit}")]
    Memory {
        /// The part of the run that is read.
        what: String,
        /// The bytes that it takes.
        needed: u64,
        /// The bytes that it may take.
        limit: u64,
    },
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

/// An error of a check, which says whether the bytes that were read are at fault.
#[doc(hidden)] // for the layers above
pub trait OfContents {
    /// True if bytes were other than they should be. False if there were none, or if the reader failed.
    fn is_of_contents(&self) -> bool;
}

impl OfContents for RunError {
    fn is_of_contents(&self) -> bool {
        // A server's answer that is no right one is an error of the store.
        matches!(self, RunError::Malformed { .. })
    }
}

impl RunError {
    /// The file or folder that the error is about, if it is about one.
    #[doc(hidden)] // for the layers above
    pub fn path(&self) -> Option<&Path> {
        match self {
            RunError::Malformed { path, .. }
            | RunError::Io { path, .. }
            | RunError::NoJob { path }
            | RunError::NoRun { folder: path }
            | RunError::Locked { folder: path, .. }
            | RunError::Unsigned { path, .. }
            | RunError::OtherKey { path, .. } => Some(path),
            RunError::Job(_) | RunError::Memory { .. } | RunError::Refused(_) => None,
        }
    }

    /// The error that the file at `path` is malformed.
    #[doc(hidden)] // for the layers above
    pub fn malformed(path: &Path, source: Malformed) -> RunError {
        RunError::Malformed { path: path.to_path_buf(), source }
    }

    /// The error that the file at `path` breaks a rule, which `why` names.
    #[doc(hidden)] // for the layers above
    pub fn invalid(path: &Path, why: impl Into<String>) -> RunError {
        RunError::malformed(path, Malformed::invalid("file", why))
    }

    /// The error that the system refuses to read or write `path`, or the [`Malformed`] that the error carries; for `map_err`.
    #[doc(hidden)] // for the layers above
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> RunError + '_ {
        move |source| match source.downcast() {
            Ok(malformed) => RunError::malformed(path, malformed),
            Err(source) => RunError::Io { path: path.to_path_buf(), source },
        }
    }
}
