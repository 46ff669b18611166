//! Native products by cuBLAS, over the stand-in for it: products of every view, runs that every exact engine replays, and errors
//! that name what is missing.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::common::shim::{in_its_own_process, shim, tiebreak};
use crate::common::{self, begin_run, edit::edit, every_pair, gpt_job, key, not_tested};
use crate::gpus::{AnyEngine, Gpus, gpus};
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Outcome, Report, Silent, audit, audit_natively, checks};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::digits::{group_absmax, quantise};
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::graph::{Graph, Node, Primitive, View};
use tiebreak_contract::program::products::ProductTable;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_engine::{Compiled, Engine, EngineError, Inputs, Observer, Tensor, Value, Want};
use tiebreak_gpu::{Cublas, Cuda};
use tiebreak_record::rounding::legal::{Accumulation, Exact, ExactRow};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;

/// The job of a small GPT in the logged profile, large enough for kernels to disagree.
fn logged_job(folder: &Path, table: &str) -> String {
    let path = gpt_job(folder, "microbatch", &format!("\n[rounding]\n{table}"));
    let small = [("micro_batches = 3", "micro_batches = 2"), ("steps = 8", "steps = 4")];
    edit(&path, &[("context = 12", "context = 32"), ("width = 16", "width = 64"), small[0], small[1]]);
    path.to_str().unwrap().to_string()
}

fn audited(run: &Run, engine: &mut dyn Engine, native: bool) -> Report {
    let checked = checks::always(run, Some(&key().public())).unwrap();
    let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::All);
    let audit = if native { audit_natively } else { audit };
    let (report, verdict) = audit(run, engine, checked, plan, None, &mut Silent).unwrap();
    assert!(verdict.is_none());
    report
}

/// The exact engines that audit here, with their names. The other engines, and SwiftShader, which is slow, audit the CPU
/// kernels' runs (`tests/adapters/rounding.rs`, with the same shaders).
fn auditors<'a>(cpu: &'a mut Cpu, gpus: &'a mut Gpus) -> Vec<(String, &'a mut AnyEngine)> {
    let quick = gpus.adapters.iter_mut().filter(|gpu| !gpu.describe().contains("SwiftShader"));
    let quick = quick.map(|gpu| (gpu.describe(), gpu as &mut AnyEngine));
    std::iter::once(("cpu".into(), cpu as &mut AnyEngine)).chain(quick).collect()
}

#[test]
fn every_auditor_replays_every_kernel() {
    let Some(shim) = shim() else { return };
    let (mut cpu, mut gpus) = (Cpu::new(2).unwrap(), gpus());
    let mut auditors = auditors(&mut cpu, &mut gpus);
    let all = every_pair("cuBLAS on grids of 32 and 28 bits");
    let mut cases =
        vec![("", &["cublas", "cublas-tf32", "cublas-binary32"][..]), ("preset = \"paper\"\n", &["cublas"])];
    if all {
        cases.extend([("bits = 32\n", &["cublas"][..]), ("bits = 28\n", &["cublas"])]);
    }
    for (table, kernels) in cases {
        let folder = tempfile::tempdir().unwrap();
        let job = logged_job(folder.path(), table);
        let private = folder.path().join("key");
        fs::write(&private, key().to_text()).unwrap();
        let train = |name: &str, engine: &[&str]| {
            let out = folder.path().join(name);
            // The run begins here, so that all runs have one seed.
            let run = begin_run(&Disk::default(), Path::new(&job), &out).unwrap();
            let paths = ["--out", out.to_str().unwrap(), "--key", private.to_str().unwrap()];
            let (code, printed) =
                tiebreak(shim, &[], &[&["-q", "train", "--resume"], &paths[..], engine].concat());
            assert_eq!(code, 0, "{table} {name}: {printed}");
            run
        };
        let here = train("gemm", &[]);
        for kernel in kernels {
            let run = train(kernel, &["--engine", "cuda", "--native", kernel]);
            for (auditor, engine) in &mut auditors {
                // Software adapters are slow: they replay the kernel that people will use, on the default grid.
                if auditor != "cpu" && (*kernel != "cublas" || !(all || table.is_empty())) {
                    continue;
                }
                let what = format!("{table} {kernel} audited by {auditor}");
                let report = audited(&run, *engine, false);
                assert_eq!(report.outcome, Outcome::Matches, "{what}");
                let tally = report.rounding.expect("a logged run has a tally");
                // On the coarsest of the finer grids so short a run may have no decision.
                assert!(tally.decisions > 0 || table == "bits = 28\n", "{what}");
                assert_eq!((tally.illegal, tally.needless), (0, 0), "{what}");
                if !table.contains("paper") {
                    assert_eq!(
                        (tally.beyond, tally.unusual(), &tally.remarks[..]),
                        (0, None, &[][..]),
                        "{what}: {tally:?}"
                    );
                }
            }
            // The results do differ from those of the CPU's kernels, otherwise this would test nothing; another test shows it for
            // binary64.
            if table.is_empty() {
                let model = |run: &Run| fs::read(run.layout.model()).unwrap();
                assert_ne!(model(&run), model(&here), "{kernel}");
            }
            if table.contains("paper") {
                let mut other = Cpu::new(2).unwrap().with_native(Native::Interleaved { fused: true });
                assert_eq!(audited(&run, &mut other, true).outcome, Outcome::Matches);
            }
        }
        if table.contains("paper") {
            // cuBLAS also replicates a CPU's run.
            let out = folder.path().join("gemm");
            let (out, native) = (out.to_str().unwrap(), ["--engine", "cuda", "--native", "cublas"]);
            let (code, printed) = tiebreak(shim, &[], &[&["audit", out], &native[..]].concat());
            assert!(code == 0 && printed.contains("replication only"), "{printed}");
        }
    }
}

