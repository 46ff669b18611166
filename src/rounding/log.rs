//! The log of a step: one part for each logged product of each micro-batch, in execution order, behind an index of their
//! lengths. Layout: `docs/ROUNDING.md`, section 5.
//!
//! Its root is a tensor digest of the file's bytes, so a part can be proven with the index that says where it lies and without
//! the rest: [`PartProof`].

use std::ops::Range;

use super::codec::{put_varint, take_varint};
use crate::arith::DType;
use crate::commit::digest::Digest;
use crate::commit::tensor::{Hash, SLICE_BYTES};
use crate::commit::{Malformed, multiproof, tensor};
use crate::program::graph::{LoggedProduct, TensorType};

/// The first bytes of a log.
const MAGIC: &[u8] = b"tiebreak log 1\n";

/// The log of a step: encoded parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    bytes: Vec<u8>,
    parts: Vec<Range<usize>>,
}

impl Log {
    /// Puts a log together.
    pub fn new(parts: &[Vec<u8>]) -> Log {
        let mut bytes = MAGIC.to_vec();
        put_varint(&mut bytes, parts.len() as u64);
        for part in parts {
            put_varint(&mut bytes, part.len() as u64);
        }
        let mut ranges = Vec::with_capacity(parts.len());
        for part in parts {
            ranges.push(bytes.len()..bytes.len() + part.len());
            bytes.extend(part);
        }
        Log { bytes, parts: ranges }
    }

    /// Reads the index of a log that must have `parts` parts. Parts are decoded when they are asked for.
    ///
    /// # Errors
    /// If the index is malformed, lists another number of parts, or does not fill the file.
    pub fn open(bytes: Vec<u8>, parts: usize) -> Result<Log, Malformed> {
        let index = Index::read(&bytes, bytes.len() as u64, parts)?;
        let parts = index.parts.into_iter().map(|part| part.start as usize..part.end as usize).collect();
        Ok(Log { bytes, parts })
    }

    /// The file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes of a part.
    pub fn part(&self, number: usize) -> &[u8] {
        &self.bytes[self.parts[number].clone()]
    }

    /// What a record promises.
    pub fn root(&self) -> Digest {
        tensor::digest(&file_type(self.bytes.len() as u32), &self.bytes)
    }

    /// What proves a part to whoever knows the root.
    pub fn prove(&self, number: usize) -> PartProof {
        let index = self.parts.first().map_or(self.bytes.len(), |first| first.start);
        let part = &self.parts[number];
        let slices: Vec<usize> = slices(self.bytes.len(), [0..index, part.clone()]).collect();
        let piece = |&slice: &usize| &self.bytes[tensor::piece_range(self.bytes.len(), SLICE_BYTES, slice)];
        let values = tensor::piece_values(&self.bytes, SLICE_BYTES);
        PartProof {
            len: self.bytes.len() as u32,
            bytes: slices.iter().map(piece).collect::<Vec<_>>().concat(),
            siblings: multiproof::prove(multiproof::blake3, &values, &slices),
            slices,
        }
    }

    /// The BLAKE3 values of the file's slices, for [`Log::prove_slices`].
    pub fn slice_values(&self) -> Vec<Hash> {
        tensor::piece_values(&self.bytes, SLICE_BYTES)
    }

    /// What proves up to `count` slices from `first` on; `values` are the [`Log::slice_values`]. `None` if the file has no slice `first`.
    pub fn prove_slices(&self, values: &[Hash], first: usize, count: usize) -> Option<PartProof> {
        let slices: Vec<usize> = (first..values.len()).take(count).collect();
        let piece = |&slice: &usize| &self.bytes[tensor::piece_range(self.bytes.len(), SLICE_BYTES, slice)];
        (!slices.is_empty()).then(|| PartProof {
            len: self.bytes.len() as u32,
            bytes: slices.iter().map(piece).collect::<Vec<_>>().concat(),
            siblings: multiproof::prove(multiproof::blake3, values, &slices),
            slices,
        })
    }
}

/// The most bytes of the log of a step: an index, and decisions about every element with the most bits that any takes.
pub fn bytes_max(products: &[LoggedProduct], micro_batches: u32) -> u64 {
    let elements: u64 = products.iter().map(|product| product.elements() as u64).sum();
    let most = elements.saturating_mul(u64::from(micro_batches)).saturating_mul(16);
    most.saturating_add(index_bytes_max(products.len() * micro_batches as usize) as u64)
}

