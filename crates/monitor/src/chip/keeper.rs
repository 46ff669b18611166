//! Keepers of a chip's log: what a chip asks of them, and a file that grows at its end, each record durable before the chip goes on.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::keys::PublicKey;

use super::chain::Chain;
use crate::snapshot::log::RECORDS_MAX;
use crate::snapshot::record::{RECORD_BYTES, Serial, SignedRecord};

/// Records that are read at once when a log is checked.
const BATCH: u64 = 4096;

/// The reasons why a log cannot begin, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// The log cannot be read or written.
    #[error("the log cannot be kept: {0}")]
    Io(#[from] io::Error),
    /// The log that is there is not one that this chip wrote.
    #[error("record {index} of the log: {source}")]
    Record {
        /// The record, from 0.
        index: u64,
        /// The rule that it breaks.
        source: Malformed,
    },
    /// The log takes no more records.
    #[error("the log has {RECORDS_MAX} records, which is the most that a log holds")]
    Full,
    /// A collector does not take the chip's records.
    #[error("the collector refuses: {0}")]
    Refused(String),
    /// A collector did not acknowledge a record in time.
    #[error("the collector did not acknowledge: {0}")]
    Unacknowledged(String),
}

/// The end of a log that a keeper has.
pub struct Resumed {
    /// The chain of the log.
    pub chain: Chain,
    /// The bytes of a record that a crash cut off, and that were removed.
    pub torn: u64,
}

/// Keeps the records of one chip's log.
pub trait Keeper {
    /// The end of the log that is kept. Called once, before any record is appended.
    ///
    /// # Errors
    /// If the log is not this chip's or breaks a rule, is full, or cannot be kept.
    fn resume(&mut self, serial: &Serial, key: &PublicKey) -> Result<Resumed, KeeperError>;

    /// Appends a record that continues the log, and returns when the record is durable. This may take long.
    ///
    /// # Errors
    /// If the record is not kept. A part of it may be, so the chip must not go on.
    fn append(&mut self, record: &SignedRecord) -> Result<(), KeeperError>;
}

/// The bytes of one log. On a chip this would be memory that only the firmware writes.
pub trait Memory {
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
    fn extend(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Checks every record from `from` on, in their order, and gives each to `each`. Returns the bytes of a record that a crash cut off.
///
/// # Errors
/// If the log has too many records or cannot be read, a record has not the form of one, or `each` refuses it.
pub fn walk(
    memory: &mut impl Memory,
    from: u64,
    mut each: impl FnMut(&SignedRecord) -> Result<(), KeeperError>,
) -> Result<u64, KeeperError> {
    let length = memory.length()?;
    let (records, torn) = (length / RECORD_BYTES as u64, length % RECORD_BYTES as u64);
    if records > RECORDS_MAX as u64 {
        return Err(KeeperError::Full);
    }
    let mut bytes = Vec::new();
    for first in (from..records).step_by(BATCH as usize) {
        bytes.resize(BATCH.min(records - first) as usize * RECORD_BYTES, 0);
        memory.read(first * RECORD_BYTES as u64, &mut bytes)?;
        for (index, record) in (first..).zip(bytes.chunks(RECORD_BYTES)) {
            let signed =
                SignedRecord::decode(record).map_err(|source| KeeperError::Record { index, source })?;
            each(&signed)?;
        }
    }
    Ok(torn)
}

/// Keeps a log in memory of the chip's own: every record is checked at the start, and what a crash cut off is removed.
impl<M: Memory> Keeper for M {
    fn resume(&mut self, serial: &Serial, key: &PublicKey) -> Result<Resumed, KeeperError> {
        let mut chain = Chain::new(serial.clone(), key.clone());
        let torn = walk(self, 0, |signed| {
            let index = chain.next();
            chain.check(signed).map_err(|source| KeeperError::Record { index, source })
        })?;
        if torn > 0 {
            self.cut(chain.next() * RECORD_BYTES as u64)?;
        }
        Ok(Resumed { chain, torn })
    }

    fn append(&mut self, record: &SignedRecord) -> Result<(), KeeperError> {
        Ok(self.extend(&record.encode())?)
    }
}

/// A log in a file. No other process has it.
#[derive(Debug)]
pub struct LogFile(File);

impl Drop for LogFile {
    fn drop(&mut self) {
        // Otherwise a process that another thread is just starting keeps the lock until its program begins.
        let _ = self.0.unlock();
    }
}

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

impl Memory for LogFile {
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

    fn extend(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)?;
        self.0.sync_all()
    }
}