fn run_native(engine: &mut dyn Engine, graph: &Arc<Graph>, inputs: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let compiled = engine.compile(graph.clone()).unwrap();
    let mut tensors = Vec::new();
    for (port, words) in graph.inputs.iter().zip(inputs) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        tensors.push(engine.upload(graph.tensor(port.tensor), &bytes).unwrap());
    }
    let outputs = engine.run(&compiled, &tensors, None).unwrap();
    let words = |bytes: Vec<u8>| {
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    };
    outputs.iter().map(|tensor| words(engine.download(tensor).unwrap())).collect()
}

fn cublas(kernels: Cublas) -> Cuda {
    Cuda::open_with_cublas(None, kernels).unwrap()
}

fn random(i: u32, stream: u32) -> u32 {
    philox4x32_10([stream, 23], [i, 0, 0, 0])[0]
}

/// Views as programs make them, and as they might: dimensions in any order, gaps, steps, operands that all samples share.
#[test]
fn products_of_any_views_are_right() {
    in_its_own_process("cublas::products_of_any_views", &[]);
}

#[test]
#[ignore = "run by products_of_any_views_are_right in a process with the stand-in"]
fn products_of_any_views() {
    // Small integers: their sums are exact in every order and every precision, and none is a zero with a sign.
    let words: Vec<u32> = (0..20_000).map(|i| (random(i, 1) % 16 + 1) as f32).map(f32::to_bits).collect();
    for kernels in Cublas::ALL {
        for parts in kernels.parts() {
            let mut builder = Builder::new(ProductTable::uniform(2));
            let tensor = builder.input("words", DType::F32, &[words.len() as u32]);
            for case in 0..60 {
                let pick = |i: u32, options: &[u32]| options[random(i, 100 + case) as usize % options.len()];
                let [b0, b1] = [pick(0, &[1, 1, 2, 3]), pick(1, &[1, 1, 2, 4])];
                let (m, n, k) = (pick(2, &[1, 2, 9, 16]), pick(3, &[1, 3, 8, 17]), pick(4, &[1, 2, 7, 16]));
                let view = |rows: u32, i: u32| {
                    let dims = [b0, b1, rows, k];
                    let mut order = [0, 1, 2, 3];
                    (0..3).for_each(|j| {
                        order.swap(j, j + (random(i + j as u32, 200 + case) as usize) % (4 - j))
                    });
                    // Half of the views have a tensor's usual layout.
                    let plain = random(i, 300 + case).is_multiple_of(2);
                    let (mut strides, mut step) =
                        ([0; 4], pick(i + 6, if plain { &[1] } else { &[1, 1, 2] }));
                    for at in order.into_iter().rev() {
                        strides[at] = step;
                        step *= dims[at];
                        if !plain && random(i + at as u32, 400 + case).is_multiple_of(4) {
                            step += 3;
                        }
                    }
                    if random(i, 500 + case).is_multiple_of(8) {
                        strides[(i % 2) as usize] = 0;
                    }
                    View { tensor, offset: pick(i + 9, &[0, 0, 5, 64]), dims, strides }
                };
                let shape = [parts, b0 * b1, m, n];
                let native = Primitive::Native { a: view(m, 10), b: view(n, 30) };
                let output = builder.node(native, DType::F32, &shape[if parts == 1 { 1.. } else { 0.. }]);
                builder.output("product", output);
            }
            let graph = Arc::new(builder.finish());
            let expected = run_native(&mut Cpu::new(1).unwrap(), &graph, std::slice::from_ref(&words));
            let have = run_native(&mut cublas(kernels), &graph, std::slice::from_ref(&words));
            for (i, node) in graph.nodes.iter().enumerate() {
                assert_eq!(have[i], expected[i], "{kernels:?} {parts} {:?}", node.primitive);
            }
        }
    }
}

