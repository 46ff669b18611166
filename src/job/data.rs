//! Data: how samples lie in a job's files, and the batch of a step.

use std::io;
use std::path::{Path, PathBuf};

use super::manifest::{DataFile, FileSlices};
use super::samples::{CIFAR, Samples};
use super::spec::DataSpec;
use crate::arith::philox;
use crate::commit::digest::Digest;
use crate::commit::trace::batch_leaf_name;
use crate::commit::{Malformed, table, tensor};
use crate::program::models::Images;
use crate::program::step::{MicroBatch, Program};

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
    pub(super) fn invalid(path: &Path, why: impl Into<String>) -> DataError {
        DataError::Malformed { path: path.to_path_buf(), source: Malformed::invalid("file", why) }
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
    /// The slices that were read so far, of each file that was read: (file, slices).
    ///
    /// # Errors
    /// If a file cannot be read again.
    pub fn slices_read(&mut self) -> Result<Vec<(usize, FileSlices)>, DataError> {
        let mut read = Vec::new();
        for (number, file) in self.files.iter_mut().enumerate() {
            read.extend(file.slices_read()?.map(|slices| (number, slices)));
        }
        Ok(read)
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
        let too_small = |file: &DataFile| DataError::invalid(file.path(), "the file holds no whole sample");
        let (layout, samples, classes) = match (spec, wanted) {
            (DataSpec::Bytes { .. }, &Samples::Tokens { context, vocabulary }) => {
                let samples = files[0].bytes().saturating_sub(u64::from(context));
                (SampleLayout::Bytes { context }, samples, vocabulary)
            }
            (DataSpec::Idx { .. }, Samples::Images(images)) => {
                let samples = idx_samples(&mut files, images)?;
                (SampleLayout::Idx { size: u64::from(images.bytes) }, samples, images.classes)
            }
            (DataSpec::Cifar10 { .. }, Samples::Images(images)) if images.are(CIFAR) => {
                let size = u64::from(images.bytes);
                (SampleLayout::Cifar10 { size }, files[0].bytes() / (size + 1), images.classes)
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
            return Err(DataError::invalid(self.files[0].path(), why));
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
        Err(DataError::Malformed {
            path: file.path().to_path_buf(),
            source: Malformed::invalid("IDX file", why),
        })
    };
    if images[0] != 0x803 || !wanted.are([1, images[2], images[3]]) {
        return wrong(&files[0], "images of bytes are wanted, of the model's size");
    }
    if labels[0] != 0x801 || labels[1] != images[1] {
        return wrong(&files[1], "labels of bytes are wanted, one for each image");
    }
    let samples = u64::from(images[1]);
    if files[0].bytes() < 16 + samples * size || files[1].bytes() < 8 + samples {
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
