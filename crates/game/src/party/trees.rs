//! Opens nodes of trees for a question.

use std::ops::Range;

use tiebreak_dispute::game::search;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::proven::Base64;
use tiebreak_record::commit::tensor::Hash;
use tiebreak_record::commit::{merkle, multiproof};

/// The leaves below each child of a node of a tree over `leaves` leaves; `None` if the tree has no such node.
fn ranges(leaves: usize, first: u64, count: u64) -> Option<Vec<Range<usize>>> {
    let end = first.checked_add(count).filter(|_| count > 0)?;
    if end > leaves as u64 {
        return None;
    }
    let range = |(first, count): (u64, u64)| first as usize..(first + count) as usize;
    Some(search::children(first, count, 1).into_iter().map(range).collect())
}

/// The children of a node of RFC 6962's tree.
pub(crate) fn rfc6962(leaves: &[Digest], first: u64, count: u64) -> Option<Base64> {
    let values = ranges(leaves.len(), first, count)?.into_iter();
    Some(Base64(values.flat_map(|range| merkle::root(&leaves[range]).0).collect()))
}

/// The children of a node of BLAKE3's tree over a tensor's slices.
pub(crate) fn blake3(slices: &[Hash], first: u64, count: u64) -> Option<Base64> {
    let values = ranges(slices.len(), first, count)?.into_iter();
    Some(Base64(values.flat_map(|range| multiproof::subtree(multiproof::blake3, &slices[range])).collect()))
}

/// The BLAKE3 root of a tensor, from all its slices.
pub(crate) fn blake3_root(slices: &[Hash]) -> Hash {
    match slices {
        [one] => *one,
        _ => {
            let (left, right) = slices.split_at(slices.len().div_ceil(2).next_power_of_two());
            let [left, right] = [left, right].map(|half| multiproof::subtree(multiproof::blake3, half));
            multiproof::blake3(&left, &right, true)
        }
    }
}
