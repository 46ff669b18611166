//! A tensor's commitment, and tiles of it that can be checked alone.
//!
//! The digest is H(header; BLAKE3 root of the canonical bytes), so BLAKE3's own tree proves any aligned piece. A tile
//! is a subtree of [`TILE_BYTES`]; its *chaining value* is what the tree says about it. Publishing the chaining
//! values of a tensor's tiles (32 bytes for 4096) lets anybody who recomputes a tile show that the committed one is
//! different, without the trainer's bytes.

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use rayon::prelude::*;

use super::Malformed;
use super::codec::Encoder;
use super::digest::{Digest, hash};
use crate::program::graph::TensorType;

/// Bytes of a tile: four BLAKE3 chunks, 1024 elements of four bytes.
pub const TILE_BYTES: usize = 4096;
/// Bytes that one task hashes.
const TASK_BYTES: usize = 64 * TILE_BYTES;

/// The digest of a tensor with this BLAKE3 root.
pub fn digest_from_root(ty: &TensorType, root: &[u8; 32]) -> Digest {
    let mut e = Encoder::default();
    e.u8(ty.dtype.code()).list(&ty.shape, |e, &d| {
        e.u32(d);
    });
    e.0.extend(root);
    hash("tiebreak 1 tensor", &e.0)
}

/// The digest of a tensor's canonical bytes.
pub fn digest(ty: &TensorType, bytes: &[u8]) -> Digest {
    debug_assert_eq!(ty.bytes(), bytes.len(), "canonical bytes have the type's length");
    digest_from_root(ty, &root(bytes))
}

/// The BLAKE3 root of bytes, on all threads of the current pool.
pub fn root(bytes: &[u8]) -> [u8; 32] {
    if bytes.len() <= TASK_BYTES {
        return *blake3::hash(bytes).as_bytes();
    }
    let subtrees: Vec<ChainingValue> = bytes
        .par_chunks(TASK_BYTES)
        .enumerate()
        .map(|(i, chunk)| subtree(chunk, i as u64 * TASK_BYTES as u64))
        .collect();
    merge_root(&subtrees)
}

fn subtree(bytes: &[u8], offset: u64) -> ChainingValue {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(offset).update(bytes);
    hasher.finalize_non_root()
}

/// The split of BLAKE3's tree over `n` equal subtrees (the last may be shorter): the greatest power of two below n.
fn split(n: usize) -> usize {
    n.div_ceil(2).next_power_of_two()
}

fn merge(subtrees: &[ChainingValue]) -> ChainingValue {
    match subtrees {
        [one] => *one,
        _ => {
            let (left, right) = subtrees.split_at(split(subtrees.len()));
            merge_subtrees_non_root(&merge(left), &merge(right), Mode::Hash)
        }
    }
}

fn merge_root(subtrees: &[ChainingValue]) -> [u8; 32] {
    let (left, right) = subtrees.split_at(split(subtrees.len()));
    *merge_subtrees_root(&merge(left), &merge(right), Mode::Hash).as_bytes()
}

/// How many tiles a tensor of this many bytes has; at least one.
pub fn tile_count(bytes: usize) -> usize {
    bytes.div_ceil(TILE_BYTES).max(1)
}

/// The bytes of tile `tile` in a tensor of `len` bytes.
pub fn tile_range(len: usize, tile: usize) -> std::ops::Range<usize> {
    tile * TILE_BYTES..((tile + 1) * TILE_BYTES).min(len)
}

/// What BLAKE3's tree says of every tile: its chaining value, or the root itself if there is only one tile.
pub fn tile_values(bytes: &[u8]) -> Vec<[u8; 32]> {
    if bytes.len() <= TILE_BYTES {
        return vec![*blake3::hash(bytes).as_bytes()];
    }
    bytes.par_chunks(TILE_BYTES).enumerate().map(|(i, tile)| subtree(tile, (i * TILE_BYTES) as u64)).collect()
}

