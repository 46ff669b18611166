//! Evaluations: one pass over samples in their order, in bits that any engine gives again. Contract: `docs/ARITHMETIC.md`, section 8.6.

use std::sync::Arc;

use crate::arith::words::{bytes_of, words_from_bytes};
use crate::arith::{DType, elementary, float, tree};
use crate::commit::digest::Digest;
use crate::commit::tensor;
use crate::engine::{Compiled, Engine, EngineError, Tensor};
use crate::job::ModelJob;
use crate::job::data::Dataset;
use crate::program::evaluation::evaluation_graph;
use crate::program::graph::TensorType;
use crate::run::RunError;
use crate::step::StepError;

/// The most labels of an evaluation: their losses are one tensor.
const LABELS_MAX: u64 = (1 << 31) - 1;

/// What an evaluation found.
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
    /// The label that does not count, if there is one.
    ignored: Option<u32>,
}

impl Evaluator {
    /// Compiles the evaluation of batches of `batch` samples. Their size changes no bits: nothing in the graph crosses samples.
    ///
    /// # Errors
    /// If the engine cannot run the graph.
    pub fn new(engine: &mut dyn Engine, job: &ModelJob, batch: u32) -> Result<Evaluator, EngineError> {
        let compiled = engine.compile(Arc::new(evaluation_graph(&job.model, &job.products, batch)))?;
        let labels_per_sample = job.model.labels_per_sample();
        Ok(Evaluator { compiled, batch, labels_per_sample, ignored: job.loss.ignore })
    }

    /// Evaluates the state whose parameters and buffers lie on the engine, over the first `most` samples of the data in their order, windows of tokens
    /// without overlap. `progress` is told the samples that are done, and all of them.
    ///
    /// # Errors
    /// If the data cannot be read, are not what the manifest promises or have too many labels, or the engine fails.
    pub fn run(
        &self,
        engine: &mut dyn Engine,
        released: &[Tensor],
        dataset: &mut Dataset,
        most: Option<u64>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Evaluation, StepError> {
        let samples = dataset.samples_in_order().min(most.unwrap_or(u64::MAX));
        let labels = samples.saturating_mul(self.labels_per_sample.into());
        if labels > LABELS_MAX {
            let why =
                format!("an evaluation of {labels} labels is too large: name fewer samples than {samples}");
            return Err(RunError::Refused(why).into());
        }
        let scalars = [vec![0], vec![0, 0], vec![0], vec![0]];
        let scalars = scalars.iter().zip([DType::F32, DType::U32, DType::U32, DType::U32]);
        let scalars = scalars.map(|(words, dtype)| {
            engine.upload(&TensorType { dtype, shape: vec![words.len() as u32] }, &bytes_of(words))
        });
        let scalars = scalars.collect::<Result<Vec<Tensor>, EngineError>>()?;
        let (mut losses, mut hits, mut done) = (Vec::new(), 0, 0);
        while done < samples {
            let count = u64::from(self.batch).min(samples - done);
            // A batch that is not full is filled with its last sample, whose rows are not counted again.
            let places = (0..u64::from(self.batch)).map(|i| done + i.min(count - 1));
            let batch = dataset.batch_in_order(places).map_err(RunError::from)?;
            let mut inputs = released.to_vec();
            for (tensor, bytes) in dataset.tensors_of(self.batch).iter().zip(&batch.tensors) {
                inputs.push(engine.upload(&tensor.ty(), bytes)?);
            }
            inputs.extend(scalars.iter().cloned());
            let outputs = engine.run(&self.compiled, &inputs, None)?;
            let rows = count as usize * self.labels_per_sample as usize;
            // Labels that the loss ignores are left out.
            let counts: Vec<bool> = words_from_bytes(DType::U32, &batch.tensors[1])[..rows]
                .iter()
                .map(|label| Some(*label) != self.ignored)
                .collect();
            let [found, hit] = [&outputs[0], &outputs[1]].map(|tensor| engine.download(tensor));
            let [found, hit] = [found?, hit?].map(|bytes| words_from_bytes(DType::F32, &bytes));
            let counted = || counts.iter().zip(found.iter().zip(&hit)).filter(|(counts, _)| **counts);
            losses.extend(counted().map(|(_, (loss, _))| *loss));
            hits += counted().filter(|(_, (_, hit))| **hit == float::ONE).count() as u32;
            done += count;
            progress(done, samples);
        }
        let labels = losses.len() as u32;
        let ty = TensorType { dtype: DType::F32, shape: vec![labels] };
        let loss = float::div(tree::sum(losses.iter().copied()), float::from_u32(labels));
        Ok(Evaluation { samples, labels, hits, loss, losses: tensor::digest(&ty, &bytes_of(&losses)) })
    }
}
