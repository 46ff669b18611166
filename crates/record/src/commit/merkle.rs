//! The Merkle tree of RFC 6962, section 2.1, with SHA-256: roots, inclusion proofs and their verification
//! (RFC 9162, section 2.1.3.2).

use sha2::{Digest as _, Sha256};

use super::Malformed;
use super::digest::Digest;

/// The most hashes an inclusion proof can have.
const PROOF_MAX: usize = 64;

/// The hash of a leaf: SHA-256 of the byte 0 and `data`.
pub fn leaf(data: &[u8]) -> Digest {
    Digest(Sha256::new().chain_update([0]).chain_update(data).finalize().into())
}

pub(super) fn node(left: &Digest, right: &Digest) -> Digest {
    Digest(Sha256::new().chain_update([1]).chain_update(left.0).chain_update(right.0).finalize().into())
}

/// The root over leaf hashes; SHA-256 of nothing for no leaves.
pub fn root(leaves: &[Digest]) -> Digest {
    match leaves {
        [] => Digest(Sha256::digest([]).into()),
        [one] => *one,
        _ => {
            let (left, right) = leaves.split_at(split(leaves.len()));
            node(&root(left), &root(right))
        }
    }
}

/// The greatest power of two below `n` (n > 1).
fn split(n: usize) -> usize {
    n.div_ceil(2).next_power_of_two()
}

/// The root, and the siblings of every leaf from the leaf up: the results of [`prove`] for all leaves, computed together.
pub(crate) fn prove_all(leaves: &[Digest]) -> (Digest, Vec<Vec<Digest>>) {
    if leaves.len() < 2 {
        return (root(leaves), vec![Vec::new(); leaves.len()]);
    }
    let (left, right) = leaves.split_at(split(leaves.len()));
    let ((left, mut proofs), (right, others)) = (prove_all(left), prove_all(right));
    proofs.iter_mut().for_each(|proof| proof.push(right));
    proofs.extend(others.into_iter().map(|mut proof| {
        proof.push(left);
        proof
    }));
    (node(&left, &right), proofs)
}

/// The siblings on the path from leaf `index` up to the root.
///
/// # Panics
/// If `index` is not a leaf.
pub fn prove(leaves: &[Digest], index: usize) -> Vec<Digest> {
    assert!(index < leaves.len(), "only leaves have inclusion proofs");
    if leaves.len() == 1 {
        return Vec::new();
    }
    let (left, right) = leaves.split_at(split(leaves.len()));
    let (mut proof, sibling) = if index < left.len() {
        (prove(left, index), root(right))
    } else {
        (prove(right, index - left.len()), root(left))
    };
    proof.push(sibling);
    proof
}

/// The root that `proof` gives for a leaf hash at `index` of `size`.
///
/// # Errors
/// If `index` is not below `size`, or the proof has another number of hashes than a proof of this leaf.
///
/// ```
/// use tiebreak_record::commit::merkle::{leaf, prove, root, root_from_proof};
///
/// let leaves = [b"first", b"other", b"third"].map(|record| leaf(record));
/// let proof = prove(&leaves, 1);
/// assert_eq!(root_from_proof(leaf(b"other"), 1, 3, &proof)?, root(&leaves));
/// assert_ne!(root_from_proof(leaf(b"forge"), 1, 3, &proof)?, root(&leaves));
/// // A proof of another length is none.
/// assert!(root_from_proof(leaves[1], 1, 3, &proof[1..]).is_err());
/// # Ok::<(), tiebreak_record::commit::Malformed>(())
/// ```
pub fn root_from_proof(leaf: Digest, index: u64, size: u64, proof: &[Digest]) -> Result<Digest, Malformed> {
    let wrong = |why: &str| Malformed::invalid("inclusion proof", why);
    if index >= size {
        return Err(wrong("the leaf is outside the tree"));
    }
    if proof.len() > PROOF_MAX {
        return Err(Malformed::TooLarge { what: "inclusion proof", limit: PROOF_MAX as u64 });
    }
    let (mut first, mut last, mut hash) = (index, size - 1, leaf);
    for sibling in proof {
        if last == 0 {
            return Err(wrong("too many hashes"));
        }
        if first & 1 == 1 || first == last {
            hash = node(sibling, &hash);
            while first & 1 == 0 && first != 0 {
                first >>= 1;
                last >>= 1;
            }
        } else {
            hash = node(&hash, sibling);
        }
        first >>= 1;
        last >>= 1;
    }
    if last != 0 {
        return Err(wrong("too few hashes"));
    }
    Ok(hash)
}

