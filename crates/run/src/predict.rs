//! Predictions: the logits of samples in evaluation mode, whose bits depend on the model and the sample alone, and the replay of their
//! receipts. Contract: `docs/INFERENCE.md`, Receipts of predictions.

pub mod traced;

use std::sync::Arc;

use crate::evaluate::{fits, outputs_of, scalars};
use crate::run::RunError;
use crate::run::arrays::Array;
use crate::step::StepError;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::words_from_bytes;
use tiebreak_contract::program::models::BatchTensor;
use tiebreak_contract::program::step::{StateTensor, inference_graph};
use tiebreak_engine::liveness::peak_bytes;
use tiebreak_engine::{Compiled, Engine, EngineError, Tensor};
use tiebreak_job::data::Dataset;
use tiebreak_job::{Evaluable, Job};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::predictions::{
    PredictedSample, PredictingModel, Predictions, logits_digest, model_digest, predicted,
};
use tiebreak_record::commit::state::{StateRoots, tensor_digests};
use tiebreak_record::commit::tensor;

/// The samples that a model predicts.
pub enum Inputs {
    /// Those of data files, in the order of an evaluation.
    Data(Box<Dataset>),
    /// Those of an array without labels.
    Array {
        /// The array.
        array: Array,
        /// Bytes of a sample.
        each: usize,
    },
}

impl Inputs {
    /// The samples of an array, whose first dimension counts them. `wanted` is the batch tensor of one sample.
    ///
    /// # Errors
    /// If the array has another type or shape, or numbers that the model lacks.
    pub fn of_array(array: Array, wanted: &BatchTensor) -> Result<Inputs, String> {
        let is_one = wanted.shape.len() > 1 && wanted.shape[0] == 1;
        let due = if is_one { &wanted.shape[1..] } else { &wanted.shape[..] };
        if array.ty.dtype != wanted.dtype || array.ty.shape.get(1..) != Some(due) || array.ty.shape[0] == 0 {
            let (found, shape, dtype) = (array.ty.dtype, &array.ty.shape, wanted.dtype);
            let due: String = due.iter().map(|size| format!(", {size}")).collect();
            return Err(format!("it holds {found:?} {shape:?}; the model takes {dtype:?} [samples{due}]"));
        }
        let words = words_from_bytes(wanted.dtype, &array.bytes);
        if wanted.dtype == DType::U32
            && let Some(word) = words.iter().find(|&&word| word >= wanted.below)
        {
            return Err(format!("it holds {word}, and the model takes numbers below {}", wanted.below));
        }
        let each = wanted.ty().bytes();
        Ok(Inputs::Array { array, each })
    }

    /// The bytes in memory.
    #[doc(hidden)] // for the layers above
    pub fn bytes(&self) -> u64 {
        match self {
            Inputs::Data(_) => 0,
            Inputs::Array { array, .. } => array.bytes.len() as u64,
        }
    }

    /// The number of samples.
    pub fn count(&self) -> u64 {
        match self {
            Inputs::Data(dataset) => dataset.samples_in_order(),
            Inputs::Array { array, .. } => array.ty.shape[0].into(),
        }
    }

    /// The inputs of a sample below [`Inputs::count`].
    ///
    /// # Errors
    /// If they cannot be read, or are not what the manifest promises.
    #[doc(hidden)] // for the layers above
    pub fn sample(&mut self, number: u64) -> Result<Vec<u8>, RunError> {
        Ok(match self {
            Inputs::Data(dataset) => {
                let [inputs, _] =
                    <[Vec<u8>; 2]>::try_from(dataset.batch_in_order([number].into_iter())?.tensors)
                        .unwrap_or_default();
                inputs
            }
            Inputs::Array { array, each } => array.bytes[number as usize * *each..][..*each].to_vec(),
        })
    }
}

/// A sample whose logits were computed.
pub struct Computed {
    /// The sample's number in the data.
    pub number: u64,
    /// The digest of its inputs.
    pub input: Digest,
    /// Its logits, row by row.
    pub logits: Vec<u32>,
}

/// A model's forward pass in evaluation mode, compiled for an engine.
pub struct Predictor {
    compiled: Compiled,
    /// The batch tensors of one sample, and of a batch.
    tensors: [Vec<BatchTensor>; 2],
    batch: usize,
    /// Rows of logits of a sample.
    pub rows: u32,
    /// Logits of a row.
    pub classes: u32,
}

impl Predictor {
    /// Compiles the pass over batches of `batch` samples. Their size changes no bits: nothing in the graph crosses samples.
    ///
    /// # Errors
    /// If the engine cannot run the graph.
    pub fn new(engine: &mut dyn Engine, model: &dyn Evaluable, batch: u32) -> Result<Predictor, EngineError> {
        let network = model.network();
        let graph = inference_graph(network, model.products(), batch);
        let classes = graph.tensor(graph.outputs[0].tensor).shape[1];
        let compiled = engine.compile(Arc::new(graph))?;
        let tensors = [1, batch].map(|samples| network.batch(samples));
        let rows = network.labels_per_sample();
        Ok(Predictor { compiled, tensors, batch: batch as usize, rows, classes })
    }

