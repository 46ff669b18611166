//! What is on disk: jobs, data, transcripts, heads, checkpoints, traces. Reading never executes anything, never
//! follows links, and checks every size before it allocates. Layout: `docs/RUN-FORMAT.md`.

pub mod arrays;
pub mod checkpoint;
pub mod data;
pub mod dir;
pub mod disk;
pub mod job;
mod sizes;
pub mod traces;
pub mod transcript;

use std::path::{Path, PathBuf};

use crate::commit::Malformed;

/// What can go wrong with files, by blame.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The file is not what it should be: the fault of whoever made it.
    #[error("{}: {source}", path.display())]
    Malformed { path: PathBuf, source: Malformed },
    /// The job file is wrong: the user's to mend.
    #[error("{0}")]
    Job(String),
    /// This machine could not read or write.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// The command cannot be done on this run as it is.
    #[error("{0}")]
    Refused(String),
}

impl RunError {
    pub(crate) fn malformed(path: &Path, source: Malformed) -> RunError {
        RunError::Malformed { path: path.to_path_buf(), source }
    }

    pub(crate) fn invalid(path: &Path, why: impl Into<String>) -> RunError {
        RunError::malformed(path, Malformed::invalid("file", why))
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> RunError + '_ {
        move |source| RunError::Io { path: path.to_path_buf(), source }
    }
}
