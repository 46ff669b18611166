//! The speed of an engine: one product, and one training step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::{Gpt, Model};
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::products::{ProductClass, ProductTable};
use tiebreak_contract::program::step::{MicroBatch, Program, StepSpec};
use tiebreak_engine::session::{Session, StepScalars, Unobserved};
use tiebreak_engine::{Engine, EngineError};

/// The figures that were measured.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// Rows, columns and terms of the product.
    pub side: u32,
    /// Multiplications of two elements of two digits a second, in 10^9; digitising and rounding back included.
    pub gmacs: f64,
    /// Tokens of the training step.
    pub tokens: u32,
    /// Seconds of a training step on so many tokens: a GPT of 1.06 million parameters, default digits, AdamW, clipping.
    pub step_seconds: f64,
}

/// The time for which one thing is measured, at least one run after the first.
const TIME: Duration = Duration::from_secs(1);
/// Sides of products: the next one has eight times the multiplications.
const SIDES: [u32; 6] = [128, 256, 512, 1024, 2048, 4096];
/// A product is the largest of which a run takes about so many seconds at most.
const PRODUCT_SECONDS: f64 = 2.0;
/// Samples of steps, of 128 tokens each.
const SAMPLES: [u32; 2] = [1, 8];
/// A step is the largest that takes about so many seconds at most.
const STEP_SECONDS: f64 = 8.0;

/// Measures an engine, by a product and a step of a size that it does in seconds: a slow one takes about as long as a fast one.
///
/// # Errors
/// If it fails.
pub fn measure(engine: &mut dyn Engine) -> Result<Speed, EngineError> {
    let work = |side: u32| f64::from(side).powi(3);
    let (side, seconds) = largest(&SIDES, PRODUCT_SECONDS, work, |side| product(engine, side))?;
    let gmacs = work(side) / seconds / 1e9;
    let (samples, step_seconds) =
        largest(&SAMPLES, STEP_SECONDS, f64::from, |samples| step(engine, samples))?;
    Ok(Speed { side, gmacs, tokens: CONTEXT * samples, step_seconds })
}

/// The largest size which by the time of the one before it takes at most so many seconds, and its time; the first one in any case. A size for which memory is too
/// small is left out.
fn largest(
    sizes: &[u32],
    most: f64,
    work: impl Fn(u32) -> f64,
    mut seconds: impl FnMut(u32) -> Result<f64, EngineError>,
) -> Result<(u32, f64), EngineError> {
    let mut last = (sizes[0], seconds(sizes[0])?);
    for &size in &sizes[1..] {
        if last.1 * work(size) / work(last.0) > most {
            break;
        }
        match seconds(size) {
            Ok(time) => last = (size, time),
            Err(EngineError::OutOfMemory { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(last)
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

/// Tokens of a sample.
const CONTEXT: u32 = 128;

/// Seconds of a training step on so many samples.
fn step(engine: &mut dyn Engine, samples: u32) -> Result<f64, EngineError> {
    let model = Model::Gpt(Gpt {
        vocabulary: 256,
        context: CONTEXT,
        layers: 4,
        heads: 4,
        width: 144,
        ..Gpt::default()
    });
    let program = Arc::new(Program::new(StepSpec {
        loss: Default::default(),
        model,
        optimizer: Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 },
        clip_norm: Some(1.0),
        micro_batch: samples,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine of so many multiplications a second that has memory for sides below `memory`.
    fn chosen(each_second: f64, memory: u32) -> (u32, f64) {
        let work = |side: u32| f64::from(side).powi(3);
        largest(&SIDES, PRODUCT_SECONDS, work, |side| match side < memory {
            true => Ok(work(side) / each_second),
            false => Err(EngineError::OutOfMemory { device: "small".into(), reason: side.to_string() }),
        })
        .unwrap()
    }

    #[test]
    fn a_slow_engine_gets_a_small_product() {
        assert_eq!(chosen(1e5, 8192).0, 128, "it is measured in any case");
        assert_eq!(chosen(1e8, 8192).0, 512);
        assert_eq!(chosen(1e13, 8192).0, 4096);
        assert_eq!(chosen(1e13, 2048).0, 1024, "what does not fit is left out");
        assert!(chosen(1e8, 8192).1 <= PRODUCT_SECONDS);
        let lost = EngineError::DeviceLost { device: "a".into(), reason: "b".into() };
        let mut results = vec![Err(lost), Ok(1e-9)];
        let failed = largest(&SIDES, PRODUCT_SECONDS, f64::from, |_| results.pop().unwrap());
        assert!(failed.is_err(), "another error is one");
    }
}