/// The type of a log's file as the tensor that its root is a digest of.
fn file_type(len: u32) -> TensorType {
    TensorType { dtype: DType::U8, shape: vec![len] }
}

/// The slices that byte ranges of a file lie in, ascending. Ranges ascend, and end within the file.
fn slices(len: usize, ranges: [Range<usize>; 2]) -> impl Iterator<Item = usize> {
    let mut next = 0;
    ranges.into_iter().flat_map(move |range| {
        // An empty part lies nowhere; an empty file has one slice all the same.
        let end = if range.is_empty() && len > 0 { 0 } else { range.end.div_ceil(SLICE_BYTES).max(1) };
        let slices = (range.start / SLICE_BYTES).max(next)..end;
        next = next.max(end);
        slices
    })
}

/// The index of a log and one part of it, with what proves them under the log's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartProof {
    /// Bytes of the log.
    pub len: u32,
    /// Which slices are carried, ascending: those of the index and those of the part.
    pub slices: Vec<usize>,
    /// Their bytes, one after another.
    pub bytes: Vec<u8>,
    /// The BLAKE3 hashes that prove the slices in the log's root.
    pub siblings: Vec<Hash>,
}

impl PartProof {
    /// The bytes of part `number` of a log with this root, which has `parts` parts.
    ///
    /// # Errors
    /// If the slices do not give `root`, or do not hold the index and the part.
    pub fn part(&self, root: &Digest, parts: usize, number: usize) -> Result<Vec<u8>, Malformed> {
        self.verify(root)?;
        let wrong = |why: &str| Malformed::invalid("proof of a log's part", why);
        let len = self.len as usize;
        let leading = (0..).zip(&self.slices).take_while(|(i, slice)| i == *slice).count();
        let beginning = &self.bytes[..self.bytes.len().min(leading * SLICE_BYTES)];
        let index = Index::read(beginning, u64::from(self.len), parts)?;
        let part = index.parts.get(number).ok_or_else(|| wrong("the log has no such part"))?;
        let part = part.start as usize..part.end as usize;
        let from = index.bytes as usize;
        if !slices(len, [0..from, part.clone()]).eq(self.slices.iter().copied()) {
            return Err(wrong("its slices are not those of the index and the part"));
        }
        // A part's slices follow each other, so that its bytes do.
        let Some(first) = self.slices.iter().position(|&slice| slice == part.start / SLICE_BYTES) else {
            return Ok(Vec::new()); // an empty part
        };
        let start = first * SLICE_BYTES + part.start % SLICE_BYTES;
        Ok(self.bytes.get(start..start + part.len()).unwrap_or_default().to_vec())
    }

    /// Checks that the slices are those of a log with this root.
    ///
    /// # Errors
    /// If they do not give `root`.
    pub fn verify(&self, root: &Digest) -> Result<(), Malformed> {
        let wrong = |why: &str| Malformed::invalid("proof of a log's part", why);
        let len = self.len as usize;
        let count = tensor::piece_count(len, SLICE_BYTES);
        let mut rest = self.bytes.as_slice();
        let mut values = Vec::new();
        for &slice in &self.slices {
            if slice >= count {
                return Err(wrong("a slice is outside the log"));
            }
            let bytes = rest
                .split_off(..tensor::piece_range(len, SLICE_BYTES, slice).len())
                .ok_or_else(|| wrong("a slice is too short"))?;
            values.push((slice, tensor::piece_value(bytes, SLICE_BYTES, slice, count)));
        }
        if !rest.is_empty() {
            return Err(wrong("it has bytes of no slice"));
        }
        // This also checks that the slices ascend.
        let hash = multiproof::root(multiproof::blake3, count, &values, &self.siblings)?;
        if tensor::digest_from_root(&file_type(self.len), &hash) != *root {
            return Err(wrong("the log is not the one that the record commits"));
        }
        Ok(())
    }
}

/// Where the parts of a log lie: all that a reader of one part needs beside it.
pub struct Index {
    /// Bytes of the index itself.
    pub bytes: u64,
    /// The bytes of each part in the log, in order.
    pub parts: Vec<Range<u64>>,
}

/// The most bytes of an index of this many parts.
pub fn index_bytes_max(parts: usize) -> usize {
    MAGIC.len() + 9 * (parts + 1)
}

