//! Attention and similar nodes by one kernel on NVIDIA's GPUs, over a stand-in for the driver and NVRTC that runs kernels on the
//! host. The bits equal the CPU engine's for sizes of every kind. `cuda-bridge/check-on-gpu.sh` runs the same on a GPU.

use std::sync::Arc;

use crate::common::shim::in_its_own_process;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::expr::{Body, BodyWriter};
use tiebreak_contract::program::graph::{Graph, Node, TensorId, View};
use tiebreak_contract::program::operators::{self, Dropout, Seen};
use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::{Engine, EngineError, Inputs, Observer, Tensor, Want, outputs_of};
use tiebreak_gpu::Cuda;

/// Rows between two products by one kernel: attention and its gradient, and a chain with every kind of node that a kernel
/// supports.
#[test]
fn rows_between_products_have_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let counts = folder.path().join("counts").to_str().unwrap().to_string();
    if in_its_own_process("cuda_attention::rows_between_products", &[("TIEBREAK_SHIM_COUNTS", &counts)]) {
        let counts = std::fs::read_to_string(&counts).unwrap();
        let counts: Vec<usize> = counts.trim().split(' ').map(|n| n.parse().unwrap()).collect();
        // The kernels of the opening; two for each attention and its gradient, except for digits whose sums are too wide; one for
        // each chain. Gradients of keys and values have a kernel of their own. Attention that hides padding has none of
        // these kernels, since they read no tensor by sample and place.
        let plain = ATTENTION.iter().filter(|(.., seen)| !matches!(seen, Seen::Unpadded { .. })).count();
        let attention = 2 + 2 * (plain - 1);
        // With an observer, a kernel is not used if the observer sees one of its nodes.
        for (launched, expected) in counts[3..5].iter().zip([attention + CHAINS.len(), attention]) {
            assert!((expected + 1..expected + 2 * EVERY).contains(launched), "{counts:?}");
        }
    }
}

/// Samples, heads, positions, channels of a head, dropout, digits (0: the default ones), and the tensors with special values.
/// Special values of keys make all later rows NaN, those of queries only their own.
const ATTENTION: [([u32; 4], f32, u8, &str, Seen); 10] = [
    ([2, 2, 64, 8], 0.0, 0, "q", Seen::Earlier),
    ([1, 1, 65, 5], 0.3, 0, "", Seen::Earlier),
    ([3, 1, 131, 33], 0.1, 2, "q", Seen::Earlier),
    ([1, 2, 66, 128], 0.0, 1, "v dy", Seen::Earlier),
    ([1, 1, 400, 4], 0.0, 0, "q", Seen::Earlier),
    ([2, 2, 65, 8], 0.3, 0, "q", Seen::All),
    ([1, 1, 131, 33], 0.0, 2, "", Seen::All),
    ([2, 2, 65, 8], 0.3, 0, "q", PADDED),
    ([3, 1, 131, 33], 0.0, 2, "", PADDED),
    ([1, 1, 64, 64], 0.0, 4, "k", Seen::Earlier),
];

/// The ids are an input of the graph, which takes the place of this one. Every third position of the first sample is padding, then
/// the end of each.
const PADDED: Seen = Seen::Unpadded { ids: TensorId(0), padding: 7 };

/// Rows of a sample, their places, K, columns.
const CHAINS: [[u32; 4]; 2] = [[40, 129, 65, 9], [17, 1030, 20, 3]];

