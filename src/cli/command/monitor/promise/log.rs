//! A log of promises as a file that commands read and write.

use std::path::Path;

use tiebreak_monitor::promise::log::{FILE_MAX, Promises};

use crate::cli::command::monitor::registry::write;
use crate::cli::view::report::{Failure, named};
use tiebreak_run::run::{RunError, disk};

/// Reads a log of promises.
pub fn read_log(path: &Path) -> Result<Promises, Failure> {
    let text = disk::read_text(path, FILE_MAX).map_err(named)?;
    Ok(Promises::from_text(&text).map_err(|error| RunError::malformed(path, error))?)
}

/// Writes a log of promises whole or not at all.
pub fn write_log(path: &Path, log: &Promises) -> Result<(), Failure> {
    write(path, &log.to_text())
}
