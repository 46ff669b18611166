//! Checkpoints of a run whose frozen parameters are written once, into checkpoint 0.

use std::ops::Range;

use super::checkpoint::Place;
use super::dir::Run;
use super::error::RunError;
use super::stored::Stored;
use super::{checkpoint, names};
use tiebreak_contract::arith::words::with_bytes;
use tiebreak_contract::program::init;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_job::initial::InitialOrigin;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::tensor;

/// For each tensor of the state, true if the checkpoint after a step may leave it out, since checkpoint 0 has it: a frozen parameter
/// of a run that does not begin from its seed.
fn left_out(run: &Run, step: u32) -> Vec<bool> {
    let mut kept = run.program().kept();
    if step == 0 || run.file.origin == InitialOrigin::Seed {
        kept.fill(false);
    }
    kept
}

/// The file of the checkpoint after a step, which is held to the step's record.
fn file(run: &Run, records: &[Record], step: u32) -> Stored {
    let name = names::checkpoint(step);
    match records.get(step as usize) {
        Some(record) => run.promised(name, "state", record.state()),
        None => run.at(name),
    }
}

/// Says that the state after a step is not the one of its record. True if another read may give another: the bytes of one of its files
/// were a cache's.
pub(super) fn doubt(run: &Run, records: &[Record], step: u32) -> bool {
    // Both at once, so that a second read needs no third.
    let first = left_out(run, step.max(1)).contains(&true).then_some(0);
    let doubted = [step].into_iter().chain(first).filter(|&step| file(run, records, step).doubt());
    doubted.count() > 0
}

/// The files of a checkpoint: its own, and checkpoint 0 if that one has the frozen parameters.
pub(super) struct Files {
    /// The tensors of the state.
    pub table: Vec<StateTensor>,
    left_out: Vec<bool>,
    own: Stored,
    /// The ranges of the tensors that its own file has.
    ranges: Vec<Range<u64>>,
    first: Stored,
}

impl Files {
    /// The files of the checkpoint after a step. Callers hold the state to the step's record, if `records` has it.
    ///
    /// # Errors
    /// If its own file cannot be read, or holds other tensors.
    pub fn of(run: &Run, records: &[Record], step: u32) -> Result<Files, RunError> {
        let (table, mut left_out) = (run.program().state(), left_out(run, step));
        let [own, first] = [step, 0].map(|step| file(run, records, step));
        let ranges = match left_out.contains(&true) {
            false => checkpoint::layout_of(&own, &table)?,
            true => {
                let (few, ranges) = checkpoint::layout_of_few(&own, &table, &trained(&table, &left_out))?;
                // A file with every tensor is a whole state too.
                left_out.iter_mut().for_each(|left_out| *left_out &= few);
                ranges
            }
        };
        Ok(Files { table, left_out, own, ranges, first })
    }

    /// True if the checkpoint is of two files.
    pub fn are_two(&self) -> bool {
        self.left_out.contains(&true)
    }

    /// The files, and the range of each tensor in one of them.
    ///
    /// # Errors
    /// If checkpoint 0 is needed, and cannot be read, or holds other tensors.
    pub fn places(&self) -> Result<Vec<Place<'_>>, RunError> {
        if !self.are_two() {
            return Ok(self.ranges.iter().map(|range| (&self.own, range.clone())).collect());
        }
        let mut ours = self.ranges.iter();
        let first = checkpoint::layout_of(&self.first, &self.table)?;
        let places = first.into_iter().zip(&self.left_out).map(|(range, &is_left_out)| match is_left_out {
            true => (&self.first, range),
            false => (&self.own, ours.next().expect("the rest of the table is in the file").clone()),
        });
        Ok(places.collect())
    }

    /// The digests of the state's tensors. Those of the tensors in checkpoint 0 are `kept`'s.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn digests(&self, kept: &[Option<Digest>]) -> Result<Vec<Digest>, RunError> {
        let places: Vec<Place> = self.ranges.iter().map(|range| (&self.own, range.clone())).collect();
        let held = trained(&self.table, &self.left_out);
        let mut ours = checkpoint::digests_at(&places, &held)?.into_iter();
        let both = self.left_out.iter().zip(kept).map(|(&is_left_out, kept)| match is_left_out {
            true => kept.expect("a tensor that is left out is kept"),
            false => ours.next().expect("the rest of the table is in the file"),
        });
        Ok(both.collect())
    }
}

/// For each tensor of the state its digest in the initial state if it is a frozen parameter: no step changes it. Nobody vouches for the
/// digests that checkpoint 0 gives.
///
/// # Errors
/// If checkpoint 0 is needed, and cannot be read, or holds other tensors.
pub(super) fn kept(run: &Run, records: &[Record]) -> Result<Vec<Option<Digest>>, RunError> {
    let (kept, program) = (run.program().kept(), run.program());
    let mut digests = vec![None; kept.len()];
    let indices: Vec<usize> = (0..kept.len()).filter(|&index| kept[index]).collect();
    if indices.is_empty() {
        return Ok(digests);
    }
    if run.file.origin == InitialOrigin::Seed {
        let all = program.state_with_init();
        for index in indices {
            let (tensor, init) = &all[index];
            let ty = tensor.ty();
            let words = init::elements(run.key(), index as u32, [0, ty.len()], *init);
            digests[index] = Some(with_bytes(&words, |bytes| tensor::digest(&ty, bytes)));
        }
        return Ok(digests);
    }
    let (file, table) = (file(run, records, 0), program.state());
    let layout = checkpoint::layout_of(&file, &table)?;
    let places: Vec<Place> = indices.iter().map(|&index| (&file, layout[index].clone())).collect();
    let frozen: Vec<StateTensor> = indices.iter().map(|&index| table[index].clone()).collect();
    for (index, digest) in indices.into_iter().zip(checkpoint::digests_at(&places, &frozen)?) {
        digests[index] = Some(digest);
    }
    Ok(digests)
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
    read_of(run, &[], step)
}

/// [`read`] by callers who hold the state to the step's record.
///
/// # Errors
/// As [`read`].
pub(super) fn read_of(run: &Run, records: &[Record], step: u32) -> Result<Vec<Vec<u8>>, RunError> {
    checkpoint::read_at(&Files::of(run, records, step)?.places()?)
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
