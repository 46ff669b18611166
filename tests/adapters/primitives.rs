//! The engines on GPUs, bit for bit against the scalar contract and the CPU engine: every scalar operation, elementary functions,
//! primitives of many sizes, and a whole training.

use std::sync::Arc;

use crate::common::{begin_run, edit::edit, every_pair, files, gpt_job, key};
use crate::gpus::{AnyEngine, at_once, gpus};
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::arith::{DType, elementary, float};
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::expr::{Body, BodyWriter, Reg};
use tiebreak_contract::program::graph::{Graph, Node, TensorType, View};
use tiebreak_contract::program::operators::{causal_attention, cross_entropy, layer_norm};
use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::{Engine, EngineError, Inputs, Observer, Tensor, Want, outputs_of};
use tiebreak_gpu::{Gpu, Variant};
use tiebreak_record::commit::tensor::{Hash, tile_values};
use tiebreak_run::run::disk::Disk;
use tiebreak_train::{Silent, train};

fn upload(engine: &mut dyn Engine, dtype: DType, shape: &[u32], words: &[u32]) -> Tensor {
    let ty = TensorType { dtype, shape: shape.to_vec() };
    engine.upload(&ty, &words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>()).unwrap()
}

fn run(engine: &mut dyn Engine, graph: &Graph, inputs: &[Tensor]) -> Vec<u32> {
    let compiled = engine.compile(Arc::new(graph.clone())).unwrap();
    let outputs = engine.run(&compiled, inputs, None).unwrap();
    let bytes = engine.download(&outputs[0]).unwrap();
    bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}

fn random(i: u32, stream: u32) -> u32 {
    philox4x32_10([stream, 99], [i, 0, 0, 0])[0]
}

/// Patterns of all kinds: any bits, close exponents, subnormals, specials.
fn pattern(i: u32, stream: u32) -> u32 {
    const SPECIAL: [u32; 16] = [
        0,
        0x8000_0000,
        1,
        0x8000_0001,
        0x007f_ffff,
        0x0080_0000,
        0x3f80_0000,
        0xbf80_0000,
        0x3f7f_ffff,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x7f80_0001,
        0xffff_ffff,
    ];
    let r = random(i, stream);
    match i % 8 {
        0 => SPECIAL[(r % 16) as usize],
        1 => r & 0x80ff_ffff,
        2 | 3 => (r & 0x80ff_ffff) | (120 + (r >> 24 & 15)) << 23,
        4 => (r & 0x8000_0007) | 0x3f80_0000,
        _ => r,
    }
}

const COUNT: u32 = 1 << 20;

#[test]
fn scalar_operations_on_a_million_pairs() {
    type Operation = (fn(&mut BodyWriter, Reg, Reg) -> Reg, fn(u32, u32) -> u32);
    let operations: [Operation; 6] = [
        (BodyWriter::add, float::add),
        (BodyWriter::sub, float::sub),
        (BodyWriter::mul, float::mul),
        (BodyWriter::div, float::div),
        (BodyWriter::lt, float::lt),
        (|w, a, _| w.sqrt(a), |a, _| float::sqrt(a)),
    ];
    let a: Vec<u32> = (0..COUNT).map(|i| pattern(i, 1)).collect();
    let b: Vec<u32> = (0..COUNT).map(|i| pattern(random(i, 3), 2)).collect();
    at_once(&mut gpus().engines(), |engine| {
        let inputs = [upload(engine, DType::F32, &[COUNT], &a), upload(engine, DType::F32, &[COUNT], &b)];
        for (number, (write, right)) in operations.iter().enumerate() {
            let mut builder = Builder::new(ProductTable::two_and_three());
            let (x, y) = (builder.input("a", DType::F32, &[COUNT]), builder.input("b", DType::F32, &[COUNT]));
            let body = Body::new("test.v1", |w| {
                let (x, y) = (w.input(0), w.input(1));
                write(w, x, y)
            });
            let output = builder.map(body, &[x, y], &[COUNT]);
            builder.output("out", output);
            let have = run(engine, &builder.finish(), &inputs);
            for i in 0..COUNT as usize {
                let want = right(a[i], b[i]);
                let name = engine.describe();
                assert_eq!(have[i], want, "{name}: operation {number} of {:08x} and {:08x}", a[i], b[i]);
            }
        }
    });
}

