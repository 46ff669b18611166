//! Traces of predictions: each operator of the pass of each sample. Contract: `docs/INFERENCE.md`, Traces of predictions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Inputs, Predictor};
use crate::evaluate::{outputs_of, scalars};
use crate::inference::traced::{Hashing, Keeping, Tamper};
use crate::step::StepError;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::{bytes_of, words_from_bytes};
use tiebreak_contract::program::graph::Graph;
use tiebreak_contract::program::step::inference_graph;
use tiebreak_engine::{Engine, EngineError, Observer, Tensor};
use tiebreak_job::Evaluable;
use tiebreak_record::commit::answer_trace::{AnswerTrace, node_leaves, window_leaf};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle::{self, Frontier};
use tiebreak_record::commit::predictions::{Predictions, logits_digest};
use tiebreak_record::commit::tensor;
use tiebreak_record::commit::trace::TracedNode;

/// The pass of one sample, whose operators a trace has.
pub struct SamplePass(Predictor);

/// A sample's pass: each node, and the digest of the logits.
pub struct TracedSample {
    /// The digest of the sample's inputs.
    pub input: Digest,
    /// The nodes of the pass.
    pub nodes: Vec<TracedNode>,
    /// The digest of the sample's logits.
    pub logits: Digest,
}

/// The bytes of tensors of a sample's pass.
pub struct SampleTensors {
    /// The sample's inputs.
    pub inputs: Vec<u8>,
    /// Outputs of nodes, by the node's number.
    pub outputs: BTreeMap<usize, Vec<u8>>,
}

/// A receipt's root over traces is not what the model gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherTraces {
    /// The receipt's root.
    pub said: Digest,
    /// That of the model.
    pub found: Digest,
    /// The first sample, by its number in the receipt, in which the signer's trace differs; none without that trace.
    pub place: Option<usize>,
}

/// The leaf of a sample under a receipt's root over traces: its number in the receipt, its rows, and the root over the nodes.
pub fn sample_leaf(place: usize, rows: u32, nodes: &[TracedNode]) -> Digest {
    window_leaf(place as u32, rows, &merkle::root(&node_leaves(nodes)))
}

/// The leaves of a receipt's samples under its root over traces.
pub fn sample_leaves(receipt: &Predictions, trace: &AnswerTrace) -> Vec<Digest> {
    let samples = trace.windows.iter().enumerate();
    samples.map(|(place, nodes)| sample_leaf(place, receipt.model.rows, nodes)).collect()
}

impl SamplePass {
    /// Compiles the pass.
    ///
    /// # Errors
    /// If the engine cannot run the graph.
    pub fn new(engine: &mut dyn Engine, model: &dyn Evaluable) -> Result<SamplePass, EngineError> {
        Ok(SamplePass(Predictor::new(engine, model, 1)?))
    }

    /// The graph of the pass, once for each sample of a receipt.
    pub fn graphs(model: &dyn Evaluable, samples: usize) -> Vec<Arc<Graph>> {
        let graph = Arc::new(inference_graph(model.network(), model.products(), 1));
        (0..samples).map(|_| graph.clone()).collect()
    }

    fn logits(
        &self,
        engine: &mut dyn Engine,
        released: &[Tensor],
        sample: Vec<u8>,
        observer: &mut dyn Observer,
    ) -> Result<Vec<u32>, EngineError> {
        let scalars = scalars(engine)?;
        let [one, _] = &self.0.tensors;
        let labels = vec![0; one[1].ty().bytes()];
        let batch = [sample, labels];
        let logits =
            outputs_of(engine, &self.0.compiled, released, (one, &batch), (&scalars, Some(observer)))?;
        Ok(logits.into_iter().next().unwrap_or_default())
    }

    /// The trace of sample `place` of a receipt. A change of the logits behind the last node is one of those that the signer commits.
    ///
    /// # Errors
    /// If the data cannot be read or are not what the manifest promises, or the engine fails.
    pub fn trace(
        &self,
        engine: &mut dyn Engine,
        released: &[Tensor],
        inputs: &mut Inputs,
        (receipt, place): (&Predictions, usize),
        mut tamper: Tamper,
    ) -> Result<TracedSample, StepError> {
        let sample = inputs.sample(u64::from(receipt.first) + place as u64)?;
        let input = tensor::digest(&self.0.tensors[0][0].ty(), &sample);
        let mut hashing = Hashing::new(&self.0.compiled.graph, place, tamper.as_deref_mut());
        let logits = self.logits(engine, released, sample, &mut hashing)?;
        let nodes = hashing.nodes;
        let changed = tamper.and_then(|of| of(place, nodes.len(), &bytes_of(&logits)));
        let logits = changed.map_or(logits, |logits| words_from_bytes(DType::F32, &logits));
        Ok(TracedSample { input, nodes, logits: logits_digest(self.0.rows, &logits) })
    }

    /// The inputs of sample `place` of a receipt, and the outputs of some nodes of its pass.
    ///
    /// # Errors
    /// As [`SamplePass::trace`].
    pub fn outputs(
        &self,
        engine: &mut dyn Engine,
        released: &[Tensor],
        inputs: &mut Inputs,
        (receipt, place): (&Predictions, usize),
        wanted: BTreeSet<usize>,
    ) -> Result<SampleTensors, StepError> {
        self.tampered_outputs(engine, released, inputs, (receipt, place), (wanted, None))
    }

    /// [`SamplePass::outputs`] of a signer who changes them.
    ///
    /// # Errors
    /// As [`SamplePass::trace`].
    pub fn tampered_outputs(
        &self,
        engine: &mut dyn Engine,
        released: &[Tensor],
        inputs: &mut Inputs,
        (receipt, place): (&Predictions, usize),
        (wanted, tamper): (BTreeSet<usize>, Tamper),
    ) -> Result<SampleTensors, StepError> {
        let sample = inputs.sample(u64::from(receipt.first) + place as u64)?;
        let mut keeping = Keeping { window: place, wanted, kept: BTreeMap::new(), tamper };
        self.logits(engine, released, sample.clone(), &mut keeping)?;
        Ok(SampleTensors { inputs: sample, outputs: keeping.kept })
    }

    /// Compares a receipt's root over traces, if it has one, with that of the model. `theirs` is the signer's trace.
    ///
    /// # Errors
    /// As [`SamplePass::trace`].
    pub fn other_traces(
        &self,
        engine: &mut dyn Engine,
        released: &[Tensor],
        inputs: &mut Inputs,
        (receipt, theirs): (&Predictions, Option<&AnswerTrace>),
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<OtherTraces>, StepError> {
        let Some(said) = receipt.traces else { return Ok(None) };
        let (mut root, mut first) = (Frontier::default(), None);
        for place in 0..receipt.samples.len() {
            let mine = self.trace(engine, released, inputs, (receipt, place), None)?;
            let other = theirs.is_some_and(|trace| trace.windows.get(place) != Some(&mine.nodes));
            first = first.or(other.then_some(place));
            root.push(sample_leaf(place, receipt.model.rows, &mine.nodes));
            progress(place as u64 + 1);
        }
        let found = root.root();
        Ok((found != said).then_some(OtherTraces { said, found, place: first }))
    }
}
