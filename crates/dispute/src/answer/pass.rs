//! One window of a receipt's answer, or one sample of a receipt of predictions, as a referee has it: the graph of its pass, what every
//! input of the graph is committed by, and elements of outputs from verified slices.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::TracedWindow;
use crate::evidence::leaf::{LeafError, Slices, Touched, Verified, compute, recorded, undecided};
use crate::evidence::proven::{ProvenInput, ProvenTensor, wrong};
use crate::evidence::tile::check_slices;
use tiebreak_contract::program::element::Source;
use tiebreak_contract::program::graph::{Graph, Primitive, TensorId, TensorType};
use tiebreak_contract::program::inference::{Writer, inference_step, settings, windows};
use tiebreak_contract::program::network::{self, NetworkModel};
use tiebreak_contract::program::step::inference_graph;
use tiebreak_job::computation::Computation;
use tiebreak_job::{Evaluable, ModelJob};
use tiebreak_record::commit::answer_trace::{node_leaf, window_leaf};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::predictions::{self, PredictingModel, Predictions};
use tiebreak_record::commit::receipt::{Receipt, model_digest};
use tiebreak_record::commit::tensor::SLICE_BYTES;
use tiebreak_record::commit::{Malformed, merkle, table};

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
    /// The buffer with this number, which the receipt's root over buffers commits.
    Buffer(usize),
    /// The inputs of the sample, whose digest the receipt has.
    Sample,
    /// A tensor that follows from the receipt.
    Derived(Derived),
    /// The output of the node with this number, which the window's root commits.
    Node(usize),
}

/// Tensors of a model, which a root commits.
struct Model {
    /// Their names, in their order.
    names: Vec<String>,
    root: Digest,
}

/// A window of a receipt's answer, or a sample of a receipt of predictions.
pub struct Pass {
    /// The graph of its pass.
    pub graph: Graph,
    /// The number of its first token in the text; of a sample its number in the receipt.
    pub first: usize,
    /// The numbers of the answer's tokens whose rows it gives; none of a sample.
    pub numbers: Range<usize>,
    /// In words, what it is.
    pub what: String,
    /// The tokens of a window, or the rows of a sample.
    size: u32,
    /// The origin of each tensor.
    origins: BTreeMap<TensorId, Origin>,
    /// The parameters and the buffers.
    model: [Model; 2],
    /// The digest of a sample's inputs.
    sample: Option<Digest>,
    /// The receipt's root over traces.
    traces: Option<Digest>,
    /// The number of the receipt's passes.
    passes: usize,
}

/// The model of a job's text, which has to have the receipt's digest.
fn model_of(
    job: &str,
    wanted: Digest,
    digest: impl FnOnce(&ModelJob) -> Option<Digest>,
) -> Result<ModelJob, Malformed> {
    let (job, _) = Computation::parsed("job", job, None).map_err(|error| wrong(error.to_string()))?;
    let job = job.model().ok_or_else(|| wrong("its job has no model"))?;
    let found = digest(job).ok_or_else(|| wrong("its job has no language model"))?;
    if found != wanted {
        let [found, own] = [found, wanted].map(|digest| digest.short());
        return Err(wrong(format!("its job has the model {found}, and the receipt is of model {own}")));
    }
    Ok(job.clone())
}

/// The model of a network file's text, which has to have the receipt's digest.
fn network_of(
    text: &str,
    wanted: Digest,
    digest: impl FnOnce(&NetworkModel) -> Result<Digest, Malformed>,
) -> Result<NetworkModel, Malformed> {
    // The program is compiled because that checks each operator, as the graph of a sample or a window has them too.
    let (_, model) = network::model(text).map_err(|why| wrong(format!("its network file: {why}")))?;
    let found = digest(&model)?;
    if found != wanted {
        let [found, own] = [found, wanted].map(|digest| digest.short());
        return Err(wrong(format!(
            "its network file has the model {found}, and the receipt is of model {own}"
        )));
    }
    Ok(model)
}

