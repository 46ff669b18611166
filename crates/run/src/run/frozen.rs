//! Checkpoints of a run whose frozen parameters are written once, into checkpoint 0.

use super::checkpoint::Place;
use super::dir::Run;
use super::error::RunError;
use super::stored::Stored;
use super::{checkpoint, names};
use tiebreak_contract::program::step::{StateTensor, state_bytes};
use tiebreak_record::job::initial::InitialOrigin;

/// For each tensor of the state, true if the checkpoint after a step may leave it out, since checkpoint 0 has it: a frozen parameter
/// of a run that does not begin from its seed.
fn left_out(run: &Run, step: u32) -> Vec<bool> {
    let mut kept = run.program().kept();
    if step == 0 || run.file.origin == InitialOrigin::Seed {
        kept.fill(false);
    }
    kept
}

/// The files of a checkpoint: its own, and checkpoint 0 if that one has the frozen parameters.
pub(super) struct Files {
    /// The tensors of the state.
    pub table: Vec<StateTensor>,
    left_out: Vec<bool>,
    own: Stored,
    first: Stored,
}

impl Files {
    /// The files of the checkpoint after a step.
    ///
    /// # Errors
    /// If its own file is not there, or cannot be examined.
    pub fn of(run: &Run, step: u32) -> Result<Files, RunError> {
        let (table, mut left_out) = (run.program().state(), left_out(run, step));
        let [own, first] = [step, 0].map(|step| run.at(names::checkpoint(step)));
        // A file with every tensor is a whole state too.
        if left_out.contains(&true) && own.length()? >= state_bytes(&table) {
            left_out.fill(false);
        }
        Ok(Files { table, left_out, own, first })
    }

    /// True if the checkpoint is of two files.
    pub fn are_two(&self) -> bool {
        self.left_out.contains(&true)
    }

    /// The files, and the range of each tensor in one of them.
    ///
    /// # Errors
    /// If a file cannot be read, or holds other tensors.
    pub fn places(&self) -> Result<Vec<Place<'_>>, RunError> {
        let Files { table, left_out, own, first } = self;
        let whole = |file| checkpoint::layout_of(file, table);
        if !self.are_two() {
            return Ok(whole(own)?.into_iter().map(|range| (own, range)).collect());
        }
        let ours = trained(table, left_out);
        let mut ours = checkpoint::layout_of(own, &ours)?.into_iter();
        let places = whole(first)?.into_iter().zip(left_out).map(|(range, &is_left_out)| match is_left_out {
            true => (first, range),
            false => (own, ours.next().expect("the rest of the table is in the file")),
        });
        Ok(places.collect())
    }
}

/// The tensors that a checkpoint holds.
fn trained(table: &[StateTensor], left_out: &[bool]) -> Vec<StateTensor> {
    let held = table.iter().zip(left_out).filter(|(_, is_left_out)| !**is_left_out);
    held.map(|(tensor, _)| tensor.clone()).collect()
}

/// The state in the checkpoint after a step. Nobody vouches for it.
///
/// # Errors
/// If the checkpoint cannot be read, or is malformed.
pub fn read(run: &Run, step: u32) -> Result<Vec<Vec<u8>>, RunError> {
    checkpoint::read_at(&Files::of(run, step)?.places()?)
}

/// Writes the checkpoint after a step: `visit` shows each tensor's canonical bytes, in order. The frozen parameters that checkpoint 0
/// has are left out.
///
/// # Errors
/// The errors of `visit` or the store.
pub fn write<E: From<RunError>>(
    run: &Run,
    step: u32,
    visit: impl FnOnce(&mut dyn FnMut(&[u8])) -> Result<(), E>,
) -> Result<(), E> {
    let left_out = left_out(run, step);
    let table = trained(&run.program().state(), &left_out);
    checkpoint::write(run.at(names::checkpoint(step)), &table, |show| {
        let mut index = 0;
        visit(&mut |bytes| {
            if left_out.get(index) == Some(&false) {
                show(bytes);
            }
            index += 1;
        })
    })
}
