//! What is on disk: data, transcripts, heads, checkpoints, traces. Reading never executes anything, never
//! follows links, and checks every size before it allocates. Layout: `docs/RUN-FORMAT.md`.

pub mod arrays;
pub mod checkpoint;
pub mod data;
pub mod dir;
pub mod disk;
pub mod traces;
pub mod transcript;

use std::path::{Path, PathBuf};

use crate::commit::Malformed;
use crate::job::data::DataError;
use crate::job::{JOB_MAX, Job, JobError};

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

/// Reads a job file: its text and what it says.
///
/// # Errors
/// If it cannot be read, or is no valid job: then with file, line and key.
pub fn read_job(path: &Path) -> Result<(String, Job), RunError> {
    let text = disk::read_text(path, JOB_MAX)?;
    let job = Job::parse(&path.display().to_string(), &text)?;
    Ok((text, job))
}

/// [`read_job`], as a job of the logged profile: with its default thresholds if it has no `[rounding]`.
///
/// # Errors
/// As [`read_job`].
pub fn read_logged_job(path: &Path) -> Result<(String, Job), RunError> {
    let (mut text, mut job) = read_job(path)?;
    if job.rounding.is_none() {
        text.push_str("\n[rounding]\n");
        job = Job::parse(&path.display().to_string(), &text)?;
    }
    Ok((text, job))
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
