//! Evaluations: one pass over samples in their order, in bits that any engine gives again. Contract: `docs/ARITHMETIC.md`, section 8.6.

use std::ops::ControlFlow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::run::RunError;
use crate::step::StepError;
use tiebreak_contract::arith::words::{bytes_of, words_from_bytes};
use tiebreak_contract::arith::{DType, elementary, float, tree};
use tiebreak_contract::program::evaluation::evaluation_graph;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::models::BatchTensor;
use tiebreak_engine::liveness::peak_bytes;
use tiebreak_engine::{Compiled, Engine, EngineError, Observer, Tensor};
use tiebreak_job::data::Dataset;
use tiebreak_job::{Evaluable, Job};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::tensor::VectorDigest;

/// The most labels of an evaluation: their losses are one tensor. The losses are summed and hashed as they come, so none waits in
/// memory.
const LABELS_MAX: u64 = (1 << 31) - 1;

/// The results of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// Samples.
    pub samples: u64,
    /// Labels of all samples.
    pub labels: u32,
    /// Labels that the model finds most likely.
    pub hits: u32,
    /// The mean loss, a binary32 pattern.
    pub loss: u32,
    /// The digest of the losses of all labels, F32 [labels].
    pub losses: Digest,
}

impl Evaluation {
    /// hits / labels, a binary32 pattern.
    pub fn accuracy(&self) -> u32 {
        float::div(float::from_u32(self.hits), float::from_u32(self.labels))
    }

    /// e^loss, a binary32 pattern.
    pub fn perplexity(&self) -> u32 {
        elementary::exp(self.loss)
    }
}

/// A model's evaluation, compiled for an engine.
pub struct Evaluator {
    compiled: Compiled,
    batch: u32,
    labels_per_sample: u32,
    /// The label that the loss ignores, if there is one.
    ignored: Option<u32>,
}

impl Evaluator {
    /// Compiles the evaluation of batches of `batch` samples. Their size changes no bits: nothing in the graph crosses samples.
    ///
    /// # Errors
    /// If the engine cannot run the graph.
    pub fn new(engine: &mut dyn Engine, model: &dyn Evaluable, batch: u32) -> Result<Evaluator, EngineError> {
        let graph = evaluation_graph(model.network(), model.products(), batch);
        let compiled = engine.compile(Arc::new(graph))?;
        let labels_per_sample = model.network().labels_per_sample();
        Ok(Evaluator { compiled, batch, labels_per_sample, ignored: model.ignored() })
    }

    /// Bytes of the tensors that live at once while a batch of `batch` samples is evaluated, the model's own included.
    ///
    /// # Errors
    /// If a tensor of such a batch would be too large.
    #[doc(hidden)] // for the layers above
    pub fn memory(job: &Job, model: &dyn Evaluable, batch: u32) -> Result<u64, String> {
        fits(job, model, batch)?;
        Ok(peak_bytes(&evaluation_graph(model.network(), model.products(), batch)))
    }

