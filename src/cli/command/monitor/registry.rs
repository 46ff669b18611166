//! Registers of chips, and files beside them, as arguments: read, written, and the forms of serial numbers and dates.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tiebreak_monitor::closed::{CLOSED_MAX, ClosedLogs};
use tiebreak_monitor::date;
use tiebreak_monitor::inspection::finding::Finding;
use tiebreak_monitor::register::file::{FILE_MAX, from_text};
use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::snapshot::record::Serial;

use crate::cli::args::key;
use crate::cli::view::report::{Exit, Failure, named};
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::{RunError, shell};

/// The register that a command reads.
#[derive(clap::Args)]
pub struct RegisterArgs {
    /// Register of chips.
    #[arg(long, value_name = "FILE")]
    register: PathBuf,
    /// Public key of the registrar: a file, or the key's text.
    ///
    /// Without it nobody checks who signed the register.
    #[arg(long, value_name = "KEY")]
    registrar: Option<String>,
}

impl RegisterArgs {
    /// The register, and whether its signature was checked.
    pub fn read(&self) -> Result<(Register, bool), Failure> {
        let key = self.registrar.as_deref().map(key::read_public).transpose()?;
        Ok((read(&self.register, key.as_ref())?, key.is_some()))
    }
}

impl RegisterArgs {
    /// The options, for another command.
    pub fn options(&self) -> String {
        let registrar = self.registrar.as_deref().map(|key| format!(" --registrar {}", shell::word(key)));
        format!("--register {}{}", shell::path(&self.register), registrar.unwrap_or_default())
    }
}

#[cfg(feature = "collector")]
impl RegisterArgs {
    /// The register's file and the registrar's key, for who reads the register again.
    pub fn source(&self) -> Result<(PathBuf, Option<PublicKey>), Failure> {
        Ok((self.register.clone(), self.registrar.as_deref().map(key::read_public).transpose()?))
    }
}

/// A defect of a log, for programs.
pub fn finding_json(finding: &Finding) -> Value {
    json!({ "kind": finding.kind(), "record": finding.record(), "what": finding.to_string() })
}

/// A line that says so if nobody checked the register's signature.
pub fn unchecked(checked: bool) -> Option<String> {
    (!checked).then(|| "nobody checked who signed the register: give --registrar".to_string())
}

pub fn read(path: &Path, key: Option<&PublicKey>) -> Result<Register, Failure> {
    let text = disk::read_text(path, FILE_MAX).map_err(named)?;
    Ok(from_text(&text, key).map_err(|error| RunError::malformed(path, error))?)
}

pub fn read_closed(path: &Path) -> Result<ClosedLogs, Failure> {
    let text = disk::read_text(path, CLOSED_MAX).map_err(named)?;
    Ok(ClosedLogs::from_text(&text).map_err(|error| RunError::malformed(path, error))?)
}

/// Writes a file whole or not at all, and follows no link.
pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    disk::refuse_link(path)?;
    let absolute = std::path::absolute(path).map_err(RunError::io(path))?;
    Ok(Disk::default().replace(&absolute, text.as_bytes())?)
}

/// Locks the folder of a file that is read, extended and replaced, until the result is dropped: two commands would lose what one of
/// them adds. Systems whose folders cannot be locked (Windows, some network drives) go without.
pub fn exclusive(path: &Path) -> Option<File> {
    let absolute = std::path::absolute(path).ok()?;
    let folder = File::open(absolute.parent()?).ok()?;
    folder.lock().ok()?;
    Some(folder)
}

/// The form of a serial number on the command line.
pub fn serial(text: &str) -> Result<Serial, String> {
    Serial::new(text).map_err(|error| error.to_string())
}

/// The form of a date on the command line.
pub fn seconds(text: &str) -> Result<u64, String> {
    date::seconds(text).map_err(|error| error.to_string())
}

/// Seconds since 1970.
pub fn now() -> Result<u64, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(now.map_err(|_| Failure::new(Exit::Undecided, "the clock is before 1970"))?.as_secs())
}
