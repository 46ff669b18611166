//! The terms of a dispute game as an argument, and the files that are named after theirs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::cli::view::report::{Failure, named};
use tiebreak_dispute::game::terms::{TERMS_MAX, Terms};
use tiebreak_run::run::{RunError, disk};

/// Reads a file of terms.
pub fn read_terms(path: &Path) -> Result<Terms, Failure> {
    let bytes = disk::read(path, TERMS_MAX).map_err(named)?;
    Terms::from_bytes(&bytes).map_err(|error| RunError::malformed(path, error).into())
}

/// `path` with another ending behind its own.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}
