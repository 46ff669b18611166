//! Data files: a manifest with a digest for each chunk, and bytes that are checked as they are read.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::DataError;
use crate::commit::codec::Encoder;
use crate::commit::digest::{Digest, hash};

/// Bytes of a chunk.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// The most bytes of a data file.
pub const FILE_MAX: u64 = 1 << 40;

/// A data file's promise: its length and the digest of every chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileManifest {
    /// The name under the run's `data` folder.
    pub name: String,
    /// The file's length in bytes.
    pub bytes: u64,
    /// The digest of each chunk, in order.
    pub chunks: Vec<Digest>,
}

fn chunk_digest(bytes: &[u8]) -> Digest {
    hash("tiebreak 1 data-chunk", bytes)
}

impl FileManifest {
    /// The manifest of what a file holds.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn of(name: String, contents: &mut impl Read) -> io::Result<FileManifest> {
        let mut chunks = Vec::new();
        let mut bytes = 0;
        loop {
            let mut chunk = Vec::with_capacity(CHUNK_BYTES);
            contents.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut chunk)?;
            if chunk.is_empty() {
                return Ok(FileManifest { name, bytes, chunks });
            }
            bytes += chunk.len() as u64;
            chunks.push(chunk_digest(&chunk));
        }
    }

    /// What is wrong with a manifest that was read, if anything.
    fn error(&self) -> Option<&'static str> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty()
            || self.name.len() > 128
            || self.name.starts_with('.')
            || !self.name.chars().all(plain)
        {
            return Some("a data file's name is not a plain name");
        }
        if self.bytes > FILE_MAX || self.chunks.len() as u64 != self.bytes.div_ceil(CHUNK_BYTES as u64) {
            return Some("a data file's chunks do not match its length");
        }
        None
    }
}

/// The digest of a run's data.
pub fn data_digest(files: &[FileManifest]) -> Digest {
    let mut e = Encoder::default();
    e.list(files, |e, file| {
        e.bytes(file.name.as_bytes()).u64(file.bytes).list(&file.chunks, |e, chunk| {
            e.digest(chunk);
        });
    });
    hash("tiebreak 1 data", &e.0)
}

/// Where a data file's bytes are read from.
pub trait Source: Read + Seek + Send {}

impl<T: Read + Seek + Send> Source for T {}

/// A data file whose bytes are checked as they are read.
pub struct DataFile {
    /// The file, for errors.
    pub(super) path: PathBuf,
    /// `None` if only the chunks that a verdict carries are at hand.
    source: Option<Box<dyn Source>>,
    pub(super) manifest: FileManifest,
    /// Chunks that were read and found right.
    checked: HashMap<usize, Arc<Vec<u8>>>,
}

/// Chunks kept in memory for each file.
const CACHED_CHUNKS: usize = 4096;

impl DataFile {
    /// A file of this manifest whose bytes come from `source`; without one, only the chunks that are added can be read. `path` names it
    /// in errors.
    ///
    /// # Errors
    /// If the manifest does not hold together.
    pub fn new(
        path: PathBuf,
        manifest: FileManifest,
        source: Option<Box<dyn Source>>,
    ) -> Result<DataFile, DataError> {
        match manifest.error() {
            Some(why) => Err(DataError::invalid(&path, why)),
            None => Ok(DataFile { path, source, manifest, checked: HashMap::new() }),
        }
    }

    /// Reads chunks that are not there yet from here.
    pub fn read_from(&mut self, source: Box<dyn Source>) {
        self.source = Some(source);
    }

    /// Takes the bytes of a chunk; whether they are those of the manifest.
    pub(super) fn add_chunk(&mut self, chunk: usize, bytes: &[u8]) -> bool {
        let right = self.manifest.chunks.get(chunk) == Some(&chunk_digest(bytes));
        if right {
            self.checked.insert(chunk, Arc::new(bytes.to_vec()));
        }
        right
    }

    /// The chunks that were read so far and are kept, in no order: (chunk, bytes).
    pub(super) fn chunks_read(&self) -> impl Iterator<Item = (usize, Arc<Vec<u8>>)> {
        self.checked.iter().map(|(chunk, bytes)| (*chunk, bytes.clone()))
    }

    fn chunk(&mut self, number: usize) -> Result<Arc<Vec<u8>>, DataError> {
        if let Some(chunk) = self.checked.get(&number) {
            return Ok(chunk.clone());
        }
        let Some(source) = &mut self.source else {
            return Err(DataError::invalid(&self.path, format!("chunk {number} is needed and not there")));
        };
        let first = number as u64 * CHUNK_BYTES as u64;
        let mut bytes = vec![0; (self.manifest.bytes - first).min(CHUNK_BYTES as u64) as usize];
        let read = source.seek(SeekFrom::Start(first)).and_then(|_| source.read_exact(&mut bytes));
        read.map_err(|source| DataError::Io { path: self.path.clone(), source })?;
        if chunk_digest(&bytes) != self.manifest.chunks[number] {
            return Err(DataError::invalid(
                &self.path,
                format!("chunk {number} is not what the manifest promises"),
            ));
        }
        if self.checked.len() >= CACHED_CHUNKS {
            self.checked.clear();
        }
        let chunk = Arc::new(bytes);
        self.checked.insert(number, chunk.clone());
        Ok(chunk)
    }

    /// `len` bytes from byte `first`, checked against the manifest.
    ///
    /// # Errors
    /// If the file is shorter, a chunk cannot be read, or is not the manifest's. Nothing is allocated for bytes that a file has not.
    pub(super) fn read(&mut self, first: u64, len: usize) -> Result<Vec<u8>, DataError> {
        if first.checked_add(len as u64).is_none_or(|end| end > self.manifest.bytes) {
            return Err(DataError::invalid(&self.path, "the file is too short"));
        }
        let mut bytes = Vec::with_capacity(len);
        let mut at = first;
        while bytes.len() < len {
            let chunk = self.chunk((at / CHUNK_BYTES as u64) as usize)?;
            let start = (at % CHUNK_BYTES as u64) as usize;
            let end = (start + len - bytes.len()).min(chunk.len());
            bytes.extend(&chunk[start..end]);
            at = first + bytes.len() as u64;
        }
        Ok(bytes)
    }
}