/// The hashes from which both the root over the first `prefix` leaves and the root over all leaves follow. Unlike the consistency
/// proof of RFC 9162, the proof takes nothing from the smaller head, so it also shows that a head is wrong.
///
/// # Panics
/// If the prefix is empty or longer than the leaves.
pub fn prove_prefix(leaves: &[Digest], prefix: usize) -> Vec<Digest> {
    assert!((1..=leaves.len()).contains(&prefix), "a prefix has leaves");
    if prefix == leaves.len() {
        return vec![root(leaves)];
    }
    let (left, right) = leaves.split_at(split(leaves.len()));
    if prefix <= left.len() {
        let mut proof = prove_prefix(left, prefix);
        proof.push(root(right));
        proof
    } else {
        let mut proof = vec![root(left)];
        proof.extend(prove_prefix(right, prefix - left.len()));
        proof
    }
}

/// The roots over the first `prefix` and over all `size` leaves that a proof of [`prove_prefix`] gives.
///
/// # Errors
/// If the proof has another number of hashes than a proof of this prefix.
///
/// ```
/// use tiebreak_record::commit::merkle::{leaf, prove_prefix, root, roots_from_prefix_proof};
///
/// let leaves: Vec<_> = (0..7u8).map(|record| leaf(&[record])).collect();
/// let proof = prove_prefix(&leaves, 3);
/// assert_eq!(roots_from_prefix_proof(3, 7, &proof)?, (root(&leaves[..3]), root(&leaves)));
/// # Ok::<(), tiebreak_record::commit::Malformed>(())
/// ```
pub fn roots_from_prefix_proof(
    prefix: u64,
    size: u64,
    proof: &[Digest],
) -> Result<(Digest, Digest), Malformed> {
    fn roots(prefix: u64, size: u64, proof: &mut std::slice::Iter<Digest>) -> Option<(Digest, Digest)> {
        if prefix == size {
            let root = *proof.next()?;
            return Some((root, root));
        }
        // The greatest power of two below the size.
        let left_size = 1 << (63 - (size - 1).leading_zeros());
        if prefix <= left_size {
            let (part, left) = roots(prefix, left_size, proof)?;
            Some((part, node(&left, proof.next()?)))
        } else {
            let left = proof.next()?;
            let (part, right) = roots(prefix - left_size, size - left_size, proof)?;
            Some((node(left, &part), node(left, &right)))
        }
    }
    let wrong = |why: String| Malformed::invalid("prefix proof", why);
    if prefix == 0 || prefix > size {
        return Err(wrong(format!("the prefix has {prefix} records; 1 to {size} are expected")));
    }
    let (mut hashes, count) = (proof.iter(), proof.len());
    let roots = roots(prefix, size, &mut hashes)
        .ok_or_else(|| wrong(format!("{count} hashes are too few for {prefix} of {size} records")))?;
    match hashes.len() {
        0 => Ok(roots),
        extra => Err(wrong(format!("it has {count} hashes; {} are expected", count - extra))),
    }
}

