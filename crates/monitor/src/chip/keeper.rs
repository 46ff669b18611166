//! Keepers of a chip's log: a file that grows at its end, each record safe on disk before the chip goes on.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Keeps the bytes of one log. On a chip this would be memory that only the firmware writes.
pub trait Keeper {
    /// The number of bytes that are kept.
    ///
    /// # Errors
    /// If the log cannot be examined.
    fn length(&mut self) -> io::Result<u64>;

    /// Reads bytes from `at` on, as many as `bytes` takes.
    ///
    /// # Errors
    /// If there are fewer bytes, or they cannot be read.
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Cuts the log to `length` bytes, durably.
    ///
    /// # Errors
    /// If the system refuses.
    fn cut(&mut self, length: u64) -> io::Result<()>;

    /// Appends bytes, and returns when they are durable.
    ///
    /// # Errors
    /// If the system refuses. Then a part of the bytes may be kept, and the log must be opened again.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A log in a file. No other process has it.
#[derive(Debug)]
pub struct LogFile(File);

impl LogFile {
    /// Opens a log and locks it; the file is made if it is not there.
    ///
    /// # Errors
    /// `WouldBlock` if another process has the log; also if the path is no plain file, or cannot be opened.
    pub fn open(path: &Path) -> io::Result<LogFile> {
        let found = fs::symlink_metadata(path);
        if found.as_ref().is_ok_and(|found| !found.is_file()) {
            let why = "a plain file is wanted (links and folders are not followed)";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "another agent writes this log"));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // A new file's name has to be as durable as the records in it.
        #[cfg(unix)]
        if found.is_err() {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Ok(LogFile(file))
    }
}

impl Keeper for LogFile {
    fn length(&mut self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.seek(SeekFrom::Start(at))?;
        self.0.read_exact(bytes)
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.0.set_len(length)?;
        self.0.sync_all()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)?;
        self.0.sync_all()
    }
}
