//! Tensors that a shader cannot see as a whole: the wgpu engine gets buffers so small that each primitive, and every tensor of a
//! training, is split into many windows. On every adapter here, its bits equal those of the CPU engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::common::{begin_run, edit::edit, every_pair, files, gpt_job, key, mlp_job};
use crate::gpus::gpus;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{self as audit, Outcome, audit, checks};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::expr::Body;
use tiebreak_contract::program::graph::{Graph, Primitive, TensorId, TensorType, View};
use tiebreak_contract::program::im2col::ConvGeometry;
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::{Gpt, Model};
use tiebreak_contract::program::operators::{self, ConvVersion};
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
use tiebreak_contract::program::step::{MicroBatch, Program, StepSpec};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::session::{Session, StepScalars, Unobserved};
use tiebreak_engine::{Engine, outputs_of};
use tiebreak_gpu::{Gpu, Variant};
use tiebreak_run::run::disk::Disk;
use tiebreak_train::{Silent, train};

/// Runs a test on every adapter, with buffers of so many bytes, each on a thread of its own. If no adapter multiplies digit
/// planes or whole words, one more that does is opened.
fn with_buffers_of(bytes: u64, test: impl Fn(&mut Gpu) + Sync) {
    static OTHER: Mutex<Option<Gpu>> = Mutex::new(None);
    let (mut gpus, mut other) = (gpus(), OTHER.lock().unwrap_or_else(PoisonError::into_inner));
    // SwiftShader takes minutes to compile the variants that it would not choose.
    let quick = gpus.adapters.iter().find(|gpu| !gpu.describe().contains("SwiftShader"));
    if let (Some(quick), None) = (quick, &*other) {
        let words = gpus.adapters[0].describe().contains("Words");
        let engine = quick.beside(if words { Variant::Dot } else { Variant::Words }).unwrap();
        *other = Some(engine.hashing(true).fusing_rows(true));
    }
    let run = &|engine: &mut Gpu| {
        engine.set_buffers(bytes);
        test(engine);
        engine.set_buffers(u64::MAX);
    };
    std::thread::scope(|scope| {
        for engine in gpus.adapters.iter_mut().chain(&mut *other) {
            scope.spawn(move || run(engine));
        }
    });
}

fn random(i: u32, stream: u32) -> u32 {
    philox4x32_10([stream, 77], [i, 0, 0, 0])[0]
}

/// Bytes of an input: numbers of several absmaxes with a few specials, or integers below 2^24.
fn bytes(ty: &TensorType, stream: u32) -> Vec<u8> {
    let word = |i: u32| match (ty.dtype, random(i, stream)) {
        (DType::U32, r) => r >> 8,
        (_, r) if r % 211 == 0 => [0x7f80_0000, 0x8000_0000, 0x7fc0_0000, 1][(r >> 8) as usize % 4],
        (_, r) => (r & 0x807f_ffff) | (118 + (r >> 23) % 13) << 23,
    };
    (0..ty.len() as u32).flat_map(|i| word(i).to_le_bytes()).collect()
}

/// A graph with inputs of these types.
fn graph(
    shapes: &[(DType, &[u32])],
    digits: ProductDigits,
    build: impl FnOnce(&mut Builder, &[TensorId]) -> Vec<TensorId>,
) -> (Arc<Graph>, Vec<Vec<u8>>) {
    let mut table = ProductTable::two_and_three();
    table.set(ProductClass::Linear, digits);
    let mut b = Builder::new(table);
    let ids: Vec<TensorId> =
        (0..).zip(shapes).map(|(i, (dtype, shape))| b.input(format!("in{i}"), *dtype, shape)).collect();
    let outputs = build(&mut b, &ids);
    for (i, output) in outputs.into_iter().enumerate() {
        b.output(format!("out{i}"), output);
    }
    let graph = b.finish();
    let types = ids.iter().map(|id| graph.tensor(*id).clone());
    let inputs = (0..).zip(types).map(|(i, ty)| bytes(&ty, i)).collect();
    (Arc::new(graph), inputs)
}

