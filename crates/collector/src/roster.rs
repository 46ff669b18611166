//! The register that a collector goes by: read again when its file changes, and never in place of one that it does not continue.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;
use std::{fs, io};

use tiebreak_monitor::register::file::{FILE_MAX, from_text};
use tiebreak_monitor::register::history::Register;
use tiebreak_record::commit::keys::PublicKey;

/// A register's file, and the register that was read from it last.
pub struct Roster {
    path: PathBuf,
    registrar: Option<PublicKey>,
    now: RwLock<(Seen, Arc<Register>)>,
}

/// The state of a file by which a change is seen.
type Seen = Option<(SystemTime, u64)>;

impl Roster {
    /// A roster that begins with a register that was read from this file.
    pub fn new(path: PathBuf, registrar: Option<PublicKey>, register: Register) -> Roster {
        // The first look reads the file again: it may have changed since.
        Roster { path, registrar, now: RwLock::new((None, Arc::new(register))) }
    }

    /// The register.
    pub fn register(&self) -> Arc<Register> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Reads the file again if it changed. Returns the number of entries that are new.
    ///
    /// # Errors
    /// If the file cannot be read, is no register, or does not continue the one before; then that one stays.
    pub fn look(&self) -> io::Result<u64> {
        let found = fs::metadata(&self.path)?;
        let seen = Some((found.modified()?, found.len()));
        let (before, register) = self.now.read().unwrap_or_else(PoisonError::into_inner).clone();
        if seen == before {
            return Ok(0);
        }
        if found.len() > FILE_MAX {
            let why = format!("it has {} bytes; a register has at most {FILE_MAX}", found.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let read = from_text(&fs::read_to_string(&self.path)?, self.registrar.as_ref());
        let read = read.map_err(|error| invalid(error.to_string()))?;
        read.check_extends(&register.head()).map_err(|error| invalid(error.to_string()))?;
        let new = read.head().size - register.head().size;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = (seen, Arc::new(read));
        Ok(new)
    }
}
