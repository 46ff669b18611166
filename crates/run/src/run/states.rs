//! Reads training states that a run's records commit.

use std::cell::RefCell;
use std::path::Path;

use super::dir::Run;
use super::error::{OfContents, RunError};
use super::frozen::Files;
pub use super::frozen::{read, write};
use super::{checkpoint, frozen, initial};
use tiebreak_contract::arith::words::with_bytes;
use tiebreak_contract::program::init;
use tiebreak_job::initial::InitialOrigin;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::state::tensor_digests;
use tiebreak_record::commit::tensor;

/// A state: canonical bytes in the table's order.
pub type State = Vec<Vec<u8>>;

/// The state after a step, read from its checkpoint. An initial state from the seed needs no file.
///
/// # Errors
/// If the checkpoint cannot be read, is malformed, is not the state that the step's record commits, or has other frozen parameters
/// than the initial state.
pub fn after(run: &Run, records: &[Record], step: u32) -> Result<State, RunError> {
    run.opened()?;
    run.within_memory("a state", run.state_memory())?;
    if step == 0 {
        let state = initial::state(run)?;
        check(run, records, 0, &state)?;
        return Ok(state);
    }
    settled(run, records, step, || {
        let files = Files::of(run, records, step)?;
        let state = checkpoint::read_at(&files.places()?)?;
        let digests = tensor_digests(&files.table, &state);
        check_digests(run, records, step, &digests)?;
        if !files.are_two() {
            check_frozen(run, step, &digests, &frozen::kept(run, records)?)?;
        }
        Ok(state)
    })
}

/// Reads the state after a step by `read`, which checks it, and once more if the first read failed by bytes that nobody vouches for: a
/// cache's are no fault of the run's. An error of the store, of the engine or of this machine says nothing about bytes.
///
/// # Errors
/// As `read`.
#[doc(hidden)] // for the layers above
pub fn settled<T, E: OfContents>(
    run: &Run,
    records: &[Record],
    step: u32,
    mut read: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    match read() {
        Err(error) if error.is_of_contents() && frozen::doubt(run, records, step) => read(),
        found => found,
    }
}

/// Passes the tensors of the state after a step to `each`, with their indices, in order and one at a time: a large state need not be
/// in memory as a whole. Nobody vouches for what `each` saw until the function returns. Callers pass it through [`settled`].
///
/// # Errors
/// As [`after`]; also if `each` fails.
pub fn visit<E: From<RunError>>(
    run: &Run,
    records: &[Record],
    step: u32,
    mut each: impl FnMut(usize, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    run.opened()?;
    let table = run.program().state();
    let mut digests = Vec::with_capacity(table.len());
    let mut pass = |index: usize, bytes: &[u8]| {
        digests.push(tensor::digest(&table[index].ty(), bytes));
        each(index, bytes)
    };
    if step == 0 && run.file.origin == InitialOrigin::Seed {
        for index in 0..table.len() {
            with_bytes(&init::state_tensor(run.program(), run.key(), index), |bytes| pass(index, bytes))?;
        }
        return Ok(check_digests(run, records, step, &digests)?);
    }
    let files = Files::of(run, records, step)?;
    checkpoint::each(&files.places()?, |index, bytes| pass(index, &bytes))?;
    check_digests(run, records, step, &digests)?;
    if step > 0 && !files.are_two() {
        check_frozen(run, step, &digests, &frozen::kept(run, records)?)?;
    }
    Ok(())
}

/// Checks that the record of a step commits this state.
///
/// # Errors
/// If the record commits another state, or there is no such record.
pub fn check(run: &Run, records: &[Record], step: u32, state: &[Vec<u8>]) -> Result<(), RunError> {
    check_digests(run, records, step, &tensor_digests(&run.program().state(), state))
}

/// The checkpoints of a run, to be held to its records without a copy of a state in memory. Frozen parameters that several of them
/// share are read once.
pub struct Checkpoints<'a> {
    run: &'a Run,
    kept: RefCell<Option<Vec<Option<Digest>>>>,
}

impl<'a> Checkpoints<'a> {
    /// The checkpoints of a run. Nothing is read yet.
    pub fn of(run: &'a Run) -> Checkpoints<'a> {
        Checkpoints { run, kept: RefCell::default() }
    }

    fn kept(&self, records: &[Record]) -> Result<Vec<Option<Digest>>, RunError> {
        // Taken out: a check that fails leaves none for its second read.
        match self.kept.take() {
            Some(kept) => Ok(kept),
            None => frozen::kept(self.run, records),
        }
    }

    /// Checks that the record of a step commits the state of its checkpoint.
    ///
    /// # Errors
    /// If the checkpoint cannot be read, is malformed, is not the state that the step's record commits, or has other frozen parameters
    /// than the initial state.
    pub fn check(&self, records: &[Record], step: u32) -> Result<(), RunError> {
        settled(self.run, records, step, || {
            let files = Files::of(self.run, records, step)?;
            let kept = self.kept(records)?;
            let digests = files.digests(&kept)?;
            check_digests(self.run, records, step, &digests)?;
            check_frozen(self.run, step, &digests, &kept)?;
            self.kept.replace(Some(kept));
            Ok(())
        })
    }
}

/// Refuses a state after a step whose frozen parameters are others than those of the initial state: the record that commits it is
/// false, or one before it, and a replay from this state would not show that.
pub(super) fn check_frozen(
    run: &Run,
    step: u32,
    digests: &[Digest],
    kept: &[Option<Digest>],
) -> Result<(), RunError> {
    let mut pairs = run.program().state().into_iter().zip(digests.iter().zip(kept));
    let other =
        pairs.find_map(|(tensor, (found, kept))| Some((tensor, found, kept.filter(|kept| kept != found)?)));
    match other {
        None => Ok(()),
        Some((tensor, found, kept)) => {
            let why = format!(
                "its {} is frozen, and is not that of the initial state: its digest is {}",
                tensor.name,
                found.not(&kept)
            );
            Err(RunError::invalid(&run.layout.checkpoint(step), why))
        }
    }
}

fn check_digests(run: &Run, records: &[Record], step: u32, digests: &[Digest]) -> Result<(), RunError> {
    let found = run.computation.state_digest(step, &run.program().state(), digests);
    let path = run.layout.checkpoint(step);
    match records.get(step as usize).map(Record::state) {
        Some(promised) if promised == found => Ok(()),
        Some(promised) => Err(other(&path, step, &found, &promised)),
        None => {
            let count = records.len();
            Err(RunError::invalid(
                &path,
                format!(
                    "no record commits it: {count} records are there, the last of step {}",
                    count.saturating_sub(1)
                ),
            ))
        }
    }
}

/// The error for a checkpoint that holds another state than the record of its step commits.
pub fn other(path: &Path, step: u32, found: &Digest, due: &Digest) -> RunError {
    RunError::invalid(
        path,
        format!("it is not the state that record {step} commits: it is {}", found.not(due)),
    )
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

/// The steps up to `last` whose checkpoints the job keeps once step `last` is done.
pub fn promised(run: &Run, last: u32) -> Vec<u32> {
    let made: Vec<u32> = (1..=last).filter(|&step| run.job().is_checkpoint(step)).collect();
    let keep = run.job().checkpoint.keep.map_or(made.len(), |keep| keep.max(1) as usize);
    let kept = made.iter().skip(made.len().saturating_sub(keep));
    [0].iter().chain(kept).copied().collect()
}
