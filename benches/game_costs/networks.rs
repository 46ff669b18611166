//! The networks, their data, and the disputed nodes.

use std::path::Path;

use tiebreak_contract::program::graph::{Node, Primitive};
use tiebreak_contract::program::step::Program;

/// A node that somebody lies about.
pub struct Target {
    /// The target's name.
    pub name: &'static str,
    which: Which,
    /// True if the liar's terms give its element, so that they are searched.
    pub clever: bool,
}

enum Which {
    /// The first activation: the node of `tiebreak train --cheat operator@STEP`.
    Activation,
    /// The forward product with this many columns.
    Columns(u32),
    /// The product with the most terms.
    LongestProduct,
    /// The sum over segments with the most elements.
    Segments,
    /// No node: the step's state is not the one that its operators give.
    State,
}

impl Target {
    /// The index in the graph of a micro-batch; `None`: the lie is about the state.
    pub fn node(&self, program: &Program) -> Option<usize> {
        let graph = &program.micro;
        let shape = |node: &Node| match &node.primitive {
            Primitive::Product { a, b, .. } => Some((graph.tensor(*a).shape[2], graph.tensor(*b).shape[1])),
            _ => None,
        };
        let activation = |node: &Node| match &node.primitive {
            Primitive::Map { body, .. } => body.name.starts_with("gelu.") || body.name.starts_with("relu."),
            _ => false,
        };
        let segments = |node: &Node| match &node.primitive {
            Primitive::SegmentSum { .. } => graph.tensor(node.output).len(),
            _ => 0,
        };
        let mut places = 0..graph.nodes.len();
        match self.which {
            Which::Activation => places.find(|&i| activation(&graph.nodes[i])),
            Which::Columns(n) => {
                places.find(|&i| shape(&graph.nodes[i]).is_some_and(|(_, columns)| columns == n))
            }
            Which::LongestProduct => {
                places.max_by_key(|&i| shape(&graph.nodes[i]).map_or(0, |(terms, _)| terms))
            }
            Which::Segments => places.max_by_key(|&i| segments(&graph.nodes[i])),
            Which::State => None,
        }
    }
}

/// A network that is trained.
pub struct Network {
    pub name: &'static str,
    pub steps: u32,
    /// The disputed step.
    pub step: u32,
    pub targets: Vec<Target>,
    job: &'static str,
    data: fn() -> Vec<(&'static str, Vec<u8>)>,
}

impl Network {
    /// Writes job and data into a folder.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::write(folder.join("job.toml"), format!("steps = {}\n{}", self.steps, self.job))?;
        (self.data)().into_iter().try_for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes))
    }
}

const PERCEPTRON: &str = r#"clip_norm = 1.0
model = { kind = "mlp", inputs = 784, hidden = [256, 128], classes = 10, dropout = 0.1 }
data = { kind = "idx", images = "images", labels = "labels" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 5e-4 }
schedule = { peak = 0.05 }
batch = { micro_batch = 64, micro_batches = 2 }
checkpoint = { every = 25 }
"#;

const GPT2: &str = r#"clip_norm = 1.0
model = { kind = "gpt", vocabulary = 50257, context = 64, layers = 12, heads = 12, width = 768, tied = true, dropout = 0.1 }
data = { kind = "tokens", path = "text.u16", dtype = "u16" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 6e-4, warmup = 1, floor = 6e-5 }
batch = { micro_batch = 1, micro_batches = 1 }
"#;

const SMALL_GPT: &str = r#"clip_norm = 1.0
model = { kind = "gpt", vocabulary = 16384, context = 512, layers = 1, heads = 2, width = 64, tied = true, dropout = 0.1 }
data = { kind = "tokens", path = "text.u16", dtype = "u16" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 6e-4, warmup = 1, floor = 6e-5 }
batch = { micro_batch = 4, micro_batches = 1 }
"#;

const RESNET50: &str = r#"model = { kind = "resnet", height = 32, width = 32, planes = 3, block = "bottleneck", order = "post", stem = "cifar", norm = "batch", stages = [64, 128, 256, 512], blocks = [3, 4, 6, 3], classes = 10 }
data = { kind = "cifar10", path = "images.bin" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 5e-4 }
schedule = { peak = 0.05 }
batch = { micro_batch = 4, micro_batches = 1 }
"#;

/// Bytes that look random.
fn drawn(count: u32) -> impl Iterator<Item = u8> {
    (0..count).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
}

fn digits() -> Vec<(&'static str, Vec<u8>)> {
    let header = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_be_bytes()).collect() };
    let images = header(&[0x803, 1000, 28, 28]).into_iter().chain(drawn(1000 * 784)).collect();
    let labels = header(&[0x801, 1000]).into_iter().chain((0..1000u32).map(|i| (i * 7 % 10) as u8)).collect();
    vec![("images", images), ("labels", labels)]
}

fn tokens() -> Vec<(&'static str, Vec<u8>)> {
    let token = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) % 50257;
    vec![("text.u16", (0..5000).flat_map(|i| (token(i) as u16).to_le_bytes()).collect())]
}

/// Every second token is the same.
fn one_token() -> Vec<(&'static str, Vec<u8>)> {
    let token = |i: u32| if i.is_multiple_of(2) { 7 } else { (i.wrapping_mul(2_654_435_761) >> 8) % 16384 };
    vec![("text.u16", (0..5000).flat_map(|i| (token(i) as u16).to_le_bytes()).collect())]
}

fn pictures() -> Vec<(&'static str, Vec<u8>)> {
    let mut bytes: Vec<u8> = drawn(3073 * 100).collect();
    bytes.iter_mut().step_by(3073).for_each(|label| *label %= 10);
    vec![("images.bin", bytes)]
}

/// All networks.
pub fn all() -> Vec<Network> {
    let target = |name, which| Target { name, which, clever: false };
    let clever = |name, which| Target { name, which, clever: true };
    vec![
        Network {
            name: "perceptron, 784-256-128-10, 2 x 64 samples",
            steps: 100,
            step: 60,
            targets: vec![target("first activation", Which::Activation)],
            job: PERCEPTRON,
            data: digits,
        },
        Network {
            name: "ResNet-50 at 32 x 32, 4 samples",
            steps: 2,
            step: 2,
            targets: vec![
                target("first activation", Which::Activation),
                target("product with the most terms", Which::LongestProduct),
            ],
            job: RESNET50,
            data: pictures,
        },
        Network {
            name: "GPT of one layer, 4 x 512 tokens, half of them one token",
            steps: 2,
            step: 2,
            targets: vec![
                clever(
                    "product with the most terms (K = 16,384), which come to the element",
                    Which::LongestProduct,
                ),
                clever("embedding's gradient, a segment of 1,024 rows", Which::Segments),
            ],
            job: SMALL_GPT,
            data: one_token,
        },
        Network {
            name: "GPT-2 124M, 64 tokens",
            steps: 2,
            step: 2,
            targets: vec![
                target("first activation", Which::Activation),
                target("head, K = 768", Which::Columns(50257)),
                target("product with the most terms", Which::LongestProduct),
                clever("product with the most terms, which come to the element", Which::LongestProduct),
                target("embedding's gradient", Which::Segments),
                target("state", Which::State),
            ],
            job: GPT2,
            data: tokens,
        },
    ]
}
