//! Where a run's files are kept: a folder today, memory in tests and pages, and whatever else keeps bytes under names.

use std::io::{self, Write};
use std::ops::Range;

use tiebreak_record::commit::Malformed;

/// Writes a file's contents, piece by piece.
pub type Contents<'a> = dyn FnMut(&mut dyn Write) -> io::Result<()> + 'a;

/// The right to write to a run; dropping it, or the end of the process, releases it.
pub trait Held: Send {}

/// Keeps the files of one run. Names are those of `docs/RUN-FORMAT.md`, relative to the run, their parts between slashes: `heads/000000000001`.
///
/// What is kept under a name may be damaged, or no plain file: nothing here vouches for it. Errors name no file, since callers do; whoever keeps
/// something that no run may hold reports a [`Malformed`] inside (see [`not_plain`]).
pub trait Store: Send + Sync {
    /// What people call the place: a folder's path, or an address. Names follow it in errors.
    fn place(&self) -> String;

    /// The bytes that are kept under a name.
    ///
    /// # Errors
    /// `NotFound` if there is nothing; also if it is no plain file, or cannot be looked at.
    fn length(&self, name: &str) -> io::Result<u64>;

    /// The bytes of a range of a file, which callers bound and which ends at its length at most. Whoever has fewer returns fewer.
    ///
    /// # Errors
    /// If there is no such file, it is no plain one, or cannot be read.
    fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>>;

    /// What is kept directly below a folder's name, `""` for the run: names without the folder's, in no order. Those of folders end in a slash.
    ///
    /// # Errors
    /// If it cannot be listed. A folder that is not there is an empty one.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Replaces a file, or makes it: readers find what was there before or all that `contents` writes, also after a crash.
    ///
    /// # Errors
    /// If `contents` fails, or the bytes cannot be kept. Then what was there stays.
    fn replace(&self, name: &str, contents: &mut Contents) -> io::Result<()>;

    /// Appends to a file, or makes it. The bytes may be lost in a crash, or only their beginning be kept, until [`Store::sync`].
    ///
    /// # Errors
    /// If it is no plain file, or the bytes cannot be kept.
    fn append(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Cuts a file that is longer to `length` bytes.
    ///
    /// # Errors
    /// If there is no such file, it is no plain one, or cannot be cut.
    fn truncate(&self, name: &str, length: u64) -> io::Result<()>;

    /// Waits until all that was appended to a file lasts.
    ///
    /// # Errors
    /// If there is no such file, or the wait fails.
    fn sync(&self, name: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// If there is no such file, or it cannot be removed.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Takes the right to write, which nobody else has meanwhile. `name` may be used for it.
    ///
    /// # Errors
    /// `WouldBlock` if somebody has it, with who in words; also if it cannot be found out.
    fn lock(&self, name: &str) -> io::Result<Box<dyn Held>>;

    /// Says that a new run will have names in a folder. A store without folders need not do anything.
    ///
    /// # Errors
    /// If something else has that name, or the folder cannot be made.
    fn prepare(&self, _folder: &str) -> io::Result<()> {
        Ok(())
    }

    /// Removes what [`Store::prepare`] made, as far as it is empty.
    fn take_back(&self) {}
}

/// The error of a name under which something else than a plain file is kept.
pub fn not_plain() -> io::Error {
    let why = "a plain file is wanted (links and folders are not followed)";
    io::Error::new(io::ErrorKind::InvalidData, Malformed::invalid("file", why))
}