const DIGITS: ProductDigits = ProductDigits { digits_a: 2, digits_b: 3, block: 0 };

/// Checks that the CPU engine and every adapter agree about a graph if a shader sees no more than each of these sizes.
fn agree(name: &str, sizes: &[u64], (graph, inputs): &(Arc<Graph>, Vec<Vec<u8>>)) {
    let want = outputs_of(&mut Cpu::new(2).unwrap(), graph, inputs).unwrap();
    for &size in sizes {
        with_buffers_of(size, |gpu| {
            let most = |tensors: &[TensorType]| tensors.iter().map(TensorType::bytes).max();
            assert!(most(&graph.tensors) > Some(size as usize), "{name} needs no windows at {size}");
            let have =
                outputs_of(gpu, graph, inputs).unwrap_or_else(|error| panic!("{name} at {size}: {error}"));
            assert!(have == want, "{name} with buffers of {size} bytes on {}", gpu.describe());
        });
    }
}

#[test]
fn maps_of_every_access() {
    let shape = &[3, 5, 7, 11][..];
    let types = [(DType::F32, shape), (DType::F32, &[7, 11]), (DType::F32, &[3, 5, 7])];
    let case = graph(&types, DIGITS, |b, x| {
        let dims = [3, 5, 7, 11];
        let views = vec![
            // The tensor's own layout, one row for all samples, one element for a row, and one for all.
            View { tensor: x[0], offset: 0, dims, strides: [385, 77, 11, 1] },
            View { tensor: x[1], offset: 0, dims, strides: [0, 0, 11, 1] },
            View { tensor: x[2], offset: 0, dims, strides: [35, 7, 1, 0] },
            View { tensor: x[0], offset: 1154, dims, strides: [0; 4] },
        ];
        let body = |indexed: bool| {
            Body::new("test.v1", |w| {
                let sums = w.input(0);
                let (row, column, one) = (w.input(1), w.input(2), w.input(3));
                let mut value = w.add(sums, row);
                value = w.mul(value, column);
                value = w.sub(value, one);
                for d in 0..if indexed { 4 } else { 0 } {
                    let index = w.index(d);
                    let index = w.from_u(index);
                    value = w.add(value, index);
                }
                w.neg(value)
            })
        };
        let map = |indexed| Primitive::Map { body: body(indexed), dims, inputs: views.clone() };
        let plain = b.node(map(false), DType::F32, shape);
        let indexed = b.node(map(true), DType::F32, shape);
        // The outermost dimension comes last: every window reads from all pieces.
        let turned = View { tensor: x[0], offset: 0, dims: [11, 7, 5, 3], strides: [1, 11, 77, 385] };
        let turned = b.copy(turned, &[11, 7, 5, 3]);
        vec![plain, indexed, turned]
    });
    agree("maps", &[256, 512, 1024, 4096], &case);
}

#[test]
fn reductions() {
    for shape in [[4, 1, 90], [3, 33, 5], [2, 300, 1], [70, 3, 3], [2, 9000, 1]] {
        let case = graph(&[(DType::F32, &shape)], DIGITS, |b, x| {
            let [outer, len, inner] = shape;
            let mut made = Vec::new();
            for block in [0, 2, 64] {
                let blocks = tiebreak_contract::program::graph::block_count(len, block);
                let sum = Primitive::TreeSum { input: x[0], outer, len, inner, block };
                made.push(b.node(sum, DType::F32, &[outer, blocks, inner]));
                let blocks = tiebreak_contract::program::graph::block_count(inner, block);
                let max = Primitive::RowMax { input: x[0], block };
                made.push(b.node(max, DType::F32, &[outer, len, blocks]));
            }
            made
        });
        // A row has to fit unless it is a sum of blocks.
        let sizes: &[u64] = match shape[1] {
            9000 => &[36_096],
            300 => &[1280, 2048],
            _ => &[512, 1024],
        };
        agree(&format!("reductions of {shape:?}"), sizes, &case);
    }
    // With blocks a row need not fit.
    let case = graph(&[(DType::F32, &[2, 3000])], DIGITS, |b, x| {
        let sum = Primitive::TreeSum { input: x[0], outer: 2, len: 3000, inner: 1, block: 64 };
        let max = Primitive::RowMax { input: x[0], block: 64 };
        vec![b.node(sum, DType::F32, &[2, 47, 1]), b.node(max, DType::F32, &[2, 47])]
    });
    agree("blocks of long rows", &[256, 1024], &case);
}

