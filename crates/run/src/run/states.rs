//! Reads training states that a run's records commit.

use super::dir::Run;
use super::error::RunError;
use super::{checkpoint, initial, names};
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::state::{state_digest, tensor_digests};

/// A state: canonical bytes in the table's order.
pub type State = Vec<Vec<u8>>;

/// The state after a step, read from its checkpoint. An initial state from the seed needs no file.
///
/// # Errors
/// If the checkpoint cannot be read, is malformed, or is not the state that the step's record commits.
pub fn after(run: &Run, records: &[Record], step: u32) -> Result<State, RunError> {
    run.within_memory("a state", run.state_memory())?;
    let state = match step {
        0 => initial::state(run)?,
        _ => checkpoint::read(run.at(names::checkpoint(step)), &run.program().state())?,
    };
    check(run, records, step, &state)?;
    Ok(state)
}

/// Checks that the record of a step commits this state.
///
/// # Errors
/// If the record commits another state, or there is no such record.
pub fn check(run: &Run, records: &[Record], step: u32, state: &[Vec<u8>]) -> Result<(), RunError> {
    let table = run.program().state();
    let promised = records.get(step as usize).map(Record::state);
    if Some(state_digest(&table, &tensor_digests(&table, state))) == promised {
        return Ok(());
    }
    let why = format!("it is not the state that record {step} commits");
    Err(RunError::invalid(&run.layout.checkpoint(step), why))
}

/// The state of the last checkpoint before a step, and that checkpoint's step. The initial state and damaged checkpoints are
/// skipped.
///
/// # Errors
/// If the folder of checkpoints cannot be read.
pub fn nearest_checkpoint(
    run: &Run,
    records: &[Record],
    step: u32,
) -> Result<Option<(u32, State)>, RunError> {
    let steps = run.checkpoint_steps()?.into_iter().rev().filter(|&at| 0 < at && at < step);
    Ok(steps.into_iter().find_map(|at| Some((at, after(run, records, at).ok()?))))
}
