//! The log of a step: one part for each logged product of each micro-batch, in execution order, behind an index of their
//! lengths. Layout: `docs/ROUNDING.md`, section 5.
//!
//! Its root is a tensor digest of the file's bytes, so any aligned piece can be proven alone, as tiles of tensors are.

use std::ops::Range;

use super::codec::{put_varint, take_varint};
use crate::arith::DType;
use crate::commit::digest::Digest;
use crate::commit::{Malformed, tensor};
use crate::program::graph::TensorType;

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
        let ty = TensorType { dtype: DType::U8, shape: vec![self.bytes.len() as u32] };
        tensor::digest(&ty, &self.bytes)
    }
}

/// Where the parts of a log lie: all that a reader of one part needs beside it.
pub struct Index {
    pub parts: Vec<Range<u64>>,
}

/// The most bytes of an index of this many parts.
pub fn index_bytes_max(parts: usize) -> usize {
    MAGIC.len() + 9 * (parts + 1)
}

impl Index {
    /// Reads the index off the beginning of a file of `len` bytes.
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
        let mut at = (beginning.len() - rest.len()) as u64;
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
        Ok(Index { parts: ranges })
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
}
