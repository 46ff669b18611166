//! Recordings of an adapter's requests during a self-test or a step, so that a browser, or another program, can repeat them.

use std::sync::{Arc, PoisonError};

use super::engine::GpuEngine;
use crate::device::recorder::{Launches, Log, Recorder};
use crate::plan::TextLimits;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::init;
use tiebreak_contract::program::step::{MicroBatch, Program};
use tiebreak_engine::session::{Session, StepScalars, Unobserved};
use tiebreak_engine::{Engine, EngineError};
use tiebreak_shaders::product::Variant;

/// The requests of the self-test: every operator of small programs (the fingerprint), rows computed at once, and roots on the
/// device.
///
/// # Errors
/// If there is no such adapter, or it fails the test.
pub fn of_selftest(
    name: Option<&str>,
    limits: TextLimits,
    variant: Variant,
) -> Result<Launches, EngineError> {
    let (engine, log) = engine(name, limits)?;
    drop(engine.chosen(Some(variant))?.tested()?);
    Ok(taken(&log))
}

/// The requests of a training step of a program, from the initial state of a fixed seed, on random labels and inputs. The state
/// after the step is read.
///
/// # Errors
/// If there is no such adapter, or the adapter fails.
pub fn of_step(
    name: Option<&str>,
    limits: TextLimits,
    variant: Variant,
    program: &Arc<Program>,
) -> Result<Launches, EngineError> {
    let (engine, log) = engine(name, limits)?;
    let mut engine = engine.chosen(Some(variant))?;
    state_after(&mut engine, program)?;
    drop(engine);
    Ok(taken(&log))
}

/// The state after the step of `of_step`, by any engine.
///
/// # Errors
/// If the engine fails.
pub fn state_after(engine: &mut dyn Engine, program: &Arc<Program>) -> Result<Vec<Vec<u8>>, EngineError> {
    let state: Vec<Vec<u8>> = init::state(program, [1, 2]).iter().map(|words| bytes_of(words)).collect();
    let batch: Vec<MicroBatch> = (0..program.micro_batches).map(|micro| drawn(program, micro)).collect();
    let mut session = Session::new(engine, program.clone())?;
    session.load(&state)?;
    let scalars = StepScalars { step: 1, seed: [5, 6], learning_rate: 1e-3f32.to_bits() };
    session.step(scalars, &batch, &mut Unobserved, |_, _, _| Ok(()))?;
    session.download_state()
}

/// A random micro-batch: classes below their bounds, and other numbers of about one.
fn drawn(program: &Program, micro: u32) -> MicroBatch {
    let tensors = program.batch.iter().map(|tensor| {
        let word = |i: u32| philox4x32_10([3, micro], [i, 0, 0, 0])[0];
        let of = |i: u32| match tensor.below {
            0 => word(i) & 0x80ff_ffff | 0x3f00_0000,
            below => word(i) % below,
        };
        bytes_of(&(0..tensor.shape.iter().product::<u32>()).map(of).collect::<Vec<u32>>())
    });
    MicroBatch { tensors: tensors.collect() }
}

/// The engine with the settings of a GPU; for a browser, within WebGPU's limits.
fn engine(name: Option<&str>, limits: TextLimits) -> Result<(GpuEngine<Recorder>, Log), EngineError> {
    let device = Recorder::within(name, limits == TextLimits::Webgpu)?;
    let log = device.log.clone();
    Ok((GpuEngine::on(device).hashing(true).fusing_rows(true), log))
}

fn taken(log: &Log) -> Launches {
    std::mem::take(&mut *log.lock().unwrap_or_else(PoisonError::into_inner))
}
