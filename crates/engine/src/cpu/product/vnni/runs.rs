//! Where the words of a register tile's rows lie.

use std::ops::Range;

/// Bytes of a word.
pub(super) const WORD: usize = 4;

/// The words of rows of a, wherever each row begins.
pub(super) struct Words<'w> {
    pub bytes: &'w [u8],
    /// Bytes from a word of a row to the next one of K.
    pub step: usize,
    /// Bytes from a word to the one of the next plane.
    pub plane: usize,
}

impl Words<'_> {
    /// Where the first word of each row lies, if all of `words` of K and `planes` planes are there from these bytes on.
    ///
    /// # Panics
    /// If they are not.
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

/// Words of K in runs: in each row of a tile the words of a run follow each other. Words that are in no run are zeros of all rows.
#[derive(Default)]
pub(super) struct Runs {
    /// Of K, none empty.
    words: Vec<Range<usize>>,
    /// Where each row's words begin, in bytes: `[run][row]`.
    starts: Vec<usize>,
}

impl Runs {
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.starts.clear();
    }

    /// Adds words of K behind those there are, whose rows begin at these bytes. They go on with the last run if each row's do; `step` is
    /// [`Words::step`].
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

    /// Words of K, and where those of each row begin.
    #[inline(always)]
    pub(crate) fn iter<const ROWS: usize>(&self) -> impl Iterator<Item = (Range<usize>, &[usize; ROWS])> {
        self.words.iter().cloned().zip(self.starts.as_chunks().0)
    }
}
