//! Salts of the data files of a run whose commitments hide: leaves of slices, and roots of files.

use super::digest::{Digest, hash};
use super::merkle;
use super::salts::{Kind, SaltKey, salted};
use super::tensor::{Hash, SLICE_BYTES};

/// The salts of a data file.
#[derive(Clone, Debug)]
pub struct FileSalts {
    key: SaltKey,
    number: u64,
}

impl FileSalts {
    /// The salts of the file with this number, in the order of `run.json`.
    pub fn new(key: &SaltKey, number: usize) -> FileSalts {
        FileSalts { key: key.clone(), number: number as u64 }
    }

    /// The salt of a slice.
    pub fn slice(&self, slice: usize) -> Hash {
        self.key.salt(Kind::Slice, self.number, slice as u64)
    }

    /// The salt of the file's length.
    pub fn length(&self) -> Hash {
        self.key.salt(Kind::Length, self.number, 0)
    }

    /// The root of the file, from the root of its tree.
    pub fn root(&self, length: u64, tree: &Digest) -> Digest {
        file_root(length, &self.length(), tree)
    }

    /// The leaf hashes of slices that lie one after another; `first` is the number of the first one.
    pub fn values(&self, first: usize, bytes: &[u8]) -> Vec<Hash> {
        // An empty file has one slice, which is empty.
        (0..bytes.len().div_ceil(SLICE_BYTES).max(1))
            .map(|i| {
                let end = bytes.len().min((i + 1) * SLICE_BYTES);
                slice_leaf(&self.slice(first + i), &bytes[i * SLICE_BYTES..end]).0
            })
            .collect()
    }
}

/// The leaf hash of a slice, from its salt.
pub fn slice_leaf(salt: &Hash, bytes: &[u8]) -> Digest {
    merkle::leaf(&salted(salt, &Digest(*blake3::hash(bytes).as_bytes())).0)
}

/// The root of a file that hides: over its length, with the salt of the length, and its tree of slices.
pub fn file_root(length: u64, salt: &Hash, tree: &Digest) -> Digest {
    hash("tiebreak 2 hidden-file", &[&length.to_le_bytes()[..], salt, &tree.0].concat())
}
