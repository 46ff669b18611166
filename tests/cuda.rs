//! The engine for NVIDIA's GPUs, over a stand-in for the driver and NVRTC that runs kernels on the host: the bits of every
//! other engine, and errors that say what to do when a GPU fails. `cuda-bridge/check-on-gpu.sh` does the like on a GPU.

#![cfg(feature = "cuda")]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::gpt_job;
use common::shim::{in_its_own_process, shim, tiebreak};
use tiebreak::arith::DType;
use tiebreak::arith::philox::philox4x32_10;
use tiebreak::commit::record::Record;
use tiebreak::engine::cpu::Cpu;
use tiebreak::engine::gpu::Cuda;
use tiebreak::engine::outputs_of;
use tiebreak::program::builder::Builder;
use tiebreak::program::expr::{Body, Writer};
use tiebreak::program::graph::{Graph, View};
use tiebreak::program::operators::{Dropout, causal_attention};
use tiebreak::program::products::{ProductClass, ProductDigits, ProductTable};
use tiebreak::run::transcript;

/// A run by the CUDA engine, audited by the CPU's, and the other way round; then one on a GPU that is lost in the middle.
#[test]
fn runs_have_the_bits_of_other_engines_and_survive_a_lost_gpu() {
    let Some(shim) = shim() else { return };
    let (code, printed) = tiebreak(shim, &[], &["selftest", "--engine", "cuda"]);
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains("host shim") && printed.contains("equals the scalar reference"), "{printed}");

    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let job = gpt_job(folder.path(), "operator", "").to_str().unwrap().to_string();
    let (there, here, ranks, lost) = (path("cuda"), path("cpu"), path("ranks"), path("lost"));
    let run = |args: &[&str]| {
        let (code, printed) = tiebreak(shim, &[], args);
        assert_eq!(code, 0, "{args:?}: {printed}");
        printed
    };
    run(&["-q", "train", &job, "--out", &there, "--engine", "cuda"]);
    run(&["-q", "train", &job, "--out", &here]);
    assert!(run(&["compare", &there, &here]).contains("no difference"));
    assert!(run(&["audit", &there]).contains("MATCHES"));
    // Three processes share the one GPU.
    run(&["-q", "train", &job, "--out", &ranks, "--engine", "cuda", "--ranks", "3"]);
    assert!(run(&["compare", &ranks, &here]).contains("no difference"));
    assert!(run(&["audit", &ranks]).contains("MATCHES"));
    assert!(run(&["audit", &here, "--engine", "cuda"]).contains("MATCHES"));

    // Launches of the self-test, then some steps', so that a checkpoint and steps after it are there to go on from.
    let faults = [("TIEBREAK_SHIM_LOST", "11000")];
    let (code, printed) = tiebreak(shim, &faults, &["-q", "train", &job, "--out", &lost, "--engine", "cuda"]);
    assert_eq!(code, 3, "{printed}");
    assert!(printed.contains("was lost") && printed.contains("resumed"), "{printed}");
    let (history, _) = transcript::read(&Path::new(&lost).join("transcript")).unwrap();
    let steps = history.records.iter().filter(|record| matches!(record, Record::Step { .. })).count();
    assert!((3..8).contains(&steps), "the GPU was lost after {steps} of 8 steps; say another launch");
    run(&["-q", "train", "--out", &lost, "--resume", "--engine", "cuda"]);
    assert!(run(&["compare", &lost, &here]).contains("no difference"));
    assert!(run(&["audit", &lost]).contains("MATCHES"));
}

