//! Operands in the form of products by 16-bit dot products: planes of 16-bit pieces of their integers, in strips.

use std::borrow::Cow;
use std::ops::Range;

use rayon::prelude::*;

use super::bands::Piece;
use super::operand::Operand;
use super::simd::Path;
use super::strips::{Pair, ROWS, pairs, turn_rows};

/// The fewest strips of a task: those of a band of output rows, which is a task already.
const TOGETHER: usize = 12;

/// One piece of the integers `k` of rows of an operand, as strips.
pub(super) struct Plane<'o> {
    words: Cow<'o, [u32]>,
    /// Pairs from one strip to the next.
    stride: usize,
    /// The pair that `k` begins with.
    first: usize,
    /// Pairs of `k`, a multiple of four.
    pairs: usize,
}

impl<'o> Plane<'o> {
    /// The plane of the rows `of` of a batch, which begin with a strip, and of indices that begin with a multiple of eight.
    /// The plane borrows the operand's strips, if there are any and the piece is the whole integer. Otherwise the plane is
    /// in `memory`, which may hold anything.
    pub(crate) fn new(
        path: Path,
        operand: &'o Operand,
        batch: usize,
        of: Range<usize>,
        k: Range<usize>,
        piece: Piece,
        mut memory: Vec<u32>,
    ) -> Plane<'o> {
        if let (Some(strips), Piece::Whole) = (operand.strips(batch), piece) {
            let stride = pairs(operand.k());
            let words = bytemuck::cast_slice(&strips[of.start / ROWS * stride * ROWS..]);
            return Plane { words: Cow::Borrowed(words), stride, first: k.start / 2, pairs: pairs(k.len()) };
        }
        let pairs = pairs(k.len());
        memory.resize(of.len().div_ceil(ROWS) * pairs * ROWS, 0);
        let strips = memory.par_chunks_exact_mut(pairs * ROWS).enumerate().with_min_len(TOGETHER);
        strips.for_each_init(Default::default, |(rows, scratch): &mut (Vec<u32>, Vec<i32>), (strip, to)| {
            let of = of.start + strip * ROWS..of.end.min(of.start + (strip + 1) * ROWS);
            let to = to.as_chunks_mut().0;
            if matches!(piece, Piece::Whole) && operand.gather_strip(of.clone(), k.clone(), to) {
                return;
            }
            rows.resize(ROWS * pairs, 0);
            rows[of.len() * pairs..].fill(0);
            for (row, of) in rows.chunks_exact_mut(pairs).zip(of) {
                let to = bytemuck::cast_slice_mut(row);
                operand.halves([batch, of], k.clone(), path, piece, to, scratch);
            }
            // SAFETY: products run here where AVX2 was detected.
            unsafe { turn_rows(rows, to) };
        });
        Plane { words: Cow::Owned(memory), stride: pairs, first: 0, pairs }
    }

    /// The memory that belongs to this plane, if it borrows none.
    pub(crate) fn into_memory(self) -> Option<Vec<u32>> {
        match self.words {
            Cow::Owned(memory) => Some(memory),
            Cow::Borrowed(_) => None,
        }
    }

    /// The pairs of strip `strip`.
    pub(crate) fn strip(&self, strip: usize) -> &[Pair] {
        let at = (strip * self.stride + self.first) * ROWS;
        self.words[at..at + self.pairs * ROWS].as_chunks().0
    }
}
