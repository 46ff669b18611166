//! The CUDA engine on an NVIDIA GPU: `cargo bench --bench cuda [-- [--small] [PART...]]`. The parts, all but the last three if
//! none is named:
//! - `micro`: the GPU's ceilings for kernels that do one thing (products of digits, copies, launches)
//! - `target`: a step of GPT-2 124M with two digits everywhere, and the cost of committing to it
//! - `products` of several shapes by number of digits, digitising and rounding back included
//! - `attention` with its gradients, by one kernel and by a kernel for each node
//! - `steps` of GPT-2 124M with other digits
//! - `logged`: its logged step on cuBLAS beside the same step without roundings and log
//! - `--nodes`: every launch of a micro-batch and its update by an event before and one behind it, summed by operator; and those of the
//!   state's digests
//! - `profile`: a step of one layer, the only one that a profiler records
//! - `variants`: the target's step without graphs, without regions, without copies beside kernels
//!
//! Prints a JSON object a line; `benches/cuda_peers.py` measures the peers (PyTorch's products and step), and
//! `benches/cuda_report.py` compares them. `--small` tries the benchmark itself without a GPU.

#[path = "common/cuda_micro.rs"]
mod micro;

#[path = "common/logged.rs"]
mod logged;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use logged::{Observed, plain_graph};
use serde_json::json;
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::{Gpt, Model};
use tiebreak_contract::program::operators::causal_attention;
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::products::{ProductClass, ProductTable};
use tiebreak_contract::program::step::{MicroBatch, Program, StepSpec};
use tiebreak_engine::session::{Session, StepScalars, Unobserved};
use tiebreak_engine::{Engine, EngineError};
use tiebreak_gpu::{Cublas, Cuda};
use tiebreak_record::rounding::thresholds::Rounding;
use tiebreak_run::observers::record::Recorder;
use tiebreak_run::step::{gradient_root, state_digests};

/// The median seconds of `rounds` rounds of `run`, `each` times in a row, after a warm-up round.
fn median(
    engine: &mut dyn Engine,
    rounds: usize,
    each: u32,
    mut run: impl FnMut(&mut dyn Engine) -> Result<(), EngineError>,
) -> Result<f64, EngineError> {
    let mut times = Vec::new();
    for round in 0..=rounds {
        engine.finish()?;
        let begin = Instant::now();
        for _ in 0..each {
            run(engine)?;
        }
        engine.finish()?;
        if round > 0 {
            times.push(begin.elapsed().as_secs_f64() / f64::from(each));
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[rounds / 2])
}

/// A product of normal matrices, from binary32 to binary32.
fn product(engine: &mut dyn Engine, digits: u8, [m, n, k]: [u32; 3]) -> Result<(), EngineError> {
    let mut builder = Builder::new(ProductTable::uniform(digits));
    let [a, b] = [("a", m), ("b", n)].map(|(name, rows)| builder.input(name, DType::F32, &[rows, k]));
    let (view_a, view_b) = (builder.whole(a), builder.whole(b));
    let output = builder.product(ProductClass::Linear, view_a, view_b, &[m, n]);
    builder.output("product", output);
    let compiled = engine.compile(Arc::new(builder.finish()))?;
    let mut inputs = Vec::new();
    for (rows, seed) in [(m, 1u32), (n, 2)] {
        let value = |i: u32| (i.wrapping_mul(0x9e37_79b1) ^ seed.wrapping_mul(0x85eb_ca6b)) >> 8;
        let bytes: Vec<u8> =
            (0..rows * k).flat_map(|i| (value(i) as f32 / (1 << 23) as f32 - 1.0).to_le_bytes()).collect();
        inputs.push(engine.upload(&TensorType { dtype: DType::F32, shape: vec![rows, k] }, &bytes)?);
    }
    let seconds = median(engine, 5, 5, |engine| engine.run(&compiled, &inputs, None).map(drop))?;
    println!(
        "{}",
        json!({ "kind": "product", "m": m, "n": n, "k": k, "digits": digits, "seconds": seconds })
    );
    Ok(())
}

/// Causal attention over a micro-batch with all gradients: seconds with one kernel for the rows between products, and with a
/// kernel for each node.
fn attention(mut engine: Cuda, [samples, heads, positions, channels]: [u32; 4]) -> Result<Cuda, EngineError> {
    let mut builder = Builder::new(ProductTable::two_and_three());
    let shape = [samples * positions, heads * channels];
    let names = ["q", "k", "v", "dy"];
    let [q, k, v, dy] = names.map(|name| builder.input(name, DType::F32, &shape));
    let y = causal_attention(&mut builder, [q, k, v], samples, heads, None);
    let gradients = builder.backward(y, dy);
    builder.output("y", y);
    for (name, input) in [("dq", q), ("dk", k), ("dv", v)] {
        builder.output(name, gradients[&input]);
    }
    let graph = Arc::new(builder.finish());
    let value = |i: u32, seed: u32| (i.wrapping_mul(0x9e37_79b1) ^ seed.wrapping_mul(0x85eb_ca6b)) >> 8;
    let number = |i: u32, seed: u32| (value(i, seed) as f32 / (1 << 23) as f32 - 1.0).to_le_bytes();
    let mut seconds = Vec::new();
    for at_once in [true, false] {
        engine = engine.fusing_rows(at_once);
        let begin = Instant::now();
        let compiled = engine.compile(graph.clone())?;
        eprintln!("attention, rows at once: {at_once}: compiled in {:.1} s", begin.elapsed().as_secs_f64());
        let mut inputs = Vec::new();
        for (seed, port) in (1..).zip(&graph.inputs) {
            let bytes: Vec<u8> = (0..shape[0] * shape[1]).flat_map(|i| number(i, seed)).collect();
            inputs.push(engine.upload(graph.tensor(port.tensor), &bytes)?);
        }
        seconds.push(median(&mut engine, 5, 3, |engine| engine.run(&compiled, &inputs, None).map(drop))?);
    }
    println!(
        "{}",
        json!({
            "kind": "attention", "samples": samples, "heads": heads, "positions": positions, "channels": channels,
            "seconds": seconds[0], "seconds_by_node": seconds[1],
        })
    );
    Ok(engine.fusing_rows(true))
}

/// The program of a step of a GPT: AdamW, clipping, its micro-batches accumulated by the contract's tree.
fn program(gpt: &Gpt, products: ProductTable, [micro_batch, micro_batches]: [u32; 2]) -> Program {
    Program::new(StepSpec {
        loss: Default::default(),
        model: Model::Gpt(gpt.clone()),
        optimizer: Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 },
        clip_norm: Some(1.0),
        micro_batch,
        micro_batches,
        products,
    })
}

