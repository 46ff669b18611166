//! The definition of a layout, the order of integers in words, and of a form: a way to multiply them by dot products in the lanes of
//! vectors.

use super::isa::{Isa, LANES};
use super::runs::{Runs, Words};

/// The most planes of a layout.
pub(super) const PLANES_MAX: usize = 4;

/// The order of both operands' integers in words.
pub(super) trait Layout: Sync {
    /// The instructions that cut.
    type Isa: Isa;
    /// The numbers of words of a and of b that hold the same indices of K.
    const PLANES: [usize; 2];
    /// Rows of a register tile: a divisor of sixteen.
    const ROWS: usize;
    /// Vectors of columns in a panel.
    const VECTORS: usize;
    /// Columns of a panel.
    const WIDTH: usize = Self::VECTORS * LANES;
    /// Indices of K in a word, in their order from its lowest bits on.
    const PLACES: usize;
    /// The number of words of K that a panel has a multiple of; words behind the last index are 0.
    const MULTIPLE: usize = 1;
    /// True if words of b lie as [`super::kept`] integers do.
    #[cfg(target_arch = "x86_64")]
    const AS_KEPT: bool = false;
    /// The number to be added to sums of a column for each unit of the sum of its integers.
    const SURPLUS: i64 = 0;

    /// Cuts the integers of a word, `[place][row]`, of rows of a (side 0) or of b (side 1), to `[plane][row]`. Implementations
    /// are always inlined, since the caller has the wide vectors.
    fn cut<const SIDE: usize>(places: &[[i32; LANES]], planes: &mut [[u32; LANES]]);
}

/// The multiplication of words in the lanes of vectors.
pub(super) trait Form: Layout {
    /// The most words of K between two flushes of the lanes.
    const FLUSH: usize;

    /// Adds the dot products of a tile of rows, in the words of some runs, and a panel of columns, `[word of K][plane][vector][lane]`,
    /// to `sums`, `[row][column]`. Sums past the first `columns` may be left out.
    ///
    /// # Safety
    /// The machine has the instructions of the form.
    unsafe fn add(a: &Words<'_>, runs: &Runs, b: &[u32], columns: usize, sums: &mut [i64]);
}