#[test]
fn elementary_functions_on_a_million_inputs() {
    type Function = (fn(&mut BodyWriter, Reg) -> Reg, fn(u32) -> u32);
    let functions: [Function; 4] = [
        (BodyWriter::exp, elementary::exp),
        (BodyWriter::log, elementary::log),
        (BodyWriter::tanh, elementary::tanh),
        (BodyWriter::erf, elementary::erf),
    ];
    // 2048 inputs in each of the 512 binades, and the vectors of mpmath are covered by the CPU's functions.
    let x: Vec<u32> = (0..COUNT).map(|i| (i >> 11) << 23 | (random(i, 5) & 0x7f_ffff)).collect();
    at_once(&mut gpus().engines(), |engine| {
        let input = upload(engine, DType::F32, &[COUNT], &x);
        for (number, (write, right)) in functions.iter().enumerate() {
            let mut builder = Builder::new(ProductTable::two_and_three());
            let input_id = builder.input("x", DType::F32, &[COUNT]);
            let body = Body::new("test.v1", |w| {
                let x = w.input(0);
                write(w, x)
            });
            let output = builder.map(body, &[input_id], &[COUNT]);
            builder.output("out", output);
            let have = run(engine, &builder.finish(), std::slice::from_ref(&input));
            for i in 0..COUNT as usize {
                assert_eq!(have[i], right(x[i]), "{}: function {number} of {:08x}", engine.describe(), x[i]);
            }
        }
    });
}

/// One product on an engine: a [batch, m, k], b [batch, n, k], b's columns strided.
fn product(
    engine: &mut dyn Engine,
    [batch, m, n, k]: [u32; 4],
    digits: ProductDigits,
    a: &[u32],
    b: &[u32],
) -> Vec<u32> {
    let mut table = ProductTable::two_and_three();
    table.set(ProductClass::Linear, digits);
    let mut builder = Builder::new(table);
    let a_id = builder.input("a", DType::F32, &[batch, m, k]);
    let b_id = builder.input("b", DType::F32, &[batch, k, n]);
    let a_view = View { tensor: a_id, offset: 0, dims: [1, batch, m, k], strides: [0, m * k, k, 1] };
    let b_view = View { tensor: b_id, offset: 0, dims: [1, batch, n, k], strides: [0, n * k, 1, n] };
    let output = builder.product(ProductClass::Linear, a_view, b_view, &[batch, m, n]);
    builder.output("out", output);
    let inputs =
        [upload(engine, DType::F32, &[batch, m, k], a), upload(engine, DType::F32, &[batch, k, n], b)];
    run(engine, &builder.finish(), &inputs)
}

/// Every variant of the product, whichever the engine would choose here. SwiftShader takes seconds to compile each: there the
/// variants that it would not choose are opened if TIEBREAK_EVERY_PAIR asks for them, which tests them on every pair of equal digits
/// and on long sums (`launches.rs` has a step in each). It asks for all pairs of digits too: an engine that is opened has tested the
/// equal ones.
#[test]
fn products_of_every_kind() {
    let mut gpus = gpus();
    let mut others: Vec<Gpu> = Vec::new();
    for gpu in &gpus.adapters {
        let chosen = gpu.describe();
        let other = |variant: &Variant| !chosen.contains(&format!("{variant:?} products"));
        let slow = chosen.contains("SwiftShader");
        if slow && !every_pair("products on SwiftShader by two variants that it would not choose") {
            continue;
        }
        for variant in Variant::ALL.into_iter().filter(other) {
            let engine = gpu.beside(variant).unwrap();
            if !slow {
                others.push(engine);
            }
        }
    }
    let mut cpu = Cpu::new(2).unwrap();
    let mut engines = gpus.engines();
    engines.extend(others.iter_mut().map(|engine| engine as &mut AnyEngine));
    let shapes = [
        [70_000, 1, 2, 3],
        [1, 1, 1, 1],
        [1, 33, 31, 7],
        [2, 5, 70, 64],
        [3, 40, 1, 129],
        [1, 64, 64, 300],
        [1, 2, 2, 802_816],
    ];
    let mut pairs = vec![(2, 2, 0), (2, 3, 0), (3, 2, 64), (3, 3, 0), (4, 1, 128)];
    if every_pair("products of 1 by 1, 3 by 4 and 4 by 4 digits but for the engines' own tests") {
        pairs.extend([(1, 1, 0), (3, 4, 0), (4, 4, 0)]);
    }
    for [batch, m, n, k] in shapes {
        let word = |i: u32, stream: u32| match k {
            // All digits are extreme, so that every accumulator is as full as possible, and the greatest element comes late.
            802_816 => {
                let absmax = if i < 700_000 { 0x3eff_ffff } else { 0x3f7f_ffff };
                absmax | (random(i / 1000, stream) & 0x8000_0000)
            }
            _ => match pattern(i, stream) {
                w if !random(i, 9).is_multiple_of(64) && w & 0x7f80_0000 == 0x7f80_0000 => 0x3f00_0000,
                w => w,
            },
        };
        let a: Vec<u32> = (0..batch * m * k).map(|i| word(i, 11)).collect();
        let b: Vec<u32> = (0..batch * n * k).map(|i| word(i, 12)).collect();
        for &(digits_a, digits_b, block) in &pairs {
            // The long shapes test counts and flushes: a few digits are enough.
            match (batch, k) {
                (70_000, _) if (digits_a, digits_b) != (2, 2) => continue,
                (_, 802_816) if digits_a != digits_b || digits_a == 1 => continue,
                _ => {}
            }
            let digits = ProductDigits { digits_a, digits_b, block };
            let shape = [batch, m, n, k];
            let want = product(&mut cpu, shape, digits, &a, &b);
            at_once(&mut engines, |engine| {
                let have = product(engine, shape, digits, &a, &b);
                assert!(have == want, "{}: {shape:?}, {digits:?}", engine.describe());
            });
        }
    }
}