/// The consistency proof of RFC 9162, section 2.1.4.1: hashes that take the root over the first `old` leaves to the root over all.
/// Empty if `old` is 0 or all.
///
/// # Panics
/// If `old` is above the number of leaves.
pub fn prove_consistency(leaves: &[Digest], old: usize) -> Vec<Digest> {
    fn subproof(leaves: &[Digest], old: usize, is_known: bool) -> Vec<Digest> {
        if old == leaves.len() {
            return if is_known { Vec::new() } else { vec![root(leaves)] };
        }
        let (left, right) = leaves.split_at(split(leaves.len()));
        let (mut proof, other) = match old <= left.len() {
            true => (subproof(left, old, is_known), right),
            false => (subproof(right, old - left.len(), false), left),
        };
        proof.push(root(other));
        proof
    }
    assert!(old <= leaves.len(), "an older tree has no more leaves");
    if old == 0 { Vec::new() } else { subproof(leaves, old, true) }
}

/// Checks a consistency proof between two trees, by the steps of RFC 9162, section 2.1.4.2. A tree without leaves is consistent
/// with every other one, by an empty proof.
///
/// # Errors
/// If the proof does not show that the leaves of the old tree are the first leaves of the new one.
///
/// ```
/// use tiebreak_record::commit::merkle::{leaf, prove_consistency, root, verify_consistency};
///
/// let leaves: Vec<_> = (0..7u8).map(|record| leaf(&[record])).collect();
/// let (old, new) = ((3, root(&leaves[..3])), (7, root(&leaves)));
/// verify_consistency(old, new, &prove_consistency(&leaves, 3))?;
/// let forged = (3, root(&leaves[1..4]));
/// assert!(verify_consistency(forged, new, &prove_consistency(&leaves, 3)).is_err());
/// # Ok::<(), tiebreak_record::commit::Malformed>(())
/// ```
pub fn verify_consistency(
    (old, old_root): (u64, Digest),
    (size, new_root): (u64, Digest),
    proof: &[Digest],
) -> Result<(), Malformed> {
    let wrong = |why: String| Err(Malformed::invalid("consistency proof", why));
    if old > size {
        return wrong(format!("it leads from {old} leaves to {size}, and a log never shrinks"));
    }
    if old == 0 || old == size {
        if !proof.is_empty() {
            return wrong(format!("it has {} hashes; from {old} leaves to {size} it has none", proof.len()));
        }
        return match old == 0 || old_root == new_root {
            true => Ok(()),
            false => wrong(format!("two trees of {size} leaves have different roots")),
        };
    }
    let mut hashes = proof.iter();
    let mut next = || {
        let few = || Malformed::invalid("consistency proof", format!("{} hashes are too few", proof.len()));
        hashes.next().copied().ok_or_else(few)
    };
    // The old tree's last subtree of a power of two, and that subtree's place in the new tree.
    let trailing = (old - 1).trailing_ones();
    let (mut old_place, mut new_place) = ((old - 1) >> trailing, (size - 1) >> trailing);
    let first = if old.is_power_of_two() { old_root } else { next()? };
    let (mut from_old, mut from_new) = (first, first);
    while new_place > 0 {
        let sibling = next()?;
        if old_place & 1 == 1 || old_place == new_place {
            from_old = node(&sibling, &from_old);
            from_new = node(&sibling, &from_new);
            while old_place & 1 == 0 && old_place > 0 {
                (old_place, new_place) = (old_place >> 1, new_place >> 1);
            }
        } else {
            from_new = node(&from_new, &sibling);
        }
        (old_place, new_place) = (old_place >> 1, new_place >> 1);
    }
    if hashes.next().is_some() {
        return wrong(format!("{} hashes are too many", proof.len()));
    }
    match (from_old == old_root, from_new == new_root) {
        (true, true) => Ok(()),
        (false, _) => wrong(format!("it does not lead to the root over the first {old} leaves")),
        (true, false) => wrong(format!("it does not lead to the root over all {size} leaves")),
    }
}

/// The first of `size` leaves in which two trees differ, if there is one. The search goes from the root down, left before right,
/// and compares two hashes of each tree on a level. `left` and `right` give the root of a subtree: (first leaf, number of
/// leaves).
pub fn first_difference(
    size: u64,
    mut left: impl FnMut(u64, u64) -> Digest,
    mut right: impl FnMut(u64, u64) -> Digest,
) -> Option<u64> {
    let (mut first, mut count) = (0, size);
    if count == 0 || left(first, count) == right(first, count) {
        return None;
    }
    while count > 1 {
        // The greatest power of two below the count.
        let half = 1 << (63 - (count - 1).leading_zeros());
        if left(first, half) == right(first, half) {
            (first, count) = (first + half, count - half);
        } else {
            count = half;
        }
    }
    Some(first)
}

