//! Trees over which two parties disagree, and the check of a level.
//!
//! All trees split as RFC 6962's tree and BLAKE3's tree over slices do. The left subtree has as many leaves as the greatest
//! power of two below the number of all leaves. A question opens a node [`LEVELS`] levels deep.

use super::message::Fold;
use tiebreak_contract::arith::float;
use tiebreak_record::commit::multiproof;
use tiebreak_record::commit::tensor::Hash;

/// The levels of a binary tree that one question opens: up to 64 subtrees.
pub const LEVELS: u32 = 6;

/// The function that joins the values of two subtrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// SHA-256 of RFC 6962.
    Rfc6962,
    /// BLAKE3 over slices.
    Blake3,
    /// A fold of terms.
    Terms(Fold),
}

impl Join {
    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Join::Rfc6962 | Join::Blake3 => 32,
            Join::Terms(Fold::Product) => 16,
            Join::Terms(Fold::Segment | Fold::Absmax { .. }) => 4,
            Join::Terms(Fold::Rank { .. } | Fold::Count) => 8,
            Join::Terms(Fold::Sums { parts }) => 16 * sums(parts),
        }
    }

    /// The value over two subtrees; `top` says that the result is the whole tree.
    fn join(self, left: &[u8], right: &[u8], top: bool) -> Vec<u8> {
        let hashes = || -> [Hash; 2] { [left, right].map(|value| value.try_into().unwrap_or_default()) };
        match self {
            Join::Rfc6962 => {
                let [left, right] = hashes();
                multiproof::rfc6962(&left, &right, top).to_vec()
            }
            Join::Blake3 => {
                let [left, right] = hashes();
                multiproof::blake3(&left, &right, top).to_vec()
            }
            Join::Terms(Fold::Product | Fold::Sums { .. }) => {
                let integer = |v: &[u8]| i128::from_le_bytes(v.try_into().unwrap_or_default());
                let pairs = left.chunks(16).zip(right.chunks(16));
                // A claim that wraps around is wrong for one of the two parties.
                pairs.flat_map(|(a, b)| integer(a).wrapping_add(integer(b)).to_le_bytes()).collect()
            }
            Join::Terms(Fold::Segment | Fold::Absmax { .. }) => {
                let [left, right] =
                    [left, right].map(|v| u32::from_le_bytes(v.try_into().unwrap_or_default()));
                let word = match self {
                    Join::Terms(Fold::Segment) => float::add(left, right),
                    _ => left.max(right),
                };
                word.to_le_bytes().to_vec()
            }
            Join::Terms(Fold::Rank { .. } | Fold::Count) => {
                let [left, right] =
                    [left, right].map(|v| u64::from_le_bytes(v.try_into().unwrap_or_default()));
                left.wrapping_add(right).to_le_bytes().to_vec()
            }
        }
    }
}

/// The number of integer sums for rows of `parts` parts. There are sums of products and of their absolute values for each pair
/// of parts, and sums of the parts of row and column.
pub(crate) fn sums(parts: u8) -> usize {
    let parts = usize::from(parts);
    2 * parts * parts + 2 * parts
}

/// The greatest power of two below `n` (n > 1).
fn split(n: u64) -> u64 {
    1 << (63 - (n - 1).leading_zeros())
}

/// The subtrees that a question opens, (first leaf, number of leaves), from the left. The subtrees are [`LEVELS`] levels below
/// the node of `count` leaves from `first` on, or higher where a subtree has at most `leaf` leaves.
pub fn children(first: u64, count: u64, leaf: u64) -> Vec<(u64, u64)> {
    fn walk(first: u64, count: u64, leaf: u64, levels: u32, ranges: &mut Vec<(u64, u64)>) {
        if levels == 0 || count <= leaf.max(1) {
            return ranges.push((first, count));
        }
        walk(first, split(count), leaf, levels - 1, ranges);
        walk(first + split(count), count - split(count), leaf, levels - 1, ranges);
    }
    let mut ranges = Vec::new();
    walk(first, count, leaf, LEVELS, &mut ranges);
    ranges
}