/// Sums, maxima and scales over lengths at every boundary of the shaders that compute them.
#[test]
fn reductions_of_every_length() {
    let mut gpus = gpus();
    reductions(&mut gpus.engines(), &[(3, 257), (1, 100_000), (70_000, 2)]);
    let others = [(3, 1), (5, 255), (4, 256), (2, 4097)];
    let slow = every_pair("reductions of four more lengths on SwiftShader");
    reductions(&mut gpus.chosen(slow), &others);
}

/// Compares sums, maxima and scales of rows on engines with those on the CPU.
fn reductions(engines: &mut [&mut AnyEngine], shapes: &[(u32, u32)]) {
    let mut cpu = Cpu::new(2).unwrap();
    for &(rows, len) in shapes {
        let words: Vec<u32> = (0..rows * len)
            .map(|i| match random(i, 21) % 300 {
                // The greatest element is near the end, where a loop that stops early misses it.
                0 if i % len == len - 1 => 0x6000_0000,
                1 => 0x8000_0000,
                _ => (random(i, 22) & 0x807f_ffff) | (120 + random(i, 23) % 12) << 23,
            })
            .collect();
        type Build = fn(
            &mut Builder,
            tiebreak_contract::program::graph::TensorId,
        ) -> tiebreak_contract::program::graph::TensorId;
        let builds: [Build; 4] = [
            |b, x| b.sum_last(x),
            |b, x| b.sum_leading(x),
            |b, x| b.max_last(x),
            |b, x| {
                let [rows, len] = b.shape(x)[..] else { unreachable!() };
                let input = View { tensor: x, offset: 0, dims: [1, 1, rows, len], strides: [0, 0, len, 1] };
                let scale = tiebreak_contract::program::graph::Primitive::Absmax { input, block: 0 };
                b.node(scale, DType::U32, &[1, rows, 1])
            },
        ];
        for (number, build) in builds.into_iter().enumerate() {
            let mut builder = Builder::new(ProductTable::two_and_three());
            let x = builder.input("x", DType::F32, &[rows, len]);
            let output = build(&mut builder, x);
            builder.output("out", output);
            let graph = builder.finish();
            let input = upload(&mut cpu, DType::F32, &[rows, len], &words);
            let want = run(&mut cpu, &graph, &[input]);
            at_once(engines, |engine| {
                let input = upload(engine, DType::F32, &[rows, len], &words);
                let have = run(engine, &graph, &[input]);
                assert!(have == want, "{}: reduction {number} of {rows} x {len}", engine.describe());
            });
        }
    }
}