/// The program's state before the first step.
fn state(program: &Program) -> Vec<Vec<u8>> {
    // These words are canonical bytes: every host that NVIDIA supports has the low byte first.
    init::state(program, [1, 2]).iter().map(|tensor| bytemuck::cast_slice(tensor).to_vec()).collect()
}

/// The program's data, the same for every micro-batch.
fn batch(gpt: &Gpt, [micro_batch, micro_batches]: [u32; 2]) -> Vec<MicroBatch> {
    let tokens: Vec<u8> = (0..micro_batch * gpt.context)
        .flat_map(|i| (i.wrapping_mul(7919) % gpt.vocabulary).to_le_bytes())
        .collect();
    vec![MicroBatch { tensors: vec![tokens.clone(), tokens] }; micro_batches as usize]
}

fn scalars(step: u32) -> StepScalars {
    StepScalars { step, seed: [1, 2], learning_rate: 1e-4f32.to_bits() }
}

/// The median of the times after the first few. The first step allocates. Only after some steps does every second step use the
/// same memory, so that its launches repeat as graphs.
fn middle(mut times: Vec<f64>) -> f64 {
    times.drain(..FIRST.min(times.len() - 1));
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

const STEPS: u32 = 9;
/// Seconds after which no other logged step begins.
const LOGGED_SECONDS: u64 = 60;
/// The number of steps that are not counted, where there are more.
const FIRST: usize = 6;

/// A GPT with its state before the first step, which no choice of digits changes.
struct Trained {
    gpt: Gpt,
    state: Vec<Vec<u8>>,
}

impl Trained {
    fn new(layers: u32, small: bool) -> Trained {
        let (heads, width, context, vocabulary) =
            if small { (2, 16, 8, 50) } else { (12, 768, 1024, 50_257) };
        let gpt = Gpt { vocabulary, context, layers, heads, width, ..Gpt::default() };
        let state = state(&program(&gpt, ProductTable::two_and_three(), [1, 1]));
        Trained { gpt, state }
    }
}

/// A step of the exact profile, and the cost of committing to it.
fn step(
    engine: &mut dyn Engine,
    Trained { gpt, state }: &Trained,
    digits: &str,
    products: ProductTable,
    size: [u32; 2],
) -> Result<(), EngineError> {
    let program = Arc::new(program(gpt, products, size));
    let batch = batch(gpt, size);
    let mut session = Session::new(engine, program.clone())?;
    session.load(state)?;
    let (mut times, mut committing) = (Vec::new(), Vec::new());
    // Commitments read the device, which waits for all that was asked of it before. So what comes before each is ended first, and
    // counts as the step's.
    for number in 1..=STEPS {
        let begin = Instant::now();
        let mut roots = 0.0;
        session.step(scalars(number), &batch, &mut Unobserved, |session, _, gradients| {
            session.engine_mut().finish()?;
            let begin = Instant::now();
            gradient_root(session, gradients)?;
            roots += begin.elapsed().as_secs_f64();
            Ok(())
        })?;
        session.engine_mut().finish()?;
        times.push(begin.elapsed().as_secs_f64() - roots);
        let begin = Instant::now();
        state_digests(&mut session)?;
        committing.push(begin.elapsed().as_secs_f64() + roots);
    }
    let [micro_batch, micro_batches] = size;
    println!(
        "{}",
        json!({
            "kind": "step", "parameters": program.parameter_count(), "digits": digits,
            "tokens": micro_batch * micro_batches * gpt.context, "micro_batch": micro_batch,
            "seconds": middle(times), "commit_seconds": middle(committing),
        })
    );
    Ok(())
}

/// A step of the logged profile on the bfloat16 grid with its log, and the same step by its kernels alone: no casts (except the
/// library's operands), no roundings, no log.
fn logged_step(
    engine: &mut dyn Engine,
    Trained { gpt, state }: &Trained,
    size: [u32; 2],
) -> Result<(), EngineError> {
    let rounding = Rounding::default();
    let mut products = ProductTable::logged_preset();
    rounding.apply(&mut products);
    let program = Arc::new(program(gpt, products, size));
    let plain = Arc::new(Program { micro: plain_graph(&program.micro, false), ..(*program).clone() });
    let batch = batch(gpt, size);
    let mut native = Vec::new();
    let mut session = Session::new(&mut *engine, plain)?;
    session.load(state)?;
    for number in 1..=STEPS {
        let begin = Instant::now();
        session.step(scalars(number), &batch, &mut Unobserved, |_, _, _| Ok(()))?;
        native.push(begin.elapsed().as_secs_f64());
        eprintln!("step {number} of the kernels alone: {:.3} s", begin.elapsed().as_secs_f64());
    }
    drop(session);
    let (mut logged, mut written) = (Vec::new(), None);
    let mut session = Session::native(&mut *engine, program.clone())?;
    session.load(state)?;
    let all = Instant::now();
    for number in 1..=STEPS {
        if number > 1 && all.elapsed().as_secs() >= LOGGED_SECONDS {
            break;
        }
        let begin = Instant::now();
        let mut recorder = Recorder::new(&rounding, &program.micro, size[1], None);
        session.step(scalars(number), &batch, &mut Observed(&mut recorder), |_, _, _| Ok(()))?;
        written = Some(recorder.finish());
        logged.push(begin.elapsed().as_secs_f64());
        eprintln!("logged step {number}: {:.3} s", begin.elapsed().as_secs_f64());
    }
    drop(session);
    let (steps, (log, counts)) = (logged.len(), written.expect("steps were logged"));
    let [micro_batch, micro_batches] = size;
    println!(
        "{}",
        json!({
            "kind": "logged", "engine": engine.describe(), "parameters": program.parameter_count(),
            "tokens": micro_batch * micro_batches * gpt.context, "micro_batch": micro_batch,
            "native_seconds": middle(native), "seconds": middle(logged), "values": counts.elements,
            "decisions": counts.decisions, "log_bytes": log.bytes().len(), "steps": steps,
        })
    );
    Ok(())
}

/// Steps without commitments, and the seconds that the state's digests take behind them, if somebody `commits`.
fn plain_steps(
    engine: &mut Cuda,
    Trained { gpt, state }: &Trained,
    size: [u32; 2],
    steps: u32,
    commits: bool,
) -> Result<f64, EngineError> {
    let program = Arc::new(program(gpt, ProductTable::uniform(2), size));
    let batch = batch(gpt, size);
    let mut session = Session::new(engine, program)?;
    session.load(state)?;
    (1..=steps).try_for_each(|number| {
        session.step(scalars(number), &batch, &mut Unobserved, |_, _, _| Ok(())).map(drop)
    })?;
    session.engine_mut().finish()?;
    let begin = Instant::now();
    if commits {
        state_digests(&mut session)?;
    }
    Ok(begin.elapsed().as_secs_f64())
}

/// The last of a few steps, launch by launch. Blocks of the model count as one.
fn nodes(mut engine: Cuda, trained: &Trained, micro_batch: u32) -> Result<Cuda, EngineError> {
    const STEPS: usize = 3;
    engine.time_launches()?;
    plain_steps(&mut engine, trained, [micro_batch, 1], STEPS as u32, false)?;
    let launches = engine.timed_launches()?;
    let mut sums: BTreeMap<(String, String), (usize, f64)> = BTreeMap::new();
    let last = &launches[launches.len() / STEPS * (STEPS - 1)..];
    for launch in last {
        // "update.block11.query.bias" is "update.block*.query.bias".
        let is_block = |part: &str| {
            let number = part.strip_prefix("block");
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        };
        let parts = launch.name.split('.').map(|part| if is_block(part) { "block*" } else { part });
        let operator = parts.collect::<Vec<_>>().join(".");
        let sum = sums.entry((operator, launch.kernel.clone())).or_default();
        *sum = (sum.0 + 1, sum.1 + launch.seconds);
    }
    let all: f64 = last.iter().map(|launch| launch.seconds).sum();
    println!(
        "{}",
        json!({ "kind": "nodes", "launches": last.len(), "seconds": all, "micro_batch": micro_batch })
    );
    for ((operator, kernel), (launches, seconds)) in sums {
        println!(
            "{}",
            json!({ "kind": "node", "operator": operator, "kernel": kernel, "launches": launches, "seconds": seconds })
        );
    }
    // What one step more launches behind its own launches is for the digests.
    let wall = plain_steps(&mut engine, trained, [micro_batch, 1], 1, true)?;
    let hashing = engine.timed_launches()?.split_off(last.len());
    let largest = hashing.iter().map(|launch| launch.seconds).fold(0.0, f64::max);
    let seconds: f64 = hashing.iter().map(|launch| launch.seconds).sum();
    println!(
        "{}",
        json!({ "kind": "digests", "launches": hashing.len(), "seconds": seconds, "largest": largest, "wall_seconds": wall })
    );
    Ok(engine)
}

/// The parts that are measured if none is named.
const USUAL: [&str; 6] = ["micro", "target", "products", "attention", "steps", "logged"];

fn bench(small: bool, parts: &[String]) -> Result<(), EngineError> {
    let wants = |part: &str| match parts.is_empty() {
        true => USUAL.contains(&part),
        false => parts.iter().any(|wanted| wanted == part),
    };
    let mut engine = Cuda::open(None)?;
    println!("{}", json!({ "kind": "engine", "engine": engine.describe() }));
    if wants("micro") {
        micro::run(engine.gpu(), small)
            .map_err(|reason| EngineError::Fault { device: "cuda".into(), reason })?;
    }
    let size = if small { [2, 2] } else { [8, 4] };
    let trained = Trained::new(if small { 1 } else { 12 }, small);
    if wants("target") {
        step(&mut engine, &trained, "2", ProductTable::uniform(2), size)?;
    }
    if wants("--nodes") {
        engine = nodes(engine, &trained, size[0])?;
    }
    if wants("products") {
        let (side, tokens) = if small { (64, 96) } else { (8192, 8192) };
        let shapes = if small {
            vec![[side; 3], [tokens, 32, 48]]
        } else {
            vec![[side; 3], [tokens, 768, 768], [tokens, 2304, 768], [tokens, 3072, 768], [tokens, 768, 3072]]
        };
        for shape in shapes {
            for digits in [2, 1, 3] {
                product(&mut engine, digits, shape)?;
            }
        }
    }
    if wants("attention") {
        engine = attention(engine, if small { [1, 2, 66, 8] } else { [8, 12, 1024, 64] })?;
    }
    if wants("steps") {
        step(&mut engine, &trained, "2 and 3", ProductTable::two_and_three(), size)?;
        step(&mut engine, &trained, "3", ProductTable::uniform(3), size)?;
    }
    if wants("variants") {
        let digits = || ProductTable::uniform(2);
        engine = engine.graphs(false);
        step(&mut engine, &trained, "2, kernels launched one by one", digits(), size)?;
        engine = engine.graphs(true).copies(false)?;
        step(&mut engine, &trained, "2, copies that wait for the device", digits(), size)?;
        engine = engine.copies(true)?.fusing_rows(false);
        step(&mut engine, &trained, "2, a kernel for each node", digits(), size)?;
        engine = engine.fusing_rows(true);
    }
    if wants("profile") {
        let one = Trained::new(1, small);
        engine = engine.graphs(false);
        plain_steps(&mut engine, &one, [size[0], 1], 1, false)?;
        engine.profile(true)?;
        plain_steps(&mut engine, &one, [size[0], 1], 1, false)?;
        engine.profile(false)?;
    }
    drop(engine);
    if wants("logged") {
        logged_step(&mut Cuda::open_with_cublas(None, Cublas::Fast)?, &trained, size)?;
    }
    Ok(())
}

fn main() {
    // Cargo passes an argument of its own.
    let mut parts: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let small = parts.iter().any(|part| part == "--small");
    parts.retain(|part| part != "--small");
    if let Err(error) = bench(small, &parts) {
        eprintln!("NOT MEASURED: {error}");
        std::process::exit(3);
    }
}
