//! A place to which a run's files are published, one whole file after another, each under a condition.

use std::io;
use std::ops::Range;

use tiebreak_run::run::{Held, Store};

/// The most bytes that are held at once, and sent in one request.
pub const PIECE: u64 = 32 << 20;

/// A file of a run, up to the length at which it was seen: what is behind it came later.
pub struct Source<'a> {
    /// The run.
    pub store: &'a dyn Store,
    /// The file's name, here and there.
    pub name: &'a str,
    /// The bytes that are published.
    pub length: u64,
    /// Contents that are not in the run: those of the index.
    pub text: Option<&'a [u8]>,
}

impl Source<'_> {
    /// A range of the bytes.
    ///
    /// # Errors
    /// If they cannot be read, or the file has become shorter.
    pub fn read(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let bytes = match self.text {
            Some(text) => text[range.start as usize..range.end as usize].to_vec(),
            None => self.store.read(self.name, range.clone())?,
        };
        if bytes.len() as u64 != range.end - range.start {
            let (due, came) = (range.end - range.start, bytes.len());
            let why = format!("{due} bytes were due, and {came} are there now: publish again");
            return Err(io::Error::other(why));
        }
        Ok(bytes)
    }

    /// Reads the first bytes, in pieces.
    ///
    /// # Errors
    /// As [`Source::read`], and those of `each`.
    pub fn pieces(&self, length: u64, mut each: impl FnMut(Vec<u8>) -> io::Result<()>) -> io::Result<()> {
        for first in (0..length).step_by(PIECE as usize) {
            each(self.read(first..length.min(first + PIECE))?)?;
        }
        Ok(())
    }

    /// The BLAKE3 digest of the first bytes, in hexadecimal digits.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn digest(&self, length: u64) -> io::Result<String> {
        let mut hasher = blake3::Hasher::new();
        self.pieces(length, |piece| {
            hasher.update(&piece);
            Ok(())
        })?;
        Ok(hasher.finalize().to_hex().to_string())
    }
}

/// A file that is there.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Its bytes.
    pub length: u64,
    /// Its BLAKE3 digest, if its publisher left it.
    pub digest: Option<String>,
    /// The tag of this version.
    pub tag: Option<String>,
    /// The number of this version, where a store counts them.
    pub version: Option<String>,
}

/// The end of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The file is there.
    Done,
    /// Nothing was written: the file that is there is not the one that the condition names.
    Changed,
}

/// Keeps the files of a run that others read.
pub trait Target {
    /// The place's name for people.
    fn place(&self) -> String;

    /// Keeps other publishers on this machine out, where the place can.
    ///
    /// # Errors
    /// If somebody publishes now.
    fn hold(&self) -> io::Result<Option<Box<dyn Held>>>;

    /// A file that is there; none if it is not.
    ///
    /// # Errors
    /// If nobody says whether it is there.
    fn found(&self, name: &str) -> io::Result<Option<Found>>;

    /// The bytes of a file that is there, `most` at most, and which version they are of.
    ///
    /// # Errors
    /// If they cannot be read, or are more.
    fn bytes(&self, name: &str, most: u64) -> io::Result<Option<(Vec<u8>, Found)>>;

    /// The BLAKE3 digest of a file that is there, from its bytes; none if it is there no longer.
    ///
    /// # Errors
    /// If they cannot be read.
    fn digest(&self, name: &str, found: &Found) -> io::Result<Option<String>> {
        let Some((bytes, _)) = self.bytes(name, found.length)? else { return Ok(None) };
        Ok(Some(blake3::hash(&bytes).to_hex().to_string()))
    }

    /// Writes a file, whole or not at all: over the version `over`, or where no file is.
    ///
    /// # Errors
    /// If the file cannot be read or kept.
    fn put(&self, file: &Source, over: Option<&Found>) -> io::Result<Put>;
}
