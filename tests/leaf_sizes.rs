//! The worst leaf of every operator of GPT-2 124M, and of a residual network, in bytes of a verdict file whose tile was disclosed. The program is
//! built without memory for its tensors.

#![cfg(feature = "engine")]

use std::collections::BTreeMap;

use tiebreak::dispute::size::worst_leaf_bytes;
use tiebreak::job::Job;
use tiebreak::program::phase::{Phase, graph_of};
use tiebreak::program::step::Program;

/// What a leaf may take.
const BOUND: usize = 64 << 10;
/// An operator that may take more, and how much (docs/AUDIT.md says why).
type Exception = (&'static str, &'static str, usize);
const GPT2: [Exception; 2] = [
    // One token at every position of a micro-batch; n positions take about 1.5 KB each.
    ("segment_sum.v1", "embedding.backward", 6 << 20),
    // K is the vocabulary: the job can cut it into scale blocks.
    ("product.v1", "head.backward", 384 << 10),
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
    Job::parse("job", &text).unwrap().program()
}

/// The worst leaf of each (primitive, operator without its layer).
fn worst(program: &Program) -> BTreeMap<(String, String), usize> {
    let mut worst = BTreeMap::new();
    for phase in [Phase::Micro(0), Phase::Accumulate(0), Phase::Update] {
        for (index, node) in graph_of(program, phase).nodes.iter().enumerate() {
            let bytes = worst_leaf_bytes(program, phase, index).unwrap();
            let operator: Vec<&str> =
                node.operator.split('.').filter(|part| !part.starts_with("block")).collect();
            let have = worst.entry((node.primitive.name().to_string(), operator.join("."))).or_default();
            *have = bytes.max(*have);
        }
    }
    worst
}

fn are_kilobytes(program: &Program, exceptions: &[Exception]) {
    let mut by_primitive: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    let worst = worst(program);
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

/// K of a kernel's gradient is every pixel of a micro-batch, which the job can cut into scale blocks too.
#[test]
fn leaves_of_a_residual_network_are_kilobytes() {
    const UNCUT: [Exception; 3] = {
        const MOST: usize = 192 << 10;
        [
            ("product.v1", "stem.backward", MOST),
            ("product.v1", "stage0.conv0.backward", MOST),
            ("product.v1", "stage0.conv1.backward", MOST),
        ]
    };
    let text = std::fs::read_to_string("assets/jobs/cifar-resnet.toml").unwrap();
    let program = |text: &str| Job::parse("job", text).unwrap().program();
    are_kilobytes(&program(&text), &UNCUT);
    let cut = format!("{text}\n[digits.class.conv_dw]\ndigits_a = 2\ndigits_b = 2\nblock = 4096\n");
    are_kilobytes(&program(&cut), &[]);
}

#[test]
fn scale_blocks_bound_a_product_over_the_vocabulary() {
    let program = program("[digits.class.head_dx]\ndigits_a = 3\ndigits_b = 2\nblock = 4096\n");
    let worst = worst(&program);
    let head = worst
        .iter()
        .find(|((primitive, operator), _)| primitive == "product.v1" && operator == "head.backward");
    assert!(head.is_some_and(|(_, bytes)| *bytes <= BOUND), "{head:?}");
}