    /// Evaluates a state over the first `most` samples of the data, in their order; windows of tokens do not overlap. The state's
    /// parameters and buffers are already tensors of the engine. `progress` receives the number of samples done and the total, and may end
    /// the evaluation.
    ///
    /// # Errors
    /// If the data cannot be read, are not what the manifest promises or have too many labels, the engine fails, or `progress` ends it.
    pub fn run(
        &self,
        engine: &mut dyn Engine,
        released: &[Tensor],
        dataset: &mut Dataset,
        most: Option<u64>,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Evaluation, StepError> {
        let samples = dataset.samples_in_order().min(most.unwrap_or(u64::MAX));
        let labels = samples.saturating_mul(self.labels_per_sample.into());
        if labels > LABELS_MAX {
            let why =
                format!("an evaluation of {labels} labels is too large: name fewer samples than {samples}");
            return Err(RunError::Refused(why).into());
        }
        let scalars = scalars(engine)?;
        let (mut sum, mut digest) = (tree::Sum::default(), VectorDigest::default());
        let (mut hits, mut done) = (0, 0);
        while done < samples {
            let count = u64::from(self.batch).min(samples - done);
            // A last batch that is not full is padded with its last sample; the padding's rows are not counted.
            let places = (0..u64::from(self.batch)).map(|i| done + i.min(count - 1));
            let batch = dataset.batch_in_order(places).map_err(RunError::from)?;
            let [found, hit] =
                self.forward(engine, released, &dataset.tensors_of(self.batch), &batch.tensors, &scalars)?;
            let rows = count as usize * self.labels_per_sample as usize;
            // Labels that the loss ignores are left out.
            let counts = self.counts(&batch.tensors[1], rows);
            let counted = || counts.iter().zip(found.iter().zip(&hit)).filter(|(counts, _)| **counts);
            let losses: Vec<u32> = counted().map(|(_, (loss, _))| *loss).collect();
            losses.iter().for_each(|loss| sum.push(*loss));
            digest.extend(&losses);
            hits += counted().filter(|(_, (_, hit))| **hit == float::ONE).count() as u32;
            done += count;
            if progress(done, samples).is_break() {
                return Err(
                    RunError::Refused("the evaluation was stopped before its last sample".into()).into()
                );
            }
        }
        let labels = sum.count() as u32;
        let loss = float::div(sum.total(), float::from_u32(labels));
        Ok(Evaluation { samples, labels, hits, loss, losses: digest.finish(DType::F32) })
    }

    /// The mean loss of each of these samples, in binary64 and in their order: no result that anybody commits to. A sample all of
    /// whose labels the loss ignores has none. `sample`: the batch tensors of one sample.
    ///
    /// # Errors
    /// If the engine fails.
    #[doc(hidden)] // for the layers above
    pub fn sample_losses(
        &self,
        engine: &mut dyn Engine,
        released: &[Tensor],
        sample: &[BatchTensor],
        samples: &[&[Vec<u8>; 2]],
    ) -> Result<Vec<Option<f64>>, EngineError> {
        let (scalars, labels) = (scalars(engine)?, self.labels_per_sample as usize);
        let mut tensors = sample.to_vec();
        tensors.iter_mut().for_each(|tensor| tensor.shape[0] *= self.batch);
        let mut means = Vec::with_capacity(samples.len());
        for part in samples.chunks(self.batch as usize) {
            // A last batch that is not full is padded with its last sample.
            let padded = (0..self.batch as usize).map(|i| part[i.min(part.len() - 1)]);
            let mut bytes = [Vec::new(), Vec::new()];
            for sample in padded {
                bytes.iter_mut().zip(sample).for_each(|(all, one)| all.extend_from_slice(one));
            }
            let [found, _] = self.forward(engine, released, &tensors, &bytes, &scalars)?;
            let rows = part.len() * labels;
            let counts = self.counts(&bytes[1], rows);
            for (counts, found) in counts.chunks(labels).zip(found[..rows].chunks(labels)) {
                let counted = counts.iter().zip(found).filter(|(counts, _)| **counts);
                let losses: Vec<f64> = counted.map(|(_, loss)| f64::from(f32::from_bits(*loss))).collect();
                means.push((!losses.is_empty()).then(|| losses.iter().sum::<f64>() / losses.len() as f64));
            }
        }
        Ok(means)
    }

    /// The losses and hits of all labels of a batch.
    fn forward(
        &self,
        engine: &mut dyn Engine,
        released: &[Tensor],
        tensors: &[BatchTensor],
        batch: &[Vec<u8>],
        scalars: &[Tensor],
    ) -> Result<[Vec<u32>; 2], EngineError> {
        let mut outputs =
            outputs_of(engine, &self.compiled, released, (tensors, batch), (scalars, None))?.into_iter();
        let mut next = || outputs.next().unwrap_or_default();
        Ok([next(), next()])
    }

    /// For each of the first `rows` labels whether the loss counts it.
    fn counts(&self, labels: &[u8], rows: usize) -> Vec<bool> {
        let labels = words_from_bytes(DType::U32, labels);
        labels[..rows].iter().map(|label| Some(*label) != self.ignored).collect()
    }
}

/// Checks that the tensors of a batch of `batch` samples are not too large.
pub(crate) fn fits(job: &Job, model: &dyn Evaluable, batch: u32) -> Result<(), String> {
    match model.batch_error(job, batch) {
        Some(why) => Err(format!("{batch} samples at once: {why}")),
        None => Ok(()),
    }
}

/// The outputs of a model's forward pass over a batch, as words. An observer sees the output of each node.
pub(crate) fn outputs_of(
    engine: &mut dyn Engine,
    compiled: &Compiled,
    released: &[Tensor],
    (tensors, batch): (&[BatchTensor], &[Vec<u8>]),
    (scalars, observer): (&[Tensor], Option<&mut dyn Observer>),
) -> Result<Vec<Vec<u32>>, EngineError> {
    let mut inputs = released.to_vec();
    for (tensor, bytes) in tensors.iter().zip(batch) {
        inputs.push(engine.upload(&tensor.ty(), bytes)?);
    }
    inputs.extend(scalars.iter().cloned());
    let outputs = engine.run(compiled, &inputs, observer)?;
    let words = |tensor| Ok(words_from_bytes(DType::F32, &engine.download(tensor)?));
    outputs.iter().map(words).collect()
}

/// The scalars of a micro-batch, whose values do not matter to an evaluation.
pub(crate) fn scalars(engine: &mut dyn Engine) -> Result<Vec<Tensor>, EngineError> {
    let scalars = [vec![0], vec![0, 0], vec![0], vec![0]];
    let scalars = scalars.iter().zip([DType::F32, DType::U32, DType::U32, DType::U32]);
    let upload = |(words, dtype): (&Vec<u32>, DType)| {
        engine.upload(&TensorType { dtype, shape: vec![words.len() as u32] }, &bytes_of(words))
    };
    scalars.map(upload).collect()
}

/// The file that names an evaluation's inputs and holds its results: docs/RUN-FORMAT.md. Every field except `found` either is an
/// exact result or identifies an input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// [`Report::FORMAT`].
    pub format: String,
    /// The program digest.
    pub program: Digest,
    /// The roots over the model's parameters and buffers, as a final record has them.
    pub model: [Digest; 2],
    /// The root of the data's manifest.
    pub data: Digest,
    /// The index of the first sample in the data, if the job reserves the last samples for evaluations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_sample: Option<u64>,
    /// Samples.
    pub samples: u64,
    /// Labels that the loss does not ignore.
    pub labels: u32,
    /// Labels that the model finds most likely.
    pub hits: u32,
    /// The mean loss, as eight hexadecimal digits.
    pub loss: String,
    /// The digest of the losses of all labels.
    pub losses: Digest,
    /// The same results as numbers for people.
    pub found: Found,
}

