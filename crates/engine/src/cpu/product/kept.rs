//! Integers of three digits that are packed once and serve many products: as bytes, sixteen rows in a panel. [`super::dots`] packs and
//! multiplies them.

use std::ops::Range;
use std::sync::Arc;

/// The digits of integers that are kept.
pub(super) const DIGITS: usize = 3;
/// Indices of K in a word.
pub(super) const PLACES: usize = 4;
/// Rows of a panel.
pub(super) const LANES: usize = 16;

/// The packed rows of an operand of one batch, `[panel][word of K][digit][row]`. Bytes of a word are signed digits.
#[derive(Clone)]
pub(super) struct Kept {
    words: Arc<Vec<u32>>,
    rows: usize,
    words_of_k: usize,
    surplus: Arc<Vec<i64>>,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} rows in panels", self.rows)
    }
}

impl Kept {
    /// Packed rows, with a number for each row of each panel, which a product adds to its sums.
    pub(super) fn new(words: Arc<Vec<u32>>, rows: usize, words_of_k: usize, surplus: Arc<Vec<i64>>) -> Kept {
        Kept { words, rows, words_of_k, surplus }
    }

    /// Copies the integers of a row from index `first` on, as many as `to` holds.
    pub(super) fn copy_row(&self, row: usize, first: usize, to: &mut [i32]) {
        let words = self.panel(row / LANES, 0..self.words_of_k);
        for (k, to) in (first..).zip(to) {
            *to = integer(words[k / PLACES].each_ref().map(|digit| digit[row % LANES]), k % PLACES);
        }
    }

    /// Words of a panel, `[word of K][digit][row]`.
    pub(super) fn panel(&self, panel: usize, words: Range<usize>) -> &[[[u32; LANES]; DIGITS]] {
        let all: &[[[u32; LANES]; DIGITS]] = self.words.as_chunks().0.as_chunks().0;
        &all[panel * self.words_of_k..][words]
    }

    /// The number of panels; the last one has zeros behind its rows.
    pub(super) fn panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// The numbers of a panel's rows.
    pub(super) fn surplus(&self, panel: usize) -> &[i64; LANES] {
        &self.surplus.as_chunks().0[panel]
    }

    /// All words and all numbers, and the number of words of K.
    pub(super) fn parts(&self) -> (&Arc<Vec<u32>>, &Arc<Vec<i64>>, usize) {
        (&self.words, &self.surplus, self.words_of_k)
    }
}

/// The integer at a place of words, one of each digit.
#[inline(always)]
fn integer(words: [u32; DIGITS], place: usize) -> i32 {
    let digit = |d: usize| (words[d] << (24 - 8 * place)) as i32 >> 24;
    digit(0) + (digit(1) << 8) + (digit(2) << 16)
}

/// The integers of words, `[place][row]`.
#[inline(always)]
pub(super) fn integers(words: &[[u32; LANES]; DIGITS]) -> [[i32; LANES]; PLACES] {
    let mut places = [[0; LANES]; PLACES];
    for (place, of_place) in places.iter_mut().enumerate() {
        for (row, to) in of_place.iter_mut().enumerate() {
            *to = integer([words[0][row], words[1][row], words[2][row]], place);
        }
    }
    places
}
