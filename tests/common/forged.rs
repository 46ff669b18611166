//! Blocks of a cache of runs that lie: other bytes than those that came, under a right checksum.

use std::fs;
use std::path::Path;

/// Bytes of a checksum, which stands before a block.
const CHECKSUM: usize = 32;

/// Replaces a block's bytes by others of a right checksum.
pub fn forge(block: &Path, change: impl Fn(&mut Vec<u8>)) {
    let mut bytes = fs::read(block).unwrap().split_off(CHECKSUM);
    change(&mut bytes);
    let mut hasher = blake3::Hasher::new();
    hasher.update(block.file_name().unwrap().to_str().unwrap().as_bytes()).update(&[0]).update(&bytes);
    fs::write(block, [hasher.finalize().as_bytes().as_slice(), &bytes].concat()).unwrap();
}