/// The results of an evaluation, as numbers for people. A value that is not finite is `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Found {
    /// The mean loss.
    pub loss: Option<f32>,
    /// hits / labels.
    pub accuracy: Option<f32>,
    /// e^loss.
    pub perplexity: Option<f32>,
    /// The engine that computed the results.
    pub engine: String,
}

impl Report {
    /// The form of a report.
    #[doc(hidden)] // for the layers above
    pub const FORMAT: &str = "tiebreak evaluation 1";

    /// Reads a report's text.
    ///
    /// # Errors
    /// If it is no report of this form.
    pub fn parse(text: &str) -> Result<Report, Malformed> {
        let wrong = |why: String| Malformed::Invalid { what: "evaluation report", why };
        let report: Report = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if report.format != Report::FORMAT {
            return Err(wrong(format!("its format is {:?}, not {:?}", report.format, Report::FORMAT)));
        }
        let Found { loss, accuracy, perplexity, .. } = &report.found;
        // A value that is not finite would be written as null.
        let mut numbers = [loss, accuracy, perplexity].map(|number| *number).into_iter().flatten();
        if let Some(number) = numbers.find(|number| !number.is_finite()) {
            return Err(wrong(format!("a number is {number}; finite ones are expected")));
        }
        Ok(report)
    }

    /// The report's text.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("names and numbers can be written as JSON")
    }
}
