//! The right to write to a run, which one process has.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};

use super::disk;
use super::error::RunError;
use super::paths::RunPaths;

/// The right to write to a run; the lock is released when it is dropped or the process dies.
pub struct WriteLock(File);

impl Drop for WriteLock {
    fn drop(&mut self) {
        // The number is only a hint for people; if it stays, it does no harm.
        let _ = self.0.set_len(0);
    }
}

/// Locks a run's folder.
///
/// # Errors
/// If another process has the lock, or the file cannot be written.
pub fn hold(layout: &RunPaths) -> Result<WriteLock, RunError> {
    let path = layout.lock();
    disk::refuse_link(&path)?;
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(&path).map_err(RunError::io(&path))?;
    match file.try_lock() {
        Ok(()) => {
            let pid = std::process::id().to_string();
            file.set_len(0).and_then(|()| file.write_all(pid.as_bytes())).map_err(RunError::io(&path))?;
            Ok(WriteLock(file))
        }
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let holder = (&mut file).take(20).read_to_string(&mut text).ok().and_then(|_| text.parse().ok());
            let holder = holder.map_or(String::new(), |pid: u32| format!(" (process {pid})"));
            let root = layout.root.display();
            Err(RunError::Refused(format!("{root} is being written by another process{holder}")))
        }
        Err(TryLockError::Error(error)) => Err(RunError::io(&path)(error)),
    }
}
