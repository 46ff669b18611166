//! A network that is a list of nodes, each an operator on parameters, the batch's inputs and earlier nodes.

mod kinds;

pub use kinds::{NODE_KINDS, NodeKind};

use self::kinds::Pass;
use super::{BatchTensor, Inputs, Loss, Mode, ModelParameter, Network, Sizes, Statistic};
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::catalogue::Attributes;
use crate::program::graph::TensorId;
use crate::program::inputs::shape_error;
use crate::program::keys::Key;
use crate::program::operators::LossRule;
use crate::program::products::ProductTable;

/// A tensor that a node reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// The inputs of the batch.
    Inputs,
    /// A parameter, by its number.
    Parameter(usize),
    /// The output of an earlier node, by its number.
    Node(usize),
}

/// An operator with the tensors that it reads.
pub(crate) struct NodeOf {
    pub name: String,
    pub kind: &'static NodeKind,
    pub sources: Vec<Source>,
    pub attributes: Attributes,
}

/// A network of nodes. The last node makes the logits.
pub(crate) struct Nodes {
    pub parameters: Vec<ModelParameter>,
    /// The inputs and the labels.
    pub batch: Vec<BatchTensor>,
    /// Samples of a micro-batch, and micro-batches of a step.
    pub samples: [u32; 2],
    pub norm_momentum: f32,
    pub nodes: Vec<NodeOf>,
}

impl Nodes {
    /// The error that appending the nodes finds, if there is one. Every tensor that a file declares has a shape of 1 to 4 dimensions.
    pub(crate) fn error(&self, loss: LossRule) -> Option<String> {
        let mut b = Builder::new(ProductTable::preset());
        let parameters: Vec<TensorId> =
            self.parameters.iter().map(|p| b.input(&*p.name, DType::F32, &p.shape)).collect();
        let batch = self.batch.iter().map(|t| b.input(&*t.name, t.dtype, &t.shape)).collect();
        let mut word = |count| b.input("scalar", DType::U32, &[count]);
        let [seed, step, first_sample] = [2, 1, 1].map(&mut word);
        let factor = b.input("factor", DType::F32, &[1]);
        let part = self.samples[1] > 1;
        let (mode, averages) = (Mode::Training, Vec::new());
        let inputs = Inputs { mode, loss, part, batch, averages, factor, seed, step, first_sample };
        self.append(&mut b, &parameters, &inputs).err()
    }

    fn append(&self, b: &mut Builder, parameters: &[TensorId], inputs: &Inputs) -> Result<Loss, String> {
        let mut made: Vec<TensorId> = Vec::new();
        let mut pass = Pass { inputs, samples: self.samples, moments: Vec::new(), next_drop: 0 };
        for node in &self.nodes {
            let tensor = |source: &Source| match *source {
                Source::Inputs => inputs.batch[0],
                Source::Parameter(number) => parameters[number],
                Source::Node(number) => made[number],
            };
            let ids: Vec<TensorId> = node.sources.iter().map(tensor).collect();
            let output = self.padding_error(node).map_or_else(|| node.append(b, &mut pass, &ids), Err);
            made.push(output.map_err(|why| format!("node {} ({}): {why}", node.name, node.kind.name))?);
        }
        let (Some(&logits), Some(last)) = (made.last(), self.nodes.last()) else {
            return Err("there are no nodes".into());
        };
        let (shape, labels) = (b.shape(logits), &self.batch[1]);
        let fits = matches!(shape[..], [rows, classes] if labels.shape == [rows] && labels.below <= classes);
        if !fits {
            return Err(format!(
                "node {}, the last, makes the logits {shape:?}, which must be [N, V] for labels {:?} below {}",
                last.name, labels.shape, labels.below
            ));
        }
        Ok(inputs.loss(b, logits, inputs.batch[1], pass.moments))
    }

    /// The error in a node's id of padding, if no position of the batch can have that id. The table of an embedding checks its own.
    fn padding_error(&self, node: &NodeOf) -> Option<String> {
        let (padding, below) = (node.attributes.ignore?, self.batch[0].below);
        let reads_ids = node.kind.name == "padded_attention" && node.sources.last() == Some(&Source::Inputs);
        let why = || format!("ignore ({padding}) must be an id of the inputs, which are below {below}");
        (reads_ids && padding >= below).then(why)
    }

    fn of_kind(&self, name: &str) -> impl Iterator<Item = &NodeOf> {
        self.nodes.iter().filter(move |node| node.kind.name == name)
    }
}

impl NodeOf {
    fn append(&self, b: &mut Builder, pass: &mut Pass, ids: &[TensorId]) -> Result<TensorId, String> {
        let shapes: Vec<Vec<u32>> = ids.iter().map(|&id| b.shape(id)).collect();
        if let Some(why) = shape_error(self.kind.inputs, &shapes) {
            return Err(why);
        }
        for (input, &id) in self.kind.inputs.iter().zip(ids) {
            let is = b.tensor(id).dtype;
            if is != input.dtype {
                return Err(format!("{} holds {is:?}, and {:?} is wanted", input.name, input.dtype));
            }
        }
        b.scoped(&self.name, |b| (self.kind.append)(b, pass, ids, &self.attributes))
    }
}

impl Network for Nodes {
    fn keys() -> &'static [Key] {
        &[]
    }

    fn small(_: u32) -> Vec<Nodes> {
        Vec::new()
    }

    fn contradiction(&self) -> Option<(&'static str, String)> {
        None
    }

    /// Nothing: each node checks its own sizes.
    fn sizes(&self, _: u64) -> Sizes {
        Sizes::default()
    }

    fn parameters(&self) -> Vec<ModelParameter> {
        self.parameters.clone()
    }

    fn statistics(&self) -> Vec<Statistic> {
        let statistic = |node: &NodeOf| {
            let Some(Source::Parameter(gain)) = node.sources.get(1) else { return None };
            Some(Statistic { name: node.name.clone(), channels: self.parameters[*gain].shape[0] })
        };
        self.of_kind("batch_norm").filter_map(statistic).collect()
    }

    fn norm_momentum(&self) -> f32 {
        self.norm_momentum
    }

    fn batch(&self, _: u32) -> Vec<BatchTensor> {
        self.batch.clone()
    }

    fn labels_per_sample(&self) -> u32 {
        self.batch[1].shape[0] / self.samples[0]
    }

    fn forward(&self, b: &mut Builder, _: u32, parameters: &[TensorId], inputs: &Inputs) -> Loss {
        self.append(b, parameters, inputs).expect("the nodes were appended once without an error")
    }
}