/// A tree that grows one leaf at a time and knows its root: one pending subtree for each bit of its size.
///
/// ```
/// use tiebreak_record::commit::merkle::{Frontier, leaf, root};
///
/// let leaves: Vec<_> = (0..100u8).map(|record| leaf(&[record])).collect();
/// let mut frontier = Frontier::default();
/// leaves.iter().for_each(|&leaf| frontier.push(leaf));
/// assert_eq!((frontier.size(), frontier.root()), (100, root(&leaves)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    size: u64,
    waiting: Vec<Digest>,
}

impl Frontier {
    /// Appends a leaf hash.
    pub fn push(&mut self, leaf: Digest) {
        let mut hash = leaf;
        let mut size = self.size;
        while size & 1 == 1 {
            let left = self.waiting.pop().expect("a subtree waits for every bit of the size");
            hash = node(&left, &hash);
            size >>= 1;
        }
        self.waiting.push(hash);
        self.size += 1;
    }

    /// The number of leaves so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The root over the leaves so far.
    pub fn root(&self) -> Digest {
        let mut subtrees = self.waiting.iter().rev();
        match subtrees.next() {
            None => root(&[]),
            Some(last) => subtrees.fold(*last, |right, left| node(left, &right)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The proofs of RFC 6962's definition for the trees of the Certificate Transparency reference tests.
    #[test]
    fn consistency_proofs_are_those_of_the_reference_tests() {
        let inputs = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657"];
        let bytes = |hex: &str| {
            (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
        };
        let leaves: Vec<Digest> =
            inputs.iter().map(|hex| leaf(&Vec::<u8>::from_iter::<Vec<u8>>(bytes(hex)))).collect();
        let expected = [
            (
                2,
                5,
                vec![
                    "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
                    "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
                ],
            ),
            (
                3,
                7,
                vec![
                    "0298d122906dcfc10892cb53a73992fc5b9f493ea4c9badb27b791b4127a7fe7",
                    "07506a85fd9dd2f120eb694f86011e5bb4662e5c415a62917033d4a9624487e7",
                    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
                    "837dbb152e9b079010717e84e865da4ebc0fa198a806d59d31bf15accef22d0e",
                ],
            ),
        ];
        for (old, size, hashes) in expected {
            let hashes: Vec<Digest> = hashes.iter().map(|hash| hash.parse().unwrap()).collect();
            assert_eq!(prove_consistency(&leaves[..size], old), hashes, "{old} of {size}");
        }
    }

    #[test]
    fn a_consistency_proof_shows_this_prefix_and_no_other() {
        let leaves: Vec<Digest> = (0..20u8).map(|byte| leaf(&[byte])).collect();
        for size in 1..=leaves.len() {
            let new = (size as u64, root(&leaves[..size]));
            for old in 0..=size {
                let proof = prove_consistency(&leaves[..size], old);
                let before = (old as u64, root(&leaves[..old]));
                verify_consistency(before, new, &proof).unwrap();
                if old == 0 {
                    assert!(verify_consistency(before, new, &[leaves[0]]).is_err());
                    continue;
                }
                let other = (old as u64, Digest([9; 32]));
                assert!(verify_consistency(other, new, &proof).is_err(), "another old root, {old} of {size}");
                let longer = [&proof[..], &[leaves[0]]].concat();
                assert!(
                    verify_consistency(before, new, &longer).is_err(),
                    "a hash too many, {old} of {size}"
                );
                for index in 0..proof.len() {
                    let mut changed = proof.clone();
                    changed[index].0[0] ^= 1;
                    assert!(
                        verify_consistency(before, new, &changed).is_err(),
                        "hash {index}, {old} of {size}"
                    );
                    changed.remove(index);
                    assert!(
                        verify_consistency(before, new, &changed).is_err(),
                        "without {index}, {old} of {size}"
                    );
                }
            }
        }
        let all = (20, root(&leaves));
        assert!(verify_consistency((21, all.1), all, &[]).is_err());
    }

    /// The eight leaves and their roots of the Certificate Transparency reference tests.
    #[test]
    fn certificate_transparency_vectors() {
        let inputs: [&[u8]; 8] = [
            b"",
            &[0x00],
            &[0x10],
            &[0x20, 0x21],
            &[0x30, 0x31],
            &[0x40, 0x41, 0x42, 0x43],
            &[0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57],
            &[0x60, 0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x6b, 0x6c, 0x6d, 0x6e, 0x6f],
        ];
        let roots = [
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
            "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
            "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
            "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
            "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
        ];
        let leaves: Vec<Digest> = inputs.iter().map(|data| leaf(data)).collect();
        let mut frontier = Frontier::default();
        for (size, expected) in (1..).zip(roots) {
            frontier.push(leaves[size - 1]);
            assert_eq!(root(&leaves[..size]).to_string(), expected);
            assert_eq!(frontier.root().to_string(), expected);
        }
    }

    #[test]
    fn proofs_hold_and_wrong_ones_do_not() {
        for size in 1..40usize {
            let leaves: Vec<Digest> = (0..size).map(|i| leaf(&[i as u8])).collect();
            let tree = root(&leaves);
            for index in 0..size {
                let proof = prove(&leaves, index);
                let from = |leaf, index: usize, proof: &[Digest]| {
                    root_from_proof(leaf, index as u64, size as u64, proof)
                };
                assert_eq!(from(leaves[index], index, &proof), Ok(tree));
                let other = (index + 1) % size;
                if size > 1 {
                    assert_ne!(from(leaves[other], index, &proof), Ok(tree));
                    assert_ne!(from(leaves[index], other, &proof), Ok(tree));
                    assert!(from(leaves[index], index, &proof[1..]).is_err());
                }
                assert!(from(leaves[index], index, &[&proof[..], &[tree]].concat()).is_err());
            }
        }
    }

    #[test]
    fn the_first_difference_is_found_from_the_root_down() {
        for size in 1..40usize {
            let one: Vec<Digest> = (0..size).map(|i| leaf(&[i as u8])).collect();
            let of = |leaves: &[Digest], first: u64, count: u64| {
                root(&leaves[first as usize..(first + count) as usize])
            };
            let find = |other: &[Digest]| {
                first_difference(size as u64, |f, n| of(&one, f, n), |f, n| of(other, f, n))
            };
            assert_eq!(find(&one), None);
            for index in 0..size {
                let mut other = one.clone();
                other[index..].iter_mut().step_by(3).for_each(|changed| changed.0[0] ^= 1);
                assert_eq!(find(&other), Some(index as u64));
            }
        }
        assert_eq!(first_difference(0, |_, _| unreachable!(), |_, _| unreachable!()), None);
    }

    #[test]
    fn prefix_proofs_give_both_roots() {
        let leaves: Vec<Digest> = (0..40).map(|i| leaf(&[i])).collect();
        for size in 1..=40 {
            for prefix in 1..=size {
                let proof = prove_prefix(&leaves[..size], prefix);
                let given = |proof: &[Digest]| roots_from_prefix_proof(prefix as u64, size as u64, proof);
                assert_eq!(given(&proof), Ok((root(&leaves[..prefix]), root(&leaves[..size]))));
                assert!(given(&proof[1..]).is_err());
                assert!(given(&[&proof[..], &[root(&[])]].concat()).is_err());
            }
        }
        for (prefix, size) in [(0, 5), (6, 5), (1, 0), (u64::MAX, u64::MAX - 1)] {
            assert!(roots_from_prefix_proof(prefix, size, &[]).is_err());
        }
        assert!(roots_from_prefix_proof(1, u64::MAX, &[root(&[]); 3]).is_err());
    }
}
