//! The traces of a run's steps on disk: one file a step.

use std::path::Path;

use super::disk::{self, Disk};
use super::error::RunError;
use tiebreak_contract::program::step::Program;
use tiebreak_record::commit::trace::Trace;

/// Writes a step's trace.
///
/// # Errors
/// If the file cannot be written.
pub fn write(disk: &Disk, path: &Path, trace: &Trace) -> Result<(), RunError> {
    disk.replace(path, &trace.encode())
}

/// Reads a trace of a step of `program`.
///
/// # Errors
/// If the file cannot be read, is larger than such a trace, or is no trace of this program.
pub fn read(program: &Program, path: &Path) -> Result<Trace, RunError> {
    let bytes = disk::read(path, Trace::bytes_max(program))?;
    Trace::decode(program, &bytes).map_err(|why| RunError::malformed(path, why))
}