/// The model of a job's text or of a network file's, which has to have the digest of a receipt of predictions. A network file begins
/// with `{`, and no job does.
///
/// # Errors
/// If the text is neither, or is of another model.
#[doc(hidden)] // for the layers above
pub fn predicting(text: &str, wanted: Digest) -> Result<Box<dyn Evaluable>, Malformed> {
    let digest = |model: &dyn Evaluable| predictions::model_digest(&model.settings());
    Ok(match text.starts_with('{') {
        false => Box::new(model_of(text, wanted, |job| Some(digest(job)))?),
        true => Box::new(network_of(text, wanted, |model| Ok(digest(model)))?),
    })
}

/// A model that answers.
#[doc(hidden)] // for the layers above
pub enum Answering {
    /// A job's.
    Job(Box<ModelJob>),
    /// A network file's.
    Network(Box<NetworkModel>),
}

impl Answering {
    /// The model of a job's text or of a network file's, which has to have the receipt's digest. A network file begins with `{`, and no
    /// job does.
    ///
    /// # Errors
    /// If the text is neither, or is of another model.
    pub fn of(text: &str, wanted: Digest) -> Result<Answering, Malformed> {
        let digest = |writer: Writer| Some(model_digest(&settings(writer)?));
        if !text.starts_with('{') {
            let of = |job: &ModelJob| digest(Writer::Job(&job.model, &job.products));
            return Ok(Answering::Job(Box::new(model_of(text, wanted, of)?)));
        }
        let of = |model: &NetworkModel| {
            let why = |why| wrong(format!("its network file writes no text: {why}"));
            let writer = Writer::of_network(model).map_err(why)?;
            digest(writer).ok_or_else(|| wrong("its network file has no language model"))
        };
        Ok(Answering::Network(Box::new(network_of(text, wanted, of)?)))
    }

    /// The model, as graphs are made of it.
    pub fn writer(&self) -> Writer<'_> {
        match self {
            Answering::Job(job) => Writer::Job(&job.model, &job.products),
            Answering::Network(model) => Writer::Network(model),
        }
    }
}

/// The origins of a graph's tensors: those of its inputs are given in their order.
fn origins_of(graph: &Graph, inputs: impl Iterator<Item = Origin>) -> BTreeMap<TensorId, Origin> {
    let inputs = graph.inputs.iter().map(|port| port.tensor).zip(inputs);
    let nodes = graph.nodes.iter().enumerate().map(|(place, node)| (node.output, Origin::Node(place)));
    inputs.chain(nodes).collect()
}

/// The graph without its list of products that a rounding log may round: a pass rounds each of them to the nearest value, by nodes
/// of its own.
fn nearest(graph: Graph) -> Graph {
    Graph { logged: Vec::new(), ..graph }
}

impl Pass {
    /// Window `number` of a receipt's answer, for the model of a job's text or of a network file's, which has to be the receipt's.
    ///
    /// # Errors
    /// If the text is neither, it is of another model, or the answer has no such window.
    pub fn of(receipt: &Receipt, job: &str, number: usize) -> Result<Pass, Malformed> {
        let model = Answering::of(job, receipt.model)?;
        let writer = model.writer();
        let context = writer.context();
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
        let graph = inference_step(writer, [1, size]);
        let graph = nearest(graph.ok_or_else(|| wrong("it has no language model"))?);
        let parameters: Vec<String> =
            writer.parameters().iter().map(|p| format!("param/{}", p.name)).collect();
        let lists = [Derived::Tokens(tokens), Derived::Positions, Derived::Rows(size - 1)].into_iter();
        let derived = lists.chain(std::iter::repeat(Derived::Zeros)).map(Origin::Derived);
        let origins = (0..parameters.len()).map(Origin::Parameter).chain(derived);
        let origins = origins_of(&graph, origins);
        let model = [
            Model { names: parameters, root: receipt.parameters },
            Model { names: Vec::new(), root: receipt.parameters },
        ];
        let (what, passes, traces) = (format!("window {number}"), count, receipt.traces);
        Ok(Pass { graph, first, numbers, what, size, origins, model, sample: None, traces, passes })
    }