/// Rows with difficult sums stay within the proved bound, with truncating tensor cores too.
#[test]
fn no_product_is_outside_the_proved_bound() {
    in_its_own_process("cublas::products_of_hard_rows", &[]);
}

#[test]
#[ignore = "run by no_product_is_outside_the_proved_bound in a process with the stand-in"]
fn products_of_hard_rows() {
    const ROWS: u32 = 12;
    for kernels in Cublas::ALL {
        let mut engine = cublas(kernels);
        for (parts, k) in kernels.parts().flat_map(|parts| [1, 5, 9, 16, 100, 1000].map(|k| (parts, k))) {
            let mut builder = Builder::new(ProductTable::uniform(2));
            let inputs = ["a", "b"].map(|name| builder.input(name, DType::F32, &[ROWS, k]));
            let [a, b] =
                inputs.map(|tensor| View { tensor, offset: 0, dims: [1, 1, ROWS, k], strides: [0, 0, k, 1] });
            let output = builder.node(Primitive::Native { a, b }, DType::F32, &[parts, ROWS, ROWS]);
            builder.output("product", output);
            let graph = Arc::new(builder.finish());
            // bfloat16 values of wide and narrow ranges, terms of one sign and terms that nearly cancel.
            let hard = |stream: u32| -> Vec<u32> {
                let value = |i: u32| {
                    let (row, r) = (i / k, random(i, stream + k));
                    let exponent = 127 - (r >> 8) % [1, 2, 12, 60][(row % 4) as usize];
                    let sign = if row % 3 == 0 { 0 } else { r & 1 };
                    (r & 0x007f_0000) | exponent << 23 | sign << 31
                };
                (0..ROWS * k).map(value).collect()
            };
            let operands = [hard(1), hard(2)];
            let out = run_native(&mut engine, &graph, &operands).remove(0);
            if k >= 100 {
                let other = |native| {
                    run_native(&mut Cpu::new(1).unwrap().with_native(native), &graph, &operands).remove(0)
                };
                assert!(
                    Native::ALL.into_iter().all(|native| other(native) != out),
                    "{kernels:?} is one of the CPU's orders"
                );
            }
            let accumulation = if parts == 1 { Accumulation::Binary32 } else { Accumulation::Binary64 };
            let rows: Vec<Vec<ExactRow>> = operands
                .iter()
                .map(|words| words.chunks_exact(k as usize).map(|row| split(row, parts)).collect())
                .collect();
            let elements = (ROWS * ROWS) as usize;
            let mut largest = 0f64;
            for i in 0..elements {
                let exact = Exact::of(&rows[0][i / ROWS as usize], &rows[1][i % ROWS as usize]);
                let rest = if parts == 1 { 0.0 } else { f64::from(f32::from_bits(out[elements + i])) };
                let value = f64::from(f32::from_bits(out[i])) + rest;
                let error = (value - exact.value).abs() / exact.bound(accumulation);
                assert!(
                    error <= 1.0,
                    "{kernels:?} {parts} parts, K = {k}, element {i}: {error} of the bound"
                );
                largest = largest.max(error);
            }
            println!("{kernels:?} {parts} parts, K = {k}: at most {largest:.3} of the bound");
        }
    }
}

