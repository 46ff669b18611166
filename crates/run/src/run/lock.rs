//! The right to write to a folder, which one process has at a time.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;

use super::store::{Held, not_plain};

/// The right to write, until this guard is dropped or the process dies.
pub(super) struct WriteLock(File);

impl Held for WriteLock {}

impl Drop for WriteLock {
    fn drop(&mut self) {
        // The process number is only a hint for people; a stale one does no harm.
        let _ = self.0.set_len(0);
        // A process that another thread is just starting has copies of all open files until its program begins. A lock that is only
        // closed would stay with the copy.
        let _ = self.0.unlock();
    }
}

/// Locks a file, which is made if it is not there.
///
/// # Errors
/// `WouldBlock` if another process has the lock, with that process's number; also if the file is no plain one, or cannot be
/// written.
pub(super) fn hold(path: &Path) -> io::Result<WriteLock> {
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(not_plain());
    }
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(path)?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0)?;
            file.write_all(std::process::id().to_string().as_bytes())?;
            Ok(WriteLock(file))
        }
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let holder = (&mut file).take(20).read_to_string(&mut text).ok().and_then(|_| text.parse().ok());
            let holder = holder.map_or(String::new(), |pid: u32| format!(" (process {pid})"));
            Err(io::Error::new(io::ErrorKind::WouldBlock, format!("another process{holder}")))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_given_back_is_not_kept_by_a_copy_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = hold(&path).unwrap();
        assert_eq!(hold(&path).err().map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
        // A process that is being started has such a copy.
        let copy = lock.0.try_clone().unwrap();
        drop(lock);
        assert!(hold(&path).is_ok());
        drop(copy);
    }
}
