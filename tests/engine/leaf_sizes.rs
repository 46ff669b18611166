//! The largest leaf of every operator of GPT-2 124M, and of a residual network, in bytes of a verdict file whose tile was
//! disclosed. The program is built without memory for its tensors.

use std::collections::BTreeMap;

use crate::edit::edited;
use tiebreak_contract::program::graph::{Graph, Node, TensorId};
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_contract::program::step::Program;
use tiebreak_dispute::size::worst_leaf_bytes;
use tiebreak_job::Job;

/// The bound on a leaf's bytes.
const BOUND: usize = 64 << 10;
/// An operator that may take more, and how much (docs/AUDIT.md gives the reason).
type Exception = (&'static str, &'static str, usize);
const GPT2: [Exception; 2] = [
    // One token at every position of a micro-batch; n positions take about 1.5 KB each.
    ("segment_sum.v1", "embedding.backward", 6 << 20),
    // K is the vocabulary: the job can cut it into scale groups.
    ("product.v1", "head.backward", 448 << 10),
];

fn program(extra: &str) -> Program {
    let text = format!(
        r#"
steps = 1000
clip_norm = 1.0
model = {{ kind = "gpt", vocabulary = 50257, context = 1024, layers = 12, heads = 12, width = 768, dropout = 0.1 }}
data = {{ kind = "bytes", path = "text.txt" }}
optimizer = {{ kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }}
schedule = {{ peak = 6e-4, warmup = 100, floor = 6e-5 }}
batch = {{ micro_batch = 4, micro_batches = 64 }}
commit = {{ granularity = "operator" }}
{extra}"#
    );
    Job::parse("job", &text).unwrap().program(None).unwrap()
}

/// The key of a node's leaf sizes, without the phase: the primitive with its tensors' types in place of their numbers.
fn kind(graph: &Graph, node: &Node) -> String {
    let primitive = format!("{:?}", node.primitive);
    let mut parts = primitive.split("TensorId(");
    let mut kind = parts.next().unwrap_or_default().to_string();
    // A tensor is named by its first mention, since a tensor that is read twice is in a verdict once.
    let mut seen = Vec::new();
    for part in parts {
        let (id, rest) = part.split_once(')').unwrap();
        let id = TensorId(id.parse().unwrap());
        let first = seen.iter().position(|have| *have == id).unwrap_or(seen.len());
        seen.push(id);
        kind.push_str(&format!("{first}: {:?}{rest}", graph.tensor(id)));
    }
    format!("{kind} -> {:?}", graph.tensor(node.output))
}

/// The largest leaf of each (primitive, operator without its layer), among those that `chosen` accepts. Layers are alike, so each
/// kind of node is measured once.
fn worst(program: &Program, chosen: fn(&str) -> bool) -> BTreeMap<(String, String), usize> {
    let mut worst = BTreeMap::new();
    for phase in [Phase::Micro(0), Phase::Accumulate(0), Phase::Update] {
        let graph = graph_of(program, phase);
        let mut known = BTreeMap::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            let operator: Vec<&str> =
                node.operator.split('.').filter(|part| !part.starts_with("block")).collect();
            let operator = operator.join(".");
            if !chosen(&operator) {
                continue;
            }
            let measure = || worst_leaf_bytes(program, phase, index).unwrap();
            let bytes = *known.entry(kind(graph, node)).or_insert_with(measure);
            let have = worst.entry((node.primitive.name().to_string(), operator)).or_default();
            *have = bytes.max(*have);
        }
    }
    worst
}

fn are_kilobytes(program: &Program, exceptions: &[Exception]) {
    let mut by_primitive: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    let worst = worst(program, |_| true);
    for ((primitive, operator), &bytes) in &worst {
        let have = by_primitive.entry(primitive).or_default();
        *have = (*have).max((bytes, operator));
    }
    for (primitive, (bytes, operator)) in by_primitive {
        println!("{primitive:<28} {bytes:>8}  {operator}");
    }
    let mut named = 0;
    for ((primitive, operator), bytes) in worst {
        let exception = exceptions.iter().find(|(p, o, _)| *p == primitive && *o == operator);
        let bound = exception.map_or(BOUND, |(.., bound)| *bound);
        assert!(bytes <= bound, "{primitive} of {operator}: {bytes} bytes");
        named += usize::from(exception.is_some() && bytes > BOUND);
    }
    assert_eq!(named, exceptions.len(), "an exception that is none any more is to be struck off");
}

