//! The passes of a receipt of predictions: one for each sample.

use std::collections::BTreeSet;

use super::error::PartyError;
use super::passes::{PassTensors, Passes, RowPlace, TakePass, Weights};
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_dispute::answer::{Origin, Pass, predicting};
use tiebreak_engine::{Engine, Tensor};
use tiebreak_job::Evaluable;
use tiebreak_record::commit::answer_trace::window_leaf;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::predictions::Predictions;
use tiebreak_record::commit::tensor;
use tiebreak_run::inference::traced::Tamper;
use tiebreak_run::predict::Inputs;
use tiebreak_run::predict::traced::{SamplePass, SampleTensors};

/// The same change once more.
fn again<'a>(tamper: &'a mut Tamper) -> Tamper<'a> {
    match tamper {
        Some(tamper) => Some(&mut **tamper),
        None => None,
    }
}

/// A model that predicts, the samples, and the receipt.
pub(super) struct Samples {
    receipt: Predictions,
    /// The text of the job or of the network file.
    job: String,
    model: Box<dyn Evaluable>,
    weights: Weights,
    inputs: Inputs,
    /// The type of a sample's inputs.
    input: TensorType,
    /// The nodes of a pass.
    nodes: usize,
}

impl Samples {
    /// The model of the terms with these weights, in the model's order, which have to be the receipt's, and these samples.
    pub fn of(
        receipt: Predictions,
        job: String,
        weights: Vec<Vec<u8>>,
        inputs: Inputs,
    ) -> Result<Samples, PartyError> {
        let model = predicting(&job, receipt.model.model)?;
        let pass = Pass::of_sample(&receipt, &job, 0)?;
        let graph = &pass.graph;
        // A model has the parameters before the buffers.
        let table = ["param/", "buffer/"].into_iter().flat_map(|part| {
            let ports = graph.inputs.iter().filter(move |port| port.name.starts_with(part));
            ports.map(|port| StateTensor {
                name: port.name.clone(),
                shape: graph.tensor(port.tensor).shape.clone(),
            })
        });
        let weights = Weights::of(table.collect(), weights, receipt.model.state.map(Some))?;
        let read = graph.inputs.iter().find(|port| pass.origin(port.tensor) == Some(&Origin::Sample));
        let input = read.map(|port| graph.tensor(port.tensor).clone());
        let input =
            input.ok_or_else(|| PartyError::Refused("the receipt's model reads no samples".into()))?;
        let (count, end) = (inputs.count(), u64::from(receipt.first) + receipt.samples.len() as u64);
        if count < end {
            return Err(PartyError::Refused(format!(
                "the data have {count} samples, and the receipt is of those below {end}: give the data that the receipt is of"
            )));
        }
        let nodes = graph.nodes.len();
        Ok(Samples { receipt, job, model, weights, inputs, input, nodes })
    }

    /// Checks that a sample's inputs, which have this digest, are the receipt's.
    fn checked(&self, place: usize, found: &Digest) -> Result<(), PartyError> {
        match self.receipt.samples.get(place) {
            Some(sample) if sample.input != *found => Err(PartyError::Refused(format!(
                "the inputs of sample {} are {}, which the receipt has: give the data that the receipt is of",
                u64::from(self.receipt.first) + place as u64,
                found.not(&sample.input)
            ))),
            _ => Ok(()),
        }
    }

    /// The compiled pass, and the weights on the engine.
    fn compiled(&self, engine: &mut dyn Engine) -> Result<(SamplePass, Vec<Tensor>), PartyError> {
        let Weights { table, bytes, .. } = &self.weights;
        let tensors = table.iter().zip(bytes).map(|(tensor, bytes)| engine.upload(&tensor.ty(), bytes));
        let released = tensors.collect::<Result<_, _>>()?;
        Ok((SamplePass::new(engine, &*self.model)?, released))
    }
}

impl Passes for Samples {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn words(&self) -> [&'static str; 2] {
        ["trace of the predictions is", "root over the predictions' logits is"]
    }

    fn signed(&self) -> [Digest; 2] {
        [self.receipt.traces.unwrap_or(Digest([0; 32])), self.receipt.root()]
    }

    fn input(&self, pass: usize) -> Option<Digest> {
        self.receipt.samples.get(pass).map(|sample| sample.input)
    }

    fn nodes(&self) -> Vec<usize> {
        vec![self.nodes; self.receipt.samples.len()]
    }

    fn rows(&self) -> usize {
        self.receipt.samples.len()
    }

    fn pass(&self, number: usize) -> Result<Pass, PartyError> {
        Ok(Pass::of_sample(&self.receipt, &self.job, number)?)
    }

    fn pass_leaves(&self, roots: &[Digest]) -> Vec<Digest> {
        (0..).zip(roots).map(|(place, root)| window_leaf(place, self.receipt.model.rows, root)).collect()
    }

    fn row_leaves(&self, rows: &[Digest]) -> Vec<Digest> {
        let samples = (0..).zip(&self.receipt.samples).zip(rows);
        samples.map(|((number, sample), logits)| sample.leaf(number, logits)).collect()
    }

    fn row(&self, number: u32) -> Result<Option<RowPlace>, PartyError> {
        let place = number as usize;
        let len = self.receipt.model.rows as usize * self.receipt.model.classes as usize;
        Ok((place < self.rows()).then_some(RowPlace { pass: place, elements: 0..len }))
    }

    fn check_data(&mut self) -> Result<(), PartyError> {
        for place in 0..self.receipt.samples.len() {
            let sample = self.inputs.sample(u64::from(self.receipt.first) + place as u64)?;
            self.checked(place, &tensor::digest(&self.input, &sample))?;
        }
        Ok(())
    }

    fn trace(
        &mut self,
        engine: &mut dyn Engine,
        mut tamper: Tamper,
        take: TakePass,
    ) -> Result<(), PartyError> {
        let (pass, released) = self.compiled(engine)?;
        for place in 0..self.receipt.samples.len() {
            let of = (&self.receipt, place);
            let traced = pass.trace(engine, &released, &mut self.inputs, of, again(&mut tamper))?;
            if tamper.is_none() {
                self.checked(place, &traced.input)?;
            }
            take(traced.nodes, vec![traced.logits]);
        }
        Ok(())
    }

    fn outputs(
        &mut self,
        engine: &mut dyn Engine,
        number: usize,
        wanted: BTreeSet<usize>,
        tamper: Tamper,
    ) -> Result<PassTensors, PartyError> {
        let (pass, released) = self.compiled(engine)?;
        let (of, is_honest) = ((&self.receipt, number), tamper.is_none());
        let tensors = pass.tampered_outputs(engine, &released, &mut self.inputs, of, (wanted, tamper))?;
        let SampleTensors { inputs, outputs } = tensors;
        if is_honest {
            self.checked(number, &tensor::digest(&self.input, &inputs))?;
        }
        Ok(PassTensors { outputs, sample: Some(inputs) })
    }
}
