//! The batch of a step: samples are drawn, read and checked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::augment::Move;
use super::layout::{Layout, Numbers, share_of};
use super::masking::Masker;
use super::part::{Column, Part, Span};
use super::sampling::{Place, Sampler};
use crate::manifest::DataError;
use crate::manifest::{DataFile, FileManifest, FileSlices};
use crate::opening;
use crate::spec::{Augment, DataSpec, Masking, Sampling};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::{bytes_of, with_words};
use tiebreak_contract::program::models::BatchTensor;
use tiebreak_contract::program::step::{MicroBatch, Program};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::trace::batch_leaf_name;
use tiebreak_record::commit::{table, tensor};

/// The position of an element in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Within {
    /// 0: the inputs; 1: the labels.
    pub tensor: usize,
    /// The element's index in the sample's part of that tensor.
    pub element: u64,
}

/// A sample as its data file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFile {
    /// The number of the file that holds the inputs.
    pub file: usize,
    /// The sample's number in that file.
    pub number: u64,
    /// The bytes of the inputs; of a window whose tokens are not masked with those of the element behind them, which is its last label.
    pub bytes: Vec<u8>,
    /// The ids of a window; none if the sample is no window.
    pub ids: Vec<u32>,
    /// The labels of a sample that is no window.
    pub labels: Vec<u32>,
}

/// The samples of a job.
pub struct Dataset {
    files: Vec<DataFile>,
    layout: Layout,
    sampling: Sampling,
    augment: Augment,
    masking: Option<Masking>,
    /// The label of the targets that a mask does not count, and of tokens that are not masked.
    uncounted: Option<u32>,
    /// The number of samples, from the first, that steps draw from.
    drawn: u64,
    /// The first sample of an evaluation.
    evaluated: u64,
    /// The model's batch tensors of one sample.
    tensors: Vec<BatchTensor>,
    /// The tokenizer whose ids bound the tokens in a scan, in addition to the model's bound.
    tokenizer: Option<Vocabulary>,
}

/// The tokens of a tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// The bound that every id of the tokenizer is below.
    pub below: u32,
    /// The tokenizer's location, for errors.
    pub name: String,
}

impl Dataset {
    /// The samples in these slices, (file, slices) by ascending file. Each slice is checked against the manifest of its file.
    /// `tensors` are the batch tensors of one sample.
    ///
    /// # Errors
    /// If a slice does not match its manifest, or the files do not fit the tensors.
    #[doc(hidden)] // for the layers above
    pub fn from_slices(
        manifest: &[FileManifest],
        slices: &[(usize, FileSlices)],
        spec: &DataSpec,
        tensors: &[BatchTensor],
    ) -> Result<Dataset, DataError> {
        let folder = Path::new("data");
        let mut rest = slices.iter().peekable();
        let mut files = Vec::new();
        for (number, manifest) in manifest.iter().enumerate() {
            let path = folder.join(format!("data-{number}.bin"));
            files.push(match rest.next_if(|(file, _)| *file == number) {
                Some((_, slices)) => DataFile::from_slices(path, manifest.clone(), slices)?,
                None => DataFile::absent(path, manifest.clone()),
            });
        }
        if rest.next().is_some() {
            return Err(DataError::invalid(folder, "slices are not of the run's files, each once, in order"));
        }
        Dataset::of(files, folder, spec, tensors)
    }

    /// The slices that were read so far, for each file that was read: (file, slices).
    ///
    /// # Errors
    /// If a file cannot be read again.
    #[doc(hidden)] // for the layers above
    pub fn slices_read(&mut self) -> Result<Vec<(usize, FileSlices)>, DataError> {
        let mut read = Vec::new();
        for (number, file) in self.files.iter_mut().enumerate() {
            read.extend(file.slices_read()?.map(|slices| (number, slices)));
        }
        Ok(read)
    }

