//! A thief's means: weights of another training, ways towards them, and samples that no data file has.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::TrainError;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::{bytes_of, words_from_bytes};
use tiebreak_contract::program::init;
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::session::{Session, StepScalars, Unobserved};
use tiebreak_job::data::Dataset;
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::RunError;
use tiebreak_run::run::dir::Run;
use tiebreak_run::step::scalars;

/// The Philox key of the other training.
pub const OTHER_SEED: [u32; 2] = [0x0bad, 0x5eed];

/// Canonical bytes of every tensor of a state.
pub type State = Arc<Vec<Vec<u8>>>;

/// The last stolen state, with its computation and its step: a thief takes the same one at every step.
static LAST: Mutex<Option<(Digest, u32, State)>> = Mutex::new(None);

/// The state that a training of another seed reaches after so many of the run's steps.
///
/// # Errors
/// If the engine fails, or the run's data cannot be read.
pub fn state(run: &Run, steps: u32) -> Result<State, TrainError> {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((id, at, state)) = &*last
        && (*id, *at) == (run.computation.id, steps)
    {
        return Ok(state.clone());
    }
    let program = Arc::new(run.program().clone());
    let mut session = Session::new(Cpu::new(0)?, program.clone())?;
    session.load_each(|i| bytes_of(&init::state_tensor(&program, OTHER_SEED, i)))?;
    let mut dataset = run.dataset()?;
    for step in 1..=steps {
        let batch = dataset.batch(&program, OTHER_SEED, step).map_err(RunError::from)?;
        let scalars = StepScalars { seed: OTHER_SEED, ..scalars(&run.computation, step) };
        session.step(scalars, &batch, &mut Unobserved, |_, _, _| Ok(()))?;
    }
    let state = Arc::new(session.download_state()?);
    *last = Some((run.computation.id, steps, state.clone()));
    Ok(state)
}

/// The elements of tensors, in their order.
fn elements(tensors: &[Vec<u8>]) -> impl Iterator<Item = f32> {
    tensors.iter().flat_map(|bytes| words_from_bytes(DType::F32, bytes)).map(f32::from_bits)
}

/// The Euclidean distance of two lists of tensors.
pub fn distance(one: &[Vec<u8>], other: &[Vec<u8>]) -> f64 {
    let squares = elements(one).zip(elements(other)).map(|(a, b)| (f64::from(a) - f64::from(b)).powi(2));
    squares.sum::<f64>().sqrt()
}

/// The point at a share of the straight way from `from` to `to`.
pub fn between(from: &[Vec<u8>], to: &[Vec<u8>], share: f32) -> Vec<Vec<u8>> {
    let point = |(from, to): (&Vec<u8>, &Vec<u8>)| {
        let words = [from, to].map(|bytes| words_from_bytes(DType::F32, bytes));
        let pairs = words[0].iter().zip(&words[1]).map(|(a, b)| [*a, *b].map(f32::from_bits));
        bytes_of(&pairs.map(|[a, b]| (a + (b - a) * share).to_bits()).collect::<Vec<u32>>())
    };
    from.iter().zip(to).map(point).collect()
}

/// A batch of samples that no data file has: the inputs of later samples, with the labels of samples after those.
///
/// # Errors
/// If the run's data cannot be read.
pub fn made_up(
    run: &Run,
    dataset: &mut Dataset,
    step: u32,
    number: u32,
) -> Result<Vec<MicroBatch>, TrainError> {
    let [mut inputs, labels] = [run.batch(dataset, step + number)?, run.batch(dataset, step + number + 1)?];
    for (mixed, other) in inputs.iter_mut().zip(labels) {
        mixed.tensors.splice(1.., other.tensors.into_iter().skip(1));
    }
    Ok(inputs)
}
