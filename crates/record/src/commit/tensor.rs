//! A tensor's commitment, and its tiles, which can be checked alone.
//!
//! The digest is H(header; BLAKE3 root of the canonical bytes), so BLAKE3's own tree proves any aligned piece. A tile is a
//! subtree of [`TILE_BYTES`]; its *chaining value* is the hash of that subtree. Publishing the chaining values of a tensor's
//! tiles (32 bytes for 4096) lets anybody who recomputes a tile show that the committed tile is different, without the
//! trainer's bytes. Evidence is carried in smaller slices ([`super::multiproof`]).

use std::ops::Range;

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

use super::codec::Encoder;
use super::digest::{Digest, hash};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::with_bytes;
use tiebreak_contract::parallel;
use tiebreak_contract::program::graph::TensorType;

/// Bytes of a tile: four BLAKE3 chunks, 1024 elements of four bytes.
pub const TILE_BYTES: usize = 4096;
/// Bytes of a slice: one BLAKE3 chunk, the smallest piece that can be proven alone.
pub const SLICE_BYTES: usize = 1024;
/// Bytes that one task hashes.
const TASK_BYTES: usize = 64 * TILE_BYTES;

/// A BLAKE3 chaining value or root.
pub type Hash = [u8; 32];

/// The digest of a tensor with this BLAKE3 root.
pub fn digest_from_root(ty: &TensorType, root: &[u8; 32]) -> Digest {
    let mut e = Encoder::default();
    e.u8(ty.dtype.code()).list(&ty.shape, |e, &d| {
        e.u32(d);
    });
    e.0.extend(root);
    hash("tiebreak 2 tensor", &e.0)
}

/// The digest of a tensor's canonical bytes.
///
/// ```
/// use tiebreak_contract::arith::DType;
/// use tiebreak_contract::program::graph::TensorType;
/// use tiebreak_record::commit::tensor::digest;
///
/// let ty = |shape: &[u32]| TensorType { dtype: DType::F32, shape: shape.to_vec() };
/// let bytes = [0; 24];
/// // Type and shape are part of what is promised.
/// assert_ne!(digest(&ty(&[2, 3]), &bytes), digest(&ty(&[3, 2]), &bytes));
/// ```
pub fn digest(ty: &TensorType, bytes: &[u8]) -> Digest {
    debug_assert_eq!(ty.bytes(), bytes.len(), "canonical bytes have the type's length");
    digest_from_root(ty, &root(bytes))
}

/// Elements that [`digest_by`] holds in memory at a time.
const PIECE: usize = 1 << 20;

/// The digest of a tensor of four-byte elements that is made piece by piece: `words(first, count)` gives `count` elements
/// from `first` on.
#[doc(hidden)] // for the layers above
pub fn digest_by(ty: &TensorType, mut words: impl FnMut(usize, usize) -> Vec<u32>) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for first in (0..ty.len()).step_by(PIECE) {
        let piece = words(first, PIECE.min(ty.len() - first));
        with_bytes(&piece, |bytes| {
            hasher.update(bytes);
        });
    }
    digest_from_root(ty, hasher.finalize().as_bytes())
}

/// The digest of a vector of four-byte elements whose length is known only at its end.
#[derive(Default)]
pub struct VectorDigest {
    hasher: blake3::Hasher,
    len: u32,
}

impl VectorDigest {
    /// Takes the next elements.
    ///
    /// # Panics
    /// If there are more than 2^32 - 1 elements in all.
    pub fn extend(&mut self, words: &[u32]) {
        with_bytes(words, |bytes| {
            self.hasher.update(bytes);
        });
        let len = u32::try_from(words.len()).ok().and_then(|len| self.len.checked_add(len));
        self.len = len.expect("a vector has fewer than 2^32 elements");
    }

    /// The digest of all elements.
    pub fn finish(&self, dtype: DType) -> Digest {
        digest_from_root(&TensorType { dtype, shape: vec![self.len] }, self.hasher.finalize().as_bytes())
    }
}

/// The BLAKE3 root of bytes, on all threads of the current pool.
pub fn root(bytes: &[u8]) -> Hash {
    if bytes.len() <= TASK_BYTES {
        return *blake3::hash(bytes).as_bytes();
    }
    merge_root(&subtrees(bytes, TASK_BYTES))
}

