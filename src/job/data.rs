//! Data: files with a digest for each chunk, and the batch of a step.
//!
//! Whoever reads a byte range reads and checks the chunks it touches, so an auditor needs only those of the steps that are replayed, and
//! a referee only those that a verdict carries. Where the bytes come from is for others to say ([`Source`]).

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::samples::{CIFAR, Samples};
use super::spec::DataSpec;
use crate::arith::philox;
use crate::commit::codec::Encoder;
use crate::commit::digest::{Digest, hash};
use crate::commit::trace::batch_leaf_name;
use crate::commit::{Malformed, table, tensor};
use crate::program::models::Images;
use crate::program::step::{MicroBatch, Program};

/// Bytes of a chunk.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// The most bytes of a data file.
pub const FILE_MAX: u64 = 1 << 40;
/// The counter word that separates batch order from every other use of the generator.
const DOMAIN: u32 = 0xffff_ffff;

/// What can be wrong with data, by blame.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The file is not what its manifest or its format says.
    #[error("{}: {source}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Malformed,
    },
    /// The bytes could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The job's model does not fit its data.
    #[error("{0}")]
    Job(String),
}

impl DataError {
    fn invalid(path: &Path, why: impl Into<String>) -> DataError {
        DataError::Malformed { path: path.to_path_buf(), source: Malformed::invalid("file", why) }
    }
}

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
    path: PathBuf,
    /// `None` if only the chunks that a verdict carries are at hand.
    source: Option<Box<dyn Source>>,
    manifest: FileManifest,
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

    fn read(&mut self, first: u64, len: usize) -> Result<Vec<u8>, DataError> {
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

/// How samples lie in the files.
enum SampleLayout {
    /// Every window of `context` + 1 bytes is a sample.
    Bytes { context: u32 },
    /// Images of `size` bytes from byte 16, labels from byte 8 of the second file.
    Idx { size: u64 },
    /// A label, then the image.
    Cifar10 { size: u64 },
}

/// The samples of a job.
pub struct Dataset {
    files: Vec<DataFile>,
    layout: SampleLayout,
    samples: u64,
    /// Tokens, or labels, must be below this.
    classes: u32,
}

impl Dataset {
    /// The samples that lie in the given chunks (file, chunk, bytes), each checked against the manifest.
    ///
    /// # Errors
    /// If a chunk is not one of the manifest's, or the manifest does not fit the model.
    pub fn from_chunks<'a>(
        manifest: &[FileManifest],
        chunks: impl IntoIterator<Item = (usize, usize, &'a [u8])>,
        spec: &DataSpec,
        wanted: &Samples,
    ) -> Result<Dataset, DataError> {
        let folder = Path::new("data");
        let mut files = Vec::new();
        for manifest in manifest {
            files.push(DataFile::new(folder.join(&manifest.name), manifest.clone(), None)?);
        }
        for (file, chunk, bytes) in chunks {
            let wrong =
                || DataError::invalid(folder, format!("chunk {chunk} of file {file} is not the run's"));
            let file: &mut DataFile = files.get_mut(file).ok_or_else(wrong)?;
            if file.manifest.chunks.get(chunk) != Some(&chunk_digest(bytes)) {
                return Err(wrong());
            }
            file.checked.insert(chunk, Arc::new(bytes.to_vec()));
        }
        Dataset::of(files, folder, spec, wanted)
    }

    /// The chunks that were read so far: (file, chunk, bytes), in order.
    pub fn chunks_read(&self) -> Vec<(usize, usize, Arc<Vec<u8>>)> {
        let mut read = Vec::new();
        for (number, file) in self.files.iter().enumerate() {
            read.extend(file.checked.iter().map(|(chunk, bytes)| (number, *chunk, bytes.clone())));
        }
        read.sort_unstable_by_key(|(file, chunk, _)| (*file, *chunk));
        read
    }

    /// The samples of these files. `folder` names all of them in errors.
    ///
    /// # Errors
    /// If they do not fit the job's data or model.
    pub fn of(
        mut files: Vec<DataFile>,
        folder: &Path,
        spec: &DataSpec,
        wanted: &Samples,
    ) -> Result<Dataset, DataError> {
        let expected = spec.paths().len();
        if files.len() != expected {
            let why = format!("{} data files, the job has {expected}", files.len());
            return Err(DataError::invalid(folder, why));
        }
        let mismatch = || DataError::Job("data.kind: this kind of data does not fit the model".into());
        let too_small = |file: &DataFile| DataError::invalid(&file.path, "the file holds no whole sample");
        let (layout, samples, classes) = match (spec, wanted) {
            (DataSpec::Bytes { .. }, &Samples::Tokens { context, vocabulary }) => {
                let samples = files[0].manifest.bytes.saturating_sub(u64::from(context));
                (SampleLayout::Bytes { context }, samples, vocabulary)
            }
            (DataSpec::Idx { .. }, Samples::Images(images)) => {
                let samples = idx_samples(&mut files, images)?;
                (SampleLayout::Idx { size: u64::from(images.bytes) }, samples, images.classes)
            }
            (DataSpec::Cifar10 { .. }, Samples::Images(images)) if images.are(CIFAR) => {
                let size = u64::from(images.bytes);
                (SampleLayout::Cifar10 { size }, files[0].manifest.bytes / (size + 1), images.classes)
            }
            _ => return Err(mismatch()),
        };
        if samples == 0 {
            return Err(too_small(&files[0]));
        }
        Ok(Dataset { files, layout, samples, classes })
    }

    /// The sample that place `place` of step `step`'s batch draws: the high 64 bits of word * samples, with word the
    /// first two words of Philox(key, (step, place, ffffffff, 0)).
    pub fn draw(&self, key: [u32; 2], step: u32, place: u32) -> u64 {
        let words = philox::philox4x32_10(key, [step, place, DOMAIN, 0]);
        let word = u64::from(words[0]) | u64::from(words[1]) << 32;
        ((u128::from(word) * u128::from(self.samples)) >> 64) as u64
    }

    /// (input words, labels) of a sample.
    fn sample(&mut self, number: u64) -> Result<(Vec<u8>, Vec<u8>), DataError> {
        let (input, labels) = match self.layout {
            SampleLayout::Bytes { context } => {
                let window = self.files[0].read(number, context as usize + 1)?;
                (window[..context as usize].to_vec(), window[1..].to_vec())
            }
            SampleLayout::Idx { size } => {
                let image = self.files[0].read(16 + number * size, size as usize)?;
                (image, self.files[1].read(8 + number, 1)?)
            }
            SampleLayout::Cifar10 { size } => {
                let record = self.files[0].read(number * (size + 1), size as usize + 1)?;
                (record[1..].to_vec(), record[..1].to_vec())
            }
        };
        let bounded =
            if matches!(self.layout, SampleLayout::Bytes { .. }) { [&input, &labels] } else { [&labels; 2] };
        if bounded.into_iter().flatten().any(|&class| u32::from(class) >= self.classes) {
            let why = format!("sample {number} has a class that is not below {}", self.classes);
            return Err(DataError::invalid(&self.files[0].path, why));
        }
        Ok((input, labels))
    }

    /// The micro-batches of a step.
    ///
    /// # Errors
    /// If a chunk cannot be read or is not the manifest's, or a sample has a class that the model has not.
    pub fn batch(
        &mut self,
        program: &Program,
        key: [u32; 2],
        step: u32,
    ) -> Result<Vec<MicroBatch>, DataError> {
        (0..program.micro_batches).map(|micro| self.micro_batch(program, key, step, micro)).collect()
    }

    /// One micro-batch: input words and labels, each a U32 tensor.
    ///
    /// # Errors
    /// As [`Dataset::batch`].
    pub fn micro_batch(
        &mut self,
        program: &Program,
        key: [u32; 2],
        step: u32,
        micro: u32,
    ) -> Result<MicroBatch, DataError> {
        let widen = |bytes: Vec<u8>| bytes.into_iter().flat_map(|b| u32::from(b).to_le_bytes());
        let mut tensors = vec![Vec::new(), Vec::new()];
        for place in 0..program.micro_batch {
            let number = self.draw(key, step, micro * program.micro_batch + place);
            let (input, labels) = self.sample(number)?;
            tensors[0].extend(widen(input));
            tensors[1].extend(widen(labels));
        }
        Ok(MicroBatch { tensors })
    }

    /// How many samples there are to draw from.
    pub fn samples(&self) -> u64 {
        self.samples
    }
}

/// The number of images, after checking both IDX headers.
fn idx_samples(files: &mut [DataFile], wanted: &Images) -> Result<u64, DataError> {
    let mut header = |file: usize, len: usize| -> Result<Vec<u32>, DataError> {
        let bytes = files[file].read(0, len)?;
        Ok(bytes.chunks_exact(4).map(|c| u32::from_be_bytes(c.try_into().expect("chunks of four"))).collect())
    };
    let (images, labels) = (header(0, 16)?, header(1, 8)?);
    let size = u64::from(wanted.bytes);
    let wrong = |file: &DataFile, why: &'static str| {
        Err(DataError::Malformed { path: file.path.clone(), source: Malformed::invalid("IDX file", why) })
    };
    if images[0] != 0x803 || !wanted.are([1, images[2], images[3]]) {
        return wrong(&files[0], "images of bytes are wanted, of the model's size");
    }
    if labels[0] != 0x801 || labels[1] != images[1] {
        return wrong(&files[1], "labels of bytes are wanted, one for each image");
    }
    let samples = u64::from(images[1]);
    if files[0].manifest.bytes < 16 + samples * size || files[1].manifest.bytes < 8 + samples {
        return wrong(&files[0], "the file is shorter than its header says");
    }
    Ok(samples)
}

/// The leaves under a batch digest: the name and digest of every tensor of every micro-batch, in order.
pub fn batch_leaves(program: &Program, batch: &[MicroBatch]) -> Vec<(String, Digest)> {
    let mut leaves = Vec::new();
    for (micro, tensors) in (0..).zip(batch) {
        for (t, bytes) in program.batch.iter().zip(&tensors.tensors) {
            leaves.push((batch_leaf_name(micro, &t.name), tensor::digest(&t.ty(), bytes)));
        }
    }
    leaves
}

/// The batch digest of a step's record.
pub fn batch_digest(program: &Program, batch: &[MicroBatch]) -> Digest {
    let leaves = batch_leaves(program, batch);
    table::root(leaves.iter().map(|(name, digest)| (name.as_str(), digest)))
}
