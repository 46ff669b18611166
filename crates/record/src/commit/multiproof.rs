//! Proofs that a root commits to several leaves of its tree, with every shared hash once.
//!
//! The trees of BLAKE3 and of RFC 6962 split in the same way. A leaf of BLAKE3's tree is a piece of a tensor: a tile or a
//! slice. All pieces have one size; the last may be shorter. The proof lists, from left to right, the hashes of the
//! greatest subtrees that hold none of the proven leaves.

use std::ops::Range;

use blake3::hazmat::{Mode, merge_subtrees_non_root, merge_subtrees_root};

use super::Malformed;
use super::digest::Digest;
use super::merkle;
use super::tensor::{Hash, split};

/// The function that joins two subtrees; `top` says that the result is the whole tree.
pub type Join = fn(left: &Hash, right: &Hash, top: bool) -> Hash;

/// BLAKE3's tree over a tensor.
pub fn blake3(left: &Hash, right: &Hash, top: bool) -> Hash {
    if top {
        *merge_subtrees_root(left, right, Mode::Hash).as_bytes()
    } else {
        merge_subtrees_non_root(left, right, Mode::Hash)
    }
}

/// The tree of RFC 6962 over leaf hashes.
pub fn rfc6962(left: &Hash, right: &Hash, _: bool) -> Hash {
    merkle::node(&Digest(*left), &Digest(*right)).0
}

/// The value of a subtree over these pieces' values; the subtree is not the whole tree.
pub fn subtree(join: Join, values: &[Hash]) -> Hash {
    match values {
        [one] => *one,
        _ => {
            let (left, right) = values.split_at(split(values.len()));
            join(&subtree(join, left), &subtree(join, right), false)
        }
    }
}

/// The root of the tree over all pieces' values; the value of the only piece is the root.
#[doc(hidden)] // for the layers above
pub fn whole(join: Join, values: &[Hash]) -> Hash {
    match values {
        [one] => *one,
        _ => {
            let (left, right) = values.split_at(split(values.len()));
            join(&subtree(join, left), &subtree(join, right), true)
        }
    }
}

/// The hashes that prove the pieces `wanted` (ascending, at least one) among all pieces' values.
pub fn prove(join: Join, values: &[Hash], wanted: &[usize]) -> Vec<Hash> {
    prove_by(values.len(), wanted, &mut |first, count| subtree(join, &values[first..first + count]))
}

/// [`prove`] for a tree of `count` pieces. `value` gives the value of a subtree: (first piece, number of pieces).
#[doc(hidden)] // for the layers above
pub fn prove_by(count: usize, wanted: &[usize], value: &mut impl FnMut(usize, usize) -> Hash) -> Vec<Hash> {
    fn walk(
        pieces: Range<usize>,
        wanted: &[usize],
        value: &mut impl FnMut(usize, usize) -> Hash,
        proof: &mut Vec<Hash>,
    ) {
        if wanted.is_empty() {
            proof.push(value(pieces.start, pieces.len()));
        } else if pieces.len() > 1 {
            let middle = pieces.start + split(pieces.len());
            let (before, after) = wanted.split_at(wanted.partition_point(|&w| w < middle));
            walk(pieces.start..middle, before, value, proof);
            walk(middle..pieces.end, after, value, proof);
        }
    }
    let mut proof = Vec::new();
    walk(0..count, wanted, value, &mut proof);
    proof
}

/// The number of hashes that [`prove`] gives for pieces of a tensor of `count` pieces.
pub fn proof_len(count: usize, wanted: &[usize]) -> usize {
    fn walk(first: usize, count: usize, wanted: &[usize]) -> usize {
        if wanted.is_empty() {
            return 1;
        }
        if count == 1 {
            return 0;
        }
        let middle = first + split(count);
        let (before, after) = wanted.split_at(wanted.partition_point(|&w| w < middle));
        walk(first, split(count), before) + walk(middle, count - split(count), after)
    }
    walk(0, count, wanted)
}

/// A proof that is being read.
struct Reader<'a> {
    join: Join,
    hashes: std::slice::Iter<'a, Hash>,
}

impl Reader<'_> {
    /// The hash of the subtree of `count` pieces from `first` on; `None` if the proof is too short.
    fn hash(&mut self, first: usize, count: usize, pieces: &[(usize, Hash)], top: bool) -> Option<Hash> {
        if pieces.is_empty() {
            return self.hashes.next().copied();
        }
        if count == 1 {
            return Some(pieces[0].1);
        }
        let middle = first + split(count);
        let (before, after) = pieces.split_at(pieces.partition_point(|piece| piece.0 < middle));
        let left = self.hash(first, split(count), before, false)?;
        let right = self.hash(middle, count - split(count), after, false)?;
        Some((self.join)(&left, &right, top))
    }

    /// Appends the proof of the pieces `wanted` within a subtree; `pieces` are a superset of them.
    fn narrow(
        &mut self,
        subtree: Range<usize>,
        pieces: &[(usize, Hash)],
        wanted: &[usize],
        proof: &mut Vec<Hash>,
    ) -> Option<()> {
        if wanted.is_empty() {
            proof.push(self.hash(subtree.start, subtree.len(), pieces, false)?);
        } else if subtree.len() > 1 {
            let middle = subtree.start + split(subtree.len());
            let (before, after) = pieces.split_at(pieces.partition_point(|piece| piece.0 < middle));
            let (low, high) = wanted.split_at(wanted.partition_point(|&w| w < middle));
            self.narrow(subtree.start..middle, before, low, proof)?;
            self.narrow(middle..subtree.end, after, high, proof)?;
        }
        Some(())
    }
}

