//! Network files: the nodes of a network, its parameters and its optimizer as JSON, from which a program is derived.
//!
//! A file comes from anybody. Every number has a bound that is checked before anything is made of it, and an error names the
//! parameter or the node. The format: `docs/NETWORKS.md`.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::catalogue::Attributes;
use super::keys::{BELOW_ONE, NOT_NEGATIVE, Type, integer};
use super::models::nodes::{NODE_KINDS, NodeKind, NodeOf, Nodes, Source};
use super::models::{BatchTensor, Init, Mode, ModelParameter, Network};
use super::operators::LossRule;
use super::optimizer::{Decay, Optimizer, Treatment};
use super::products::{ProductClass, ProductDigits, ProductTable};
use super::step::{Program, StepSpec};
use super::validate;
use crate::arith::DType;
use crate::arith::rounding_grid::GridRule;

mod evaluated;
mod grid;
mod passes;

pub use evaluated::NetworkModel;
use grid::GridText;
#[doc(hidden)] // for the layers above
pub use passes::{Asked, pass};

/// The most bytes of a network file.
pub const NETWORK_MAX: u64 = 1 << 24;
/// The first key of every network file.
const FORMAT: &str = "tiebreak network 1";
/// The name by which nodes read the inputs of the batch.
const INPUTS: &str = "inputs";
/// The most nodes, and the most parameters.
const NODES_MAX: usize = 1 << 13;
/// The most bytes of a name: the program's names have it with something before and behind.
const NAME_MAX: usize = 128;

const GEOMETRY: i128 = (1 << 15) - 1;
const ABOVE_ZERO: Type = Type::Number { least: 0.0, above: true, below: None };

/// The attributes of nodes: name, type with bounds, and meaning.
#[rustfmt::skip]
pub const ATTRIBUTES: &[(&str, Type, &str)] = &[
    ("cap", ABOVE_ZERO, "The bound of the scaled products of queries and keys."),
    ("count", integer(1, GEOMETRY), "Channels, positions or rows of the result."),
    ("epsilon", ABOVE_ZERO, "The number that is added to the variance."),
    ("first", integer(0, GEOMETRY), "The number of the first channel, position or row, counted from 0."),
    ("groups", integer(1, 1 << 20), "Groups of channels that do not see each other."),
    ("heads", integer(1, 1 << 16), "Heads of q, or of x."),
    ("ignore", integer(0, (1 << 31) - 1), "The id of padding: its row of a table has no gradient, and no position attends to it."),
    ("kernel", integer(1, GEOMETRY), "Pixels of a window, down and across."),
    ("p", BELOW_ONE, "The probability that an element is dropped."),
    ("padding", integer(0, GEOMETRY), "Rows and columns of zeros around an image."),
    ("size", Type::List { of: &integer(1, GEOMETRY), least: 2, most: 2 }, "Pixels down and across."),
    ("step", integer(1, GEOMETRY), "From the number of one channel, position or row to the next."),
    ("stride", integer(1, GEOMETRY), "Pixels from one patch or window to the next."),
    ("theta", Type::Number { least: 1.0, above: false, below: None }, "The base of the frequencies."),
    ("window", integer(1, 1 << 16), "The last positions that a position attends to, its own included."),
    ("windows", Type::List { of: &integer(1, GEOMETRY), least: 2, most: 2 }, "Windows down and across."),
];

/// Why a text is no network, or a network no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NetworkError(pub String);

type Result<T> = std::result::Result<T, NetworkError>;