impl Index {
    /// Reads the index off the beginning of a file of `len` bytes.
    ///
    /// # Errors
    /// If the index is malformed, lists another number of parts, or does not fill the file.
    pub fn read(beginning: &[u8], len: u64, parts: usize) -> Result<Index, Malformed> {
        let invalid = |why: String| Malformed::invalid("rounding log", why);
        let mut rest = beginning
            .strip_prefix(MAGIC)
            .ok_or_else(|| invalid("it does not begin with `tiebreak log 1`".into()))?;
        let count = take_varint(&mut rest)?;
        if count != parts as u64 {
            return Err(invalid(format!("it has {count} parts, the program's steps have {parts}")));
        }
        let mut lengths = Vec::with_capacity(parts);
        for _ in 0..parts {
            lengths.push(take_varint(&mut rest)?);
        }
        let bytes = (beginning.len() - rest.len()) as u64;
        let mut at = bytes;
        let mut ranges = Vec::with_capacity(parts);
        for length in lengths {
            let end = at.checked_add(length).filter(|&end| end <= len);
            let end = end.ok_or_else(|| invalid("a part reaches past the end".into()))?;
            ranges.push(at..end);
            at = end;
        }
        if at != len {
            return Err(Malformed::Trailing { what: "rounding log", extra: (len - at) as usize });
        }
        Ok(Index { bytes, parts: ranges })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_and_other_bytes_do_not() {
        let parts = vec![vec![1, 2, 3], vec![], vec![9; 300]];
        let log = Log::new(&parts);
        let again = Log::open(log.bytes().to_vec(), 3).unwrap();
        assert_eq!(again, log);
        for (i, part) in parts.iter().enumerate() {
            assert_eq!(again.part(i), part);
        }
        let begin = &log.bytes()[..index_bytes_max(3).min(log.bytes().len())];
        assert_eq!(Index::read(begin, log.bytes().len() as u64, 3).unwrap().parts.len(), 3);
        assert!(Log::open(log.bytes().to_vec(), 2).is_err());
        assert!(Log::open(log.bytes()[..log.bytes().len() - 1].to_vec(), 3).is_err());
        assert!(Log::open([log.bytes(), &[0]].concat(), 3).is_err());
        assert!(Log::open(Vec::new(), 0).is_err());
    }

    #[test]
    fn a_part_is_proven_without_the_others() {
        let sizes: [&[usize]; 5] =
            [&[0], &[5, 0, 7], &[0, 3000, 0, 20_000, 1], &[1024; 9], &[100_000, 1, 2, 300_000]];
        for sizes in sizes {
            let parts: Vec<Vec<u8>> = (0..).zip(sizes).map(|(i, &len)| vec![i + 1; len]).collect();
            let log = Log::new(&parts);
            let root = log.root();
            for number in 0..parts.len() {
                let proof = log.prove(number);
                assert_eq!(
                    proof.part(&root, parts.len(), number).as_ref(),
                    Ok(&parts[number]),
                    "{sizes:?} {number}"
                );
                assert!(
                    proof.bytes.len() <= parts[number].len() + 4 * SLICE_BYTES,
                    "the others are left out"
                );
                assert!(proof.part(&Log::new(&[vec![9]]).root(), parts.len(), number).is_err());
                assert!(proof.part(&root, parts.len() + 1, number).is_err());
                assert!(proof.part(&root, parts.len(), parts.len()).is_err());
                type Edit = fn(&mut PartProof);
                let edits: [Edit; 9] = [
                    |p| p.bytes[0] ^= 1,
                    |p| p.len += 1,
                    |p| p.len = 0,
                    |p| p.slices[0] = usize::MAX,
                    |p| p.slices.push(p.slices[0]),
                    |p| p.slices.clear(),
                    |p| p.bytes.push(0),
                    |p| p.bytes.truncate(3),
                    |p| p.siblings.push([1; 32]),
                ];
                for edit in edits {
                    let mut edited = proof.clone();
                    edit(&mut edited);
                    assert!(edited.part(&root, parts.len(), number).is_err());
                }
                for other in (0..parts.len()).filter(|&other| other != number) {
                    // Another part can be read from it only if it lies in the very same slices.
                    let read = proof.part(&root, parts.len(), other);
                    assert!(
                        read.is_err() || read.as_ref() == Ok(&parts[other]),
                        "{sizes:?} {number} {other}"
                    );
                }
            }
        }
    }
}