#[test]
#[ignore = "run by rows_between_products_have_the_same_bits in a process with the stand-in"]
fn rows_between_products() {
    let mut cuda = Cuda::open(None).unwrap();
    let mut cpu = Cpu::new(2).unwrap();
    let mut check = |what: String, most: bool, (graph, inputs): (Graph, Vec<Vec<u8>>)| {
        let graph = Arc::new(graph);
        let here = outputs_of(&mut cpu, &graph, &inputs).unwrap();
        let there = outputs_of(&mut cuda, &graph, &inputs).unwrap();
        for (port, (here, there)) in graph.outputs.iter().zip(here.iter().zip(&there)) {
            assert!(here == there, "{what}: {}", port.name);
            // A tensor that is NaN throughout shows nothing. (A NaN query makes the gradients of earlier keys NaN.)
            let is_nan = |word: &&[u8]| word[3] & 0x7f == 0x7f && word[2] & 0x80 != 0;
            let nan = here.chunks_exact(4).filter(is_nan).count();
            assert!(!most || port.name != "y" || 12 * nan < here.len(), "{what}: {nan} NaNs");
        }
    };
    for (i, (sizes, p, digits, special, seen)) in (0..).zip(ATTENTION) {
        let ordinary = ["", "q"].contains(&special);
        let name = format!("{sizes:?} {seen:?}");
        check(name, ordinary, attention(i, sizes, (p, seen), digits, special));
    }
    for (i, sizes) in (0..).zip(CHAINS) {
        check(format!("{sizes:?}"), false, chain(i, sizes));
    }
    // An observer of some of the nodes that a kernel computes sees them.
    let (sizes, p, digits, special, seen_positions) = ATTENTION[0];
    let (graph, inputs) = attention(0, sizes, (p, seen_positions), digits, special);
    for from in 0..EVERY {
        let graph = Arc::new(graph.clone());
        let [here, there] =
            [&mut cpu as &mut dyn Engine, &mut cuda].map(|engine| seen(engine, &graph, &inputs, from));
        assert!(!here.is_empty() && here == there, "nodes {from} and every {EVERY}th after it");
    }
}

/// The observer sees one of so many nodes.
const EVERY: usize = 9;

/// Sees the outputs of nodes `from`, `from` + [`EVERY`] and so on.
struct Looking {
    from: usize,
    seen: Vec<(usize, Vec<u8>)>,
}

impl Observer for Looking {
    fn want(&self, index: usize, _: &Node) -> Want {
        if index % EVERY == self.from { Want::Bytes } else { Want::No }
    }

    fn node(
        &mut self,
        index: usize,
        _: &Node,
        bytes: &[u8],
        _: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        self.seen.push((index, bytes.to_vec()));
        Ok(None)
    }
}

fn seen(
    engine: &mut dyn Engine,
    graph: &Arc<Graph>,
    inputs: &[Vec<u8>],
    from: usize,
) -> Vec<(usize, Vec<u8>)> {
    let compiled = engine.compile(graph.clone()).unwrap();
    let ports = graph.inputs.iter().zip(inputs);
    let inputs: Vec<Tensor> =
        ports.map(|(port, bytes)| engine.upload(graph.tensor(port.tensor), bytes).unwrap()).collect();
    let mut observer = Looking { from, seen: Vec::new() };
    let outputs = engine.run(&compiled, &inputs, Some(&mut observer)).unwrap();
    let last = outputs.iter().map(|tensor| (usize::MAX, engine.download(tensor).unwrap()));
    observer.seen.into_iter().chain(last.collect::<Vec<_>>()).collect()
}

/// Numbers of about one size; every third row of `width` has subnormal and large ones, a NaN or an infinity.
fn numbers(stream: u32, len: u32, width: u32) -> Vec<u8> {
    let word = |i: u32| {
        let [bits, spread, ..] = philox4x32_10([stream, 7], [i, 0, 0, 0]);
        let ordinary = (bits & 0x807f_ffff) | (120 + spread % 8) << 23;
        match (i / width % 12, i % width) {
            (2, _) => bits & 0x807f_ffff,
            (5, _) => (bits & 0x807f_ffff) | (180 + spread % 70) << 23,
            (8, 1) => 0x7fc0_0000,
            (11, 0) => 0x7f80_0000 | (bits & 0x8000_0000),
            (9, _) => bits & 0x8000_0000,
            _ => ordinary,
        }
    };
    (0..len).flat_map(|i| word(i).to_le_bytes()).collect()
}