#[test]
fn gathers_and_segment_sums() {
    let shapes =
        [(DType::F32, &[50, 24][..]), (DType::F32, &[90, 50]), (DType::U32, &[90]), (DType::F32, &[90, 24])];
    let (graph, mut inputs) = graph(&shapes, DIGITS, |b, x| {
        let [table, scores, classes, rows] = x else { unreachable!() };
        let (indices, bound) = (*classes, 50);
        let gather = |table, stride_index, stride_row, stride_column| Primitive::Gather {
            table,
            indices,
            bound,
            stride_index,
            stride_row,
            stride_column,
        };
        let embedded = b.node(gather(*table, 24, 0, 1), DType::F32, &[90, 24]);
        let turned = b.node(gather(*table, 1, 0, 50), DType::F32, &[90, 24]);
        let picked = b.node(gather(*scores, 1, 50, 0), DType::F32, &[90, 1]);
        let order = b.node(Primitive::GroupOrder { classes: indices, bound }, DType::U32, &[90]);
        let offsets = b.node(Primitive::GroupOffsets { classes: indices, bound }, DType::U32, &[bound + 1]);
        let sum = Primitive::SegmentSum { input: *rows, order, offsets };
        let summed = b.node(sum, DType::F32, &[bound, 24]);
        vec![embedded, turned, picked, order, offsets, summed]
    });
    inputs[2] = (0..90).flat_map(|i| (random(i, 5) % 50).to_le_bytes()).collect();
    agree("gathers and segment sums", &[512, 1024, 4096], &(graph, inputs));
}

/// Patches of images forward and back: windows of whole images, and of rows of patches.
#[test]
fn patches() {
    let case = graph(&[(DType::F32, &[3, 7, 5, 4])], DIGITS, |b, x| {
        let geometries = [([3, 2], 1, 1), ([3, 3], 2, 1), ([1, 1], 2, 0), ([7, 4], 1, 3)];
        let of = |(kernel, stride, padding)| ConvGeometry::of_image([7, 5], kernel, stride, padding).unwrap();
        // Images of 7 x 5 also serve as gradients of outputs of larger images.
        let geometries =
            geometries.map(of).into_iter().flat_map(|geometry| [geometry, geometry.transposed([9, 8])]);
        let patches = |geometry: ConvGeometry| {
            b.node(Primitive::Im2col { input: x[0], geometry }, DType::F32, &geometry.shape(3, 4))
        };
        geometries.map(patches).collect()
    });
    agree("patches", &[3584, 8192], &case);
}

/// The same of digits: a sample's rows of patches, and places and channels as rows.
#[test]
fn digit_patches() {
    let case = graph(&[(DType::F32, &[3, 7, 5, 4]), (DType::F32, &[6, 3, 2, 4])], DIGITS, |b, x| {
        let products = [(1, 1), (2, 1), (3, 4)].into_iter().flat_map(|(stride, padding)| {
            let y = operators::conv2d(b, x[0], x[1], ConvVersion::V2, stride, padding).unwrap();
            let gradients = b.backward(y, y);
            [y, gradients[&x[0]], gradients[&x[1]]]
        });
        products.collect()
    });
    agree("patches of digits", &[3584], &case);
}

