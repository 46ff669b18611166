//! Every function of one number in its WGSL form, translated and run on the host, against the scalar reference: over a sample of
//! inputs, or over all of them (docs/ELEMENTARY.md). The instructions are those of `expr`, the operators those of the catalogue.

mod common;
#[path = "../../tests/common/every_input.rs"]
mod every_input;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cuda_bridge::host::{Buffer, Checks, HostKernel};
use cuda_bridge::translate::{Functions, Kernel, Options, Parameter, functions};
use every_input::{compare, give};
use tiebreak_contract::arith::rounding_grid::GridRule;
use tiebreak_contract::arith::{DType, float};
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::catalogue::{Attributes, OPERATORS};
use tiebreak_contract::program::expr::{Body, Instr, UNARY};
use tiebreak_contract::program::graph::{Graph, Primitive, TensorId};
use tiebreak_contract::program::logged::round_body;
use tiebreak_contract::program::products::ProductTable;
use tiebreak_gpu::{Shader, Variant, shader};
use tiebreak_shaders::compose_text;

const TEXT: Options = Options { native: false };
const NATIVE: Options = Options { native: true };

/// Builds a graph over so many elements; the test compares its last output.
type Build<'a> = &'a (dyn Fn(u32) -> Graph + Sync);

/// A body's graph, with inputs for all the body's arguments.
fn of_body(body: &Body, len: u32) -> Graph {
    let mut b = Builder::new(ProductTable::preset());
    let inputs: Vec<_> = (0..body.inputs()).map(|_| b.input("x", DType::F32, &[len])).collect();
    let y = b.map(body.clone(), &inputs, &[len]);
    b.output("y", y);
    b.finish()
}

/// True if each element depends only on the same element of each input.
fn is_elementwise(graph: &Graph, len: u32) -> bool {
    graph.nodes.iter().all(|node| match &node.primitive {
        Primitive::Map { body, inputs, .. } => {
            let indexed = body.code.iter().any(|instr| matches!(instr, Instr::Index(_)));
            let whole = inputs.iter().all(|view| view.offset == 0 && view.strides[3] == 1);
            !indexed && whole && graph.tensor(node.output).shape == [len]
        }
        _ => false,
    })
}

/// The last output for one element by the scalar reference.
fn scalar(graph: &Graph, words: &[u32]) -> u32 {
    let mut values = vec![0; graph.tensors.len()];
    for (port, word) in graph.inputs.iter().zip(words) {
        values[port.tensor.0 as usize] = *word;
    }
    let mut inputs = Vec::with_capacity(8);
    for node in &graph.nodes {
        let Primitive::Map { body, inputs: views, .. } = &node.primitive else { panic!("not elementwise") };
        inputs.clear();
        inputs.extend(views.iter().map(|view| values[view.tensor.0 as usize]));
        values[node.output.0 as usize] = body.eval(&inputs, [0; 4]);
    }
    values[graph.outputs.last().unwrap().tensor.0 as usize]
}

/// Compares the shaders of a graph with a function. The graph's first input takes every word, the others always the same ones.
fn check(name: &str, options: Options, build: Build, others: &[u32], want: impl Fn(u32) -> u32 + Sync) {
    // Threads would compile the same kernels again.
    let kernels = Mutex::new(HashMap::<String, Arc<HostKernel>>::new());
    let kernel = |text: String| {
        let mut kernels = kernels.lock().unwrap();
        let make = |text: &String| {
            Arc::new(common::host(&common::try_kernel(text, options).unwrap(), Checks::default()))
        };
        kernels.entry(text).or_insert_with_key(make).clone()
    };
    let have = || {
        |x: &[u32]| {
            let graph = build(x.len() as u32);
            let mut values: Vec<Vec<u32>> = vec![Vec::new(); graph.tensors.len()];
            let other = others.iter().map(|word| vec![*word; x.len()]);
            assert_eq!(1 + others.len(), graph.inputs.len(), "{name}");
            for (port, words) in graph.inputs.iter().zip(std::iter::once(x.to_vec()).chain(other)) {
                values[port.tensor.0 as usize] = words;
            }
            for node in &graph.nodes {
                let Shader { text, uniform, groups } = shader(&graph, node, Variant::Dot).unwrap();
                let mut out = vec![0x5a5a_5a5a; x.len()];
                let read = |id: &TensorId| Buffer::Read(&values[id.0 as usize]);
                let mut buffers = vec![Buffer::Read(&uniform)];
                buffers.extend(node.primitive.inputs().iter().map(read));
                buffers.push(Buffer::Write(&mut out));
                let run = kernel(text.into_owned()).run(groups, &mut buffers);
                run.unwrap_or_else(|error| panic!("{name}: {error}"));
                values[node.output.0 as usize] = out;
            }
            std::mem::take(&mut values[graph.outputs.last().unwrap().tensor.0 as usize])
        }
    };
    compare(&format!("{name}, {}", if options.native { "CUDA" } else { "WGSL" }), have, want);
}