/// Attention with every gradient.
fn attention(
    case: u32,
    [samples, heads, t, d]: [u32; 4],
    (p, seen): (f32, Seen),
    digits: u8,
    special: &str,
) -> (Graph, Vec<Vec<u8>>) {
    let mut b =
        Builder::new(if digits == 0 { ProductTable::two_and_three() } else { ProductTable::uniform(digits) });
    let shape = [samples * t, heads * d];
    let [q, k, v, dy] = ["q", "k", "v", "dy"].map(|name| b.input(name, DType::F32, &shape));
    let seed = b.input("seed", DType::U32, &[2]);
    let [step, first_sample] = ["step", "first_sample"].map(|name| b.input(name, DType::U32, &[1]));
    let (threshold, scale) = Dropout::rates(p);
    let drop = (p > 0.0).then_some((Dropout { seed, step, first_sample, threshold, scale }, 5));
    let seen = match seen {
        Seen::Unpadded { padding, .. } => {
            Seen::Unpadded { ids: b.input("ids", DType::U32, &shape[..1]), padding }
        }
        other => other,
    };
    let y = operators::attention(&mut b, seen, [q, k, v], [samples, heads], drop);
    let gradients = b.backward(y, dy);
    b.output("y", y);
    for (name, input) in [("dq", q), ("dk", k), ("dv", v)] {
        b.output(name, gradients[&input]);
    }
    let len = shape[0] * shape[1];
    // Far from any row's end there is no special value.
    let width = |name| if special.split(' ').any(|special| special == name) { shape[1] } else { u32::MAX };
    let own = (4 * case..).zip(["q", "k", "v", "dy"]).map(|(stream, name)| numbers(stream, len, width(name)));
    let mut inputs: Vec<Vec<u8>> = own.collect();
    inputs.extend(
        [vec![[1u32, 2].map(u32::to_le_bytes).concat()], vec![vec![3, 0, 0, 0], vec![9, 0, 0, 0]]].concat(),
    );
    if matches!(seen, Seen::Unpadded { .. }) {
        let hidden = |n: u32| if n < t { n % 3 == 1 } else { n % t > t / 2 };
        inputs.push(
            (0..samples * t).flat_map(|n| if hidden(n) { 7u32 } else { n % 5 }.to_le_bytes()).collect(),
        );
    }
    (b.finish(), inputs)
}

/// Two products with nodes between them that attention lacks: a vector of the places, numbers of the rows (given, or computed on
/// the way), and values that are kept while others are computed.
fn chain(case: u32, [rows, len, k, n]: [u32; 4]) -> (Graph, Vec<Vec<u8>>) {
    let mut table = ProductTable::two_and_three();
    table.set(ProductClass::Linear, ProductDigits { digits_a: 3, digits_b: 1, block: 0 });
    let mut b = Builder::new(table);
    let samples = 2;
    let shape = [samples, rows, len];
    let left = b.input("left", DType::F32, &[samples, rows, k]);
    let right = b.input("right", DType::F32, &[samples, len, k]);
    let last = b.input("last", DType::F32, &[samples, n, len]);
    let places = b.input("places", DType::F32, &[len]);
    let of_rows = b.input("of_rows", DType::F32, &[samples, rows, 1]);
    let one = b.input("one", DType::F32, &[1]);
    let view = |tensor, rows, len| View {
        tensor,
        offset: 0,
        dims: [samples, 1, rows, len],
        strides: [rows * len, rows * len, len, 1],
    };
    let x = b.product(ProductClass::Scores, view(left, rows, k), view(right, len, k), &shape);
    let product = |w: &mut BodyWriter| {
        let (x, y) = (w.input(0), w.input(1));
        w.mul(x, y)
    };
    let moved = b.map(Body::new("times.v1", product), &[x, places], &shape);
    let most = b.max_last(moved);
    let row = Body::new("row.v1", |w| {
        let (most, other, one) = (w.input(0), w.input(1), w.input(2));
        let index = w.index(3);
        let (sum, index) = (w.add(most, other), w.from_u(index));
        let sum = w.add(sum, index);
        w.mul(sum, one)
    });
    let row = b.map(row, &[most, of_rows, one], &[samples, rows, 1]);
    let centred = b.map(
        Body::new("minus.v1", |w| {
            let (x, y) = (w.input(0), w.input(1));
            w.sub(x, y)
        }),
        &[moved, row],
        &shape,
    );
    let sum = b.sum_last(centred);
    let both = b.map(
        Body::new("both.v1", |w| {
            let (x, centred, sum, index) = (w.input(0), w.input(1), w.input(2), w.index(3));
            let index = w.from_u(index);
            let (product, sum) = (w.mul(x, centred), w.add(sum, index));
            w.add(product, sum)
        }),
        &[x, centred, sum],
        &shape,
    );
    let y = b.product(ProductClass::Linear, view(both, rows, len), view(last, n, len), &[samples, rows, n]);
    for (name, tensor) in [("y", y), ("row", row), ("centred", centred)] {
        b.output(name, tensor);
    }
    let size = |shape: &[u32]| shape.iter().product::<u32>();
    let graph = b.finish();
    let stream = 100 + 10 * case;
    let inputs = (0..).zip(&graph.inputs).map(|(i, port)| {
        let shape = &graph.tensor(port.tensor).shape;
        numbers(stream + i, size(shape), *shape.last().unwrap())
    });
    let inputs = inputs.collect();
    (graph, inputs)
}
