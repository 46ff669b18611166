//! A network that is a list of nodes, each an operator on parameters, the batch's inputs and earlier nodes.

mod kinds;
mod writing;

pub use kinds::{NODE_KINDS, NodeKind};

use std::collections::HashMap;

use self::kinds::Pass;
use super::{BatchTensor, Inputs, Loss, Mode, ModelParameter, Network, Sizes, Statistic};
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::catalogue::{Attributes, Input};
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
    /// The parameters that have rows of each sample, by their numbers: those that are inputs of a module of PyTorch.
    pub activations: Vec<usize>,
}

impl Nodes {
    /// The error that appending the nodes of a pass over `samples` finds, if there is one. Every tensor that a file declares has a
    /// shape of 1 to 4 dimensions.
    pub(crate) fn error(&self, mode: Mode, loss: LossRule, samples: u32) -> Option<String> {
        let batch = self.batch(samples);
        let elements = |t: &BatchTensor| t.shape.iter().fold(1u64, |n, &d| n.saturating_mul(d.into()));
        if let Some(tensor) = batch.iter().find(|tensor| elements(tensor) >= 1 << 31) {
            return Some(format!("{}: {samples} samples have more than 2^31 - 1 elements", tensor.name));
        }
        let mut b = Builder::new(ProductTable::preset());
        let parameters: Vec<TensorId> =
            self.parameters.iter().map(|p| b.input(&*p.name, DType::F32, &p.shape)).collect();
        let batch = batch.iter().map(|t| b.input(&*t.name, t.dtype, &t.shape)).collect();
        let average = |s: &Statistic| [(); 2].map(|()| b.input("average", DType::F32, &[s.channels]));
        let averages = self.statistics().iter().map(average).collect();
        let mut word = |count| b.input("scalar", DType::U32, &[count]);
        let [seed, step, first_sample] = [2, 1, 1].map(&mut word);
        let factor = b.input("factor", DType::F32, &[1]);
        let part = self.samples[1] > 1;
        let inputs = Inputs { mode, loss, part, batch, averages, factor, seed, step, first_sample };
        self.append(&mut b, samples, &parameters, &inputs).err()
    }

    fn append(
        &self,
        b: &mut Builder,
        samples: u32,
        parameters: &[TensorId],
        inputs: &Inputs,
    ) -> Result<Loss, String> {
        let mut pass = Pass::new(inputs, [samples, self.samples[1]]);
        let (logits, last) = self.logits(b, &mut pass, parameters)?;
        let (shape, wanted, below) = (b.shape(logits), b.shape(inputs.batch[1]), self.batch[1].below);
        let fits = matches!(shape[..], [rows, classes] if wanted == [rows] && below <= classes);
        if !fits {
            return Err(format!(
                "node {}, the last, makes the logits {shape:?}, which must be [N, V] for labels {wanted:?} below {below}",
                last.name
            ));
        }
        Ok(inputs.loss(b, logits, inputs.batch[1], pass.moments))
    }

    /// Appends the nodes. Returns the output of the last one, and its node.
    fn logits(
        &self,
        b: &mut Builder,
        pass: &mut Pass,
        parameters: &[TensorId],
    ) -> Result<(TensorId, &NodeOf), String> {
        match (self.made(b, pass, parameters)?.last(), self.nodes.last()) {
            (Some(&logits), Some(last)) => Ok((logits, last)),
            _ => Err("there are no nodes".into()),
        }
    }

    /// Appends the nodes in evaluation mode, with these running averages. Returns the output of each.
    pub(in crate::program) fn values(
        &self,
        b: &mut Builder,
        samples: u32,
        parameters: &[TensorId],
        averages: &[[TensorId; 2]],
        batch: TensorId,
    ) -> Result<Vec<TensorId>, String> {
        self.made(b, &mut Pass::with_averages(batch, samples, averages), parameters)
    }