    /// The samples of these files. `folder` names all of them in errors; `tensors` are the model's batch tensors of one sample.
    ///
    /// # Errors
    /// If the files do not fit the job's data, or the tensors.
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
        files.iter_mut().for_each(|file| file.share_memory(expected));
        let layout = Layout::of(&mut files, &spec.files, u64::from(spec.masking.is_none()), tensors)?;
        let Augment { crop, .. } = spec.augment;
        if spec.augment.is_any() && !layout.can_be_cropped(crop) {
            let why = format!(
                "data.augment: images of more than {crop} rows and columns are wanted (the last two dimensions of an array)"
            );
            return Err(DataError::Job(why));
        }
        let [drawn, evaluated] = match spec.validation_split {
            None => [layout.samples, 0],
            Some(share) => split(&layout, share).map_err(DataError::Job)?,
        };
        let (sampling, augment) = (spec.sampling, spec.augment);
        Ok(Dataset {
            files,
            layout,
            sampling,
            augment,
            masking: spec.masking.clone(),
            uncounted: spec.uncounted,
            drawn,
            evaluated,
            tensors: tensors.to_vec(),
            tokenizer: None,
        })
    }

    /// Makes a scan hold tokens to a tokenizer's bound too. Batches are held to the model's bound alone.
    #[doc(hidden)] // for the layers above
    pub fn hold_to(&mut self, tokenizer: Option<Vocabulary>) {
        self.tokenizer = tokenizer;
    }

    /// The positions of the integers that the model or the tokenizer bounds.
    pub(super) fn numbers(&self) -> Vec<Numbers> {
        let mut tensors = self.tensors.clone();
        if let Some(Vocabulary { below, .. }) = &self.tokenizer {
            tensors[0].below = tensors[0].below.min(*below);
        }
        self.layout.numbers(&tensors)
    }

    /// The positions of the integers, with the model's bounds alone.
    pub(super) fn numbers_of_model(&self) -> Vec<Numbers> {
        self.layout.numbers(&self.tensors)
    }

    /// The tokenizer, if its bound on tokens is tighter than the model's.
    pub(super) fn tighter(&self) -> Option<&Vocabulary> {
        self.tokenizer.as_ref().filter(|tokenizer| tokenizer.below < self.tensors[0].below)
    }

    /// The parts with a mask, each with the label of the targets that it does not count.
    pub(super) fn masked(&self) -> Vec<(Part, u32)> {
        let all = self.layout.masked().cloned().zip(std::iter::repeat(self.uncounted));
        all.filter_map(|(part, uncounted)| Some((part, uncounted?))).collect()
    }

    pub(super) fn file(&self, number: usize) -> &DataFile {
        &self.files[number]
    }

    pub(super) fn file_mut(&mut self, number: usize) -> &mut DataFile {
        &mut self.files[number]
    }

    /// The sampler of a run, with the key of its seed.
    #[doc(hidden)] // for the layers above
    pub fn sampler(&self, key: [u32; 2]) -> Sampler {
        Sampler::new(self.sampling, key, self.samples())
    }

    /// The bytes of a sample's tensors.
    fn sample(&mut self, number: u64) -> Result<[Vec<u8>; 2], DataError> {
        let (part, index) = self.layout.find(number);
        let (columns, mask) = (part.columns, part.mask);
        let mut tensors = [Vec::new(), Vec::new()];
        for (number, tensor) in tensors.iter_mut().enumerate() {
            let mut words = self.words(number, &columns[number], index, columns[number].bytes(index))?;
            if let Some(mask) = mask.filter(|_| number == 1) {
                self.take_out(&mut words, &mask, index, mask.bytes(index))?;
            }
            *tensor = bytes_of(&words);
        }
        Ok(tensors)
    }

    /// Gives the labels that a mask does not count the label that the loss ignores. `there` locates the mask's bytes of these
    /// labels, of a part's sample `index`.
    fn take_out(
        &mut self,
        labels: &mut [u32],
        mask: &Column,
        index: u64,
        there: Span,
    ) -> Result<(), DataError> {
        let file = &mut self.files[mask.file];
        for (label, counts) in labels.iter_mut().zip(file.read(there.first, there.len)?) {
            match (counts, self.uncounted) {
                (1, _) => {}
                (0, Some(uncounted)) => *label = uncounted,
                (0, None) => return Err(DataError::Job("data.mask: a mask needs loss.ignore".into())),
                (other, _) => {
                    let why = format!(
                        "sample {index} of the mask has the byte {other}: 0 (the target does not count) or 1 (it counts) is wanted"
                    );
                    return Err(DataError::invalid(file.path(), why));
                }
            }
        }
        Ok(())
    }

    /// Elements of tensor `number` of a part's sample `index`, at a span of the file.
    fn words(
        &mut self,
        number: usize,
        column: &Column,
        index: u64,
        there: Span,
    ) -> Result<Vec<u32>, DataError> {
        let (file, wanted) = (&mut self.files[column.file], &self.tensors[number]);
        let words = column.element.words(&file.read(there.first, there.len)?);
        let bad = match &words {
            Err(number) => Some(number.to_string()),
            Ok(words) if wanted.dtype == DType::U32 => {
                words.iter().find(|&&word| word >= wanted.below).map(u32::to_string)
            }
            Ok(_) => None,
        };
        if let Some(bad) = bad {
            let BatchTensor { name, below, .. } = wanted;
            let why =
                format!("sample {index} of the file has {bad} among its {name}, which is not below {below}");
            return Err(DataError::invalid(file.path(), why));
        }
        Ok(words.unwrap_or_default())
    }

    /// The bytes of the files that hold a sample: (file, first byte, number of bytes), one range a file.
    ///
    /// # Errors
    /// If there is no sample of this number.
    #[doc(hidden)] // for the layers above
    pub fn places(&self, sample: u64) -> Result<Vec<(usize, u64, u64)>, DataError> {
        let count = self.layout.samples;
        if sample >= count {
            return Err(DataError::Job(format!(
                "there is no sample {sample}: the data have {count}, from 0"
            )));
        }
        let (part, index) = self.layout.find(sample);
        let mut places: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for column in part.columns.iter().chain(&part.mask) {
            let Span { first, len } = column.bytes(index);
            let end = first + len as u64;
            let place = places.entry(column.file).or_insert((first, end));
            *place = (place.0.min(first), place.1.max(end));
        }
        Ok(places.into_iter().map(|(file, (first, end))| (file, first, end - first)).collect())
    }

    /// Bytes of a file, opened ([`opening::Part::of`]).
    ///
    /// # Errors
    /// If there is no such file, or as [`opening::Part::of`].
    #[doc(hidden)] // for the layers above
    pub fn opened(&mut self, file: usize, first: u64, count: u64) -> Result<opening::Part, DataError> {
        let files = self.files.len();
        let number = file;
        let file = self.files.get_mut(file);
        let file = file.ok_or_else(|| {
            DataError::Job(format!("there is no data file {number}: the run has {files}, from 0"))
        })?;
        opening::Part::of(file, number, first, count)
    }

    /// The inputs of a sample by its number: their words, the number of their file, and the sample's number in that file.
    pub(super) fn inputs(&mut self, number: u64) -> Result<(Vec<u32>, usize, u64), DataError> {
        let (part, index) = self.layout.find(number);
        let column = part.columns[0];
        Ok((self.words(0, &column, index, column.bytes(index))?, column.file, index))
    }

    /// The number of samples of all files, for any purpose.
    pub(super) fn all_samples(&self) -> u64 {
        self.layout.samples
    }

    /// True if inputs are floats.
    pub(super) fn has_float_inputs(&self) -> bool {
        self.tensors[0].dtype == DType::F32
    }

    /// The micro-batches of a step.
    ///
    /// # Errors
    /// If a chunk cannot be read or does not match its manifest, a sample has a class that the model lacks, or the epochs'
    /// numbers are used up.
    pub fn batch(
        &mut self,
        program: &Program,
        key: [u32; 2],
        step: u32,
    ) -> Result<Vec<MicroBatch>, DataError> {
        (0..program.micro_batches).map(|micro| self.micro_batch(program, key, step, micro)).collect()
    }

    /// Reads samples that these steps draw: at most `most` (and at least two) of each step, evenly spread, with the first and
    /// the last among them. The samples are read in the order of the files, so that each file is read once from begin to end.
    ///
    /// # Errors
    /// As [`Dataset::batch`].
    #[doc(hidden)] // for the layers above
    pub fn read_drawn(
        &mut self,
        program: &Program,
        key: [u32; 2],
        steps: &[u32],
        most: u32,
    ) -> Result<(), DataError> {
        let (mut sampler, batch) = (self.sampler(key), program.samples());
        let between = most.min(batch).max(2) - 1;
        let place = |i: u32| (u64::from(batch - 1) * u64::from(i) / u64::from(between)) as u32;
        let mut numbers = BTreeSet::new();
        for &step in steps {
            for i in 0..=between {
                numbers.insert(self.number_at(&mut sampler, Place { step, batch, place: place(i) })?);
            }
        }
        numbers.into_iter().try_for_each(|number| self.sample(number).map(drop))
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
        let len = program.micro_batch;
        let mut tensors = vec![Vec::new(), Vec::new()];
        for place in micro * len..(micro + 1) * len {
            let sample = self.drawn_at(&mut sampler, key, Place { step, batch: program.samples(), place })?;
            for (tensor, bytes) in tensors.iter_mut().zip(sample) {
                tensor.extend(bytes);
            }
        }
        Ok(MicroBatch { tensors })
    }

    /// One element of a sample of a step's batch, drawn alone.
    ///
    /// # Errors
    /// As [`Dataset::batch`], and if there is no such element.
    #[doc(hidden)] // for the layers above
    pub fn element_of(&mut self, key: [u32; 2], at: Place, within: Within) -> Result<u32, DataError> {
        let (Place { step, batch, place }, Within { tensor, element }) = (at, within);
        if step == 0 || place >= batch {
            return Err(DataError::Job(format!(
                "step {step} has no sample {place}: steps count from 1, and its {batch} samples from 0"
            )));
        }
        let number = self.number_at(&mut self.sampler(key), at)?;
        let (part, index) = self.layout.find(number);
        let none = || DataError::Job(format!("a sample has no element {element} of tensor {tensor}"));
        let column = *part.columns.get(tensor).ok_or_else(none)?;
        let mask = part.mask.filter(|_| tensor == 1);
        let planes = part.planes.filter(|_| tensor == 0 && self.augment.is_any());
        let mut bytes = column.element_bytes(index, element).ok_or_else(none)?;
        if let Some(planes) = planes {
            let by = Move::of(self.augment, key, at);
            let Some(from) = by.source(element as usize, planes.map(|size| size as usize)) else {
                return Ok(0);
            };
            bytes = column.element_bytes(index, from as u64).ok_or_else(none)?;
        }
        let mut words = self.words(tensor, &column, index, bytes)?;
        if let Some(mask) = mask {
            let there = mask.element_bytes(index, element).ok_or_else(none)?;
            self.take_out(&mut words, &mask, index, there)?;
        }
        let masker = self.masker(key, [step, place]);
        Ok(masker.map_or(words[0], |masker| masker.position(element as u32, words[0])[tensor]))
    }

    /// The tokens that masking never chooses, if the job masks any.
    pub(super) fn never_masked(&self) -> Option<Vec<u32>> {
        let masking = self.masking.as_ref()?;
        Some(masking.never.iter().copied().chain(self.uncounted).collect())
    }

    /// The masking of a sample, if the job has any.
    fn masker(&self, key: [u32; 2], at: [u32; 2]) -> Option<Masker<'_>> {
        let (masking, uncounted) = (self.masking.as_ref()?, self.uncounted?);
        Some(Masker { masking, key, at, vocabulary: self.tensors[0].below, uncounted })
    }

    /// A sample's tensors with its tokens masked, if the job masks any.
    fn masked_sample(&self, tensors: [Vec<u8>; 2], key: [u32; 2], at: [u32; 2]) -> [Vec<u8>; 2] {
        match self.masker(key, at) {
            Some(masker) => {
                with_words(&tensors[0], |tokens| masker.sample(tokens)).map(|words| bytes_of(&words))
            }
            None => tensors,
        }
    }

    /// The sample that is drawn at a place.
    fn number_at(&self, sampler: &mut Sampler, at: Place) -> Result<u64, DataError> {
        let drawn = sampler.draw(at).ok_or_else(|| {
            let (step, n) = (at.step, self.drawn);
            DataError::Job(format!("steps: step {step} would need more than 2^32 epochs of {n} samples"))
        })?;
        Ok(match self.sampling {
            Sampling::Permutation | Sampling::WithReplacement => drawn,
            Sampling::InOrder => self.layout.separate_at(self.drawn, drawn),
        })
    }

    /// The number of the file that holds the inputs of the sample at a place of a step's batch, and the sample's number in that
    /// file.
    ///
    /// # Errors
    /// If the epochs' numbers are used up.
    #[doc(hidden)] // for the layers above
    pub fn drawn_from(&mut self, key: [u32; 2], at: Place) -> Result<(usize, u64), DataError> {
        let number = self.number_at(&mut self.sampler(key), at)?;
        let (part, index) = self.layout.find(number);
        Ok((part.columns[0].file, index))
    }

    /// The sample that is drawn at a place, as its file has it.
    ///
    /// # Errors
    /// As [`Dataset::batch`].
    #[doc(hidden)] // for the layers above
    pub fn in_file(&mut self, key: [u32; 2], at: Place) -> Result<InFile, DataError> {
        let number = self.number_at(&mut self.sampler(key), at)?;
        let (part, index) = self.layout.find(number);
        let [inputs, labels] = part.columns;
        let mut there = inputs.bytes(index);
        let is_window = self.tensors[0].name == "tokens";
        if is_window && self.masking.is_none() {
            there.len += inputs.element.size() as usize;
        }
        let ids = if is_window { self.words(0, &inputs, index, there)? } else { Vec::new() };
        let labels = if is_window { Vec::new() } else { self.words(1, &labels, index, labels.bytes(index))? };
        let bytes = self.files[inputs.file].read(there.first, there.len)?;
        Ok(InFile { file: inputs.file, number: index, bytes, ids, labels })
    }

    /// The sample that is drawn at a place, moved by the job's augmentation, or masked.
    fn drawn_at(
        &mut self,
        sampler: &mut Sampler,
        key: [u32; 2],
        at: Place,
    ) -> Result<[Vec<u8>; 2], DataError> {
        let number = self.number_at(sampler, at)?;
        let [mut inputs, labels] = self.sample(number)?;
        if let Some(planes) = self.layout.find(number).0.planes.filter(|_| self.augment.is_any()) {
            let by = Move::of(self.augment, key, at);
            inputs =
                with_words(&inputs, |words| bytes_of(&by.image(words, planes.map(|size| size as usize))));
        }
        Ok(self.masked_sample([inputs, labels], key, [at.step, at.place]))
    }

    /// The number of samples of an evaluation: all that the job's split keeps, or all of the data without a split. A window
    /// that overlaps with the one counted before it does not count.
    #[doc(hidden)] // for the layers above
    pub fn samples_in_order(&self) -> u64 {
        self.layout.samples_in_order(self.evaluated)
    }

    /// The samples at these positions of an evaluation, in file order.
    ///
    /// # Errors
    /// If a chunk cannot be read or does not match its manifest, or a sample has a class that the model lacks.
    ///
    /// # Panics
    /// If a position is not below [`Dataset::samples_in_order`].
    #[doc(hidden)] // for the layers above
    pub fn batch_in_order(&mut self, places: impl Iterator<Item = u64>) -> Result<MicroBatch, DataError> {
        let mut tensors = vec![Vec::new(), Vec::new()];
        for place in places {
            let number = self.layout.in_order(self.evaluated, place);
            // Whatever the run and the step, an evaluation asks for the same tokens.
            let sample = self.sample(number)?;
            let sample = self.masked_sample(sample, [0; 2], [0, place as u32]);
            for (tensor, bytes) in tensors.iter_mut().zip(sample) {
                tensor.extend(bytes);
            }
        }
        Ok(MicroBatch { tensors })
    }

    /// The batch tensors of this number of samples.
    #[doc(hidden)] // for the layers above
    pub fn tensors_of(&self, samples: u32) -> Vec<BatchTensor> {
        let mut tensors = self.tensors.clone();
        tensors.iter_mut().for_each(|tensor| tensor.shape[0] *= samples);
        tensors
    }

    /// The number of samples to draw from. In order, windows of a text are one behind the other.
    pub fn samples(&self) -> u64 {
        match self.sampling {
            Sampling::Permutation | Sampling::WithReplacement => self.drawn,
            Sampling::InOrder => self.layout.separate(self.drawn),
        }
    }

    /// The number, in file order, of the first sample of an evaluation; 0 unless the job has a split.
    #[doc(hidden)] // for the layers above
    pub fn first_evaluated(&self) -> u64 {
        self.evaluated
    }

    /// The bytes of all files.
    #[doc(hidden)] // for the layers above
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes()).sum()
    }

    /// Files that are shorter than a sample, so that none of their bytes are drawn.
    #[doc(hidden)] // for the layers above
    pub fn unused(&self) -> impl Iterator<Item = &Path> {
        self.layout.empty.iter().map(|&number| self.files[number].path())
    }
}

/// The number of samples that steps draw from, and the number of the first kept sample.
fn split(layout: &Layout, share: f32) -> Result<[u64; 2], String> {
    let (n, kept) = (layout.samples, share_of(share, layout.samples));
    let split = (1..=n).contains(&kept).then(|| layout.split(kept)).filter(|[drawn, _]| *drawn > 0);
    split.ok_or_else(|| {
        format!("data.validation_split: {share} keeps {kept} of {n} samples, and some have to be kept and some left (of a text, those that share no token with kept ones)")
    })
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
    let (names, digests): (Vec<_>, Vec<_>) = batch_leaves(program, batch).into_iter().unzip();
    rooted(&names, &digests)
}

/// The root over leaves of a batch, by their names and digests.
pub(crate) fn rooted(names: &[String], digests: &[Digest]) -> Digest {
    table::root(names.iter().map(String::as_str).zip(digests))
}
