//! The state digest: one root over the digests of all tensors of a training state.

use super::digest::Digest;
use super::{table, tensor};
use crate::parallel;
use crate::program::step::StateTensor;

/// The digests of a state's tensors, from their canonical bytes.
pub fn tensor_digests(state: &[StateTensor], tensors: &[Vec<u8>]) -> Vec<Digest> {
    let count = state.len().min(tensors.len());
    parallel::map(count, |i| tensor::digest(&state[i].ty(), &tensors[i]))
}

/// The state digest of tensor digests in the table's order.
pub fn state_digest(state: &[StateTensor], digests: &[Digest]) -> Digest {
    table::root(state.iter().map(|t| t.name.as_str()).zip(digests))
}