/// The values of pieces of `size` bytes, one after another.
fn subtrees(bytes: &[u8], size: usize) -> Vec<Hash> {
    let piece = |i: usize| &bytes[i * size..bytes.len().min((i + 1) * size)];
    let (count, value) = (bytes.len().div_ceil(size), |i| subtree(piece(i), (i * size) as u64));
    // Another thread is awake only after this one has hashed so much.
    if bytes.len() <= TASK_BYTES { (0..count).map(value).collect() } else { parallel::map(count, value) }
}

fn subtree(bytes: &[u8], offset: u64) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(offset).update(bytes);
    hasher.finalize_non_root()
}

/// The split of BLAKE3's tree over `n` equal subtrees (the last may be shorter): the greatest power of two below n.
pub(super) fn split(n: usize) -> usize {
    n.div_ceil(2).next_power_of_two()
}

fn merge(subtrees: &[Hash]) -> Hash {
    match subtrees {
        [one] => *one,
        _ => {
            let (left, right) = subtrees.split_at(split(subtrees.len()));
            merge_subtrees_non_root(&merge(left), &merge(right), Mode::Hash)
        }
    }
}

fn merge_root(subtrees: &[Hash]) -> Hash {
    let (left, right) = subtrees.split_at(split(subtrees.len()));
    *merge_subtrees_root(&merge(left), &merge(right), Mode::Hash).as_bytes()
}

/// The number of pieces of `size` bytes in a tensor of `len` bytes; at least one.
pub fn piece_count(len: usize, size: usize) -> usize {
    len.div_ceil(size).max(1)
}

/// The bytes of piece `piece` in a tensor of `len` bytes.
pub fn piece_range(len: usize, size: usize, piece: usize) -> Range<usize> {
    piece * size..((piece + 1) * size).min(len)
}

/// The hash of every piece in BLAKE3's tree: its chaining value, or the root itself if there is only one piece.
pub fn piece_values(bytes: &[u8], size: usize) -> Vec<Hash> {
    if bytes.len() <= size {
        return vec![*blake3::hash(bytes).as_bytes()];
    }
    subtrees(bytes, size)
}

/// The hash that BLAKE3's tree would have for these bytes as piece `piece` of `count`.
pub fn piece_value(bytes: &[u8], size: usize, piece: usize, count: usize) -> Hash {
    if count == 1 { *blake3::hash(bytes).as_bytes() } else { subtree(bytes, (piece * size) as u64) }
}

/// The number of tiles of a tensor of this many bytes; at least one.
pub fn tile_count(bytes: usize) -> usize {
    piece_count(bytes, TILE_BYTES)
}

/// The bytes of tile `tile` in a tensor of `len` bytes.
pub fn tile_range(len: usize, tile: usize) -> Range<usize> {
    piece_range(len, TILE_BYTES, tile)
}

/// The hash of every tile in BLAKE3's tree.
pub fn tile_values(bytes: &[u8]) -> Vec<Hash> {
    piece_values(bytes, TILE_BYTES)
}

/// The hash that BLAKE3's tree would have for these bytes as tile `tile` of `tiles`.
pub fn tile_value(bytes: &[u8], tile: usize, tiles: usize) -> Hash {
    piece_value(bytes, TILE_BYTES, tile, tiles)
}

/// The BLAKE3 root that tile values give.
///
/// # Panics
/// If there are no values.
pub(crate) fn root_from_tiles(values: &[Hash]) -> Hash {
    match values {
        [one] => *one,
        _ => merge_root(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::arith::DType;

    #[test]
    fn tiles_give_the_same_digest_as_plain_blake3() {
        for len in [0usize, 1, 1024, 4095, 4096, 4097, 8192, 12_289, 70_000, 300_001, 1_100_000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            let ty = TensorType { dtype: DType::U8, shape: vec![len as u32] };
            assert_eq!(root(&bytes), *blake3::hash(&bytes).as_bytes());
            let values = tile_values(&bytes);
            assert_eq!(values.len(), tile_count(len));
            assert_eq!(root_from_tiles(&values), root(&bytes));
            for tile in [0, values.len() / 2, values.len() - 1] {
                let value = tile_value(&bytes[tile_range(len, tile)], tile, values.len());
                assert_eq!(value, values[tile]);
            }
            assert_eq!(digest_from_root(&ty, &root_from_tiles(&values)), digest(&ty, &bytes));
        }
    }
}
