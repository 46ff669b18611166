//! The costs of the logged profile: `cargo bench --bench rounding [-- gpt-2 [bf16|fp32|paper] [default]]`.
//!
//! Measures on the CPU: a step by native kernels without roundings, the same step with roundings and its log, and its replay by
//! the exact engine. On the bfloat16 grid the first also runs without the casts to its kernels' input format, as a step in
//! binary32 throughout. The log's bytes are compared with the entropy of its decisions. Results are medians of several steps, in
//! one run. `paper`: the paper's preset, replayed by the other native kernels instead. `default`: default thresholds instead of
//! calibrated ones. `decisions`: the host's work on the candidates that a GPU finds, for each decision of a log.

#[path = "common/logged.rs"]
mod logged;

use std::sync::Arc;
use std::time::Instant;

use logged::{Observed, plain_graph};
use tiebreak_contract::arith::rounding_grid::GridRule;
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::{Gpt, Model};
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::products::{ProductClass, ProductTable};
use tiebreak_contract::program::step::{MicroBatch, Program, StepSpec};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_engine::session::{Session, StepObserver, StepScalars, Unobserved};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::rounding::codec::encode;
use tiebreak_record::rounding::log::Log;
use tiebreak_record::rounding::near_tie::{Product, Side};
use tiebreak_record::rounding::search::NearTieCandidate;
use tiebreak_record::rounding::thresholds::{Preset, Rounding};
use tiebreak_run::observers::calibrate::Calibrator;
use tiebreak_run::observers::near_ties::Search as _;
use tiebreak_run::observers::record::{Logged, Recorder};
use tiebreak_run::observers::replay::Replayer;
use tiebreak_run::step::state_digests;

/// The paper's setting: 8 samples of 64 tokens.
const SAMPLES: u32 = 8;
const TOKENS: u32 = 64;

fn program([vocabulary, layers, width]: [u32; 3], rounding: &Rounding) -> Program {
    let mut products = ProductTable::logged_preset();
    rounding.apply(&mut products);
    Program::new(StepSpec {
        loss: Default::default(),
        model: Model::Gpt(Gpt { vocabulary, context: TOKENS, layers, heads: 12, width, ..Gpt::default() }),
        optimizer: Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 },
        clip_norm: Some(1.0),
        micro_batch: SAMPLES,
        micro_batches: 1,
        products,
    })
}

fn engine() -> Cpu {
    Cpu::new(0).expect("the CPU engine starts")
}

fn batch() -> [MicroBatch; 1] {
    let tokens: Vec<u8> = (0..SAMPLES * TOKENS).flat_map(|i| (i * 7919 % 97).to_le_bytes()).collect();
    [MicroBatch { tensors: vec![tokens.clone(), tokens] }]
}