/// Where nobody looks at what is between, magnitudes are computed with the digits, rows are computed at once, and launches that come back
/// are launched as graphs: the GPU's state is still the CPU's, and so it is where the driver makes no graphs.
#[test]
fn steps_that_nobody_observes_have_the_same_bits() {
    let Some(shim) = shim() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let job = gpt_job(folder.path(), "step", "");
    let mut text = std::fs::read_to_string(&job).unwrap();
    // Rows of attention and of layer norms that are long enough.
    for (from, to) in [
        ("steps = 8", "steps = 14"),
        ("micro_batch = 2", "micro_batch = 1"),
        ("context = 12", "context = 65"),
        ("width = 16", "width = 66"),
    ] {
        assert!(text.contains(from));
        text = text.replace(from, to);
    }
    std::fs::write(&job, text).unwrap();
    let job = job.to_str().unwrap().to_string();
    let run = |environment: &[(&str, &str)], args: &[&str]| {
        let (code, printed) = tiebreak(shim, environment, args);
        assert_eq!(code, 0, "{args:?}: {printed}");
        printed
    };
    let here = path("cpu");
    run(&[], &["-q", "train", &job, "--out", &here]);
    for graphs in ["1", "0"] {
        let (out, counts) = (path(&format!("cuda-{graphs}")), path(&format!("counts-{graphs}")));
        let environment = [("TIEBREAK_SHIM_COUNTS", &counts[..]), ("TIEBREAK_SHIM_GRAPHS", graphs)];
        run(&environment, &["-q", "train", &job, "--out", &out, "--engine", "cuda"]);
        assert!(run(&[], &["compare", &out, &here]).contains("no difference"));
        // Kernels run, graphs made, graphs launched, kernels for rows between products and for columns.
        let counts = std::fs::read_to_string(&counts).unwrap();
        let counts: Vec<u64> =
            counts.lines().last().unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
        if graphs == "1" {
            // A step launches ten sequences, and after a few steps every other one uses the same memory.
            assert!(counts[1] <= 20 && counts[2] >= 70, "made and launched: {counts:?}");
            // Forward and backward of every micro-batch, and of the opening.
            assert!(counts[3..].iter().all(|&count| count >= 2 + 14 * 3 * 2), "{counts:?}");
        } else {
            assert_eq!(counts[1..3], [0, 0]);
        }
    }
}

#[test]
fn a_logged_run_replays_on_the_cpu() {
    let Some(shim) = shim() else { return };
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "").to_str().unwrap().to_string();
    let out = folder.path().join("run").to_str().unwrap().to_string();
    let train = ["-q", "train", &job, "--out", &out, "--profile", "logged", "--engine", "cuda"];
    let (code, printed) = tiebreak(shim, &[], &train);
    assert_eq!(code, 0, "{printed}");
    let (code, printed) = tiebreak(shim, &[], &["audit", &out]);
    assert!(code == 0 && printed.contains("MATCHES"), "{printed}");
}

/// Each fault of a machine gives its own error, which says what to do, and no engine.
#[test]
fn faults_are_told_apart() {
    let Some(shim) = shim() else { return };
    let nowhere = ("TIEBREAK_CUDA_DRIVER", "/nowhere/libcuda.so");
    for (fault, says) in [
        (nowhere, "install the driver"),
        (("TIEBREAK_NVRTC", "/nowhere/libnvrtc.so"), "pip install nvidia-cuda-nvrtc"),
        (("TIEBREAK_SHIM_VERSION", "11010"), "install a newer driver"),
        (("TIEBREAK_SHIM_MEMORY", "300000"), "out of memory"),
        (("TIEBREAK_SHIM_LOST", "100"), "was lost"),
        (("TIEBREAK_SHIM_WRONG", "500"), "failed its self-test"),
    ] {
        let (code, printed) = tiebreak(shim, &[fault], &["selftest", "--engine", "cuda"]);
        assert_eq!(code, 3, "{fault:?}: {printed}");
        assert!(printed.contains(says), "{fault:?}: {printed}");
    }
    let (code, printed) = tiebreak(shim, &[], &["selftest", "--engine", "cuda", "--adapter", "H200"]);
    assert!(code == 3 && printed.contains("GPUs here: 0: host shim"), "{printed}");
    let no_vulkan = ("VK_DRIVER_FILES", "/nowhere/icd.json");
    let (_, printed) = tiebreak(shim, &[nowhere, no_vulkan], &["adapters", "--json"]);
    assert!(!printed.contains("cuda"), "where there is no driver nothing is said of it: {printed}");
    let (code, printed) = tiebreak(shim, &[no_vulkan], &["adapters"]);
    assert!(code == 0 && printed.contains("cuda: host shim"), "{printed}");
}