#[test]
fn leaves_of_gpt2_are_kilobytes() {
    are_kilobytes(&program(""), &GPT2);
}

/// A decoder of the sizes of SmolLM 135M. Its products over the vocabulary and its sums over one token are GPT-2's.
#[test]
fn leaves_of_a_llama_are_kilobytes() {
    let model = r#"kind = "llama", vocabulary = 49152, context = 2048, layers = 2, heads = 9, kv_heads = 3, width = 576, hidden = 1536, tied = true"#;
    let text = format!(
        r#"steps = 10
clip_norm = 1.0
model = {{ {model} }}
data = {{ kind = "bytes", path = "text.txt" }}
optimizer = {{ kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }}
schedule = {{ peak = 6e-4 }}
batch = {{ micro_batch = 2, micro_batches = 64 }}
"#
    );
    are_kilobytes(&Job::parse("job", &text).unwrap().program(None).unwrap(), &GPT2);
}

/// K of a kernel's gradient is every pixel of a micro-batch, which the job can cut into scale groups too.
#[test]
fn leaves_of_a_residual_network_are_kilobytes() {
    const UNCUT: [Exception; 6] = {
        const MOST: usize = 288 << 10;
        // A stride of two leaves a quarter of the pixels.
        const OF_A_QUARTER: usize = 80 << 10;
        [
            ("product.v1", "stem.backward", MOST),
            ("product.v1", "stage0.conv0.backward", MOST),
            ("product.v1", "stage0.conv1.backward", MOST),
            ("product.v1", "stage1.conv0.backward", OF_A_QUARTER),
            ("product.v1", "stage1.conv1.backward", OF_A_QUARTER),
            ("product.v1", "stage1.shortcut.backward", OF_A_QUARTER),
        ]
    };
    let text = include_str!("../../assets/jobs/cifar-resnet.toml").to_string();
    let program = |text: &str| Job::parse("job", text).unwrap().program(None).unwrap();
    are_kilobytes(&program(&text), &UNCUT);
    are_kilobytes(&program(&edited(&text, &[("classes = 10", "classes = 10\nconvolution = 2")])), &UNCUT);
    let cut = format!("{text}\n[digits.class.conv_dw]\ndigits_a = 3\ndigits_b = 3\nblock = 4096\n");
    are_kilobytes(&program(&cut), &[]);
}

#[test]
fn scale_blocks_bound_a_product_over_the_vocabulary() {
    let program = program("[digits.class.head_dx]\ndigits_a = 3\ndigits_b = 2\nblock = 4096\n");
    let worst = worst(&program, |operator| operator == "head.backward");
    let bytes = worst[&("product.v1".to_string(), "head.backward".to_string())];
    assert!(bytes <= BOUND, "{bytes}");
}

/// The operators that torchvision's networks add: maxima, an adaptive pool, biases of convolutions, smoothed targets.
#[test]
fn leaves_of_pools_and_losses_are_kilobytes() {
    const IMAGES: &str = r#"steps = 10
data = { kind = "arrays", inputs = "inputs.npy", labels = "labels.npy", dtype = "u8" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 5e-4 }
schedule = { peak = 0.1 }
batch = { micro_batch = 8 }
loss = { smoothing = 0.1, ignore = 3 }
commit = { granularity = "operator" }
"#;
    let image = "height = 224, width = 224, planes = 3, classes = 1000";
    for model in [
        format!("kind = \"vgg11\", {image}"),
        format!(
            "kind = \"resnet\", {image}, stages = [64, 128], blocks = 1, norm = \"batch\", order = \"post\", stem = \"imagenet\""
        ),
    ] {
        let text = format!("{IMAGES}model = {{ {model} }}\n");
        let program = Job::parse("job", &text).unwrap().program(None).unwrap();
        let of_interest = |operator: &str| {
            let parts = ["pool", "loss", "bias"];
            parts.iter().any(|part| operator.contains(part))
        };
        let worst = worst(&program, of_interest);
        assert!(worst.len() > 8, "{worst:?}");
        for ((primitive, operator), bytes) in worst {
            println!("{primitive:<28} {bytes:>8}  {operator}");
            assert!(bytes <= BOUND, "{primitive} of {operator}: {bytes} bytes");
        }
    }
}