    /// Bytes of the tensors that live at once while a batch of `batch` samples is computed, the model's own included.
    ///
    /// # Errors
    /// If a tensor of such a batch would be too large.
    pub fn memory(job: &Job, model: &dyn Evaluable, batch: u32) -> Result<u64, String> {
        fits(job, model, batch)?;
        Ok(peak_bytes(&inference_graph(model.network(), model.products(), batch)))
    }

    /// Passes each of these samples with its logits to `take`, until that gives something. The state's parameters and buffers are
    /// already tensors of the engine.
    ///
    /// # Errors
    /// If the data cannot be read or are not what the manifest promises, or the engine fails.
    pub fn run<B>(
        &self,
        engine: &mut dyn Engine,
        released: &[Tensor],
        inputs: &mut Inputs,
        numbers: &[u64],
        mut take: impl FnMut(Computed) -> Option<B>,
    ) -> Result<Option<B>, StepError> {
        let scalars = scalars(engine)?;
        let [one, all] = &self.tensors;
        let labels = vec![0; all[1].ty().bytes()];
        for part in numbers.chunks(self.batch) {
            let samples = part.iter().map(|number| inputs.sample(*number));
            let samples = samples.collect::<Result<Vec<_>, RunError>>()?;
            // A last batch that is not full is padded with its last sample; the padding's rows are left out.
            let padded = (0..self.batch).map(|place| &samples[place.min(samples.len() - 1)][..]);
            let batch = [padded.collect::<Vec<_>>().concat(), labels.clone()];
            let logits = outputs_of(engine, &self.compiled, released, (all, &batch), (&scalars, None))?;
            let of_sample = (self.rows * self.classes) as usize;
            let logits = logits.first().map_or(&[][..], |logits| &logits[..]).chunks(of_sample);
            for ((&number, bytes), logits) in part.iter().zip(&samples).zip(logits) {
                let input = tensor::digest(&one[0].ty(), bytes);
                let taken = take(Computed { number, input, logits: logits.to_vec() });
                if taken.is_some() {
                    return Ok(taken);
                }
            }
        }
        Ok(None)
    }

    /// The classes that a sample's rows predict, and the digest of its logits. A row with a NaN predicts none: then this is the row.
    ///
    /// # Errors
    /// If a row has a NaN.
    pub fn predicted(&self, sample: &Computed) -> Result<PredictedSample, u32> {
        let rows = (0..).zip(sample.logits.chunks(self.classes as usize));
        let classes = rows.map(|(number, row)| predicted(row).ok_or(number));
        Ok(PredictedSample {
            input: sample.input,
            predicted: classes.collect::<Result<_, u32>>()?,
            logits: logits_digest(self.rows, &sample.logits),
        })
    }

    /// The digests and sizes by which a receipt names a model with these parameters and buffers.
    pub fn identity(
        &self,
        model: &dyn Evaluable,
        table: &[StateTensor],
        bytes: &[Vec<u8>],
    ) -> PredictingModel {
        let [parameters, buffers, _] = StateRoots::of(table, &tensor_digests(table, bytes)).0;
        let model = model_digest(&model.settings());
        PredictingModel { model, state: [parameters, buffers], classes: self.classes, rows: self.rows }
    }

    /// The first of these samples of a receipt that is not what the model gives. The samples are numbered in the receipt, and the data
    /// have all of them.
    ///
    /// # Errors
    /// As [`Predictor::run`].
    pub fn difference(
        &self,
        engine: &mut dyn Engine,
        released: &[Tensor],
        inputs: &mut Inputs,
        (receipt, places): (&Predictions, &[u64]),
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<Difference>, StepError> {
        let first = u64::from(receipt.first);
        let numbers: Vec<u64> = places.iter().map(|place| first + place).collect();
        let mut done = 0;
        self.run(engine, released, inputs, &numbers, |computed| {
            done += 1;
            progress(done);
            let said = &receipt.samples[(computed.number - first) as usize];
            let what = self.mismatch(said, &computed)?;
            Some(Difference { sample: computed.number, what })
        })
    }

    fn mismatch(&self, said: &PredictedSample, computed: &Computed) -> Option<Mismatch> {
        if said.input != computed.input {
            return Some(Mismatch::Input { said: said.input, found: computed.input });
        }
        let rows = (0..).zip(computed.logits.chunks(self.classes as usize)).zip(&said.predicted);
        let other = rows.map(|((row, logits), said)| (row, *said, predicted(logits)));
        if let Some((row, said, found)) = { other }.find(|(_, said, found)| Some(*said) != *found) {
            return Some(Mismatch::Class { row, said, found });
        }
        let (said, found) = (said.logits, logits_digest(self.rows, &computed.logits));
        (said != found).then_some(Mismatch::Logits { said, found })
    }
}

/// A sample of a receipt that is not what the model gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The sample's number in the data.
    pub sample: u64,
    /// The first thing in the sample that differs.
    pub what: Mismatch,
}

/// A thing in a receipt's sample that is not what the model gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The data have other inputs than the receipt is about.
    Input {
        /// The receipt's digest.
        said: Digest,
        /// That of the data.
        found: Digest,
    },
    /// A row predicts another class, or none.
    Class {
        /// The row in the sample.
        row: u32,
        /// The receipt's class.
        said: u32,
        /// The model's.
        found: Option<u32>,
    },
    /// The classes are right, and the logits have other bits.
    Logits {
        /// The receipt's digest.
        said: Digest,
        /// That of the model's logits.
        found: Digest,
    },
}
