//! Job files on disk.

use std::io;
use std::path::Path;

use super::disk;
use super::error::RunError;
use super::job_files::{JobFiles, is_address};
use tiebreak_contract::program::encoding::PROGRAM_MAX;
use tiebreak_contract::program::step::Program;
use tiebreak_job::{JOB_MAX, Job};

/// Reads a job file: its text, and the job that the text describes.
///
/// # Errors
/// If the file is not there, is at an address, cannot be read, or is no valid job; in the last case the error has file, line and key.
pub fn read(path: &Path) -> Result<(String, Job), RunError> {
    if is_address(path) {
        let why = "a job is a file here: download it, and look at what it names before you train it";
        return Err(RunError::Refused(format!("{}: {why}", path.display())));
    }
    let text = match disk::read_text(path, JOB_MAX) {
        // A name that is typed may be mistyped.
        Err(RunError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Err(RunError::NoJob { path: path.to_path_buf() });
        }
        text => text?,
    };
    let job = Job::parse(&path.display().to_string(), &text)?;
    Ok((text, job))
}

/// The text of a job without `[rounding]`, as a job of the logged profile.
pub fn logged(text: &str) -> String {
    format!("{text}\n[rounding]\n")
}

/// [`read`] as a job of the logged profile, with default thresholds if the job has no `[rounding]`.
///
/// # Errors
/// As [`read`].
pub fn read_logged(path: &Path) -> Result<(String, Job), RunError> {
    let (mut text, mut job) = read(path)?;
    if job.rounding.is_none() {
        text = logged(&text);
        job = Job::parse(&path.display().to_string(), &text)?;
    }
    Ok((text, job))
}

/// The program of a job that was read from `files`, and the bytes of the program file if the job names one.
///
/// # Errors
/// If the file lies where the job may not reach, cannot be read, is larger than [`PROGRAM_MAX`], or is no program that fits the job.
pub fn program(files: &JobFiles, job: &Job) -> Result<(Program, Option<Vec<u8>>), RunError> {
    let path = files.job();
    let file = job.program_file().map(|name| files.path("program", name)).transpose()?;
    let bytes = file.as_deref().map(|file| disk::read(file, PROGRAM_MAX)).transpose()?;
    let program = job
        .program(bytes.as_deref())
        .map_err(|error| RunError::Job(format!("{}: {error}", file.as_deref().unwrap_or(path).display())))?;
    Ok((program, bytes))
}

/// Checks that native kernels may train a job: its thresholds leave no more freedom than kernels need, and no less.
///
/// # Errors
/// If they leave more or less: with the key, its value, the most or the least it may be, and K.
pub fn check_thresholds(path: &Path, job: &Job, program: &Program) -> Result<(), RunError> {
    let Some(rounding) = &job.rounding else { return Ok(()) };
    match rounding.excess(&program.micro.logged).or_else(|| rounding.shortfall()) {
        None => Ok(()),
        Some((key, why)) => Err(RunError::Job(format!("{}: {key} {why}", path.display()))),
    }
}
