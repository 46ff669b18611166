//! The gradient roots of every step's micro-batches, which its record commits under one root: a file of 32 bytes for each, step by step, so
//! that one range of bytes gives those of a step. Layout: `docs/RUN-FORMAT.md`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::disk::{self, Disk};
use super::error::RunError;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::{StepRecord, gradients_root};

/// Where the roots of a step of `micro_batches` begin.
fn offset(step: u32, micro_batches: usize) -> u64 {
    32 * (u64::from(step) - 1) * micro_batches as u64
}

/// The writing end.
pub struct GradientsWriter {
    path: PathBuf,
    file: File,
}

impl GradientsWriter {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// If it is a link, or the system refuses.
    pub fn open(path: &Path) -> Result<GradientsWriter, RunError> {
        disk::refuse_link(path)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = options.open(path).map_err(RunError::io(path))?;
        Ok(GradientsWriter { path: path.to_path_buf(), file })
    }

    /// Writes the roots of a step, over what an interrupted run may have left there.
    ///
    /// # Errors
    /// If the system refuses, or at the crash point that a test chose.
    pub fn write(&mut self, disk: &Disk, step: u32, roots: &[Digest]) -> Result<(), RunError> {
        let bytes: Vec<u8> = roots.iter().flat_map(|root| root.0).collect();
        let written = self
            .file
            .seek(SeekFrom::Start(offset(step, roots.len())))
            .and_then(|_| disk.write(&mut self.file, &bytes));
        written.map_err(RunError::io(&self.path))
    }

    /// Makes everything written so far last.
    ///
    /// # Errors
    /// If the system refuses, or at the crash point that a test chose.
    pub fn sync(&self, disk: &Disk) -> Result<(), RunError> {
        disk.sync(&self.file).map_err(RunError::io(&self.path))
    }
}

/// The gradient roots of a step's micro-batches, after checking that its record commits them.
///
/// # Errors
/// If they cannot be read, or are not those of the record.
pub(crate) fn read(path: &Path, record: &StepRecord, micro_batches: u32) -> Result<Vec<Digest>, RunError> {
    let count = micro_batches as usize;
    let mut bytes = vec![0; 32 * count];
    let mut file = disk::open(path)?;
    let read =
        file.seek(SeekFrom::Start(offset(record.step, count))).and_then(|_| file.read_exact(&mut bytes));
    read.map_err(RunError::io(path))?;
    let roots: Vec<Digest> = bytes.as_chunks::<32>().0.iter().map(|root| Digest(*root)).collect();
    if record.gradients != Some(gradients_root(&roots)) {
        let why = format!("the gradient roots of step {} are not those that its record commits", record.step);
        return Err(RunError::invalid(path, why));
    }
    Ok(roots)
}