fn check_places(count: usize, pieces: &[(usize, Hash)]) -> Result<(), Malformed> {
    let ascending = pieces.windows(2).all(|pair| pair[0].0 < pair[1].0);
    if !ascending || pieces.last().is_none_or(|last| last.0 >= count) {
        return Err(Malformed::invalid("slice proof", "the places do not ascend, or leave the tensor"));
    }
    Ok(())
}

fn wrong_length() -> Malformed {
    Malformed::invalid("slice proof", "the number of hashes is wrong")
}

/// The root that a proof gives for pieces (index, value) of a tensor that has `count` pieces.
///
/// # Errors
/// If the indices are not ascending and below `count`, or the proof has another number of hashes.
pub fn root(join: Join, count: usize, pieces: &[(usize, Hash)], proof: &[Hash]) -> Result<Hash, Malformed> {
    check_places(count, pieces)?;
    let mut reader = Reader { join, hashes: proof.iter() };
    let root = reader.hash(0, count, pieces, true).ok_or_else(wrong_length)?;
    if reader.hashes.next().is_some() { Err(wrong_length()) } else { Ok(root) }
}

/// The proof of some of the pieces that `proof` proves.
///
/// # Errors
/// If the indices are not ascending and below `count`, or the proof has another number of hashes.
pub fn narrow(
    join: Join,
    count: usize,
    pieces: &[(usize, Hash)],
    proof: &[Hash],
    wanted: &[usize],
) -> Result<Vec<Hash>, Malformed> {
    check_places(count, pieces)?;
    let mut narrowed = Vec::new();
    let mut reader = Reader { join, hashes: proof.iter() };
    reader.narrow(0..count, pieces, wanted, &mut narrowed).ok_or_else(wrong_length)?;
    Ok(narrowed)
}

#[cfg(test)]
mod tests {
    use super::super::tensor::{
        SLICE_BYTES, TILE_BYTES, piece_count, piece_range, piece_value, piece_values,
    };
    use super::*;

    #[test]
    fn pieces_prove_plain_blake3() {
        for len in [0usize, 1, 1024, 1025, 4096, 4097, 12_289, 70_000, 300_001] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            let plain = *::blake3::hash(&bytes).as_bytes();
            for size in [SLICE_BYTES, TILE_BYTES] {
                let values = piece_values(&bytes, size);
                let count = piece_count(len, size);
                assert_eq!(values.len(), count);
                let every = |n: usize| (0..count).step_by(n).collect::<Vec<usize>>();
                let last = vec![count - 1];
                for wanted in [every(1), every(2), every(3), every(17), last] {
                    let pieces: Vec<(usize, Hash)> = wanted
                        .iter()
                        .map(|&i| (i, piece_value(&bytes[piece_range(len, size, i)], size, i, count)))
                        .collect();
                    let proof = prove(blake3, &values, &wanted);
                    assert_eq!(proof.len(), proof_len(count, &wanted));
                    assert_eq!(root(blake3, count, &pieces, &proof), Ok(plain));
                    assert!(root(blake3, count, &pieces, &[&proof[..], &[[0; 32]]].concat()).is_err());
                    if let Some((_, shorter)) = proof.split_last() {
                        assert!(root(blake3, count, &pieces, shorter).is_err());
                    }
                    let few: Vec<usize> = wanted.iter().copied().skip(wanted.len() / 2).step_by(2).collect();
                    assert_eq!(
                        narrow(blake3, count, &pieces, &proof, &few),
                        Ok(prove(blake3, &values, &few))
                    );
                    for i in 0..pieces.len().min(5) {
                        let mut other = pieces.clone();
                        other[i].1[0] ^= 1;
                        assert_ne!(root(blake3, count, &other, &proof), Ok(plain));
                        other.push(pieces[0]);
                        assert!(root(blake3, count, &other, &proof).is_err(), "places that do not ascend");
                    }
                }
                assert!(root(blake3, count, &[(count, values[0])], &[]).is_err());
                assert!(root(blake3, count, &[], &[plain]).is_err());
            }
        }
    }

    #[test]
    fn leaves_prove_the_root_of_rfc_6962() {
        let leaves: Vec<Digest> = (0..37).map(|i| merkle::leaf(&[i])).collect();
        for size in 1..=37 {
            let values: Vec<Hash> = leaves[..size].iter().map(|leaf| leaf.0).collect();
            for step in [1, 2, 5] {
                let wanted: Vec<usize> = (size / 3..size).step_by(step).collect();
                let proof = prove(rfc6962, &values, &wanted);
                let given: Vec<(usize, Hash)> = wanted.iter().map(|&i| (i, values[i])).collect();
                assert_eq!(root(rfc6962, size, &given, &proof), Ok(merkle::root(&leaves[..size]).0));
            }
        }
    }
}
