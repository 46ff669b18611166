//! The positions of the words of a register tile's rows.

use std::ops::Range;

/// Bytes of a word.
pub(super) const WORD: usize = 4;

/// The words of rows of a, with any position of each row.
pub(super) struct Words<'w> {
    pub bytes: &'w [u8],
    /// Bytes from a word of a row to the next word along K.
    pub step: usize,
    /// Bytes from a word to the word of the next plane.
    pub plane: usize,
}

impl Words<'_> {
    /// The position of the first word of each row, after a check that all `words` words of K and `planes` planes exist from these
    /// bytes on.
    ///
    /// # Panics
    /// If a word does not exist.
    #[inline(always)]
    pub(crate) fn rows<const ROWS: usize>(
        &self,
        starts: &[usize; ROWS],
        words: usize,
        planes: usize,
    ) -> [*const u8; ROWS] {
        let last = starts.iter().fold(0, |last, &start| start.max(last));
        let after = last + (words - 1) * self.step + (planes - 1) * self.plane + WORD;
        assert!(after <= self.bytes.len(), "rows end with the words");
        starts.map(|start| self.bytes[start..].as_ptr())
    }
}

/// Words of K in runs: in each row of a tile, the words of a run are contiguous. Words that are in no run are zeros in all rows.
#[derive(Default)]
pub(super) struct Runs {
    /// The words of K of each run; no run is empty.
    words: Vec<Range<usize>>,
    /// The begin of each row's words, in bytes: `[run][row]`.
    starts: Vec<usize>,
}

impl Runs {
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.starts.clear();
    }

    /// Adds words of K behind the existing ones; their rows begin at these bytes. The words extend the last run if each row's
    /// words continue it; `step` is [`Words::step`].
    pub(crate) fn push(&mut self, words: Range<usize>, starts: &[usize], step: usize) {
        if let Some(last) = self.words.last_mut()
            && last.end == words.start
        {
            let of_last = &self.starts[self.starts.len() - starts.len()..];
            let len = last.len() * step;
            if of_last.iter().zip(starts).all(|(last, &start)| last + len == start) {
                last.end = words.end;
                return;
            }
        }
        self.words.push(words);
        self.starts.extend_from_slice(starts);
    }

    /// The words of K of each run, and the begin of each row's words.
    #[inline(always)]
    pub(crate) fn iter<const ROWS: usize>(&self) -> impl Iterator<Item = (Range<usize>, &[usize; ROWS])> {
        self.words.iter().cloned().zip(self.starts.as_chunks().0)
    }
}