    /// The pass of sample `place` of a receipt of predictions, for the model of a job's text or of a network file's, which has to be
    /// the receipt's.
    ///
    /// # Errors
    /// If the text is neither, it is of another model, or the receipt has no such sample.
    pub fn of_sample(receipt: &Predictions, job: &str, place: usize) -> Result<Pass, Malformed> {
        let PredictingModel { model: wanted, state, classes, rows } = receipt.model;
        let model = predicting(job, wanted)?;
        let passes = receipt.samples.len();
        let sample = receipt.samples.get(place);
        let sample = sample
            .ok_or_else(|| wrong(format!("it is about sample {place}, and the receipt has {passes}")))?;
        let graph = nearest(inference_graph(model.network(), model.products(), 1));
        let logits = graph.output("logits").map(|id| graph.tensor(id).shape.clone());
        if logits.as_deref() != Some(&[rows, classes]) {
            return Err(wrong(format!(
                "its model does not give {rows} rows of {classes} logits, as the receipt says: give the receipt's job"
            )));
        }
        let (mut names, mut data) = ([Vec::new(), Vec::new()], 0);
        let origins: Vec<Origin> = graph
            .inputs
            .iter()
            .map(|port| {
                let part = ["param/", "buffer/"].iter().position(|part| port.name.starts_with(part));
                if let Some(part) = part {
                    names[part].push(port.name.clone());
                    let number = names[part].len() - 1;
                    return if part == 0 { Origin::Parameter(number) } else { Origin::Buffer(number) };
                }
                let is_data = port.name.starts_with("batch/");
                data += usize::from(is_data);
                // Labels and the numbers of a step do not matter to logits.
                if is_data && data == 1 { Origin::Sample } else { Origin::Derived(Derived::Zeros) }
            })
            .collect();
        let origins = origins_of(&graph, origins.into_iter());
        let [parameters, buffers] = names;
        let model = [Model { names: parameters, root: state[0] }, Model { names: buffers, root: state[1] }];
        Ok(Pass {
            graph,
            first: place,
            numbers: 0..0,
            what: format!("sample {}", u64::from(receipt.first) + place as u64),
            size: rows,
            origins,
            model,
            sample: Some(sample.input),
            traces: receipt.traces,
            passes,
        })
    }

    /// The origin of a tensor of the graph.
    pub fn origin(&self, tensor: TensorId) -> Option<&Origin> {
        self.origins.get(&tensor)
    }

    /// True if a node reads numbers of the sample as places of something else.
    pub(crate) fn indexes_by_sample(&self, node: usize) -> bool {
        match &self.graph.nodes[node].primitive {
            Primitive::Gather { indices: numbers, .. }
            | Primitive::GroupOrder { classes: numbers, .. }
            | Primitive::GroupOffsets { classes: numbers, .. } => {
                self.origin(*numbers) == Some(&Origin::Sample)
            }
            _ => false,
        }
    }

    /// The first row of logits that the window gives for a token of its numbers.
    pub fn row_place(&self, receipt: &Receipt, number: usize) -> usize {
        receipt.prompt.len() + number - 1 - self.first
    }

    /// The number of the receipt's passes.
    pub(crate) fn passes(&self) -> usize {
        self.passes
    }

    /// The type of the logits.
    pub(crate) fn logits(&self) -> Option<&TensorType> {
        Some(self.graph.tensor(self.graph.output("logits")?))
    }

    /// The leaf of the pass under the receipt's root over traces, with this root over its nodes.
    pub(crate) fn leaf(&self, root: &Digest) -> Digest {
        window_leaf(self.first as u32, self.size, root)
    }

    /// Checks that the receipt commits to the pass's root.
    pub(super) fn committed(&self, window: &TracedWindow) -> Result<(), Malformed> {
        let traces = self.traces.ok_or_else(|| wrong("its receipt commits no traces"))?;
        self.under(&traces, window)
    }