/// Seconds of a step.
fn timed(session: &mut Session, step: u32, observer: &mut dyn StepObserver) -> f64 {
    let batch = batch();
    let start = Instant::now();
    session.step(scalars(step), &batch, observer, |_, _, _| Ok(())).expect("the step runs");
    start.elapsed().as_secs_f64()
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Thresholds from the kernels of this machine's CPU on the program's first step, as `tiebreak log calibrate` finds them.
fn calibrated(program: &Arc<Program>, rounding: &Rounding, batch: &[MicroBatch]) -> Rounding {
    let kernel = |native| -> (String, Box<dyn Engine>) {
        (format!("{native:?}"), Box::new(engine().with_native(native)))
    };
    let kernels = Native::ALL.into_iter().map(kernel).collect();
    let mut calibrator = Calibrator::new(rounding, &program.micro, kernels).expect("the CPU engine starts");
    let mut engine = engine();
    let mut session = Session::native(&mut engine, program.clone()).expect("the program compiles");
    session.load_each(|i| state_bytes(program, i)).expect("the state loads");
    session.step(scalars(1), batch, &mut calibrator, |_, _, _| Ok(())).expect("the step runs");
    Rounding { class: calibrator.thresholds(3.0), ..rounding.clone() }
}

fn state_bytes(program: &Program, i: usize) -> Vec<u8> {
    init::state_tensor(program, [1, 2], i).iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn scalars(step: u32) -> StepScalars {
    StepScalars { step, seed: [1, 2], learning_rate: 1e-3f32.to_bits() }
}

/// The measurements of steps by native kernels.
struct Steps {
    /// Medians of seconds: on graphs without roundings, without and with casts, and with roundings and a log.
    single: f64,
    native: f64,
    logged: f64,
    /// The medians of the ratios of the last to each of the others, step by step.
    to_single: f64,
    to_native: f64,
    /// The first step's log, and the state after it.
    log: Log,
    counts: Logged,
    state: Vec<Digest>,
}

fn native_steps(program: &Arc<Program>, rounding: &Rounding, repeats: u32) -> Steps {
    let [without, with] = [false, true]
        .map(|casts| Arc::new(Program { micro: plain_graph(&program.micro, casts), ..(**program).clone() }));
    // The steps take turns, so that all see the same state of the machine.
    let mut engines = [0, 1, 2].map(|_| engine());
    let [first_engine, second_engine, third_engine] = &mut engines;
    let mut sessions = [
        Session::new(first_engine, without).expect("the program compiles"),
        Session::new(second_engine, with).expect("the program compiles"),
        Session::native(third_engine, program.clone()).expect("the program compiles"),
    ];
    for session in &mut sessions {
        session.load_each(|i| state_bytes(program, i)).expect("the state loads");
    }
    let [without_casts, native_session, session] = &mut sessions;
    let mut times: [Vec<f64>; 5] = Default::default();
    let mut first = None;
    for step in 1..=repeats + 1 {
        let single = timed(without_casts, step, &mut Unobserved);
        let native = timed(native_session, step, &mut Unobserved);
        let start = Instant::now();
        let mut recorder = Recorder::new(rounding, &program.micro, 1, None);
        timed(session, step, &mut Observed(&mut recorder));
        let done = recorder.finish();
        let logged = start.elapsed().as_secs_f64();
        if first.is_none() {
            first = Some((done, state_digests(session).expect("the state is read")));
        }
        if step > 1 {
            let all = [single, native, logged, logged / single, logged / native];
            times.iter_mut().zip(all).for_each(|(times, time)| times.push(time));
        }
    }
    let [single, native, logged, to_single, to_native] = times.each_mut().map(|times| median(times));
    let ((log, counts), state) = first.expect("a step was logged");
    Steps { single, native, logged, to_single, to_native, log, counts, state }
}

/// Seconds of the exact engine's replay of the first step, and the decisions that it took from the log.
fn replay(program: &Arc<Program>, rounding: &Rounding, steps: &Steps) -> (f64, u64) {
    let mut engine = engine();
    let mut session = Session::new(&mut engine, program.clone()).expect("the program compiles");
    session.load_each(|i| state_bytes(program, i)).expect("the state loads");
    let mut replayer = Replayer::new(rounding, &program.micro, steps.log.clone());
    let seconds = timed(&mut session, 1, &mut Observed(&mut replayer));
    let tally = replayer.tally().clone();
    let replayed = state_digests(&mut session).expect("the state is read");
    assert!(replayed == steps.state, "the log lacks a decision: the replay reaches another state");
    assert_eq!((tally.illegal, tally.beyond, tally.needless), (0, 0, 0), "an honest log");
    (seconds, tally.taken())
}

fn bench(name: &str, rounding: &Rounding, sizes: [u32; 3], repeats: u32, calibrate: bool) {
    let program = Arc::new(program(sizes, rounding));
    let rounding = &if calibrate { calibrated(&program, rounding, &batch()) } else { rounding.clone() };
    let steps = native_steps(&program, rounding, repeats);
    let (audit, taken) = replay(&program, rounding, &steps);
    let Steps { single, native, logged, to_single, to_native, log, counts, .. } = &steps;

    let thresholds: Vec<String> =
        rounding.class.iter().map(|(class, units)| format!("{} {units}", class.name())).collect();
    let bits = log.bytes().len() as f64 * 8.0;
    println!(
        "{name}: {} parameters, {} values of {} products a step",
        program.parameter_count(),
        counts.elements,
        program.micro.logged.len()
    );
    println!("    thresholds          {}", thresholds.join(", "));
    println!("    flips without a log {taken:>12}");
    println!(
        "    decisions           {:>12}  ({:.2e} of the values)",
        counts.decisions,
        counts.decisions as f64 / counts.elements as f64
    );
    println!(
        "    log                 {:>12} bytes, {:.2e} bits a value, {:.3} of its entropy",
        log.bytes().len(),
        bits / counts.elements as f64,
        bits / counts.entropy_bits
    );
    println!("    native step         {native:>12.3} s");
    println!("    without casts       {single:>12.3} s");
    println!(
        "    with roundings, log {logged:>12.3} s  ({to_native:.3} of the native step, {to_single:.3} of it without casts)"
    );
    println!("    replay, exact       {audit:>12.3} s  ({:.3} of the native step)", audit / native);
}

/// The paper's preset: its log's contents, and the corrections that every other kernel makes with the log to reach the same
/// state.
fn bench_paper(sizes: [u32; 3]) {
    let rounding = Rounding { preset: Some(Preset::Paper), ..Rounding::default() };
    let program = Arc::new(program(sizes, &rounding));
    // A step by a kernel: seconds, and the state after it, hashed.
    let step = |native: Native, observer: &mut dyn StepObserver| {
        let mut engine = engine().with_native(native);
        let mut session = Session::native(&mut engine, program.clone()).expect("the program compiles");
        session.load_each(|i| state_bytes(&program, i)).expect("the state loads");
        let seconds = timed(&mut session, 1, observer);
        (seconds, state_digests(&mut session).expect("the state is read"))
    };
    let (native, _) = step(Native::Gemm, &mut Unobserved);
    let mut recorder = Recorder::new(&rounding, &program.micro, 1, None);
    let (logged, state) = step(Native::Gemm, &mut Observed(&mut recorder));
    let (log, counts) = recorder.finish();
    println!(
        "the paper's preset: {} values, {} decisions, {} bytes, {:.3} bits a value; rounding and logging {:.3} of the native step",
        counts.elements,
        counts.decisions,
        log.bytes().len(),
        log.bytes().len() as f64 * 8.0 / counts.elements as f64,
        logged / native
    );
    for auditor in Native::ALL {
        let (_, without) = step(auditor, &mut Unobserved);
        let mut replayer = Replayer::new(&rounding, &program.micro, log.clone());
        let (_, with) = step(auditor, &mut Observed(&mut replayer));
        assert!(with == state, "{} does not replicate the step", auditor.name());
        println!(
            "    {:<16} {:>4} corrections; the same state with the log, {} one without",
            auditor.name(),
            replayer.tally().taken(),
            if without == state { "the same" } else { "another" }
        );
    }
}

/// Nanoseconds for each decision of a product of attention's scores whose candidates come from a GPU: to judge them, and to encode
/// the decisions. `RAYON_NUM_THREADS` says on how many threads.
fn bench_decisions() {
    let rounding = Rounding::default();
    let dims = [12, 1024, 1024, 64];
    let [batch, m, n, k] = dims;
    let uniform = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    // Sums of 64 products of numbers about 1: the size of the norms, and of either sign.
    let result = |i: usize| (4.0 * (uniform(i) as f32 / (1 << 23) as f32 - 1.0)).to_bits();
    let results: Vec<u32> = (0..batch * m * n).map(result).collect();
    let side = |rows: usize| Side { absmaxes: vec![0x4000_0000; rows], norms: vec![8.0; rows] };
    let (a, b) = (side(batch * m), side(batch * n));
    let tolerance = rounding.tolerance(ProductClass::Scores, k);
    let product = Product { dims, rule: GridRule { bits: 16, floor: 0 }, a: &a, b: &b, tolerance };
    let ties = product.near_ties(&results).expect("results are finite");
    let mut found: Vec<NearTieCandidate> = ties
        .iter()
        .map(|tie| NearTieCandidate { place: tie.place as u32, high: results[tie.place], rounding_error: 0 })
        .collect();
    // Blocks of 256 results report in any order.
    found.sort_by_key(|candidate| (uniform(candidate.place as usize / 256), candidate.place));
    let (mut judge, mut code) = (Vec::new(), Vec::new());
    for _ in 0..7 {
        let found = found.clone();
        let start = Instant::now();
        let decisions = product.decisions_among(found).expect("results are finite").expect("few bits");
        judge.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        let bytes = encode(&decisions, (batch * m * n) as u64);
        code.push(start.elapsed().as_secs_f64());
        assert!(decisions.len() == ties.len() && !bytes.is_empty());
    }
    let each = |times: &mut [f64]| median(times) * 1e9 / ties.len() as f64;
    println!(
        "{} decisions of {} values on {} threads: {:.1} ns each to judge, {:.1} ns each to encode on one thread",
        ties.len(),
        results.len(),
        rayon::current_num_threads(),
        each(&mut judge),
        each(&mut code)
    );
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let has = |word: &str| words.iter().any(|w| w == word);
    let (size, repeats) = if has("gpt-2") { ([50_257, 12, 768], 2) } else { ([256, 4, 192], 7) };
    let bf16 = Rounding::default();
    let fp32 = Rounding { bits: Some(32), ..Rounding::default() };
    if has("decisions") {
        return bench_decisions();
    }
    if has("paper") {
        return bench_paper(size);
    }
    let all = !has("bf16") && !has("fp32");
    if all || has("bf16") {
        bench("binary32 kernels, bfloat16 grid", &bf16, size, repeats, !has("default"));
    }
    if all || has("fp32") {
        bench("binary64 kernels, binary32 grid", &fp32, size, repeats, !has("default"));
    }
}