fn wrong<T>(why: impl Into<String>) -> Result<T> {
    Err(NetworkError(why.into()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    micro_batch: u32,
    #[serde(default = "one")]
    micro_batches: u32,
    inputs: InputsText,
    labels: LabelsText,
    parameters: Vec<ParameterText>,
    nodes: Vec<NodeText>,
    #[serde(default)]
    loss: LossRule,
    norm_momentum: Option<f32>,
    optimizer: OptimizerText,
    clip_norm: Option<f32>,
    digits: Option<u8>,
    /// Without it the products are exact.
    #[serde(default, deserialize_with = "grid::given")]
    grid: Option<GridText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InputsText {
    name: String,
    shape: Vec<u32>,
    /// Without it the inputs are binary32.
    below: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LabelsText {
    shape: Vec<u32>,
    below: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ParameterText {
    name: String,
    shape: Vec<u32>,
    #[serde(default)]
    init: InitText,
    #[serde(default)]
    weight_decay: f32,
    #[serde(default = "factor_one")]
    rate_factor: f32,
    #[serde(default)]
    frozen: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum InitText {
    #[default]
    Zeros,
    Ones,
    Normal(f32),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeText {
    name: String,
    operator: String,
    inputs: Vec<String>,
    #[serde(default)]
    attributes: Given,
}

/// Names with values as a file has them, each name once.
#[derive(Default)]
struct Given(Vec<(String, Value)>);

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum OptimizerText {
    Adamw {
        beta1: f32,
        beta2: f32,
        epsilon: f32,
        #[serde(default)]
        decay: Decay,
    },
    Sgd {
        momentum: f32,
        #[serde(default)]
        decay: Decay,
    },
}

fn one() -> u32 {
    1
}

/// The digits of a logged job. The last layer of a network is of the class `linear`, so the loss's gradient is an operand of that
/// class, and has four.
fn logged_digits() -> ProductTable {
    let mut table = ProductTable::logged_preset();
    for class in [ProductClass::LinearDx, ProductClass::LinearDw] {
        table.set(class, ProductDigits { digits_a: 4, digits_b: 3, block: 0 });
    }
    table
}

fn factor_one() -> f32 {
    1.0
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Given, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Given;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("attributes by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Given, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Given(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// A name of a file, short enough for an error.
fn short(name: &str) -> String {
    name.chars().take(40).collect()
}

/// Checks a number's bounds.
fn bounded(of: &str, ty: Type, value: f32) -> Result<()> {
    if ty.has_number(value.into()) {
        return Ok(());
    }
    wrong(format!("{of}: must be a finite number {}, is {value}", ty.bounds()))
}

fn name_error(name: &str) -> Option<&'static str> {
    let fits = (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    (!fits).then_some("a name has 1 to 128 printing characters of ASCII, and no space")
}

/// Checks the dimensions of a tensor.
fn shape_checked(of: &str, shape: &[u32]) -> Result<()> {
    let elements = shape.iter().fold(1u64, |n, &d| n.saturating_mul(d.into()));
    if (1..=4).contains(&shape.len()) && (1..1 << 31).contains(&elements) {
        return Ok(());
    }
    wrong(format!("{of}: the shape is not of 1 to 4 dimensions and 1 to 2^31 - 1 elements"))
}

/// The program that a network file describes.
///
/// # Errors
/// If the text is no network file, or its network no program that engines can run. The message names the parameter or the node.
pub fn compile(text: &str) -> Result<Program> {
    read(text)?.program()
}

/// The program that a network file describes, and the model as evaluations use it.
///
/// # Errors
/// As [`compile`], and if the logits of a sample would depend on other samples.
pub fn model(text: &str) -> Result<(Program, NetworkModel)> {
    let read = read(text)?;
    Ok((read.program()?, read.model()?))
}

/// A network file that was read.
struct Read {
    file: File,
    nodes: Nodes,
    treatments: Vec<Treatment>,
}

/// Reads a network file. It begins with `{`, so that nobody takes it for a job, and no job for a network file.
fn read(text: &str) -> Result<Read> {
    read_text(text, None)
}

/// [`read`] of a network whose outputs are these; by default the last node.
fn read_text(text: &str, outputs: Option<&[String]>) -> Result<Read> {
    if text.len() as u64 > NETWORK_MAX {
        return wrong(format!("a network file has at most {NETWORK_MAX} bytes"));
    }
    if !text.starts_with('{') {
        return wrong("a network file is one object of JSON, and begins with {");
    }
    let file: File = serde_json::from_str(text).map_err(|error| NetworkError(error.to_string()))?;
    file.numbers()?;
    let is_module = outputs.is_some();
    if file.parameters.is_empty() && !is_module {
        return wrong(format!("parameters: a network has 1 to {NODES_MAX}"));
    }
    let (parameters, treatments) = file.parameters()?;
    let nodes = file.nodes(is_module)?;
    file.all_are_read(&nodes, outputs)?;
    let nodes = Nodes {
        parameters,
        batch: file.batch(),
        samples: [file.micro_batch, file.micro_batches],
        norm_momentum: file.norm_momentum.unwrap_or(0.0),
        nodes,
        activations: Vec::new(),
    };
    Ok(Read { file, nodes, treatments })
}

impl Read {
    fn products(&self) -> ProductTable {
        let mut table = match (self.file.digits, self.file.grid) {
            (Some(digits), _) => ProductTable::uniform(digits),
            (None, None) => ProductTable::preset(),
            (None, Some(_)) => logged_digits(),
        };
        if let Some(GridText { bits, floor }) = self.file.grid {
            ProductClass::ALL.into_iter().for_each(|class| table.set_logged(class, GridRule { bits, floor }));
        }
        table
    }

    fn program(&self) -> Result<Program> {
        let Read { file, nodes, treatments } = self;
        let File { micro_batch, micro_batches, loss, clip_norm, .. } = *file;
        if let Some(why) = nodes.error(Mode::Training, loss, micro_batch) {
            return wrong(why);
        }
        let model: &dyn Network = nodes;
        let (optimizer, _) = file.optimizer.parts();
        let products = self.products();
        let spec = StepSpec { model, optimizer, clip_norm, loss, micro_batch, micro_batches, products };
        let program = Program::with_treatments(spec, treatments.clone());
        validate::program(&program).map_err(NetworkError)?;
        Ok(program)
    }

    fn model(self) -> Result<NetworkModel> {
        let products = self.products();
        let File { digits, grid, loss, micro_batch, .. } = self.file;
        let (nodes, ignored) = (self.nodes, loss.ignore);
        let attentions = Err(String::new());
        let grid = grid.map(|GridText { bits, floor }| GridRule { bits, floor });
        let mut model = NetworkModel { nodes, products, digits, grid, ignored, micro_batch, attentions };
        if let Some(why) = model.error(1) {
            return wrong(why);
        }
        model.attentions = model.nodes.attentions();
        Ok(model)
    }
}

impl OptimizerText {
    /// The optimizer, and the point where weight decay enters. Each parameter has a weight decay of its own.
    fn parts(&self) -> (Optimizer, Decay) {
        let weight_decay = 0.0;
        match *self {
            OptimizerText::Adamw { beta1, beta2, epsilon, decay } => {
                (Optimizer::Adamw { beta1, beta2, epsilon, weight_decay }, decay)
            }
            OptimizerText::Sgd { momentum, decay } => (Optimizer::Sgd { momentum, weight_decay }, decay),
        }
    }
}

impl File {
    /// Checks everything but parameters and nodes.
    fn numbers(&self) -> Result<()> {
        if self.format != FORMAT {
            return wrong(format!("format: must be {FORMAT:?}, is {:?}", short(&self.format)));
        }
        let samples = u64::from(self.micro_batch) * u64::from(self.micro_batches);
        let batch = (1..=validate::SAMPLES_MAX).contains(&samples);
        if !batch || self.micro_batches > validate::MICRO_BATCHES_MAX {
            return wrong("micro_batch: a step has 1 to 2^24 samples in 1 to 2^16 micro-batches");
        }
        if let Some(why) = name_error(&self.inputs.name) {
            return wrong(format!("inputs: {why}"));
        }
        for (of, shape) in [("inputs", &self.inputs.shape), ("labels", &self.labels.shape)] {
            shape_checked(of, shape)?;
            if !shape[0].is_multiple_of(self.micro_batch) {
                return wrong(format!("{of}: the first dimension must be a multiple of micro_batch"));
            }
        }
        if self.labels.below == 0 || self.inputs.below == Some(0) {
            return wrong("below: must be above 0");
        }
        if self.labels.shape.len() != 1 || samples * u64::from(self.labels.shape[0]) > u64::from(u32::MAX) {
            return wrong("labels: the shape has one dimension, and a step has at most 2^32 - 1 labels");
        }
        if let Some(digits) = self.digits
            && let Some(why) = ProductDigits::uniform(digits).error()
        {
            return wrong(format!("digits: {why}, is {digits}"));
        }
        if let Some(GridText { bits, floor }) = self.grid
            && !(GridRule { bits, floor }).is_allowed()
        {
            return wrong(format!(
                "grid: 16 bits with a floor of 0 or 4 to 40, or 26 to 30 or 32 bits with a floor of 0, is {bits} bits with {floor}"
            ));
        }
        bounded("loss.smoothing", BELOW_ONE, self.loss.smoothing)?;
        if self.loss.ignore.is_some_and(|label| label >= self.labels.below) {
            return wrong("loss.ignore: must be below labels.below");
        }
        if let Some(norm) = self.clip_norm {
            bounded("clip_norm", ABOVE_ZERO, norm)?;
        }
        let has_norm = self.nodes.iter().any(|node| node.operator == "batch_norm");
        match self.norm_momentum {
            Some(momentum) if has_norm => bounded("norm_momentum", BELOW_ONE, momentum)?,
            None if !has_norm => {}
            _ => return wrong("norm_momentum: a network has it if a node is a batch_norm, and only then"),
        }
        match self.optimizer {
            OptimizerText::Adamw { beta1, beta2, epsilon, .. } => {
                bounded("optimizer.beta1", BELOW_ONE, beta1)?;
                bounded("optimizer.beta2", BELOW_ONE, beta2)?;
                bounded("optimizer.epsilon", NOT_NEGATIVE, epsilon)
            }
            OptimizerText::Sgd { momentum, .. } => bounded("optimizer.momentum", BELOW_ONE, momentum),
        }
    }

    fn batch(&self) -> Vec<BatchTensor> {
        let InputsText { name, shape, below } = &self.inputs;
        let dtype = if below.is_some() { DType::U32 } else { DType::F32 };
        let inputs =
            BatchTensor { name: name.clone(), dtype, shape: shape.clone(), below: below.unwrap_or(0) };
        let LabelsText { shape, below } = &self.labels;
        vec![
            inputs,
            BatchTensor { name: "labels".into(), dtype: DType::U32, shape: shape.clone(), below: *below },
        ]
    }

    /// The parameters, and how each is trained.
    fn parameters(&self) -> Result<(Vec<ModelParameter>, Vec<Treatment>)> {
        if self.parameters.len() > NODES_MAX {
            return wrong(format!("parameters: a network has 1 to {NODES_MAX}"));
        }
        let (_, decay) = self.optimizer.parts();
        let mut all = (Vec::new(), Vec::new());
        for ParameterText { name, shape, init, weight_decay, rate_factor, frozen } in &self.parameters {
            if let Some(why) = name_error(name) {
                return wrong(format!("parameter {}: {why}", short(name)));
            }
            let of = |key: &str| format!("parameter {name}: {key}");
            shape_checked(&format!("parameter {name}"), shape)?;
            let init = match init {
                InitText::Zeros => Init::Zeros,
                InitText::Ones => Init::Ones,
                InitText::Normal(std) => Init::Normal { std: *std },
            };
            if let Init::Normal { std } = init {
                bounded(&of("init"), NOT_NEGATIVE, std)?;
            }
            bounded(&of("weight_decay"), NOT_NEGATIVE, *weight_decay)?;
            bounded(&of("rate_factor"), NOT_NEGATIVE, *rate_factor)?;
            let (frozen, weight_decay, rate_factor) = (*frozen, *weight_decay, *rate_factor);
            let decayed = weight_decay != 0.0;
            all.0.push(ModelParameter { name: name.clone(), shape: shape.clone(), init, decayed });
            all.1.push(Treatment { frozen, weight_decay, decay, rate_factor });
        }
        Ok(all)
    }

    /// The nodes, with the tensors that they read.
    fn nodes(&self, may_be_none: bool) -> Result<Vec<NodeOf>> {
        if self.nodes.len() > NODES_MAX || (self.nodes.is_empty() && !may_be_none) {
            return wrong(format!("nodes: a network has 1 to {NODES_MAX}"));
        }
        let mut known: HashMap<&str, Source> = HashMap::from([(INPUTS, Source::Inputs)]);
        for (number, parameter) in self.parameters.iter().enumerate() {
            if known.insert(&parameter.name, Source::Parameter(number)).is_some() {
                return wrong(format!("parameter {}: two tensors have this name", parameter.name));
            }
        }
        let mut nodes = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let of_node = |why: String| NetworkError(format!("node {}: {why}", short(&node.name)));
            if let Some(why) = name_error(&node.name) {
                return Err(of_node(why.into()));
            }
            nodes.push(node.resolved(&known).map_err(of_node)?);
            if known.insert(&node.name, Source::Node(number)).is_some() {
                return Err(of_node("two tensors have this name".into()));
            }
        }
        Ok(nodes)
    }

    /// Checks that the outputs, by default the last node, depend on every node, on every parameter and on the inputs. Outputs that are
    /// given may leave out the inputs.
    fn all_are_read(&self, nodes: &[NodeOf], outputs: Option<&[String]>) -> Result<()> {
        let mut read: HashSet<Source> = match outputs {
            Some(outputs) => outputs.iter().map(|name| self.named(name)).collect::<Result<_>>()?,
            None => HashSet::from([Source::Node(nodes.len() - 1)]),
        };
        for (number, node) in nodes.iter().enumerate().rev() {
            if !read.contains(&Source::Node(number)) {
                let what =
                    if outputs.is_some() { "no output depends" } else { "the last node does not depend" };
                return wrong(format!("node {}: {what} on it", node.name));
            }
            read.extend(&node.sources);
        }
        let unread = (0..self.parameters.len()).find(|&number| !read.contains(&Source::Parameter(number)));
        match unread {
            Some(number) => wrong(format!("parameter {}: no node reads it", self.parameters[number].name)),
            None if outputs.is_none() && !read.contains(&Source::Inputs) => {
                wrong("inputs: no node reads them")
            }
            None => Ok(()),
        }
    }
}

impl NodeText {
    /// The node with the tensors that it reads, all of which are known.
    fn resolved(&self, known: &HashMap<&str, Source>) -> std::result::Result<NodeOf, String> {
        let Some(kind) = NodeKind::by_name(&self.operator) else {
            let names: Vec<&str> = NODE_KINDS.iter().map(|kind| kind.name).collect();
            return Err(format!(
                "there is no operator {:?}; here are {}",
                short(&self.operator),
                names.join(", ")
            ));
        };
        if self.inputs.len() != kind.inputs.len() {
            let names: Vec<&str> = kind.inputs.iter().map(|input| input.name).collect();
            let (found, due) = (self.inputs.len(), names.len());
            return Err(format!("{} takes {due} inputs: {}; it has {found}", kind.name, names.join(", ")));
        }
        let source = |name: &String| {
            let unknown =
                || format!("it reads {:?}, which is no parameter and no node before it", short(name));
            known.get(&**name).copied().ok_or_else(unknown)
        };
        let sources = self.inputs.iter().map(source).collect::<std::result::Result<Vec<_>, _>>()?;
        if kind.name == "batch_norm" && !matches!(sources[1], Source::Parameter(_)) {
            return Err("the gain of a batch_norm must be a parameter".into());
        }
        Ok(NodeOf { name: self.name.clone(), kind, sources, attributes: self.attributes(kind)? })
    }

    /// The attributes: each that the operator has, and no other.
    fn attributes(&self, kind: &NodeKind) -> std::result::Result<Attributes, String> {
        let Given(given) = &self.attributes;
        for (place, (name, _)) in given.iter().enumerate() {
            if !kind.attributes.contains(&&**name) {
                return Err(format!("{} has no attribute {:?}", kind.name, short(name)));
            }
            if given[..place].iter().any(|(before, _)| before == name) {
                return Err(format!("the attribute {name} stands twice"));
            }
        }
        let mut attributes = Attributes::default();
        for (name, ty, _) in ATTRIBUTES.iter().filter(|(name, ..)| kind.attributes.contains(name)) {
            let Some((_, value)) = given.iter().find(|(given, _)| given == name) else {
                return Err(format!("the attribute {name} is missing"));
            };
            set(&mut attributes, name, *ty, value)?;
        }
        Ok(attributes)
    }
}

/// Sets an attribute to a value of its type.
fn set(attributes: &mut Attributes, name: &str, ty: Type, value: &Value) -> std::result::Result<(), String> {
    let refused = || format!("{name}: must be {ty}");
    let integer = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(refused);
    if ty.error(value).is_some() {
        return Err(refused());
    }
    let pair = || match value.as_array().map(Vec::as_slice) {
        Some([down, across]) => Ok([integer(down)?, integer(across)?]),
        _ => Err(refused()),
    };
    let number = || value.as_f64().map(|x| x as f32).ok_or_else(refused);
    match name {
        "cap" => attributes.cap = number()?,
        "count" => attributes.count = integer(value)?,
        "epsilon" => attributes.epsilon = number()?,
        "first" => attributes.first = integer(value)?,
        "p" => attributes.p = number()?,
        "theta" => attributes.theta = number()?,
        "groups" => attributes.groups = integer(value)?,
        "heads" => attributes.heads = integer(value)?,
        "ignore" => attributes.ignore = Some(integer(value)?),
        "kernel" => attributes.kernel = integer(value)?,
        "padding" => attributes.padding = integer(value)?,
        "step" => attributes.step = integer(value)?,
        "stride" => attributes.stride = integer(value)?,
        "window" => attributes.window = Some(integer(value)?),
        "size" => attributes.size = pair()?,
        "windows" => attributes.windows = pair()?,
        _ => unreachable!("the table has no other attribute"),
    }
    Ok(())
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