/// The value of a node from the values of its [`children`]; `top` says that the node is the whole tree.
pub fn parent(join: Join, count: u64, leaf: u64, values: &[Vec<u8>], top: bool) -> Vec<u8> {
    fn walk(
        join: Join,
        (count, leaf, levels): (u64, u64, u32),
        values: &mut std::slice::Iter<Vec<u8>>,
        top: bool,
    ) -> Vec<u8> {
        if levels == 0 || count <= leaf.max(1) {
            return values.next().cloned().unwrap_or_default();
        }
        let left = walk(join, (split(count), leaf, levels - 1), values, false);
        let right = walk(join, (count - split(count), leaf, levels - 1), values, false);
        join.join(&left, &right, top)
    }
    walk(join, (count, leaf, LEVELS), &mut values.iter(), top)
}

/// The number of questions from a tree of `count` leaves to a subtree of at most `leaf` leaves.
pub(crate) fn depth(count: u64, leaf: u64) -> u32 {
    let mut questions = 0;
    let mut count = count;
    while count > leaf.max(1) {
        // The first child is one of the largest.
        count = children(0, count, leaf)[0].1;
        questions += 1;
    }
    questions
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::arith::tree;
    use tiebreak_record::commit::digest::Digest;
    use tiebreak_record::commit::merkle;
    use tiebreak_record::commit::tensor::{SLICE_BYTES, piece_values};

    /// The values of a node's children in a tree over `leaves`, each made by `of`.
    fn opened(first: u64, count: u64, leaf: u64, of: impl Fn(u64, u64) -> Vec<u8>) -> Vec<Vec<u8>> {
        children(first, count, leaf).into_iter().map(|(first, count)| of(first, count)).collect()
    }

    #[test]
    fn children_give_the_root_of_every_kind_of_tree() {
        for count in (1..200u64).chain([1000, 4096, 4097]) {
            let leaves: Vec<Digest> = (0..count).map(|i| merkle::leaf(&i.to_le_bytes())).collect();
            let of = |first: u64, count: u64| {
                merkle::root(&leaves[first as usize..(first + count) as usize]).0.to_vec()
            };
            assert_eq!(
                parent(Join::Rfc6962, count, 1, &opened(0, count, 1, of), true),
                merkle::root(&leaves).0
            );

            let bytes: Vec<u8> = (0..count * 1024 - 5).map(|i| (i * 7 % 251) as u8).collect();
            let values = piece_values(&bytes, SLICE_BYTES);
            let of = |first: u64, n: u64| {
                multiproof::subtree(multiproof::blake3, &values[first as usize..(first + n) as usize])
                    .to_vec()
            };
            let root = parent(Join::Blake3, count, 1, &opened(0, count, 1, of), true);
            assert_eq!(root, blake3::hash(&bytes).as_bytes());

            let terms: Vec<u32> = (0..count).map(|i| ((i as f32).sin() * 1e3).to_bits()).collect();
            let of = |first: u64, n: u64| {
                tree::sum(terms[first as usize..(first + n) as usize].iter().copied()).to_le_bytes().to_vec()
            };
            for leaf in [1, 16] {
                let sum = parent(Join::Terms(Fold::Segment), count, leaf, &opened(0, count, leaf, of), true);
                assert_eq!(sum, tree::sum(terms.iter().copied()).to_le_bytes());
            }
        }
    }

    #[test]
    fn a_walk_ends_after_its_depth() {
        for count in (1..300u64).chain([4095, 4096, 4097, 262_145, 1 << 40]) {
            for leaf in [1, 16, 2048] {
                let (mut node, mut questions) = ((0, count), 0);
                while node.1 > leaf {
                    let below = children(node.0, node.1, leaf);
                    assert!(below.len() <= 64 && below.len() > 1);
                    assert_eq!(below.iter().map(|(_, n)| n).sum::<u64>(), node.1);
                    node = below[0];
                    questions += 1;
                }
                assert_eq!(questions, depth(count, leaf));
            }
        }
    }
}
