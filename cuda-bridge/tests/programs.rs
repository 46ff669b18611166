//! Whole programs on translated kernels, run on the host: equal bits with the scalar reference, whatever the inputs.

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use common::engine::Shim;
use cuda_bridge::translate::Options;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::catalogue::{Appended, Attributes, OPERATORS, Operator};
use tiebreak_contract::program::graph::{Graph, Primitive, TensorId, TensorType, View};
use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::fingerprint::fingerprint;
use tiebreak_engine::reference::Reference;
use tiebreak_engine::{Engine, Tensor};
use tiebreak_gpu::Variant;

const PLAIN: Options = Options { native: false };
const NATIVE: Options = Options { native: true };

fn random(i: u32, stream: u32) -> u32 {
    philox4x32_10([stream, 98], [i, 0, 0, 0])[0]
}

fn upload(engine: &mut dyn Engine, dtype: DType, shape: &[u32], words: &[u32]) -> Tensor {
    let ty = TensorType { dtype, shape: shape.to_vec() };
    engine.upload(&ty, &words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>()).unwrap()
}

fn run(engine: &mut dyn Engine, graph: &Arc<Graph>, inputs: &[Tensor]) -> Vec<u8> {
    let compiled = engine.compile(graph.clone()).unwrap();
    let outputs = engine.run(&compiled, inputs, None).unwrap();
    engine.download(&outputs[0]).unwrap()
}

/// The self-test that every adapter has to pass: whole steps of small models, corner cases, full accumulators.
fn self_test(variant: Variant, options: Options) {
    let expected = fingerprint(&mut Reference).unwrap();
    assert_eq!(fingerprint(&mut Shim::new(variant, options)).unwrap(), expected, "{variant:?}, {options:?}");
}

#[test]
fn self_test_with_dot_products() {
    self_test(Variant::Dot, PLAIN);
}

#[test]
fn self_test_with_dot_products_and_native_floats() {
    self_test(Variant::Dot, NATIVE);
}

#[test]
fn self_test_with_float_products() {
    self_test(Variant::Float, NATIVE);
}

#[test]
fn self_test_with_word_products() {
    self_test(Variant::Words, NATIVE);
}

/// An ordinary number, any pattern, a subnormal, now and then a special one.
fn pattern(i: u32, stream: u32) -> u32 {
    let r = random(i, stream);
    match random(i, stream + 50) % 16 {
        0 => [0, 0x8000_0000, 1, 0x8000_0001, 0x007f_ffff, 0x0080_0000, 0x7f7f_ffff][(r % 7) as usize],
        1 => r & 0x80ff_ffff,
        2 if r & 0x7f80_0000 != 0x7f80_0000 => r,
        _ => (r & 0x807f_ffff) | (118 + (r >> 23) % 16) << 23,
    }
}

/// Products over tiles' and blocks' edges, with marked groups, of every pair of digit counts that the CPU engine is
/// asked for, in every variant and on tensor cores.
#[test]
fn products_of_every_kind() {
    let mut cpu = Cpu::new(1).unwrap();
    let mut engines = Vec::from(Variant::ALL.map(|variant| Shim::new(variant, PLAIN)));
    engines.push(Shim::with_tensor_cores(NATIVE));
    let pairs = [(1, 1, 0), (2, 2, 0), (2, 3, 0), (3, 2, 64), (3, 3, 0), (3, 4, 0), (4, 4, 0), (4, 1, 128)];
    for [batch, m, n, k] in [[1, 1, 1, 1], [1, 33, 31, 7], [2, 5, 70, 64], [2, 40, 1, 129], [1, 20, 35, 300]]
    {
        let word = |i: u32, stream: u32| match random(i, stream) % 2000 {
            0 => [0x7f80_0000, 0xff80_0000, 0x7fc0_0000][(i % 3) as usize],
            _ => pattern(i, stream),
        };
        let a: Vec<u32> = (0..batch * m * k).map(|i| word(i, 11)).collect();
        let b: Vec<u32> = (0..batch * n * k).map(|i| word(i, 12)).collect();
        for (digits_a, digits_b, block) in pairs {
            let mut table = ProductTable::preset();
            table.set(ProductClass::Linear, ProductDigits { digits_a, digits_b, block });
            let mut builder = Builder::new(table);
            let a_id = builder.input("a", DType::F32, &[batch, m, k]);
            let b_id = builder.input("b", DType::F32, &[batch, k, n]);
            let a_view = View { tensor: a_id, offset: 0, dims: [1, batch, m, k], strides: [0, m * k, k, 1] };
            let b_view = View { tensor: b_id, offset: 0, dims: [1, batch, n, k], strides: [0, n * k, 1, n] };
            let output = builder.product(ProductClass::Linear, a_view, b_view, &[batch, m, n]);
            builder.output("out", output);
            let graph = Arc::new(builder.finish());
            let product = |engine: &mut dyn Engine| {
                let inputs = [
                    upload(engine, DType::F32, &[batch, m, k], &a),
                    upload(engine, DType::F32, &[batch, k, n], &b),
                ];
                run(engine, &graph, &inputs)
            };
            let want = product(&mut cpu);
            for engine in &mut engines {
                let have = product(engine);
                let name = engine.describe();
                assert!(have == want, "{name}: {:?} {digits_a} {digits_b} {block}", [batch, m, n, k]);
            }
        }
    }
}

