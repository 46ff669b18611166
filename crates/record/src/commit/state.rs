//! The state digest: H(root of the parameters, root of the buffers, root of the optimizer's slots). The owner of the parameters
//! alone (a released model) proves them with the other two roots. Layout: `docs/RUN-FORMAT.md`.

use super::codec::Encoder;
use super::digest::{Digest, hash};
use super::{Malformed, merkle, table, tensor};
use tiebreak_contract::parallel;
use tiebreak_contract::program::step::StateTensor;

/// The parts of a state, in the order of their tensors in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Parameters,
    Buffers,
    Slots,
}

impl Part {
    /// The part of a state tensor, from its port: `param/NAME`, `buffer/NAME`, or `SLOT/NAME`.
    fn of(name: &str) -> Part {
        match name.split_once('/') {
            Some(("param", _)) => Part::Parameters,
            Some(("buffer", _)) => Part::Buffers,
            _ => Part::Slots,
        }
    }
}

/// The roots that a state digest is made of: parameters, buffers, slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRoots(pub [Digest; 3]);

impl StateRoots {
    /// The roots over tensor digests in the table's order.
    #[doc(hidden)] // for the layers above
    pub fn of(state: &[StateTensor], digests: &[Digest]) -> StateRoots {
        StateRoots(part_leaves(state, digests).map(|leaves| merkle::root(&leaves)))
    }

    /// The state digest.
    #[doc(hidden)] // for the layers above
    pub fn digest(&self) -> Digest {
        let mut e = Encoder::default();
        self.0.iter().for_each(|root| {
            e.digest(root);
        });
        hash("tiebreak 2 state", &e.0)
    }
}

/// The Merkle leaves of each part of a state, from tensor digests in the table's order: parameters, buffers, slots.
pub(crate) fn part_leaves(state: &[StateTensor], digests: &[Digest]) -> [Vec<Digest>; 3] {
    [Part::Parameters, Part::Buffers, Part::Slots].map(|part| {
        let tensors = state.iter().zip(digests).filter(|(tensor, _)| Part::of(&tensor.name) == part);
        tensors.map(|(tensor, digest)| table::leaf(&tensor.name, digest)).collect()
    })
}

/// The digests of a state's tensors, from their canonical bytes.
pub fn tensor_digests(state: &[StateTensor], tensors: &[Vec<u8>]) -> Vec<Digest> {
    let count = state.len().min(tensors.len());
    parallel::map(count, |i| tensor::digest(&state[i].ty(), &tensors[i]))
}

/// The state digest of tensor digests in the table's order.
pub fn state_digest(state: &[StateTensor], digests: &[Digest]) -> Digest {
    StateRoots::of(state, digests).digest()
}

/// The part of a tensor, the tensor's index among the part's tensors, and the number of those.
fn place(state: &[StateTensor], index: usize) -> (Part, usize, usize) {
    let part = Part::of(&state[index].name);
    let first = state.partition_point(|tensor| Part::of(&tensor.name) < part);
    let end = state.partition_point(|tensor| Part::of(&tensor.name) <= part);
    (part, index - first, end - first)
}

/// The proof that a state digest commits to tensor `index`: the inclusion proof in its part's tree, then the roots of the two other
/// parts, in order.
///
/// # Panics
/// If `index` is not a tensor of the state.
pub fn prove(state: &[StateTensor], digests: &[Digest], index: usize) -> Vec<Digest> {
    let (part, at, _) = place(state, index);
    let leaves = part_leaves(state, digests);
    let mut proof = merkle::prove(&leaves[part as usize], at);
    let roots = leaves.map(|leaves| merkle::root(&leaves));
    proof.extend(
        (0..).zip(roots).filter(|(other, _): &(usize, _)| *other != part as usize).map(|(_, root)| root),
    );
    proof
}

/// The proofs of [`prove`] for each of these tensors.
///
/// # Panics
/// If an index is not a tensor of the state.
pub fn prove_each(state: &[StateTensor], digests: &[Digest], indices: &[usize]) -> Vec<Vec<Digest>> {
    let parts = part_leaves(state, digests).map(|leaves| merkle::prove_all(&leaves));
    let proof = |&index: &usize| {
        let (part, at, _) = place(state, index);
        let others = (0..).zip(&parts).filter(|(other, _): &(usize, _)| *other != part as usize);
        let mut proof = parts[part as usize].1[at].clone();
        proof.extend(others.map(|(_, (root, _))| *root));
        proof
    };
    indices.iter().map(proof).collect()
}

/// The state digest that a proof of [`prove`] gives for a tensor's digest.
///
/// # Errors
/// If the proof has another number of hashes than a proof of this tensor.
pub fn digest_from_proof(
    state: &[StateTensor],
    index: usize,
    tensor: &Digest,
    proof: &[Digest],
) -> Result<Digest, Malformed> {
    let (part, at, count) = place(state, index);
    let Some((inclusion, others)) = proof.split_last_chunk::<2>() else {
        return Err(Malformed::invalid("state proof", "too few hashes"));
    };
    let leaf = table::leaf(&state[index].name, tensor);
    let root = merkle::root_from_proof(leaf, at as u64, count as u64, inclusion)?;
    let mut others = others.iter();
    let roots = [0, 1, 2].map(|other| {
        if other == part as usize { root } else { *others.next().expect("two parts are the others") }
    });
    Ok(StateRoots(roots).digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_is_proven_and_no_other() {
        let names = ["param/a", "param/b", "param/c", "buffer/n", "m/a", "m/b", "m/c", "v/a", "v/b", "v/c"];
        let state: Vec<StateTensor> =
            names.map(|name| StateTensor { name: name.into(), shape: vec![1] }).to_vec();
        let digests: Vec<Digest> = (0..10).map(|i| Digest([i; 32])).collect();
        let digest = state_digest(&state, &digests);
        let all: Vec<usize> = (0..state.len()).collect();
        for (index, each) in all.iter().copied().zip(prove_each(&state, &digests, &all)) {
            let proof = prove(&state, &digests, index);
            assert_eq!(each, proof);
            let given =
                |tensor: usize, proof: &[Digest]| digest_from_proof(&state, index, &digests[tensor], proof);
            assert_eq!(given(index, &proof), Ok(digest));
            assert_ne!(given((index + 1) % 10, &proof), Ok(digest));
            assert!(given(index, &proof[1..]) != Ok(digest));
            assert!(given(index, &[&proof[..], &[digest]].concat()) != Ok(digest));
        }
        assert!(digest_from_proof(&state, 0, &digests[0], &[]).is_err());
    }
}