/// A layer norm, a loss over its rows and the gradient of both, and attention with its gradient, by row length: kernels of whole
/// rows, since no test observes the nodes between.
#[test]
fn rows_computed_at_once_have_the_same_bits() {
    let mut cpu = Cpu::new(2).unwrap();
    let mut gpus = gpus();
    let mut engines = gpus.engines();
    let mut compare = |graph: Graph, inputs: &[Vec<u32>], what: &str| {
        let graph = Arc::new(graph);
        let inputs: Vec<Vec<u8>> = inputs.iter().map(|words| bytes_from_words(DType::F32, words)).collect();
        let want = outputs_of(&mut cpu, &graph, &inputs).unwrap();
        at_once(&mut engines, |engine| {
            assert!(outputs_of(engine, &graph, &inputs).unwrap() == want, "{}: {what}", engine.describe());
        });
    };
    // Row lengths: too short, the shortest, one more, several rounds, the longest for which WebGPU's workgroup memory holds three
    // rows (and one more), the longest of all.
    const ROWS: u32 = 7;
    for len in [63, 64, 65, 257, 1324, 1325, 4096] {
        let mut b = Builder::new(ProductTable::two_and_three());
        let x = b.input("x", DType::F32, &[ROWS, len]);
        let [gain, bias] = ["gain", "bias"].map(|name| b.input(name, DType::F32, &[len]));
        let labels = b.input("labels", DType::U32, &[ROWS]);
        let factor = b.input("factor", DType::F32, &[1]);
        let y = layer_norm(&mut b, x, gain, bias, 1e-5);
        let (loss, dy) = cross_entropy(&mut b, y, labels, factor);
        let gradients = b.backward(y, dy);
        let outputs = [("loss", loss), ("dx", gradients[&x]), ("dgain", gradients[&gain])];
        outputs.into_iter().for_each(|(name, tensor)| b.output(name, tensor));
        let ordinary =
            |i: u32, stream: u32| (random(i, stream) & 0x807f_ffff) | (120 + random(i, 6) % 9) << 23;
        // Two rows of ordinary numbers; in the others, more and more numbers of any kind.
        let word = |i: u32| match i / len {
            row if row > 1 && random(i, 7).is_multiple_of(1 << (2 * (8 - row))) => pattern(i, 8),
            _ => ordinary(i, 9),
        };
        let inputs = [
            (0..ROWS * len).map(word).collect(),
            (0..len).map(|i| ordinary(i, 10)).collect(),
            (0..len).map(|i| ordinary(i, 11)).collect(),
            (0..ROWS).map(|row| random(row, 12) % len).collect(),
            vec![0x3e00_0000],
        ];
        compare(b.finish(), &inputs, &format!("rows of {len}"));
    }
    const POSITIONS: u32 = 65;
    let shape = [2 * POSITIONS, 6];
    let mut b = Builder::new(ProductTable::uniform(2));
    let ids = ["q", "k", "v", "dy"].map(|name| b.input(name, DType::F32, &shape));
    let [q, k, v, dy] = ids;
    let y = causal_attention(&mut b, [q, k, v], 2, 2, None);
    let gradients = b.backward(y, dy);
    let outputs = [("y", y), ("dq", gradients[&q]), ("dk", gradients[&k]), ("dv", gradients[&v])];
    outputs.into_iter().for_each(|(name, tensor)| b.output(name, tensor));
    let words = |stream: u32| {
        let word = |i: u32| {
            if random(i, 13).is_multiple_of(300) { pattern(i, 14) } else { random(i, stream) & 0xbfff_ffff }
        };
        (0..shape[0] * shape[1]).map(word).collect()
    };
    let inputs = [15, 16, 17, 18].map(words);
    compare(b.finish(), &inputs, "attention");
}

/// Sums over the rows of one class: few positions and many, classes without any, one class with nearly all.
#[test]
fn sums_of_segments_have_the_same_bits() {
    use tiebreak_contract::program::graph::Primitive;
    let mut cpu = Cpu::new(2).unwrap();
    let mut gpus = gpus();
    let mut engines = gpus.engines();
    for (positions, width, bound) in [(100u32, 3, 7), (16_384, 2, 5), (16_385, 9, 40), (90_001, 5, 3)] {
        let mut b = Builder::new(ProductTable::two_and_three());
        let rows = b.input("rows", DType::F32, &[positions, width]);
        let classes = b.input("classes", DType::U32, &[positions]);
        let order = b.node(Primitive::GroupOrder { classes, bound }, DType::U32, &[positions]);
        let offsets = b.node(Primitive::GroupOffsets { classes, bound }, DType::U32, &[bound + 1]);
        let sum = Primitive::SegmentSum { input: rows, order, offsets };
        let output = b.node(sum, DType::F32, &[bound, width]);
        b.output("out", output);
        let graph = b.finish();
        let words: Vec<u32> = (0..positions * width)
            .map(|i| (random(i, 31) & 0x807f_ffff) | (120 + random(i, 32) % 12) << 23)
            .collect();
        // The last class has nearly all rows; the one before it has none.
        let class = |i: u32| match random(i, 33) % 20 {
            0 => random(i, 34) % (bound - 2),
            _ => bound - 1,
        };
        let classes: Vec<u32> = (0..positions).map(class).collect();
        let inputs = |engine: &mut dyn Engine| {
            [
                upload(engine, DType::F32, &[positions, width], &words),
                upload(engine, DType::U32, &[positions], &classes),
            ]
        };
        let there = inputs(&mut cpu);
        let want = run(&mut cpu, &graph, &there);
        at_once(&mut engines, |engine| {
            let there = inputs(engine);
            let have = run(engine, &graph, &there);
            assert!(have == want, "{}: {positions} positions", engine.describe());
        });
    }
}

