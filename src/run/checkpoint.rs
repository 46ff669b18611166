//! Training states as safetensors files: every tensor of the state table, binary32, in the table's order.
//!
//! The file is a container for people's tools. What is promised is the digest of the tensors, never of the file.

use std::path::Path;

use rayon::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::RunError;
use super::disk::{self, Disk};
use crate::arith::DType;
use crate::commit::digest::Digest;
use crate::commit::{table, tensor};
use crate::program::graph::TensorType;
use crate::program::step::StateTensor;

/// The bytes that a header may add to the tensors.
const HEADER_MAX: u64 = 100_000_000;

/// The type of a state tensor.
pub fn state_type(tensor: &StateTensor) -> TensorType {
    TensorType { dtype: DType::F32, shape: tensor.shape.clone() }
}

/// The bytes of a whole state.
pub fn state_bytes(state: &[StateTensor]) -> u64 {
    state.iter().map(|t| state_type(t).bytes() as u64).sum()
}

/// The digests of a state's tensors.
pub fn tensor_digests(state: &[StateTensor], tensors: &[Vec<u8>]) -> Vec<Digest> {
    let pairs: Vec<_> = state.iter().zip(tensors).collect();
    pairs.into_par_iter().map(|(t, bytes)| tensor::digest(&state_type(t), bytes)).collect()
}

/// The state digest of tensor digests in the table's order.
pub fn state_digest(state: &[StateTensor], digests: &[Digest]) -> Digest {
    table::root(state.iter().map(|t| t.name.as_str()).zip(digests))
}

/// Writes a state, or the leading part of it that `state` lists.
pub fn write(disk: &Disk, path: &Path, state: &[StateTensor], tensors: &[Vec<u8>]) -> Result<(), RunError> {
    let refused =
        |error: safetensors::SafeTensorError| RunError::Refused(format!("{}: {error}", path.display()));
    let mut views = Vec::new();
    for (t, bytes) in state.iter().zip(tensors) {
        let shape = t.shape.iter().map(|&d| d as usize).collect();
        views.push((t.name.as_str(), TensorView::new(Dtype::F32, shape, bytes).map_err(refused)?));
    }
    let bytes = safetensors::serialize(views, None).map_err(refused)?;
    disk.replace(path, &bytes)
}

/// Reads exactly the tensors of `state`, each with its shape.
pub fn read(path: &Path, state: &[StateTensor]) -> Result<Vec<Vec<u8>>, RunError> {
    let bytes = disk::read(path, state_bytes(state) + HEADER_MAX)?;
    let file =
        SafeTensors::deserialize(&bytes).map_err(|error| RunError::invalid(path, error.to_string()))?;
    if file.len() != state.len() {
        return Err(RunError::invalid(
            path,
            format!("{} tensors, the program has {}", file.len(), state.len()),
        ));
    }
    let mut tensors = Vec::new();
    for t in state {
        let view = file.tensor(&t.name).map_err(|error| RunError::invalid(path, error.to_string()))?;
        let shape: Vec<usize> = t.shape.iter().map(|&d| d as usize).collect();
        if view.dtype() != Dtype::F32 || view.shape() != shape {
            let why =
                format!("{} is {:?} {:?}, the program has F32 {shape:?}", t.name, view.dtype(), view.shape());
            return Err(RunError::invalid(path, why));
        }
        tensors.push(view.data().to_vec());
    }
    Ok(tensors)
}