    /// Checks that this root over passes commits to the pass's root.
    pub(crate) fn under(&self, traces: &Digest, window: &TracedWindow) -> Result<(), Malformed> {
        let leaf = self.leaf(&window.root);
        let (number, count) = (window.number as u64, self.passes as u64);
        if merkle::root_from_proof(leaf, number, count, &window.proof)? != *traces {
            // Verdicts of games about answers hold the sentence about a window.
            let why =
                if self.sample.is_some() { "under the root over passes" } else { "what the receipt commits" };
            return Err(wrong(format!("{} is not {why}", self.what)));
        }
        Ok(())
    }

    /// Checks that the window's root commits to the output of a node.
    pub(super) fn traced(&self, root: &Digest, node: usize, output: &ProvenTensor) -> Result<(), Malformed> {
        let (leaf, count) = (node_leaf(node, &output.digest), self.graph.nodes.len() as u64);
        if merkle::root_from_proof(leaf, node as u64, count, &output.proof)? != *root {
            let of = if self.sample.is_some() { "pass" } else { "window" };
            return Err(wrong(format!("node {node} is not what the {of}'s root commits")));
        }
        Ok(())
    }

    /// The slices of tensors of `reads`, each checked against its commitment. Outputs of nodes are under `root`.
    pub(crate) fn inputs(
        &self,
        root: &Digest,
        reads: &[TensorId],
        inputs: &[ProvenInput],
    ) -> Result<Slices, Malformed> {
        let (mut carried, mut slices) = (BTreeSet::new(), Slices::default());
        for input in inputs {
            let id = TensorId(input.tensor);
            if !reads.contains(&id) || !carried.insert(id) {
                return Err(wrong("it carries a tensor twice, or one that the operator does not read"));
            }
            match self.origin(id).ok_or_else(|| wrong("an input has no origin"))? {
                Origin::Parameter(place) => self.of_model(0, *place, &input.commitment)?,
                Origin::Buffer(place) => self.of_model(1, *place, &input.commitment)?,
                Origin::Sample => self.of_data(&input.commitment)?,
                Origin::Node(node) => self.traced(root, *node, &input.commitment)?,
                Origin::Derived(_) => return Err(wrong("it carries a tensor that follows from the receipt")),
            }
            check_slices(self.graph.tensor(id), input)?;
            for (&slice, bytes) in input.slices.iter().zip(input.bytes.0.chunks(SLICE_BYTES)) {
                slices.insert(id, slice, bytes.to_vec());
            }
        }
        Ok(slices)
    }

    /// Checks that the receipt's root over parameters, or that over buffers, commits to one.
    fn of_model(&self, part: usize, place: usize, tensor: &ProvenTensor) -> Result<(), Malformed> {
        let Model { names, root } = &self.model[part];
        let (leaf, count) = (table::leaf(&names[place], &tensor.digest), names.len() as u64);
        if merkle::root_from_proof(leaf, place as u64, count, &tensor.proof)? != *root {
            return Err(wrong(format!("{} is not what the receipt commits", names[place])));
        }
        Ok(())
    }

    /// Checks that the receipt has the digest of the sample's inputs.
    fn of_data(&self, tensor: &ProvenTensor) -> Result<(), Malformed> {
        if self.sample != Some(tensor.digest) || !tensor.proof.is_empty() {
            return Err(wrong(format!("the inputs of {} are not those of the receipt", self.what)));
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
        compute(&self.graph, node, elements, &mut self.known(slices)).map_err(undecided)
    }

    /// The right elements of a node's output, and the slices that they follow from.
    pub(super) fn recorded(
        &self,
        node: usize,
        elements: Range<usize>,
        slices: &Slices,
    ) -> Result<(Vec<u32>, Touched), Malformed> {
        recorded(&self.graph, node, elements, self.known(slices)).map_err(undecided)
    }

    /// Everything that nodes read: these slices, and what follows from the receipt.
    pub(crate) fn known<'a>(&'a self, slices: &'a Slices) -> Known<'a> {
        Known { pass: self, verified: Verified { graph: &self.graph, slices } }
    }
}

/// Serves what follows from the receipt, and slices of the rest.
pub(crate) struct Known<'a> {
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