/// What the tree would say of these bytes as tile `tile` of `tiles`.
pub fn tile_value(bytes: &[u8], tile: usize, tiles: usize) -> [u8; 32] {
    if tiles == 1 { *blake3::hash(bytes).as_bytes() } else { subtree(bytes, (tile * TILE_BYTES) as u64) }
}

/// The BLAKE3 root that tile values give.
///
/// # Panics
/// If there is none.
pub fn root_from_tiles(values: &[[u8; 32]]) -> [u8; 32] {
    match values {
        [one] => *one,
        _ => merge_root(values),
    }
}

/// The siblings of tile `tile`, from the tile up.
pub fn prove_tile(values: &[[u8; 32]], tile: usize) -> Vec<[u8; 32]> {
    fn walk(values: &[[u8; 32]], tile: usize, proof: &mut Vec<[u8; 32]>) {
        if values.len() == 1 {
            return;
        }
        let (left, right) = values.split_at(split(values.len()));
        if tile < left.len() {
            walk(left, tile, proof);
            proof.push(merge(right));
        } else {
            walk(right, tile - left.len(), proof);
            proof.push(merge(left));
        }
    }
    let mut proof = Vec::new();
    walk(values, tile, &mut proof);
    proof
}

/// The tensor digest that a tile's value and its siblings give, for a tensor of type `ty`.
pub fn digest_from_tile(
    ty: &TensorType,
    tile: usize,
    value: &[u8; 32],
    siblings: &[[u8; 32]],
) -> Result<Digest, Malformed> {
    fn climb(
        first: usize,
        count: usize,
        tile: usize,
        value: &[u8; 32],
        siblings: &[[u8; 32]],
        top: bool,
    ) -> Option<[u8; 32]> {
        if count == 1 {
            return siblings.is_empty().then_some(*value);
        }
        let (sibling, below) = siblings.split_last()?;
        let middle = split(count);
        let (left, right) = if tile < first + middle {
            (climb(first, middle, tile, value, below, false)?, *sibling)
        } else {
            (*sibling, climb(first + middle, count - middle, tile, value, below, false)?)
        };
        Some(if top {
            *merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()
        } else {
            merge_subtrees_non_root(&left, &right, Mode::Hash)
        })
    }
    let tiles = tile_count(ty.bytes());
    if tile >= tiles {
        return Err(Malformed::invalid("tile proof", format!("tile {tile} of {tiles}")));
    }
    let root = climb(0, tiles, tile, value, siblings, true)
        .ok_or_else(|| Malformed::invalid("tile proof", "the number of siblings is wrong"))?;
    Ok(digest_from_root(ty, &root))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arith::DType;

    #[test]
    fn tiles_prove_the_same_digest_as_plain_blake3() {
        for len in [0usize, 1, 1024, 4095, 4096, 4097, 8192, 12_289, 70_000, 300_001, 1_100_000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            let ty = TensorType { dtype: DType::U8, shape: vec![len as u32] };
            assert_eq!(root(&bytes), *blake3::hash(&bytes).as_bytes());
            let values = tile_values(&bytes);
            assert_eq!(values.len(), tile_count(len));
            assert_eq!(root_from_tiles(&values), root(&bytes));
            for tile in [0, values.len() / 2, values.len() - 1] {
                let proof = prove_tile(&values, tile);
                let value = tile_value(&bytes[tile_range(len, tile)], tile, values.len());
                assert_eq!(value, values[tile]);
                assert_eq!(digest_from_tile(&ty, tile, &value, &proof), Ok(digest(&ty, &bytes)));
                let mut wrong = value;
                wrong[0] ^= 1;
                assert_ne!(digest_from_tile(&ty, tile, &wrong, &proof), Ok(digest(&ty, &bytes)));
                assert!(digest_from_tile(&ty, tile, &value, &[&proof[..], &[[0; 32]]].concat()).is_err());
            }
            assert!(digest_from_tile(&ty, values.len(), &values[0], &[]).is_err());
        }
    }
}
