//! The gradient roots of every step's micro-batches, which the step's record commits under one root. The file has 32 bytes for
//! each root, step by step, so that the roots of a step are one range of bytes. Layout: `docs/RUN-FORMAT.md`.

use super::error::RunError;
use super::stored::Stored;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::{StepRecord, gradients_root};

/// The number of bytes of a gap that are filled at once.
const GAP_BYTES: u64 = 1 << 20;

/// The offset of the roots of a step, with so many micro-batches in each.
pub fn offset(step: u32, micro_batches: usize) -> u64 {
    32 * (u64::from(step) - 1) * micro_batches as u64
}

/// Writes the file of gradient roots.
pub struct GradientsWriter {
    file: Stored,
    length: u64,
}

impl GradientsWriter {
    /// Continues a file, which need not exist.
    ///
    /// # Errors
    /// If the path is a link, or cannot be examined.
    pub fn open(file: Stored) -> Result<GradientsWriter, RunError> {
        let length = file.length_or_0()?;
        Ok(GradientsWriter { file, length })
    }

    /// Writes the roots of a step. If an interrupted run left the same roots, they stay, and so do the roots of later steps;
    /// other bytes are cut off. A file that somebody shortened is filled with zeros up to the step.
    ///
    /// # Errors
    /// If the store refuses.
    pub fn write(&mut self, step: u32, roots: &[Digest]) -> Result<(), RunError> {
        let bytes: Vec<u8> = roots.iter().flat_map(|root| root.0).collect();
        let start = offset(step, roots.len());
        let end = start + bytes.len() as u64;
        if self.length >= end && self.file.read_range(start..end)? == bytes {
            return Ok(());
        }
        if self.length > start {
            self.file.truncate(start)?;
            self.length = start;
        }
        while self.length < start {
            let gap = GAP_BYTES.min(start - self.length);
            self.file.append(&vec![0; gap as usize])?;
            self.length += gap;
        }
        self.file.append(&bytes)?;
        self.length = end;
        Ok(())
    }

    /// Syncs everything written so far.
    ///
    /// # Errors
    /// If the store refuses.
    pub fn sync(&self) -> Result<(), RunError> {
        if self.length == 0 { Ok(()) } else { self.file.sync() }
    }
}

/// The gradient roots of a step's micro-batches, after checking that the step's record commits them.
///
/// # Errors
/// If they cannot be read, or are not those of the record.
pub(crate) fn read(file: &Stored, record: &StepRecord, micro_batches: u32) -> Result<Vec<Digest>, RunError> {
    let count = micro_batches as usize;
    let start = offset(record.step, count);
    let bytes = file.read_range(start..start + 32 * count as u64)?;
    let roots: Vec<Digest> = bytes.as_chunks::<32>().0.iter().map(|root| Digest(*root)).collect();
    let found = gradients_root(&roots);
    if record.gradients != Some(found) {
        let due = record.gradients.map_or("none".into(), |root| root.short());
        let why = format!(
            "the gradient roots of step {} are not those that its record commits: {}, not {due}",
            record.step,
            found.short()
        );
        return Err(RunError::invalid(file.path(), why));
    }
    Ok(roots)
}
