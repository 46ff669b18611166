//! One file of a run in any store: read within bounds, and written.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::not_text;
use super::error::{OfContents, RunError};
use super::folder::Folder;
use super::store::{Promise, Store};
use tiebreak_job::manifest::{GroupTree, Source};
use tiebreak_record::commit::Malformed;

/// The least number of bytes that are read at once.
const PIECE: u64 = 1 << 16;
/// The same number for a sequential read.
const LONG_PIECE: u64 = 1 << 20;
/// A buffer of so many bytes gets what it asks for, and no more is read: a piece that a data file checks alone.
const WHOLE: u64 = 1 << 14;

/// A name in a store, with the path that errors use.
#[derive(Clone)]
pub struct Stored {
    store: Arc<dyn Store>,
    name: String,
    path: PathBuf,
    promise: Option<Promise>,
    /// The tree that each range is held to as it is read.
    tree: Option<Arc<GroupTree>>,
}

impl Stored {
    /// The file of this name; errors call the store `place`.
    #[doc(hidden)] // for the layers above
    pub fn new(store: &Arc<dyn Store>, place: &Path, name: impl Into<String>) -> Stored {
        let name = name.into();
        Stored { store: store.clone(), path: place.join(&name), name, promise: None, tree: None }
    }

    /// The file, whose reader holds the bytes to a promise: inside of [`Stored::settled`], or else with a [`Stored::doubt`] where they
    /// break it.
    pub(crate) fn promised(self, promise: Promise) -> Stored {
        Stored { promise: Some(promise), ..self }
    }

    /// The file, each range of which is held to this tree as it is read.
    pub(crate) fn held_to(self, tree: GroupTree) -> Stored {
        Stored { tree: Some(Arc::new(tree)), ..self }
    }

    /// Says that the file's bytes broke their promise. True if another read may give others.
    pub(crate) fn doubt(&self) -> bool {
        self.promise.is_some_and(|promise| self.store.doubt(&promise))
    }

    /// Checks the file, and checks it once more if the first check failed by bytes that nobody vouches for: a cache's are no fault of
    /// the run's. An error of the store or of this machine says nothing about bytes.
    ///
    /// # Errors
    /// As `check`.
    #[doc(hidden)] // for audits alone
    pub fn settled<T, E: OfContents>(&self, mut check: impl FnMut(&Stored) -> Result<T, E>) -> Result<T, E> {
        match check(self) {
            Err(error) if error.is_of_contents() && self.doubt() => check(self),
            found => found,
        }
    }

    /// The file's name in errors: the store's place, then the name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the name exists, as a plain file or not; also if nobody can tell. Then a read says why.
    #[doc(hidden)] // for the layers above
    pub fn is_here(&self) -> bool {
        use io::ErrorKind::{NotADirectory, NotFound};
        match self.store.length(&self.name) {
            Ok(_) => true,
            Err(error) => !matches!(error.kind(), NotFound | NotADirectory),
        }
    }

    /// The store of the folder in which a file lies that somebody named.
    #[doc(hidden)] // for the layers above
    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// The file's path on this machine's disk, if a folder keeps it.
    #[doc(hidden)] // the command's alone
    pub fn on_disk(&self) -> Option<&Path> {
        self.store.folder().map(|_| self.path.as_path())
    }

    /// True if the name is a plain file.
    #[doc(hidden)] // for the layers above
    pub fn is_file(&self) -> bool {
        self.store.length(&self.name).is_ok()
    }

    /// The file's length in bytes.
    ///
    /// # Errors
    /// If the file is not there, is no plain file, or cannot be examined.
    pub fn length(&self) -> Result<u64, RunError> {
        self.store.length(&self.name).map_err(RunError::io(&self.path))
    }

    /// The file's length in bytes; 0 if the file is not there.
    ///
    /// # Errors
    /// If the name is no plain file, or cannot be examined.
    #[doc(hidden)] // for the layers above
    pub fn length_or_0(&self) -> Result<u64, RunError> {
        match self.store.length(&self.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            length => length.map_err(RunError::io(&self.path)),
        }
    }