/// Scales, digits and products of operands in their own layout and across memory, in samples and blocks; and a quantised output.
#[test]
fn products() {
    let [batch, m, n, k] = [3, 20, 37, 150];
    for (digits_a, digits_b, block) in [(2, 2, 0), (3, 2, 64), (4, 4, 0)] {
        let digits = ProductDigits { digits_a, digits_b, block };
        let shapes = [(DType::F32, &[batch, m, k][..]), (DType::F32, &[batch, k, n]), (DType::F32, &[n, k])];
        let case = graph(&shapes, digits, |b, x| {
            let a = View { tensor: x[0], offset: 0, dims: [1, batch, m, k], strides: [0, m * k, k, 1] };
            let across = View { tensor: x[1], offset: 0, dims: [1, batch, n, k], strides: [0, n * k, 1, n] };
            let samples = b.product(ProductClass::Linear, a, across, &[batch, m, n]);
            let rows = View { tensor: x[0], offset: 0, dims: [1, 1, batch * m, k], strides: [0, 0, k, 1] };
            let one = b.whole(x[2]);
            let linear = b.product(ProductClass::Linear, rows, one, &[batch * m, n]);
            vec![samples, linear]
        });
        agree(&format!("products of {digits:?}"), &[1536, 2560, 8192], &case);
    }
}

/// Rows that are too large are refused with an error when the graph is compiled.
#[test]
fn what_cannot_be_split_is_refused_beforehand() {
    let (graph, _) = graph(&[(DType::F32, &[4, 1000])], DIGITS, |b, x| {
        let sum = Primitive::TreeSum { input: x[0], outer: 4, len: 1000, inner: 1, block: 0 };
        vec![b.node(sum, DType::F32, &[4, 1, 1])]
    });
    with_buffers_of(2048, |gpu| {
        let error = gpu.compile(graph.clone()).err().expect("a row of 4000 bytes does not fit");
        let text = error.to_string();
        assert!(text.contains("[4, 1000]") && text.contains("4000 bytes") && text.contains("2048"), "{text}");
    });
}

/// Tensors in pieces are read back unchanged, and have the roots of tensors in one piece.
#[test]
fn pieces_are_read_and_hashed_as_one() {
    with_buffers_of(1024, |gpu| {
        for (dtype, len) in [(DType::F32, 5), (DType::U32, 256), (DType::F32, 257), (DType::F32, 70_001)] {
            let ty = TensorType { dtype, shape: vec![len] };
            let there = bytes(&ty, len);
            let tensor = gpu.upload(&ty, &there).unwrap();
            assert!(gpu.download(&tensor).unwrap() == there);
            let small = gpu.upload(&TensorType { dtype, shape: vec![1] }, &there[..4]).unwrap();
            let roots = gpu.roots(&[small.clone(), tensor, small]).unwrap().expect("hashing is switched on");
            let want = [&there[..4], &there, &there[..4]].map(|bytes| *blake3::hash(bytes).as_bytes());
            assert!(roots == want, "{dtype:?} x {len}");
        }
        let packed = TensorType { dtype: DType::U8, shape: vec![3001] };
        let there: Vec<u8> = (0..3001u32).map(|i| (i % 251) as u8).collect();
        let tensor = gpu.upload(&packed, &there).unwrap();
        assert!(gpu.download(&tensor).unwrap() == there);
    });
}

/// A trainer's native products of integers, whose sums are exact in every order.
#[test]
fn native_products() {
    let [batch, m, n, k] = [2, 9, 35, 70];
    let shapes = [(DType::F32, &[batch, m, k][..]), (DType::F32, &[k, batch, n])];
    let (graph, inputs) = graph(&shapes, DIGITS, |b, x| {
        let a = View { tensor: x[0], offset: 0, dims: [batch, 1, m, k], strides: [m * k, 0, k, 1] };
        let across = View { tensor: x[1], offset: 0, dims: [batch, 1, n, k], strides: [n, 0, 1, batch * n] };
        vec![b.node(Primitive::Native { a, b: across }, DType::F32, &[batch, m, n])]
    });
    let integer = |i: u32| ((random(i, 8) % 200) as f32 - 100.0).to_le_bytes();
    let integers = |bytes: &Vec<u8>| (0..bytes.len() as u32 / 4).flat_map(integer).collect();
    agree("native products", &[512, 1024, 4096], &(graph, inputs.iter().map(integers).collect()));
}

