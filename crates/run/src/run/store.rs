//! Stores of a run's files: a folder today, memory in tests and pages, and any other keeper of bytes under names.

use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;

/// Writes a file's contents, piece by piece.
pub type Contents<'a> = dyn FnMut(&mut dyn Write) -> io::Result<()> + 'a;

/// The promise that a reader holds a file's bytes to, by the kind of the file and a digest in the run.
#[doc(hidden)] // for the layers above
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Promise {
    /// The kind of the file: files of different kinds may be held to one digest.
    pub kind: &'static str,
    /// The digest that decides which bytes are right.
    pub digest: Digest,
}

/// The right to write to a run; dropping it, or the end of the process, releases it.
pub trait Held: Send {}

/// Keeps the files of one run. Names are those of `docs/RUN-FORMAT.md`, relative to the run, with slashes between their
/// components: `heads/000000000001`.
///
/// An entry may be damaged, or no plain file: a store vouches for nothing. Errors name no file, since callers do; a store with an
/// entry that no run may hold reports a [`Malformed`] inside (see [`not_plain`]).
pub trait Store: Send + Sync {
    /// The store's name for people: a folder's path, or an address. Errors put a file's name after it.
    fn place(&self) -> String;

    /// The number of bytes under a name.
    ///
    /// # Errors
    /// `NotFound` if nothing has the name; also if it is no plain file, or cannot be examined.
    fn length(&self, name: &str) -> io::Result<u64>;

    /// The bytes of a range of a file. Callers bound the range and end it at the file's length at most. A store that has fewer
    /// bytes returns fewer.
    ///
    /// # Errors
    /// If there is no such file, it is no plain one, or cannot be read.
    fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>>;

    /// [`Store::read`] for a caller who holds the bytes to a promise, and asks [`Store::doubt`] if they break it. A store may give bytes
    /// that nobody vouches for, such as those of a cache.
    ///
    /// # Errors
    /// As [`Store::read`].
    #[doc(hidden)] // for the layers above
    fn read_promised(&self, name: &str, range: Range<u64>, _promise: &Promise) -> io::Result<Vec<u8>> {
        self.read(name, range)
    }

    /// Says that bytes broke their promise. True if another read may give others: the store gave some that nobody vouches for, and gives
    /// no more of them.
    #[doc(hidden)] // for the layers above
    fn doubt(&self, _promise: &Promise) -> bool {
        false
    }

    /// The entries directly below a folder (`""` for the run): names without the folder's, in no order. Names of folders end in a
    /// slash.
    ///
    /// # Errors
    /// If the folder cannot be listed. A folder that does not exist counts as empty. `Unsupported` if the store lists nothing at all,
    /// as a server that only hands out files.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Replaces a file, or makes it. Readers find the old contents or all that `contents` writes, also after a crash.
    ///
    /// # Errors
    /// If `contents` fails, or the bytes cannot be kept. Then the old contents stay.
    fn replace(&self, name: &str, contents: &mut Contents) -> io::Result<()>;

    /// Appends to a file, or makes it. Until [`Store::sync`], a crash may lose the bytes or all but their beginning.
    ///
    /// # Errors
    /// If the name is no plain file, or the bytes cannot be kept.
    fn append(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Cuts a file that is longer to `length` bytes.
    ///
    /// # Errors
    /// If there is no such file, it is no plain one, or cannot be cut.
    fn truncate(&self, name: &str, length: u64) -> io::Result<()>;

    /// Waits until all bytes appended to a file are durable.
    ///
    /// # Errors
    /// If there is no such file, or the wait fails.
    fn sync(&self, name: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// If there is no such file, or it cannot be removed.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Takes the right to write, which nobody else has meanwhile. A store may use the name `name` for it.
    ///
    /// # Errors
    /// `WouldBlock` if somebody has the right, with a text that says who; also if the store cannot find out.
    fn lock(&self, name: &str) -> io::Result<Box<dyn Held>>;

    /// The folder on this machine's disk that keeps the files, if there is one.
    #[doc(hidden)] // for the layers above
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// The name of the first file about which the store could not say whether it is there, or could not give its bytes, with the
    /// error. A folder tells of each file; a server may be silent, or answer something else.
    #[doc(hidden)] // for the layers above
    fn unanswered(&self) -> Option<(String, io::Error)> {
        None
    }

    /// Announces that a new run will have names in a folder. A store without folders need not do anything.
    ///
    /// # Errors
    /// If something else has that name, or the folder cannot be made.
    fn prepare(&self, _folder: &str) -> io::Result<()> {
        Ok(())
    }

    /// Removes the empty folders that [`Store::prepare`] made.
    fn take_back(&self) {}
}

/// The error about a name whose entry is no plain file.
pub fn not_plain() -> io::Error {
    let why = "a plain file is wanted (links and folders are not followed)";
    io::Error::new(io::ErrorKind::InvalidData, Malformed::invalid("file", why))
}
