//! How fast an engine is: one product, and one training step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::arith::DType;
use crate::arith::philox::philox4x32_10;
use crate::arith::words::bytes_of;
use crate::engine::session::{Session, StepScalars, Unobserved};
use crate::engine::{Engine, EngineError};
use crate::program::builder::Builder;
use crate::program::graph::TensorType;
use crate::program::init;
use crate::program::models::{Gelu, Gpt, Model};
use crate::program::optimizer::Optimizer;
use crate::program::products::{ProductClass, ProductTable};
use crate::program::step::{MicroBatch, Program, StepSpec};

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// Rows, columns and terms of the product.
    pub side: u32,
    /// Multiplications of two elements of two digits a second, in 10^9; digitising and rounding back included.
    pub gmacs: f64,
    /// Seconds of a training step: a GPT of 1.06 million parameters on 1024 tokens, default digits, AdamW, clipping.
    pub step_seconds: f64,
}

/// How long one of the two is measured, at least one run.
const TIME: Duration = Duration::from_secs(2);

/// Measures an engine.
///
/// # Errors
/// If it fails.
pub fn measure(engine: &mut dyn Engine, software: bool) -> Result<Speed, EngineError> {
    let side = if software { 512 } else { 1024 };
    let seconds = product(engine, side)?;
    let gmacs = f64::from(side).powi(3) / seconds / 1e9;
    Ok(Speed { side, gmacs, step_seconds: step(engine)? })
}

/// The least seconds of some runs after one that compiles and allocates.
fn least(mut run: impl FnMut() -> Result<(), EngineError>) -> Result<f64, EngineError> {
    run()?;
    let (begin, mut least) = (Instant::now(), f64::INFINITY);
    for _ in 0..10 {
        let start = Instant::now();
        run()?;
        least = least.min(start.elapsed().as_secs_f64());
        if begin.elapsed() > TIME {
            break;
        }
    }
    Ok(least)
}

/// Seconds of a product of two square matrices.
fn product(engine: &mut dyn Engine, side: u32) -> Result<f64, EngineError> {
    let mut builder = Builder::new(ProductTable::uniform(2));
    let [a, b] = ["a", "b"].map(|name| builder.input(name, DType::F32, &[side, side]));
    let (view_a, view_b) = (builder.whole(a), builder.whole(b));
    let output = builder.product(ProductClass::Linear, view_a, view_b, &[side, side]);
    builder.output("product", output);
    let compiled = engine.compile(Arc::new(builder.finish()))?;
    let ty = TensorType { dtype: DType::F32, shape: vec![side, side] };
    // Numbers about one.
    let word = |i: u32| philox4x32_10([1, 2], [i, 0, 0, 0])[0] & 0x80ff_ffff | 0x3f00_0000;
    let words: Vec<u32> = (0..side * side).map(word).collect();
    let bytes = bytes_of(&words);
    let inputs = [engine.upload(&ty, &bytes)?, engine.upload(&ty, &bytes)?];
    least(|| {
        let outputs = engine.run(&compiled, &inputs, None)?;
        engine.finish()?;
        drop(outputs);
        Ok(())
    })
}

/// Seconds of a training step.
fn step(engine: &mut dyn Engine) -> Result<f64, EngineError> {
    let model = Model::Gpt(Gpt {
        vocabulary: 256,
        context: 128,
        layers: 4,
        heads: 4,
        width: 144,
        gelu: Gelu::Tanh,
        dropout: 0.0,
        tied: true,
        init_std: 0.02,
        norm_epsilon: 1e-5,
    });
    let program = Arc::new(Program::new(StepSpec {
        loss: Default::default(),
        model,
        optimizer: Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 },
        clip_norm: Some(1.0),
        micro_batch: 8,
        micro_batches: 1,
        products: ProductTable::preset(),
    }));
    let state: Vec<Vec<u8>> = init::state(&program, [1, 2]).iter().map(|words| bytes_of(words)).collect();
    let tensors = program.batch.iter().map(|tensor| {
        let len = tensor.shape.iter().product::<u32>();
        let words: Vec<u32> =
            (0..len).map(|i| philox4x32_10([3, 4], [i, 0, 0, 0])[0] % tensor.below).collect();
        bytes_of(&words)
    });
    let batch = [MicroBatch { tensors: tensors.collect() }];
    let mut session = Session::new(&mut *engine, program.clone())?;
    session.load(&state)?;
    let mut number = 0;
    least(|| {
        number += 1;
        let scalars = StepScalars { step: number, seed: [5, 6], learning_rate: 1e-3f32.to_bits() };
        session.step(scalars, &batch, &mut Unobserved, |_, _, _| Ok(()))?;
        session.engine_mut().finish()
    })
}