/// The instructions on one number, exp, log, tanh and erf among them: as WGSL, and with CUDA's own instructions.
#[test]
fn instructions() {
    for (name, write) in UNARY {
        let body = Body::new("instruction", |w| {
            let x = w.input(0);
            write(w, x)
        });
        for options in [TEXT, NATIVE] {
            check(name, options, &|len| of_body(&body, len), &[], |x| body.eval(&[x], [0; 4]));
        }
    }
}

/// The catalogue's elementwise operators with one input, and their gradients where dy = 1.
#[test]
fn operators() {
    let mut checked = Vec::new();
    for operator in OPERATORS.iter().filter(|o| o.inputs.len() == 1 && o.inputs[0].shape == "*") {
        // Another test checks the instructions.
        if UNARY.iter().any(|(name, _)| *name == operator.name) {
            continue;
        }
        for gradient in [false, true] {
            if gradient && !operator.differentiable {
                continue;
            }
            let build = |len| {
                let mut b = Builder::new(ProductTable::preset());
                operator.append(&mut b, &[vec![len]], &Attributes::default(), gradient).unwrap();
                b.finish()
            };
            let graph = build(64);
            if !is_elementwise(&graph, 64) {
                continue;
            }
            let name = format!("{}{}", operator.name, if gradient { " backward" } else { "" });
            let others = &[float::ONE][..usize::from(gradient)];
            let want = |x| scalar(&graph, &[&[x], others].concat());
            check(&name, TEXT, &build, others, want);
            checked.push(name);
        }
    }
    let known = ["relu", "relu backward", "gelu", "gelu backward", "gelu_erf", "gelu_erf backward"];
    assert!(known.iter().all(|name| checked.iter().any(|have| have == name)), "{checked:?}");
}

/// The grids of logged products: bfloat16, with and without a floor, and binary32 with one.
#[test]
fn rounding_grids() {
    for (bits, floor) in [(16, 0), (16, 10), (32, 12)] {
        let (rule, k) = (GridRule { bits, floor }, 768);
        let absmaxes = [0x3f91_0000, 0x3dcc_cccd];
        let grid = rule.grid(k, absmaxes[0], absmaxes[1]);
        let body = round_body(rule, k);
        let others = &absmaxes[..body.inputs() - 1];
        let name = format!("grid of {bits} bits, floor {floor}");
        // Products give one NaN; the body's result for other NaNs counts as well.
        let want = |x| match x != float::NAN && float::is_nan(x) {
            true => body.eval(&[&[x], others].concat(), [0; 4]),
            false => grid.round(x),
        };
        check(&name, TEXT, &|len| of_body(&body, len), others, want);
    }
}

/// The keys by which maxima compare, in both directions.
#[test]
fn order_keys() {
    for (name, want) in
        [("f_order_key", float::order_key as fn(u32) -> u32), ("f_from_order_key", float::from_order_key)]
    {
        let text = format!(
            "//!include shared/float.wgsl
@group(0) @binding(0) var<storage, read> input: array<u32>;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{ output[id.x] = {name}(input[id.x]); }}"
        );
        let kernel = common::host(&common::kernel(&compose_text(name, &text).unwrap()), Checks::default());
        let have = || {
            |x: &[u32]| {
                let mut out = vec![0; x.len()];
                let groups = [x.len() as u32 / 64, 1, 1];
                kernel.run(groups, &mut [Buffer::Read(x), Buffer::Write(&mut out)]).unwrap();
                out
            }
        };
        compare(name, have, want);
    }
}

/// The number of inputs that binary64 does not decide on CUDA, so that WGSL's text does: a few in a million.
#[test]
fn undecided_in_binary64() {
    for name in ["exp", "log", "tanh", "erf"] {
        let text = compose_text(name, &format!("//!include shared/{name}.wgsl\n")).unwrap();
        let (module, info) = common::valid(&text);
        let Functions { source, .. } = functions(&module, &info, &[&format!("f_{name}")], NATIVE).unwrap();
        let source = format!(
            "{source}extern \"C\" __global__ void __launch_bounds__(1) count(const u32* p, const u32* in, u32 in_n, u32* out, u32) {{\n    \
             u32 n = p[0];\n    for (u32 i = 0u; i < in_n; i++) n += !tb::binary64::{name}(in[i]).sure;\n    out[0] = n;\n}}\n"
        );
        let parameters = Parameter::by_hand(1, &[("in", 4, false), ("out", 4, true)]);
        let kernel = Kernel {
            name: "count".into(),
            source,
            parameters,
            block: [1; 3],
            barriers: false,
            dynamic_shared: 0,
        };
        let kernel = common::host(&kernel, Checks::default());
        let undecided = AtomicU64::new(0);
        let (inputs, seconds) = give(name, || {
            |x: &[u32]| {
                let mut count = [0];
                let mut buffers = [Buffer::Read(&[0]), Buffer::Read(x), Buffer::Write(&mut count)];
                kernel.run([1; 3], &mut buffers).unwrap();
                undecided.fetch_add(count[0].into(), Ordering::Relaxed);
            }
        });
        let undecided = undecided.into_inner();
        println!("{name}: {inputs} inputs, {undecided} undecided in binary64, {seconds:.0} s");
        assert!(undecided < inputs >> 17, "{name}: {undecided} of {inputs}");
    }
}