    /// Reads a file of at most `max` bytes.
    ///
    /// # Errors
    /// If the name is no plain file, is larger than `max`, or cannot be read.
    pub fn read(&self, max: u64) -> Result<Vec<u8>, RunError> {
        let length = self.length()?;
        if length > max {
            return Err(RunError::malformed(&self.path, Malformed::TooLarge { what: "file", limit: max }));
        }
        self.read_range(0..length)
    }

    /// Reads a UTF-8 file of at most `max` bytes.
    ///
    /// # Errors
    /// As [`Stored::read`], and if the bytes are not UTF-8.
    #[doc(hidden)] // for the layers above
    pub fn read_text(&self, max: u64) -> Result<String, RunError> {
        String::from_utf8(self.read(max)?).map_err(|error| not_text(&self.path, &error))
    }

    /// Reads a range of bytes, all of them.
    ///
    /// # Errors
    /// If the file ends before the range does, is no plain file, or cannot be read.
    #[doc(hidden)] // for the layers above
    pub fn read_range(&self, range: Range<u64>) -> Result<Vec<u8>, RunError> {
        self.range(range).map_err(RunError::io(&self.path))
    }

    /// Reads a range, and refuses an answer of any other length.
    fn range(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let Some(tree) = &self.tree else { return self.plain_range(range) };
        let first = range.start / GroupTree::GROUP;
        let groups = first * GroupTree::GROUP
            ..range.end.next_multiple_of(GroupTree::GROUP).min(self.store.length(&self.name)?.max(range.end));
        let holds = |bytes: &[u8]| tree.holds(first as usize, bytes);
        let mut bytes = self.plain_range(groups.clone())?;
        // A cache's wrong bytes are no fault of the store's.
        if !holds(&bytes) && self.doubt() {
            bytes = self.plain_range(groups.clone())?;
        }
        if !holds(&bytes) {
            let why = format!("bytes {} to {} are others than before", groups.start, groups.end);
            return Err(io::Error::new(io::ErrorKind::InvalidData, Malformed::invalid("file", why)));
        }
        let start = (range.start - groups.start) as usize;
        Ok(bytes[start..start + (range.end - range.start) as usize].to_vec())
    }

    /// [`Stored::range`] of bytes that no tree checks.
    fn plain_range(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let bytes = match &self.promise {
            None => self.store.read(&self.name, range.clone())?,
            Some(promise) => self.store.read_promised(&self.name, range.clone(), promise)?,
        };
        let (found, wanted) = (bytes.len() as u64, range.end - range.start);
        let wrong = |kind| {
            let why = format!("bytes {} to {} were asked for, {found} came", range.start, range.end);
            Err(io::Error::new(kind, why))
        };
        match found {
            _ if found < wanted => wrong(io::ErrorKind::UnexpectedEof),
            _ if found > wanted => wrong(io::ErrorKind::InvalidData),
            _ => Ok(bytes),
        }
    }

    /// Opens the file for reading, with its present length.
    ///
    /// # Errors
    /// If the file is not there, is no plain file, or cannot be examined.
    #[doc(hidden)] // for the layers above
    pub fn open(&self) -> Result<Reading, RunError> {
        let length = self.length()?;
        Ok(Reading { file: self.clone(), length, at: 0, piece: Vec::new(), first: 0 })
    }

    /// Replaces the file's contents as a whole.
    ///
    /// # Errors
    /// If the store refuses.
    #[doc(hidden)] // for the layers above
    pub fn replace(&self, bytes: &[u8]) -> Result<(), RunError> {
        self.replace_by(|file| file.write_all(bytes))
    }

