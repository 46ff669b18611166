//! Detects files that are not what a job says: other formats, and ids of another width. Only files that somebody names are
//! examined; a run's own data files are read as they are.

use std::path::Path;

use tiebreak_token_files::{Format, Look, StandIn, Width, other_width};

use super::error::RunError;
use tiebreak_contract::program::models::BatchTensor;
use tiebreak_job::data::layout::{is_npy, is_safetensors};
use tiebreak_job::element::Element;
use tiebreak_job::spec::DataFiles;

/// Refuses a file whose bytes show that it is not data file `number` of this kind. `sample` are the batch tensors of one sample.
///
/// # Errors
/// If the file is of another kind: the error names that kind, and what to do.
pub(crate) fn refuse(
    path: &Path,
    (spec, number): (&DataFiles, usize),
    sample: &[BatchTensor],
    look: &Look,
) -> Result<(), RunError> {
    let name = path.to_string_lossy();
    let is_raw = !is_npy(&name) && !is_safetensors(&name);
    let foreign = Format::of(look).filter(|format| match (format, spec) {
        (Format::StandIn(StandIn::LfsPointer | StandIn::AnnexPointer), _) => true,
        // A model over bytes takes any file.
        (_, DataFiles::Bytes { .. }) => false,
        (Format::Npy, _) => !is_npy(&name),
        (Format::Safetensors, _) => !is_safetensors(&name),
        (Format::Text, DataFiles::Tokens { .. }) => is_raw,
        (Format::Text, _) => false,
        _ => true,
    });
    if let Some(format) = foreign {
        return Err(RunError::invalid(path, format.why()));
    }
    let width = match spec {
        // Each byte of a mask is checked, and any of them may be 0.
        DataFiles::Tokens { paths, .. } if number >= paths.len() => return Ok(()),
        DataFiles::Bytes { .. } => Width::U8,
        DataFiles::Tokens { dtype: Element::U16, .. } if is_raw => Width::U16,
        DataFiles::Tokens { dtype: Element::U32, .. } if is_raw => Width::U32,
        _ => return Ok(()),
    };
    let below = sample.first().map(|tokens| tokens.below);
    match other_width(&look.start, look.bytes, width, below) {
        Some(why) => Err(RunError::invalid(path, why)),
        None => Ok(()),
    }
}
