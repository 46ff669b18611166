//! The traces of a run's steps: one file a step.

use super::error::RunError;
use super::stored::Stored;
use tiebreak_contract::program::step::Program;
use tiebreak_record::commit::trace::Trace;

/// Writes a step's trace.
///
/// # Errors
/// If the file cannot be written.
pub fn write(file: &Stored, trace: &Trace) -> Result<(), RunError> {
    file.replace(&trace.encode())
}

/// Reads a trace of a step of `program`.
///
/// # Errors
/// If the file cannot be read, is larger than such a trace, or is no trace of this program.
pub fn read(program: &Program, file: impl Into<Stored>) -> Result<Trace, RunError> {
    let file = file.into();
    let bytes = file.read(Trace::bytes_max(program))?;
    Trace::decode(program, &bytes).map_err(|why| RunError::malformed(file.path(), why))
}