    /// Appends the nodes. Returns the output of each.
    fn made(
        &self,
        b: &mut Builder,
        pass: &mut Pass,
        parameters: &[TensorId],
    ) -> Result<Vec<TensorId>, String> {
        let mut made: Vec<TensorId> = Vec::new();
        let of_samples = if pass.is_evaluation() { self.of_samples()? } else { Vec::new() };
        let mut paddings = HashMap::new();
        for (number, node) in self.nodes.iter().enumerate() {
            pass.is_constant = of_samples.get(number) == Some(&false);
            let tensor = |source: &Source| match *source {
                Source::Inputs => pass.batch,
                Source::Parameter(number) => parameters[number],
                Source::Node(number) => made[number],
            };
            let ids: Vec<TensorId> = node.sources.iter().map(tensor).collect();
            let output = self.padding_error(node).map_or_else(|| node.append(b, pass, &ids), Err);
            let output = output.and_then(|output| node.one_padding(&mut paddings, output).map(|()| output));
            made.push(output.map_err(|why| node.named(&why))?);
        }
        Ok(made)
    }

    /// The error in a node's id of padding, if no position of the batch can have that id. The table of an embedding checks its own.
    fn padding_error(&self, node: &NodeOf) -> Option<String> {
        let (padding, below) = (node.attributes.ignore?, self.batch[0].below);
        let reads_ids = node.kind.name == "padded_attention" && node.sources.last() == Some(&Source::Inputs);
        let why = || format!("ignore ({padding}) must be an id of the inputs, which are below {below}");
        (reads_ids && padding >= below).then(why)
    }

    /// For each node: true if its output has rows of each sample, one sample after another, and false if no sample acts on it.
    ///
    /// # Errors
    /// If a row of a sample could depend on another sample, or on the number of samples.
    fn of_samples(&self) -> Result<Vec<bool>, String> {
        let mut made: Vec<bool> = Vec::new();
        for node in &self.nodes {
            let of_samples = |source: &Source| match *source {
                Source::Inputs => true,
                Source::Parameter(number) => self.activations.contains(&number),
                Source::Node(number) => made[number],
            };
            let of_node = |why: String| node.named(&why);
            let (shared, rows): (Vec<_>, Vec<_>) =
                node.kind.inputs.iter().zip(&node.sources).partition(|(input, _)| is_shared(input));
            if let Some((Input { name, .. }, _)) = shared.into_iter().find(|(_, source)| of_samples(source)) {
                let why =
                    format!("{name} depends on the inputs, so that the logits of a sample depend on others");
                return Err(of_node(why));
            }
            let any = rows.iter().any(|(_, source)| of_samples(source));
            if let Some((Input { name, .. }, _)) =
                rows.into_iter().find(|(_, source)| of_samples(source) != any)
            {
                let why = format!("{name} has no rows of samples, and another input of the node has");
                return Err(of_node(why));
            }
            made.push(any);
        }
        Ok(made)
    }

    /// The keys and products that decide the logits, beside parameters and buffers. Layout: `docs/INFERENCE.md`, Receipts of
    /// predictions.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let words = |numbers: &[u32]| numbers.iter().map(|n| format!(" {n}")).collect::<String>();
        let [inputs, labels] = [0, 1].map(|place| self.batch(1)[place].clone());
        let mut settings = vec![
            ("network.inputs".to_string(), format!("{}{}", inputs.below, words(&inputs.shape))),
            ("network.rows".to_string(), labels.shape[0].to_string()),
        ];
        let parameter =
            |p: &ModelParameter| (format!("parameter.{}", p.name), words(&p.shape)[1..].to_string());
        settings.extend(self.parameters.iter().map(parameter));
        settings.extend(self.nodes.iter().enumerate().map(|(number, node)| {
            let source = |source: &Source| match *source {
                Source::Inputs => " inputs".to_string(),
                Source::Parameter(number) => format!(" {}", self.parameters[number].name),
                Source::Node(number) => format!(" {}", self.nodes[number].name),
            };
            let sources: String = node.sources.iter().map(source).collect();
            let text = format!("{} {}{sources}{}", node.name, node.kind.name, node.acting());
            (format!("node.{number}"), text)
        }));
        settings
    }

    fn of_kind(&self, name: &str) -> impl Iterator<Item = &NodeOf> {
        self.nodes.iter().filter(move |node| node.kind.name == name)
    }
}

