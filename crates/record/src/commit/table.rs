//! Merkle roots over named tensors in a table's order: the training state, a micro-batch's gradients, a trace.

use super::codec::Encoder;
use super::digest::Digest;
use super::merkle;

/// The leaf of a named tensor.
pub fn leaf(name: &str, tensor: &Digest) -> Digest {
    let mut e = Encoder::default();
    e.bytes(name.as_bytes()).digest(tensor);
    merkle::leaf(&e.0)
}

/// The root over named tensors.
pub fn root<'a>(tensors: impl IntoIterator<Item = (&'a str, &'a Digest)>) -> Digest {
    let leaves: Vec<Digest> = tensors.into_iter().map(|(name, digest)| leaf(name, digest)).collect();
    merkle::root(&leaves)
}