/// Sums, maxima and scales over lengths at the boundaries of the shaders that compute them.
#[test]
fn reductions_of_every_length() {
    type Build = fn(&mut Builder, TensorId) -> TensorId;
    let builds: [Build; 4] = [
        |b, x| b.sum_last(x),
        |b, x| b.sum_leading(x),
        |b, x| b.max_last(x),
        |b, x| {
            let [rows, len] = b.shape(x)[..] else { unreachable!() };
            let input = View { tensor: x, offset: 0, dims: [1, 1, rows, len], strides: [0, 0, len, 1] };
            b.node(Primitive::Absmax { input, block: 0 }, DType::U32, &[1, rows, 1])
        },
    ];
    let mut cpu = Cpu::new(1).unwrap();
    for (rows, len) in [(3, 1), (5, 255), (4, 256), (3, 257), (2, 4097), (1, 20_000), (20_000, 2)] {
        let words: Vec<u32> = (0..rows * len).map(|i| pattern(i, 21)).collect();
        for (number, build) in builds.iter().enumerate() {
            let mut builder = Builder::new(ProductTable::preset());
            let x = builder.input("x", DType::F32, &[rows, len]);
            let output = build(&mut builder, x);
            builder.output("out", output);
            let graph = Arc::new(builder.finish());
            let input = upload(&mut cpu, DType::F32, &[rows, len], &words);
            let want = run(&mut cpu, &graph, &[input]);
            for options in [PLAIN, NATIVE] {
                let engine = &mut Shim::new(Variant::Dot, options);
                let input = upload(engine, DType::F32, &[rows, len], &words);
                let have = run(engine, &graph, &[input]);
                assert!(have == want, "reduction {number} of {rows} x {len}, {options:?}");
            }
        }
    }
}

fn operator_outputs(engine: &mut dyn Engine, operator: &Operator, kind: u32, gradient: bool) -> Vec<Vec<u8>> {
    let images = [("B", 2), ("H", 7), ("W", 5), ("R", 3), ("S", 2)];
    let sizes = HashMap::from([("N", 6), ("M", 10), ("K", 70), ("C", 8), ("D", 4), ("X", 4), ("V", 37)]);
    let sizes: HashMap<&str, u32> = sizes.into_iter().chain(images).collect();
    let size = |word: &str| sizes.get(word).copied().unwrap_or_else(|| word.parse().unwrap());
    let shape =
        |pattern: &str| if pattern == "*" { vec![5, 67] } else { pattern.split(' ').map(size).collect() };
    let shapes: Vec<Vec<u32>> = operator.inputs.iter().map(|input| shape(input.shape)).collect();
    let attributes = Attributes {
        samples: 2,
        heads: 2,
        stride: 2,
        padding: 1,
        kernel: 3,
        windows: [3, 7],
        groups: 2,
        smoothing: 0.1,
        ignore: Some(3),
        window: Some(2),
        p: 0.25,
        number: 3,
        max_norm: 0.5,
        ..Attributes::default()
    };
    let mut b = Builder::new(ProductTable::preset());
    let Appended { inputs: ids, outputs } = operator.append(&mut b, &shapes, &attributes, gradient).unwrap();
    let types: Vec<TensorType> = ids.iter().map(|id| b.tensor(*id).clone()).collect();
    let compiled = engine.compile(Arc::new(b.finish())).unwrap();
    let bounds: HashMap<usize, u32> = operator.index_bounds(&shapes).into_iter().collect();
    let mut tensors = Vec::new();
    for (i, ty) in (0u32..).zip(&types) {
        let bound = bounds.get(&(i as usize)).copied().unwrap_or(1 << 31);
        let words: Vec<u32> = (0..ty.len() as u32)
            .map(|e| match (ty.dtype, kind) {
                (DType::U32, _) => random(e, i) % bound,
                (_, 0) => (random(e, i) & 0x807f_ffff) | (122 + random(e, i + 9) % 7) << 23,
                (_, 1) if e % 13 == 0 => [0x7f80_0000, 0xff80_0000, 0x7fc0_0000][(e % 3) as usize],
                _ => pattern(e, i + 30),
            })
            .collect();
        tensors.push(upload(engine, ty.dtype, &ty.shape, &words));
    }
    let computed = engine.run(&compiled, &tensors, None).unwrap();
    assert_eq!(computed.len(), outputs.len());
    computed.iter().map(|tensor| engine.download(tensor).unwrap()).collect()
}

#[test]
fn every_operator_and_gradient() {
    let mut engines = [Shim::new(Variant::Dot, PLAIN), Shim::new(Variant::Dot, NATIVE)];
    for operator in OPERATORS {
        for gradient in [false, true] {
            if gradient && !operator.differentiable {
                continue;
            }
            for kind in 0..3 {
                let expected = operator_outputs(&mut Reference, operator, kind, gradient);
                assert!(expected.iter().all(|bytes| !bytes.is_empty()));
                for engine in &mut engines {
                    let have = operator_outputs(engine, operator, kind, gradient);
                    let name = engine.describe();
                    assert!(
                        have == expected,
                        "{} (gradient {gradient}) of kind {kind} on {name}",
                        operator.name
                    );
                }
            }
        }
    }
}