    /// [`Stored::replace`], with the contents written piece by piece.
    ///
    /// # Errors
    /// If `contents` fails, or the store refuses.
    pub(crate) fn replace_by(
        &self,
        contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), RunError> {
        let mut contents = Some(contents);
        let mut once = |file: &mut dyn Write| match contents.take() {
            Some(contents) => contents(file),
            None => Err(io::Error::other("the contents are written once")),
        };
        self.store.replace(&self.name, &mut once).map_err(RunError::io(&self.path))
    }

    /// Copies the file, if it is there.
    ///
    /// # Errors
    /// If the name is no plain file, or a store refuses.
    #[doc(hidden)] // for the layers above
    pub fn copy_to(&self, to: &Stored) -> Result<(), RunError> {
        if !self.is_here() {
            return Ok(());
        }
        let mut reading = self.open()?;
        to.replace_by(|file| io::copy(&mut reading, file).map(drop))
    }

    /// Appends to the file, or makes it.
    ///
    /// # Errors
    /// If the name is no plain file, or the store refuses.
    #[doc(hidden)] // for the layers above
    pub fn append(&self, bytes: &[u8]) -> Result<(), RunError> {
        self.store.append(&self.name, bytes).map_err(RunError::io(&self.path))
    }

    /// Cuts the file to `length` bytes, if it is longer.
    ///
    /// # Errors
    /// If the file is not there, or the store refuses.
    #[doc(hidden)] // for the layers above
    pub fn truncate(&self, length: u64) -> Result<(), RunError> {
        self.store.truncate(&self.name, length).map_err(RunError::io(&self.path))
    }

    /// Syncs everything that was appended.
    ///
    /// # Errors
    /// If the file is not there, or the store refuses.
    #[doc(hidden)] // for the layers above
    pub fn sync(&self) -> Result<(), RunError> {
        self.store.sync(&self.name).map_err(RunError::io(&self.path))
    }

    /// Removes the file.
    ///
    /// # Errors
    /// If the file is not there, or the store refuses.
    #[doc(hidden)] // for the layers above
    pub fn remove(&self) -> Result<(), RunError> {
        self.store.remove(&self.name).map_err(RunError::io(&self.path))
    }
}

/// A user's file, kept by a folder as well.
impl From<&Path> for Stored {
    fn from(path: &Path) -> Stored {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let folder = path.parent().unwrap_or(Path::new(""));
        Stored { store: Folder::at(folder), name, path: path.to_path_buf(), promise: None, tree: None }
    }
}

impl From<&Stored> for Stored {
    fn from(file: &Stored) -> Stored {
        file.clone()
    }
}

impl From<&PathBuf> for Stored {
    fn from(path: &PathBuf) -> Stored {
        path.as_path().into()
    }
}

/// A reader of a file, piece by piece, from any offset.
pub struct Reading {
    file: Stored,
    length: u64,
    at: u64,
    piece: Vec<u8>,
    /// The offset of the piece in the file.
    first: u64,
}

impl Reading {
    /// The file's length when it was opened, in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }
}

impl Read for Reading {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.length.saturating_sub(self.at);
        if left == 0 || buffer.is_empty() {
            return Ok(0);
        }
        let end = self.first + self.piece.len() as u64;
        if !(self.first..end).contains(&self.at) {
            if buffer.len() as u64 >= WHOLE {
                let len = left.min(buffer.len() as u64);
                buffer[..len as usize].copy_from_slice(&self.file.range(self.at..self.at + len)?);
                self.at += len;
                return Ok(len as usize);
            }
            let least = if self.at == end { LONG_PIECE } else { PIECE };
            self.piece = self.file.range(self.at..self.at + left.min(least))?;
            self.first = self.at;
        }
        let piece = &self.piece[(self.at - self.first) as usize..];
        let len = piece.len().min(buffer.len());
        buffer[..len].copy_from_slice(&piece[..len]);
        self.at += len as u64;
        Ok(len)
    }
}

impl Source for Reading {
    fn doubt(&mut self) -> bool {
        self.piece = Vec::new();
        self.file.doubt()
    }
}

impl Seek for Reading {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let place = match to {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
        };
        self.at = place.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