/// Whole runs with dropout, accumulation and operator traces write the files of the CPU engine.
#[test]
fn runs_in_small_buffers_write_the_same_files() {
    let folder = tempfile::tempdir().unwrap();
    let gpt = gpt_job(folder.path(), "operator", "");
    edit(&gpt, &[("steps = 8", "steps = 2")]);
    for (job, bytes) in [(gpt, 1536), (mlp_job(folder.path(), "operator", 2, 2), 1024)] {
        let trained = |engine: &mut dyn Engine| {
            let disk = Disk::default();
            let own = tempfile::tempdir_in(folder.path()).unwrap();
            let out = own.path().join("run");
            let run = begin_run(&disk, &job, &out).unwrap();
            train(&run, engine, Some(&key()), &mut Silent).unwrap();
            files(&out)
        };
        let expected = trained(&mut Cpu::new(2).unwrap());
        with_buffers_of(bytes, |gpu| {
            assert!(trained(gpu) == expected, "{bytes} bytes on {}", gpu.describe());
        });
    }
}

/// A logged run replays exactly: observers see tensors in pieces, and replace them.
#[test]
fn logged_runs_in_small_buffers_replay() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "\n[rounding]\n");
    edit(&job, &[("steps = 8", "steps = 2")]);
    with_buffers_of(1536, |gpu| {
        let disk = Disk::default();
        let own = tempfile::tempdir_in(folder.path()).unwrap();
        let run = begin_run(&disk, &job, &own.path().join("run")).unwrap();
        train(&run, gpu, Some(&key()), &mut Silent).unwrap();
        for auditor in [gpu as &mut dyn Engine, &mut Cpu::new(2).unwrap()] {
            let checked = checks::always(&run, Some(&key().public())).unwrap();
            let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
            let (report, _) = audit(&run, auditor, checked, plan, None, &mut audit::Silent).unwrap();
            assert_eq!(report.outcome, Outcome::Matches, "audited by {}", auditor.describe());
        }
    });
}

/// A step of a GPT with GPT-2's embedding, of 154 MB, in buffers of WebGPU's default limits. The tests above have the same splits in
/// small buffers, so TIEBREAK_EVERY_PAIR alone asks for it.
#[test]
fn an_embedding_of_gpt_2_fits_default_limits() {
    const POSITIONS: u32 = 5;
    if !every_pair("a step with GPT-2's embedding in buffers of 128 MiB") {
        return;
    }
    let gpt =
        Gpt { vocabulary: 50_257, context: POSITIONS, layers: 1, heads: 12, width: 768, ..Gpt::default() };
    let program = Arc::new(Program::new(StepSpec {
        loss: Default::default(),
        model: Model::Gpt(gpt),
        optimizer: Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 },
        clip_norm: Some(1.0),
        micro_batch: 1,
        micro_batches: 1,
        products: ProductTable::two_and_three(),
    }));
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let state: Vec<Vec<u8>> = init::state(&program, [1, 2]).iter().map(|tensor| words(tensor)).collect();
    let tokens =
        |stream: u32| words(&(0..POSITIONS).map(|i| random(i, stream) % 50_257).collect::<Vec<u32>>());
    let batch = MicroBatch { tensors: (0..program.batch.len() as u32).map(tokens).collect() };
    let after = |engine: &mut dyn Engine| {
        let mut session = Session::new(engine, program.clone()).unwrap();
        session.load(&state).unwrap();
        let scalars = StepScalars { step: 1, seed: [5, 6], learning_rate: 1e-3f32.to_bits() };
        let batch = std::slice::from_ref(&batch);
        let outcome = session.step(scalars, batch, &mut Unobserved, |_, _, _| Ok(())).unwrap();
        let mut digest = blake3::Hasher::new();
        session
            .visit_state(|_, bytes| {
                digest.update(bytes);
            })
            .unwrap();
        (outcome, digest.finalize())
    };
    let want = after(&mut Cpu::new(2).unwrap());
    let done = AtomicBool::new(false);
    with_buffers_of(128 << 20, |gpu| {
        // One adapter is enough: llvmpipe takes half a minute, and SwiftShader much longer.
        if !gpu.describe().contains("SwiftShader") && !done.swap(true, Ordering::Relaxed) {
            assert!(after(gpu) == want, "{}", gpu.describe());
        }
    });
}