/// True if all samples share an input of this name: it is a weight, and has no rows of samples.
fn is_shared(input: &Input) -> bool {
    ["weight", "bias", "gain", "table", "token"].contains(&input.name)
}

impl NodeOf {
    /// An error of this node.
    fn named(&self, why: &str) -> String {
        format!("node {} ({}): {why}", self.name, self.kind.name)
    }

    /// Refuses embeddings of one table and the same ids with other ids of padding: their rows are one operator, whose gradient leaves
    /// out one row, or none. `paddings` has what earlier nodes said of their outputs.
    fn one_padding(
        &self,
        paddings: &mut HashMap<TensorId, Option<u32>>,
        output: TensorId,
    ) -> Result<(), String> {
        if !["embedding", "padded_embedding"].contains(&self.kind.name) {
            return Ok(());
        }
        let padding = self.attributes.ignore;
        if *paddings.entry(output).or_insert(padding) == padding {
            return Ok(());
        }
        let text = |ignore: Option<u32>| ignore.map_or("none".to_string(), |ignore| ignore.to_string());
        let (earlier, here) = (text(paddings[&output]), text(padding));
        Err(format!(
            "an earlier embedding of the same table and ids has ignore {earlier}, this one {here}: give each a table of its own"
        ))
    }

    /// The attributes that act in an evaluation, as text.
    fn acting(&self) -> String {
        let Attributes {
            cap,
            count,
            epsilon,
            first,
            groups,
            heads,
            ignore,
            kernel,
            padding,
            size,
            step,
            stride,
            theta,
            window,
            windows,
            ..
        } = self.attributes;
        let text = |name: &&str| match *name {
            "cap" => format!(" {:08x}", cap.to_bits()),
            "epsilon" => format!(" {:08x}", epsilon.to_bits()),
            "theta" => format!(" {:08x}", theta.to_bits()),
            "count" => format!(" {count}"),
            "first" => format!(" {first}"),
            "groups" => format!(" {groups}"),
            "heads" => format!(" {heads}"),
            "ignore" => format!(" {}", ignore.unwrap_or_default()),
            "kernel" => format!(" {kernel}"),
            "padding" => format!(" {padding}"),
            "size" => format!(" {} {}", size[0], size[1]),
            "step" => format!(" {step}"),
            "stride" => format!(" {stride}"),
            "window" => format!(" {}", window.unwrap_or_default()),
            "windows" => format!(" {} {}", windows[0], windows[1]),
            // The probability of a dropout acts in training alone.
            "p" => String::new(),
            _ => unreachable!("the table has no other attribute"),
        };
        self.kind.attributes.iter().map(text).collect()
    }

    fn append(&self, b: &mut Builder, pass: &mut Pass, ids: &[TensorId]) -> Result<TensorId, String> {
        let shapes: Vec<Vec<u32>> = ids.iter().map(|&id| b.shape(id)).collect();
        if let Some(why) = shape_error(self.kind.inputs, &shapes) {
            return Err(why);
        }
        // The last dimension of such an input is one of channels.
        let is_row = |(input, shape): &(&Input, &Vec<u32>)| input.shape.starts_with("..") && shape.len() == 1;
        let row = self.kind.inputs.iter().zip(&shapes).find(is_row);
        if let Some((Input { name, .. }, shape)) = row
            && pass.is_evaluation()
            && !pass.is_constant
        {
            return Err(format!(
                "{name} has shape {shape:?}, so that the logits of a sample depend on others"
            ));
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

    fn batch(&self, samples: u32) -> Vec<BatchTensor> {
        let mut batch = self.batch.clone();
        batch.iter_mut().for_each(|tensor| {
            tensor.shape[0] = (tensor.shape[0] / self.samples[0]).saturating_mul(samples);
        });
        batch
    }

    fn labels_per_sample(&self) -> u32 {
        self.batch[1].shape[0] / self.samples[0]
    }

    fn forward(&self, b: &mut Builder, samples: u32, parameters: &[TensorId], inputs: &Inputs) -> Loss {
        self.append(b, samples, parameters, inputs).expect("the nodes were appended once without an error")
    }
}
