//! One window of a receipt's answer as a referee has it: the graph of its pass, what every input of the graph is committed by, and
//! elements of outputs from verified slices.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::TracedWindow;
use crate::evidence::leaf::{LeafError, Slices, Verified, expected_by, undecided};
use crate::evidence::proven::{ProvenInput, ProvenTensor, wrong};
use crate::evidence::tile::check_slices;
use tiebreak_contract::program::element::Source;
use tiebreak_contract::program::graph::{Graph, TensorId};
use tiebreak_contract::program::inference::{inference_step, settings, windows};
use tiebreak_record::commit::answer_trace::{node_leaf, window_leaf};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::receipt::{Receipt, model_digest};
use tiebreak_record::commit::tensor::SLICE_BYTES;
use tiebreak_record::commit::{Malformed, merkle, table};
use tiebreak_record::job::computation::Computation;

/// A tensor of a pass that nobody carries, since it follows from the receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Derived {
    /// The window's tokens.
    Tokens(Vec<u32>),
    /// Their positions.
    Positions,
    /// The row of each place of the caches: its own, or this one, which is the last.
    Rows(u32),
    /// An empty cache.
    Zeros,
}

impl Derived {
    /// An element of a tensor that has it. Nothing of the size of a context is kept, since the job's author chooses that.
    pub fn word(&self, index: usize) -> Option<u32> {
        match self {
            Derived::Tokens(tokens) => tokens.get(index).copied(),
            Derived::Positions => Some(index as u32),
            Derived::Rows(last) => Some((index as u32).min(*last)),
            Derived::Zeros => Some(0),
        }
    }
}

/// What a tensor of a pass is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The parameter with this number, which the receipt's root over parameters commits.
    Parameter(usize),
    /// A tensor that follows from the receipt.
    Derived(Derived),
    /// The output of the node with this number, which the window's root commits.
    Node(usize),
}

/// A window of a receipt's answer.
pub struct Pass {
    /// The graph of its pass.
    pub graph: Graph,
    /// The number of its first token in the text.
    pub first: usize,
    /// The numbers of the answer's tokens whose rows it gives.
    pub numbers: Range<usize>,
    /// The origin of each tensor.
    origins: BTreeMap<TensorId, Origin>,
    /// The names of the parameters, in their order.
    parameters: Vec<String>,
    /// The number of the answer's windows.
    windows: usize,
}

impl Pass {
    /// Window `number` of a receipt's answer, for the model of a job's text, which has to be the receipt's.
    ///
    /// # Errors
    /// If the text is no job, the job is of another model, or the answer has no such window.
    pub fn of(receipt: &Receipt, job: &str, number: usize) -> Result<Pass, Malformed> {
        let (job, _) = Computation::parsed("job", job, None).map_err(|error| wrong(error.to_string()))?;
        let no_decoder = || wrong("its job has no language model");
        let job = job.model().ok_or_else(no_decoder)?;
        let (model, products) = (&job.model, &job.products);
        let found = model_digest(&settings(model, products).ok_or_else(no_decoder)?);
        if found != receipt.model {
            let [found, own] = [found, receipt.model].map(|digest| digest.short());
            return Err(wrong(format!("its job has the model {found}, and the receipt is of model {own}")));
        }
        let context = model.labels_per_sample();
        let (prompt, answer) = (receipt.prompt.len(), receipt.answer.len());
        let windows = windows(prompt, 0..answer, context);
        let count = windows.len();
        let (first, numbers) = windows
            .into_iter()
            .nth(number)
            .ok_or_else(|| wrong(format!("it names window {number}, and the answer has {count}")))?;
        let ids = receipt.prompt.iter().chain(&receipt.answer).copied();
        let tokens: Vec<u32> = ids.skip(first).take(prompt + numbers.end - 1 - first).collect();
        let size = tokens.len() as u32;
        let graph = inference_step(model, products, [1, size]).ok_or_else(no_decoder)?;
        let parameters: Vec<String> =
            model.parameters().iter().map(|p| format!("param/{}", p.name)).collect();
        let lists = [Derived::Tokens(tokens), Derived::Positions, Derived::Rows(size - 1)].into_iter();
        let derived = lists.chain(std::iter::repeat(Derived::Zeros)).map(Origin::Derived);
        let origins = (0..parameters.len()).map(Origin::Parameter).chain(derived);
        let inputs = graph.inputs.iter().map(|port| port.tensor).zip(origins);
        let nodes = graph.nodes.iter().enumerate().map(|(place, node)| (node.output, Origin::Node(place)));
        let origins = inputs.chain(nodes).collect();
        Ok(Pass { graph, first, numbers, origins, parameters, windows: count })
    }

