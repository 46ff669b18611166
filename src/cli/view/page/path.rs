//! The way from a leaf of a tree to its root, level by level, for people.

use super::Page;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::multiproof::{Join, rfc6962};
use tiebreak_record::commit::tensor::Hash;

/// A level: the hash beside, on which side it stands, and what both give.
pub struct Level {
    beside: Hash,
    is_left: bool,
    above: Hash,
}

impl Level {
    /// What the two hashes of the level give.
    pub fn above(&self) -> Hash {
        self.above
    }
}

/// A leaf of a tree.
#[derive(Clone, Copy)]
pub struct Leaf {
    /// Which one, from the left.
    pub place: usize,
    /// Its hash.
    pub value: Hash,
}

/// For each level from leaf `place` of `count` up, whether what stands beside it is on the left.
fn lefts(count: usize, place: usize) -> Vec<bool> {
    let (mut sides, mut count, mut place) = (Vec::new(), count, place);
    while count > 1 {
        let half = count.next_power_of_two() / 2;
        let right = place >= half;
        sides.push(right);
        (count, place) = if right { (count - half, place - half) } else { (half, place) };
    }
    sides.reverse();
    sides
}

/// The levels above a leaf, from hashes that stand in the order of the levels; none if their number is not that of a leaf there.
pub fn levels(join: Join, count: usize, leaf: Leaf, hashes: &[Hash]) -> Vec<Level> {
    let sides = lefts(count, leaf.place);
    if sides.len() != hashes.len() || leaf.place >= count {
        return Vec::new();
    }
    let mut here = leaf.value;
    let last = sides.len().saturating_sub(1);
    let level = |(i, (&is_left, &beside)): (usize, (&bool, &Hash))| {
        here = if is_left { join(&beside, &here, i == last) } else { join(&here, &beside, i == last) };
        Level { beside, is_left, above: here }
    };
    sides.iter().zip(hashes).enumerate().map(level).collect()
}

/// The levels of an inclusion proof of RFC 6962.
pub fn inclusion(leaf: Digest, index: u64, size: u64, proof: &[Digest]) -> Vec<Level> {
    let hashes: Vec<Hash> = proof.iter().map(|digest| digest.0).collect();
    let (Ok(size), Ok(index)) = (usize::try_from(size), usize::try_from(index)) else { return Vec::new() };
    levels(rfc6962, size, Leaf { place: index, value: leaf.0 }, &hashes)
}

/// The levels of a multiproof of one leaf, whose hashes stand from left to right.
pub fn single(join: Join, count: usize, leaf: Leaf, hashes: &[Hash]) -> Vec<Level> {
    let sides = lefts(count, leaf.place);
    if sides.len() != hashes.len() {
        return Vec::new();
    }
    // Those on the left come first and from the top down, then those on the right from the leaf up.
    let left = sides.iter().filter(|is_left| **is_left).count();
    let (mut before, mut after) = (hashes[..left].iter().rev(), hashes[left..].iter());
    let ordered: Vec<Hash> = sides
        .iter()
        .filter_map(|is_left| if *is_left { before.next() } else { after.next() })
        .copied()
        .collect();
    levels(join, count, leaf, &ordered)
}

impl Page {
    /// A way from a leaf to a root.
    pub fn path(&mut self, name: &str, value: Digest, levels: &[Level], root: &str) {
        let rows: Vec<Vec<String>> = (1..)
            .zip(levels)
            .map(|(level, Level { beside, is_left, above })| {
                let side = if *is_left { "left" } else { "right" };
                vec![format!("{level}"), format!("{} ({side})", Digest(*beside)), Digest(*above).to_string()]
            })
            .collect();
        let top = levels.last().map_or(value, |level| Digest(level.above));
        self.facts(&[(name, value.to_string()), (root, top.to_string())]);
        if !rows.is_empty() {
            self.fold(&format!("{} levels from one to the other", rows.len()));
            self.table(&["level", "hash beside", "both give"], &rows);
            self.unfold();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_record::commit::merkle;
    use tiebreak_record::commit::multiproof::{blake3, prove, root};
    use tiebreak_record::commit::tensor::{SLICE_BYTES, piece_values};

    #[test]
    fn levels_lead_to_the_root() {
        for count in 1..40usize {
            let leaves: Vec<Digest> = (0..count).map(|i| merkle::leaf(&[i as u8])).collect();
            let values = piece_values(&vec![7; count * SLICE_BYTES], SLICE_BYTES);
            for place in 0..count {
                let proof = merkle::prove(&leaves, place);
                let path = inclusion(leaves[place], place as u64, count as u64, &proof);
                assert_eq!(path.len(), proof.len());
                assert_eq!(path.last().map_or(leaves[place].0, |l| l.above), merkle::root(&leaves).0);
                let proof = prove(blake3, &values, &[place]);
                let path = single(blake3, count, Leaf { place, value: values[place] }, &proof);
                let wanted = root(blake3, count, &[(place, values[place])], &proof).unwrap();
                assert_eq!(path.last().map_or(values[place], |l| l.above), wanted);
            }
        }
        assert!(inclusion(Digest([0; 32]), 0, 5, &[]).is_empty());
    }
}