/// A row in the auditor's digits, in one part or two: a high part that three digits hold, and the residue.
fn split(row: &[u32], parts: u32) -> ExactRow {
    let absmax = group_absmax(row.iter().copied());
    let integers = |digits| row.iter().map(|&x| quantise(x, absmax, digits)).collect();
    if parts == 1 {
        return ExactRow::default().with(integers(4), absmax, 4);
    }
    // Rows of narrow range are wholly in the high part; for the others the residue is what four digits hold.
    let high: Vec<i32> = integers(3);
    let scale = 2f64.powi(tiebreak_contract::arith::digits::exponent(absmax) - 22);
    let left = |(&x, &q): (&u32, &i32)| (f64::from(f32::from_bits(x)) - f64::from(q) * scale) as f32;
    let rest: Vec<u32> = row.iter().zip(&high).map(left).map(f32::to_bits).collect();
    let below = group_absmax(rest.iter().copied());
    let rest = rest.iter().map(|&x| quantise(x, below, 4)).collect();
    ExactRow::default().with(high, absmax, 3).with(rest, below, 4)
}

/// Log and state do not depend on where near ties are searched for, or on what rounds the products. The cases include a search
/// without room for all near ties (the paper's preset), and the plain shader.
#[test]
fn logs_do_not_depend_on_where_near_ties_are_found() {
    in_its_own_process("cublas::logs_of_both_searches", &[]);
}

#[test]
#[ignore = "run by logs_do_not_depend_on_where_near_ties_are_found in a process with the stand-in"]
fn logs_of_both_searches() {
    let train = |job: &Path, out: &Path, engine: &mut Counted| {
        engine.shown = 0;
        let (disk, mut silent) = (Disk::default(), tiebreak_train::Silent);
        let run = begin_run(&disk, job, out).unwrap();
        tiebreak_train::train(&run, engine, Some(&key()), &mut silent).unwrap();
        (common::files(&out.join("logs")), fs::read(run.layout.model()).unwrap(), engine.shown)
    };
    // Thresholds for a decision or two, since the default ones suit longer runs; the last, of the plain shader, finds more than
    // the device has room for. The preset logs every second value, and 28 bits leave little to decide by, so there the host
    // searches all results.
    let fast =
        ["", "bits = 32\nthreshold = 1000000\n", "bits = 28\nthreshold = 16000000\n", "preset = \"paper\"\n"];
    for (kernels, tables) in
        [(Some(Cublas::Fast), &fast[..]), (None, &["floor = 0\n", "threshold = 400000\n"])]
    {
        let engine = kernels.map_or_else(|| Cuda::open(None).unwrap(), cublas);
        let mut engine = Counted { engine, shown: 0 };
        for (number, table) in tables.iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            let job = logged_job(folder.path(), table);
            let job = Path::new(&job);
            edit(job, &[("steps = 4", "steps = 2")]);
            // Every second time as with a driver that cannot copy in parallel with kernels.
            engine.engine = engine.engine.summarising(true).copies(number % 2 == 0).unwrap();
            let rounded = engine.engine.computed_beside();
            let there = train(job, &folder.path().join("there"), &mut engine);
            let rounded = engine.engine.computed_beside() - rounded;
            engine.engine = engine.engine.summarising(false);
            let here = train(job, &folder.path().join("here"), &mut engine);
            assert!(there.0.iter().any(|(_, log)| log.len() > 100), "{table}: the logs are empty");
            assert_eq!(there.0, here.0, "{table}");
            assert_eq!(there.1, here.1, "{table}");
            // Outputs that nobody needs to see stay on the device.
            println!("{table:?}: {} outputs were shown, without the search {}", there.2, here.2);
            let on_the_host = ["paper", "28", "400000"].iter().any(|text| table.contains(text));
            assert_eq!(there.2 > 0, on_the_host, "{table}: {} and {}", there.2, here.2);
            // The search, where there is one, rounds the outputs that are not rounded with other nodes.
            println!("{table:?}: {rounded} roundings by searches");
            let searched = !["paper", "28"].iter().any(|text| table.contains(text));
            assert_eq!(rounded > 0, searched, "{table}: {rounded} roundings by searches");
        }
    }
}

