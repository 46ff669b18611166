//! Job files on disk.

use std::path::Path;

use super::disk;
use super::error::RunError;
use crate::job::{JOB_MAX, Job};

/// Reads a job file: its text and what it says.
///
/// # Errors
/// If it cannot be read, or is no valid job: then with file, line and key.
pub fn read(path: &Path) -> Result<(String, Job), RunError> {
    let text = disk::read_text(path, JOB_MAX)?;
    let job = Job::parse(&path.display().to_string(), &text)?;
    Ok((text, job))
}

/// [`read`], as a job of the logged profile: with its default thresholds if it has no `[rounding]`.
///
/// # Errors
/// As [`read`].
pub fn read_logged(path: &Path) -> Result<(String, Job), RunError> {
    let (mut text, mut job) = read(path)?;
    if job.rounding.is_none() {
        text.push_str("\n[rounding]\n");
        job = Job::parse(&path.display().to_string(), &text)?;
    }
    Ok((text, job))
}
