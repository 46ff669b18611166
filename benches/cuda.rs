//! The CUDA engine on an NVIDIA GPU: `cargo bench --bench cuda [-- --small]`. Products of several shapes by number of digits,
//! digitising and rounding back included, and whole steps of GPT-2 124M with the time that committing takes.
//!
//! Prints a JSON object a line; `benches/cuda_report.py` measures the peers (PyTorch's products and step) in the same run and sets
//! them beside each other. `--small` tries the benchmark itself where there is no GPU.

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use tiebreak::arith::DType;
use tiebreak::engine::gpu::Cuda;
use tiebreak::engine::session::{MicroBatch, Session, StepScalars, Unobserved};
use tiebreak::engine::{Engine, EngineError};
use tiebreak::program::builder::Builder;
use tiebreak::program::graph::TensorType;
use tiebreak::program::init;
use tiebreak::program::models::{Gelu, Gpt, Model};
use tiebreak::program::optimizer::Optimizer;
use tiebreak::program::products::{ProductClass, ProductTable};
use tiebreak::program::step::{Program, StepSpec};
use tiebreak::train::committed_step::{gradient_root, state_digests};

/// Median seconds of `rounds` rounds of `run`, `each` times in a row, after one that warms up.
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

/// A step of a GPT, its micro-batches accumulated by the contract's tree, and what committing to it takes.
fn step(
    engine: &mut dyn Engine,
    gpt: &Gpt,
    digits: &str,
    products: ProductTable,
    [micro_batch, micro_batches]: [u32; 2],
) -> Result<(), EngineError> {
    let program = Arc::new(Program::new(StepSpec {
        model: Model::Gpt(gpt.clone()),
        optimizer: Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 },
        clip_norm: Some(1.0),
        micro_batch,
        micro_batches,
        products,
    }));
    let words = |tensor: &Vec<u32>| tensor.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let state: Vec<Vec<u8>> = init::state(&program, [1, 2]).iter().map(words).collect();
    let mut session = Session::new(engine, program.clone())?;
    session.load(&state)?;
    drop(state);
    let tokens: Vec<u8> = (0..micro_batch * gpt.context)
        .flat_map(|i| (i.wrapping_mul(7919) % gpt.vocabulary).to_le_bytes())
        .collect();
    let batch = vec![MicroBatch { tensors: vec![tokens.clone(), tokens] }; micro_batches as usize];
    let (mut times, mut committing) = (Vec::new(), Vec::new());
    for number in 1..=4 {
        let scalars = StepScalars { step: number, seed: [1, 2], learning_rate: 1e-4f32.to_bits() };
        let begin = Instant::now();
        let mut roots = 0.0;
        // The loss is read at the end, which waits for everything.
        session.step(scalars, &batch, &mut Unobserved, |session, _, gradients| {
            let begin = Instant::now();
            gradient_root(session, gradients)?;
            roots += begin.elapsed().as_secs_f64();
            Ok(())
        })?;
        times.push(begin.elapsed().as_secs_f64() - roots);
        let begin = Instant::now();
        state_digests(&mut session)?;
        committing.push(begin.elapsed().as_secs_f64() + roots);
    }
    // The first one allocates.
    let middle = |times: &mut Vec<f64>| {
        times.remove(0);
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let tokens = micro_batch * micro_batches * gpt.context;
    println!(
        "{}",
        json!({
            "kind": "step", "parameters": program.parameter_count(), "digits": digits, "tokens": tokens,
            "micro_batch": micro_batch, "seconds": middle(&mut times), "commit_seconds": middle(&mut committing),
        })
    );
    Ok(())
}

fn bench(small: bool) -> Result<(), EngineError> {
    let mut engine = Cuda::open(None)?;
    println!("{}", json!({ "kind": "engine", "engine": engine.describe() }));
    let side = if small { 64 } else { 8192 };
    let tokens = if small { 96 } else { 8192 };
    let shapes = if small {
        vec![[side; 3], [tokens, 32, 48]]
    } else {
        vec![[side; 3], [tokens, 768, 768], [tokens, 2304, 768], [tokens, 3072, 768], [tokens, 768, 3072]]
    };
    for shape in shapes {
        for digits in 1..=3 {
            product(&mut engine, digits, shape)?;
        }
    }
    let (layers, heads, width, context, vocabulary) =
        if small { (1, 2, 16, 8, 50) } else { (12, 12, 768, 1024, 50_257) };
    let (gelu, dropout, tied, init_std) = (Gelu::Tanh, 0.0, true, 0.02);
    let gpt = Gpt { vocabulary, context, layers, heads, width, gelu, dropout, tied, init_std };
    let batch = if small { [2, 2] } else { [8, 4] };
    step(&mut engine, &gpt, "default", ProductTable::preset(), batch)?;
    step(&mut engine, &gpt, "3", ProductTable::uniform(3), batch)
}

fn main() {
    let small = std::env::args().any(|arg| arg == "--small");
    if let Err(error) = bench(small) {
        eprintln!("NOT MEASURED: {error}");
        std::process::exit(3);
    }
}
