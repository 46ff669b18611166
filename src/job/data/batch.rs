//! The batch of a step: samples that are drawn, read and checked.

use std::path::Path;
use std::sync::Arc;

use super::error::DataError;
use super::file::{DataFile, FileManifest};
use super::layout::Layout;
use super::sampling::{Place, Sampler};
use crate::arith::DType;
use crate::arith::words::bytes_of;
use crate::commit::digest::Digest;
use crate::commit::trace::batch_leaf_name;
use crate::commit::{table, tensor};
use crate::job::spec::{DataSpec, Sampling};
use crate::program::graph::TensorType;
use crate::program::models::BatchTensor;
use crate::program::step::{MicroBatch, Program};

/// The samples of a job.
pub struct Dataset {
    files: Vec<DataFile>,
    layout: Layout,
    sampling: Sampling,
    /// The model's batch tensors of one sample.
    tensors: Vec<BatchTensor>,
}

impl Dataset {
    /// The samples that lie in the given chunks (file, chunk, bytes), each checked against the manifest. `tensors` are the model's batch
    /// tensors of one sample.
    ///
    /// # Errors
    /// If a chunk is not one of the manifest's, or the manifest does not fit the tensors.
    pub fn from_chunks<'a>(
        manifest: &[FileManifest],
        chunks: impl IntoIterator<Item = (usize, usize, &'a [u8])>,
        spec: &DataSpec,
        tensors: &[BatchTensor],
    ) -> Result<Dataset, DataError> {
        let folder = Path::new("data");
        let mut files = Vec::new();
        for manifest in manifest {
            files.push(DataFile::new(folder.join(&manifest.name), manifest.clone(), None)?);
        }
        for (number, chunk, bytes) in chunks {
            if !files.get_mut(number).is_some_and(|file: &mut DataFile| file.add_chunk(chunk, bytes)) {
                let why = format!("chunk {chunk} of file {number} is not the run's");
                return Err(DataError::invalid(folder, why));
            }
        }
        Dataset::of(files, folder, spec, tensors)
    }

    /// The chunks that were read so far: (file, chunk, bytes), in order.
    pub fn chunks_read(&self) -> Vec<(usize, usize, Arc<Vec<u8>>)> {
        let mut read = Vec::new();
        for (number, file) in self.files.iter().enumerate() {
            read.extend(file.chunks_read().map(|(chunk, bytes)| (number, chunk, bytes)));
        }
        read.sort_unstable_by_key(|(file, chunk, _)| (*file, *chunk));
        read
    }

    /// The samples of these files. `folder` names all of them in errors; `tensors` are the model's batch tensors of one sample.
    ///
    /// # Errors
    /// If they do not fit the job's data, or the tensors.
    pub fn of(
        mut files: Vec<DataFile>,
        folder: &Path,
        spec: &DataSpec,
        tensors: &[BatchTensor],
    ) -> Result<Dataset, DataError> {
        let expected = spec.files.paths().len();
        if files.len() != expected || files.is_empty() {
            let why = format!("{} data files, the job has {expected}", files.len());
            return Err(DataError::invalid(folder, why));
        }
        let layout = Layout::of(&mut files, &spec.files, tensors)?;
        Ok(Dataset { files, layout, sampling: spec.sampling, tensors: tensors.to_vec() })
    }

    /// What draws a run's samples, with the key of its seed.
    pub fn sampler(&self, key: [u32; 2]) -> Sampler {
        Sampler::new(self.sampling, key, self.layout.samples)
    }

    /// The bytes of a sample's tensors.
    fn sample(&mut self, number: u64) -> Result<[Vec<u8>; 2], DataError> {
        let (part, index) = self.layout.find(number);
        let mut tensors = [Vec::new(), Vec::new()];
        for ((column, wanted), tensor) in part.columns.iter().zip(&self.tensors).zip(&mut tensors) {
            let file = &mut self.files[column.file];
            let (first, len) = column.bytes(index);
            let words = column.element.words(&file.read(first, len)?);
            let bad = match &words {
                Err(number) => Some(number.to_string()),
                Ok(words) if wanted.dtype == DType::U32 => {
                    words.iter().find(|&&word| word >= wanted.below).map(u32::to_string)
                }
                Ok(_) => None,
            };
            if let Some(bad) = bad {
                let BatchTensor { name, below, .. } = wanted;
                let why = format!(
                    "sample {index} of the file has {bad} among its {name}, which is not below {below}"
                );
                return Err(DataError::invalid(&file.path, why));
            }
            *tensor = bytes_of(&words.unwrap_or_default());
        }
        Ok(tensors)
    }

    /// The micro-batches of a step.
    ///
    /// # Errors
    /// If a chunk cannot be read or is not the manifest's, a sample has a class that the model has not, or the epochs' numbers are used up.
    pub fn batch(
        &mut self,
        program: &Program,
        key: [u32; 2],
        step: u32,
    ) -> Result<Vec<MicroBatch>, DataError> {
        (0..program.spec.micro_batches).map(|micro| self.micro_batch(program, key, step, micro)).collect()
    }

    /// One micro-batch: a tensor of inputs, and one of labels.
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
        let mut sampler = self.sampler(key);
        let (batch, len) = (program.batch(), program.spec.micro_batch);
        let mut tensors = vec![Vec::new(), Vec::new()];
        for place in micro * len..(micro + 1) * len {
            let number = sampler.draw(Place { step, batch, place }).ok_or_else(|| {
                let n = self.layout.samples;
                DataError::Job(format!("steps: step {step} would need more than 2^32 epochs of {n} samples"))
            })?;
            for (tensor, bytes) in tensors.iter_mut().zip(self.sample(number)?) {
                tensor.extend(bytes);
            }
        }
        Ok(MicroBatch { tensors })
    }

    /// How many samples there are to draw from.
    pub fn samples(&self) -> u64 {
        self.layout.samples
    }

    /// The bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.manifest.bytes).sum()
    }

    /// Files that are shorter than a sample, so that nothing of them is drawn.
    pub fn unused(&self) -> impl Iterator<Item = &Path> {
        self.layout.empty.iter().map(|&number| self.files[number].path.as_path())
    }
}

/// The leaves under a batch digest: the name and digest of every tensor of every micro-batch, in order.
pub fn batch_leaves(program: &Program, batch: &[MicroBatch]) -> Vec<(String, Digest)> {
    let spec = &program.spec;
    let types = spec.model.batch(spec.micro_batch);
    let mut leaves = Vec::new();
    for (micro, tensors) in (0..).zip(batch) {
        for (t, bytes) in types.iter().zip(&tensors.tensors) {
            let ty = TensorType { dtype: t.dtype, shape: t.shape.clone() };
            leaves.push((batch_leaf_name(micro, &t.name), tensor::digest(&ty, bytes)));
        }
    }
    leaves
}

/// The batch digest of a step's record.
pub fn batch_digest(program: &Program, batch: &[MicroBatch]) -> Digest {
    let leaves = batch_leaves(program, batch);
    table::root(leaves.iter().map(|(name, digest)| (name.as_str(), digest)))
}