/// The BLAKE3 roots of tensors, computed on the device: around the edges of blocks, chunks and workgroups, and of a tree of three
/// levels of workgroups.
#[test]
fn roots_on_a_device_are_blake3() {
    for engine in gpus().engines() {
        let (mut tensors, mut want) = (Vec::new(), Vec::new());
        for len in [1, 2, 15, 16, 17, 255, 256, 257, 512, 769, 16_383, 16_384, 16_385, 16_640, 1_100_000] {
            let words: Vec<u32> = (0..len).map(|i| random(i, len)).collect();
            tensors.push(upload(engine, DType::F32, &[len], &words));
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            want.push(*blake3::hash(&bytes).as_bytes());
        }
        let have = engine.roots(&tensors).unwrap().expect("hashing is switched on");
        assert!(have == want, "{}", engine.describe());
    }
}

/// Hashes every output's tiles, itself or on the device.
struct Hashed {
    on_device: bool,
    tiles: Vec<Vec<Hash>>,
}

impl Observer for Hashed {
    fn want(&self, _: usize, _: &Node) -> Want {
        if self.on_device { Want::Tiles } else { Want::Bytes }
    }

    fn tiles(&mut self, _: usize, _: &Node, tiles: Vec<Hash>) -> Result<(), EngineError> {
        self.tiles.push(tiles);
        Ok(())
    }

    fn node(
        &mut self,
        _: usize,
        node: &Node,
        bytes: &[u8],
        _: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        assert!(!self.on_device, "{} was shown", node.operator);
        self.tiles.push(tile_values(bytes));
        Ok(None)
    }
}

/// The values of tiles, hashed on the device: of absmaxes, of integers of every number of digits (whose bytes are no whole
/// words), and of results with one tile and with many.
#[test]
fn tiles_are_hashed_on_a_device() {
    let tiles = |engine: &mut dyn Engine, on_device: bool| {
        let mut hashed = Hashed { on_device, tiles: Vec::new() };
        for (digits_a, digits_b, m, n, k) in
            [(1, 2, 37, 5, 701), (3, 4, 37, 90, 701), (3, 1, 3, 1, 7), (4, 3, 130, 64, 64)]
        {
            let mut table = ProductTable::uniform(2);
            table.set(ProductClass::Linear, ProductDigits { digits_a, digits_b, block: 0 });
            let mut builder = Builder::new(table);
            let [a, b] = [("a", m), ("b", n)].map(|(name, rows)| builder.input(name, DType::F32, &[rows, k]));
            let (view_a, view_b) = (builder.whole(a), builder.whole(b));
            let output = builder.product(ProductClass::Linear, view_a, view_b, &[m, n]);
            builder.output("product", output);
            let compiled = engine.compile(Arc::new(builder.finish())).unwrap();
            let inputs = [(m, 41), (n, 42)].map(|(rows, stream)| {
                let words: Vec<u32> = (0..rows * k).map(|i| random(i, stream) & 0xbfff_ffff).collect();
                upload(engine, DType::F32, &[rows, k], &words)
            });
            engine.run(&compiled, &inputs, Some(&mut hashed)).unwrap();
        }
        hashed.tiles
    };
    let want = tiles(&mut Cpu::new(1).unwrap(), false);
    for engine in gpus().engines() {
        assert!(tiles(engine, true) == want, "{}", engine.describe());
    }
}

/// Whole runs, with dropout and accumulation, end in the same files on every engine and number of threads.
#[test]
fn fifty_steps_write_the_same_run_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    edit(&job, &[("steps = 8", "steps = 50"), ("\nevery = 2", "\nevery = 25")]);
    let trained = |engine: &mut dyn Engine| {
        let disk = Disk::default();
        let own = tempfile::tempdir_in(folder.path()).unwrap();
        let out = own.path().join("run");
        let run = begin_run(&disk, &job, &out).unwrap();
        train(&run, engine, Some(&key()), &mut Silent).unwrap();
        files(&out)
    };
    let expected = trained(&mut Cpu::new(1).unwrap());
    assert!(trained(&mut Cpu::new(2).unwrap()) == expected, "two threads differ from one");
    // State and gradients are hashed on the device too.
    at_once(&mut gpus().engines(), |engine| {
        assert!(trained(engine) == expected, "{} differs from the CPU engine", engine.describe());
    });
}