    /// The origin of a tensor of the graph.
    pub fn origin(&self, tensor: TensorId) -> Option<&Origin> {
        self.origins.get(&tensor)
    }

    /// The first row of logits that the window gives for a token of its numbers.
    pub fn row_place(&self, receipt: &Receipt, number: usize) -> usize {
        receipt.prompt.len() + number - 1 - self.first
    }

    /// The leaf of the window under the receipt's root over traces.
    fn leaf(&self, receipt: &Receipt, root: &Digest) -> Digest {
        let tokens = receipt.prompt.len() + self.numbers.end - 1 - self.first;
        window_leaf(self.first as u32, tokens as u32, root)
    }

    /// Checks that a receipt commits to the window's root.
    pub(super) fn committed(&self, receipt: &Receipt, window: &TracedWindow) -> Result<(), Malformed> {
        let traces = receipt.traces.ok_or_else(|| wrong("its receipt commits no traces"))?;
        let leaf = self.leaf(receipt, &window.root);
        let (number, count) = (window.number as u64, self.windows as u64);
        if merkle::root_from_proof(leaf, number, count, &window.proof)? != traces {
            return Err(wrong(format!("window {number} is not what the receipt commits")));
        }
        Ok(())
    }

    /// Checks that the window's root commits to the output of a node.
    pub(super) fn traced(
        &self,
        window: &TracedWindow,
        node: usize,
        output: &ProvenTensor,
    ) -> Result<(), Malformed> {
        let (leaf, count) = (node_leaf(node, &output.digest), self.graph.nodes.len() as u64);
        if merkle::root_from_proof(leaf, node as u64, count, &output.proof)? != window.root {
            return Err(wrong(format!("node {node} is not what the window's root commits")));
        }
        Ok(())
    }

    /// The slices of the tensors that a node reads, each checked against its commitment.
    pub(super) fn inputs(
        &self,
        receipt: &Receipt,
        window: &TracedWindow,
        node: usize,
        inputs: &[ProvenInput],
    ) -> Result<Slices, Malformed> {
        let reads: BTreeSet<TensorId> = self.graph.nodes[node].primitive.inputs().into_iter().collect();
        let (mut carried, mut slices) = (BTreeSet::new(), Slices::default());
        for input in inputs {
            let id = TensorId(input.tensor);
            if !reads.contains(&id) || !carried.insert(id) {
                return Err(wrong("it carries a tensor twice, or one that the operator does not read"));
            }
            match self.origin(id).ok_or_else(|| wrong("an input has no origin"))? {
                Origin::Parameter(place) => self.parameter(receipt, *place, &input.commitment)?,
                Origin::Node(node) => self.traced(window, *node, &input.commitment)?,
                Origin::Derived(_) => return Err(wrong("it carries a tensor that follows from the receipt")),
            }
            check_slices(self.graph.tensor(id), input)?;
            for (&slice, bytes) in input.slices.iter().zip(input.bytes.0.chunks(SLICE_BYTES)) {
                slices.insert(id, slice, bytes.to_vec());
            }
        }
        Ok(slices)
    }

    /// Checks that the receipt's root over parameters commits to one.
    fn parameter(&self, receipt: &Receipt, place: usize, tensor: &ProvenTensor) -> Result<(), Malformed> {
        let name = &self.parameters[place];
        let (leaf, count) = (table::leaf(name, &tensor.digest), self.parameters.len() as u64);
        if merkle::root_from_proof(leaf, place as u64, count, &tensor.proof)? != receipt.parameters {
            return Err(wrong(format!("{name} is not what the receipt commits")));
        }
        Ok(())
    }

    /// The right elements of a node's output.
    pub(super) fn expected(
        &self,
        node: usize,
        elements: Range<usize>,
        slices: &Slices,
    ) -> Result<Vec<u32>, Malformed> {
        let verified = Verified { graph: &self.graph, slices };
        expected_by(&self.graph, node, elements, &mut Known { pass: self, verified }).map_err(undecided)
    }
}

/// Serves what follows from the receipt, and slices of the rest.
struct Known<'a> {
    pass: &'a Pass,
    verified: Verified<'a>,
}

impl Source for Known<'_> {
    type Error = LeafError;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, LeafError> {
        let outside = LeafError::Outside { tensor };
        match self.pass.origin(tensor) {
            Some(Origin::Derived(derived)) => {
                let is_inside = index < self.pass.graph.tensor(tensor).len();
                derived.word(index).filter(|_| is_inside).ok_or(outside)
            }
            _ => self.verified.get(tensor, index),
        }
    }
}