/// Rows between two products by one kernel: attention and its gradient, and a chain of nodes of every kind that a kernel takes.
#[test]
fn rows_between_products_have_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let counts = folder.path().join("counts").to_str().unwrap().to_string();
    if in_its_own_process("rows_between_products", &[("TIEBREAK_SHIM_COUNTS", &counts)]) {
        let counts = std::fs::read_to_string(&counts).unwrap();
        let counts: Vec<usize> = counts.trim().split(' ').map(|n| n.parse().unwrap()).collect();
        // Of the opening; two for each attention and its gradient, but for digits whose sums are too wide; one for each chain. Gradients of
        // keys and values have a kernel of their own.
        let attention = 2 + 2 * (ATTENTION.len() - 1);
        assert_eq!(counts[3..], [attention + CHAINS.len(), attention]);
    }
}

/// Samples, heads, positions, channels of a head, dropout, digits (0: the default ones).
const ATTENTION: [([u32; 4], f32, u8); 6] = [
    ([2, 2, 64, 8], 0.0, 0),
    ([1, 1, 65, 5], 0.3, 0),
    ([3, 1, 131, 33], 0.0, 2),
    ([1, 2, 66, 128], 0.0, 3),
    ([1, 1, 400, 4], 0.2, 1),
    ([1, 1, 64, 64], 0.0, 4),
];

/// Rows of a sample, their places, K, columns.
const CHAINS: [[u32; 4]; 2] = [[40, 129, 65, 9], [17, 1030, 20, 3]];

#[test]
#[ignore = "run by rows_between_products_have_the_same_bits in a process with the stand-in"]
fn rows_between_products() {
    let mut cuda = Cuda::open(None).unwrap();
    let mut cpu = Cpu::new(2).unwrap();
    let mut check = |what: String, (graph, inputs): (Graph, Vec<Vec<u8>>)| {
        let graph = Arc::new(graph);
        let here = outputs_of(&mut cpu, &graph, &inputs).unwrap();
        let there = outputs_of(&mut cuda, &graph, &inputs).unwrap();
        for (port, (here, there)) in graph.outputs.iter().zip(here.iter().zip(&there)) {
            assert!(here == there, "{what}: {}", port.name);
        }
    };
    for (i, (sizes, p, digits)) in (0..).zip(ATTENTION) {
        check(format!("{sizes:?}"), attention(i, sizes, p, digits));
    }
    for (i, sizes) in (0..).zip(CHAINS) {
        check(format!("{sizes:?}"), chain(i, sizes));
    }
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

/// Attention with every gradient. Odd cases have ordinary numbers only, whose gradients are not all NaN.
fn attention(case: u32, [samples, heads, t, d]: [u32; 4], p: f32, digits: u8) -> (Graph, Vec<Vec<u8>>) {
    let mut b =
        Builder::new(if digits == 0 { ProductTable::preset() } else { ProductTable::uniform(digits) });
    let shape = [samples * t, heads * d];
    let [q, k, v, dy] = ["q", "k", "v", "dy"].map(|name| b.input(name, DType::F32, &shape));
    let seed = b.input("seed", DType::U32, &[2]);
    let [step, first_sample] = ["step", "first_sample"].map(|name| b.input(name, DType::U32, &[1]));
    let (threshold, scale) = Dropout::rates(p);
    let drop = (p > 0.0).then_some((Dropout { seed, step, first_sample, threshold, scale }, 5));
    let y = causal_attention(&mut b, [q, k, v], samples, heads, drop);
    let gradients = b.backward(y, dy);
    b.output("y", y);
    for (name, input) in [("dq", q), ("dk", k), ("dv", v)] {
        b.output(name, gradients[&input]);
    }
    let len = shape[0] * shape[1];
    // Far from any row's end there is none of the others.
    let width = if case.is_multiple_of(2) { shape[1] } else { u32::MAX };
    let mut inputs: Vec<Vec<u8>> = (0..4).map(|i| numbers(4 * case + i, len, width)).collect();
    inputs.extend(
        [vec![[1u32, 2].map(u32::to_le_bytes).concat()], vec![vec![3, 0, 0, 0], vec![9, 0, 0, 0]]].concat(),
    );
    (b.finish(), inputs)
}

/// Two products with what attention has not between them: a vector of the places, numbers of the rows from before and computed on the
/// way, and values that wait while others are computed.
fn chain(case: u32, [rows, len, k, n]: [u32; 4]) -> (Graph, Vec<Vec<u8>>) {
    let mut table = ProductTable::preset();
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
    let product = |w: &mut Writer| {
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
