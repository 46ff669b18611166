//! The positions of the parts of a log: groups of parts behind a directory, each of which can be read alone. Layout:
//! `docs/ROUNDING.md`, section 5.

use std::ops::Range;

use super::codec::{put_varint, take_varint};
use crate::commit::Malformed;

const WHAT: &str = "rounding log";
/// The first bytes of a log.
pub(super) const MAGIC: &[u8] = b"tiebreak log 3\n";
/// Parts of a group; the last one of a log has fewer.
pub(super) const GROUP: usize = 256;
/// Bytes of an entry of the directory: the position where a group begins.
pub(super) const ENTRY_BYTES: usize = 6;
/// The most bytes of an encoded part length: no file has 2^32 bytes.
pub(super) const LENGTH_BYTES_MAX: usize = 5;

/// The positions of the groups of a log with a given number of parts. The structure does not depend on the contents of the
/// parts.
pub(super) struct Groups {
    parts: usize,
    /// The byte where the directory begins.
    pub directory: usize,
}

impl Groups {
    pub(crate) fn of(parts: usize) -> Groups {
        let mut groups = Groups { parts, directory: 0 };
        groups.directory = groups.beginning().len();
        groups
    }

    /// The first bytes, which depend only on the number of parts.
    pub(crate) fn beginning(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        put_varint(&mut bytes, self.parts as u64);
        bytes
    }

    /// The number of groups. A log without parts has one group, which is empty.
    pub(crate) fn count(&self) -> usize {
        self.parts.div_ceil(GROUP).max(1)
    }

    /// The byte where the first group begins.
    pub(crate) fn first(&self) -> usize {
        self.directory + (self.count() - 1) * ENTRY_BYTES
    }

    /// The bytes that [`Groups::check`] reads of a file of `len` bytes.
    pub(crate) fn front(&self, len: u64) -> Range<u64> {
        0..len.min(self.directory as u64)
    }

    /// Checks the first bytes, and that the file contains the directory.
    pub(crate) fn check(&self, len: u64, front: &[u8]) -> Result<(), Malformed> {
        if front != self.beginning() {
            let why = format!(
                "it does not begin with `tiebreak log 3` and {} parts, as the program's steps have",
                self.parts
            );
            return Err(Malformed::invalid(WHAT, why));
        }
        if len < self.first() as u64 {
            return Err(Malformed::Truncated { what: WHAT });
        }
        Ok(())
    }

    /// The entries of the directory that give the position of a group; there are none for the only group.
    pub(crate) fn entries(&self, group: usize) -> Range<u64> {
        let entry = |number: usize| (self.directory + number.min(self.count() - 1) * ENTRY_BYTES) as u64;
        entry(group.saturating_sub(1))..entry(group + 1)
    }

    /// The position of a group in a file of `len` bytes, from the bytes of [`Groups::entries`].
    pub(crate) fn group(&self, number: usize, len: u64, entries: &[u8]) -> Result<Range<u64>, Malformed> {
        let mut entries = entries
            .chunks_exact(ENTRY_BYTES)
            .map(|entry| entry.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte)));
        let first = self.first() as u64;
        let start = if number == 0 { first } else { entries.next().unwrap_or_default() };
        let end = entries.next().unwrap_or(len);
        if start < first || end < start || end > len {
            return Err(Malformed::invalid(WHAT, format!("group {number} cannot lie there")));
        }
        Ok(start..end)
    }

    /// The number of parts of a group.
    pub(crate) fn size(&self, group: usize) -> usize {
        GROUP.min(self.parts.saturating_sub(group * GROUP))
    }

    /// The bytes of a group that hold the lengths of its parts.
    pub(crate) fn lengths(&self, number: usize, group: &Range<u64>) -> Range<u64> {
        group.start..group.end.min(group.start + (self.size(number) * LENGTH_BYTES_MAX) as u64)
    }

    /// The parts of a group, from the bytes of [`Groups::lengths`].
    pub(crate) fn parts(
        &self,
        number: usize,
        group: &Range<u64>,
        lengths: &[u8],
    ) -> Result<Vec<Range<u64>>, Malformed> {
        let mut rest = lengths;
        let all: Vec<u64> =
            (0..self.size(number)).map(|_| take_varint(&mut rest)).collect::<Result<_, _>>()?;
        let mut at = group.start + (lengths.len() - rest.len()) as u64;
        let mut parts = Vec::with_capacity(all.len());
        for length in all {
            let end = at.checked_add(length).filter(|&end| end <= group.end);
            let end = end.ok_or_else(|| {
                Malformed::invalid(WHAT, format!("a part reaches past the end of group {number}"))
            })?;
            parts.push(at..end);
            at = end;
        }
        if at != group.end {
            return Err(Malformed::Trailing { what: WHAT, extra: (group.end - at) as usize });
        }
        Ok(parts)
    }
}