/// An engine that counts how often a node's output is shown.
struct Counted {
    engine: Cuda,
    shown: usize,
}

/// An observer that counts it.
struct Counter<'a> {
    observer: &'a mut dyn Observer,
    shown: &'a mut usize,
}

impl Observer for Counter<'_> {
    fn want(&self, index: usize, node: &Node) -> Want {
        self.observer.want(index, node)
    }

    fn summary(&mut self, index: usize, node: &Node, value: Value) -> Result<(), EngineError> {
        self.observer.summary(index, node, value)
    }

    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        *self.shown += 1;
        self.observer.node(index, node, bytes, inputs)
    }
}

impl Engine for Counted {
    tiebreak_engine::forward!(self => self.engine; describe, upload, read, compile);

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let Some(observer) = observer else { return self.engine.run(compiled, inputs, None) };
        let mut counter = Counter { observer, shown: &mut self.shown };
        self.engine.run(compiled, inputs, Some(&mut counter))
    }
}

/// Each fault has an error of its own, which says what to do.
#[test]
fn faults_are_told_apart() {
    let Some(shim) = shim() else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let job = logged_job(folder.path(), "");
    for (fault, says) in [
        (("TIEBREAK_CUBLAS", "/nowhere/libcublas.so.12"), "pip install nvidia-cublas-cu12"),
        (("TIEBREAK_CUBLAS", "/usr/lib"), "libcublas.so.13"),
        (("CUBLAS_EMULATE_SINGLE_PRECISION", "1"), "unset it"),
        (("TIEBREAK_SHIM_CUBLAS_WRONG", "3"), "wrong products"),
        (("TIEBREAK_SHIM_WRONG_KERNEL", "round_near_ties"), "rounded by the search for near ties differ"),
        (("TIEBREAK_SHIM_CUBLAS_FAILS", "100"), "CUBLAS_STATUS_EXECUTION_FAILED"),
    ] {
        let train = ["-q", "train", &job, "--out", &out(says), "--engine", "cuda", "--native", "cublas"];
        let (code, printed) = tiebreak(shim, &[fault], &train);
        assert_eq!(code, 3, "{fault:?}: {printed}");
        assert!(printed.contains(says), "{fault:?}: {printed}");
    }
    for (engine, native) in [("cpu", "cublas"), ("cuda", "gemm"), ("reference", "cublas-tf32")] {
        let train = ["-q", "train", &job, "--out", &out("usage"), "--engine", engine, "--native", native];
        let (code, printed) = tiebreak(shim, &[], &train);
        assert!(code == 2 && printed.contains("another engine"), "{engine} {native}: {printed}");
    }
    // A grid that the proved bound does not cover is refused before the first step.
    let finer = tempfile::tempdir().unwrap();
    let job = logged_job(finer.path(), "bits = 32\n");
    for native in ["cublas-tf32", "cublas-binary32"] {
        let train = ["-q", "train", &job, "--out", &out(native), "--engine", "cuda", "--native", native];
        let (code, printed) = tiebreak(shim, &[], &train);
        assert!(code == 3 && printed.contains("--native cublas"), "{native}: {printed}");
    }
}

/// NVIDIA's own library, if this process was given it, has every function that is loaded, and reports that there is no GPU.
#[test]
fn the_real_library_has_every_function() {
    let Some(shim) = shim() else { return };
    let Some(library) = std::env::var_os("TIEBREAK_CUBLAS") else {
        return not_tested("that cuBLAS has the functions that are loaded: TIEBREAK_CUBLAS names none");
    };
    let folder = tempfile::tempdir().unwrap();
    let job = logged_job(folder.path(), "");
    let (out, library) = (folder.path().join("run"), library.to_str().unwrap().to_string());
    let train =
        ["-q", "train", &job, "--out", out.to_str().unwrap(), "--engine", "cuda", "--native", "cublas"];
    let (code, printed) = tiebreak(shim, &[("TIEBREAK_CUBLAS", &library)], &train);
    assert!(code == 3 && printed.contains("cublasCreate"), "{printed}");
}
