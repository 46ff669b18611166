//! Digits as bytes for products of matrices: `smmla` adds 2 x 2 dot products of eight signed bytes.
//!
//! A register holds two rows of a, or two columns of b, in two words of K. Words of b lie as in [`super::bytes`], so two vectors of
//! neighbouring words are zipped first. For three digits on both sides, eight indices of K, two rows and eight columns take 36
//! `smmla`, 12 zips and 12 loads of b. By `sdot` the same takes 72 `sdot` and 12 loads.

use std::arch::aarch64::int32x4_t;

use super::arm::{NeonDotprod, NeonI8mm, load, smmla, zero, zipped};
use super::bytes::Bytes;
use super::form::{Form, Layout};
use super::isa::{Isa, LANES};
use super::runs::{Runs, Words};

/// Rows of a register tile.
const ROWS: usize = 2;
/// Columns whose sums are in registers, and pairs of them.
const COLUMNS: usize = 8;
const PAIRS: usize = COLUMNS / 2;

/// `DA` and `DB` digits, `SUMS` = DA + DB - 1 accumulators for each pair of columns.
pub(super) struct Squares<const DA: usize, const DB: usize, const SUMS: usize>;

/// The form whose words these are.
type Cut<const DA: usize, const DB: usize, const SUMS: usize> = Bytes<NeonDotprod, DA, DB, SUMS, ROWS, 1>;

impl<const DA: usize, const DB: usize, const SUMS: usize> Layout for Squares<DA, DB, SUMS> {
    type Isa = NeonI8mm;
    const PLANES: [usize; 2] = [DA, DB];
    const ROWS: usize = ROWS;
    const VECTORS: usize = 1;
    const PLACES: usize = 4;

    #[inline(always)]
    fn cut<const SIDE: usize>(places: &[[i32; LANES]], planes: &mut [[u32; LANES]]) {
        Cut::<DA, DB, SUMS>::cut::<SIDE>(places, planes);
    }
}

impl<const DA: usize, const DB: usize, const SUMS: usize> Form for Squares<DA, DB, SUMS> {
    const FLUSH: usize = Cut::<DA, DB, SUMS>::FLUSH;

    unsafe fn add(a: &Words<'_>, runs: &Runs, b: &[u32], columns: usize, sums: &mut [i64]) {
        for first in (0..columns).step_by(COLUMNS) {
            // SAFETY: the caller's promise.
            unsafe {
                NeonI8mm::run(
                    #[inline(always)]
                    || kernel::<DA, DB, SUMS>(a, runs, b, first, sums),
                );
            }
        }
    }
}

/// Adds up the columns from `first` on.
///
/// # Safety
/// The machine has `smmla`.
#[inline(always)]
unsafe fn kernel<const DA: usize, const DB: usize, const SUMS: usize>(
    a: &Words<'_>,
    runs: &Runs,
    b: &[u32],
    first: usize,
    sums: &mut [i64],
) {
    let mut acc = [[zero(); PAIRS]; SUMS];
    let of_word = DB * LANES;
    for (words, starts) in runs.iter::<ROWS>() {
        let mut rows = a.rows(starts, words.len(), DA);
        let b = &b[words.start * of_word..words.end * of_word];
        for b in b.chunks(2 * of_word) {
            // A lone last word has zeros beside it in a; beside it in b anything may be.
            let lone = b.len() == of_word;
            let next = if lone { b } else { &b[of_word..] };
            let mut va = [zero(); DA];
            for (d, va) in va.iter_mut().enumerate() {
                let mut four = [0; 4];
                for (row, two) in rows.iter().zip(four.as_chunks_mut::<2>().0) {
                    // SAFETY: `rows` has checked that all words of the run exist.
                    unsafe {
                        let word = row.add(d * a.plane).cast::<u32>();
                        two[0] = word.read_unaligned();
                        if !lone {
                            two[1] = word.byte_add(a.step).read_unaligned();
                        }
                    }
                }
                *va = load(&four);
            }
            for e in 0..DB {
                for v in 0..PAIRS / 2 {
                    let at = e * LANES + first + v * 4;
                    for (i, vb) in zipped(load(&b[at..]), load(&next[at..])).into_iter().enumerate() {
                        for (d, &va) in va.iter().enumerate() {
                            let sum = &mut acc[d + e][2 * v + i];
                            // SAFETY: the caller's promise.
                            *sum = unsafe { smmla(*sum, va, vb) };
                        }
                    }
                }
            }
            for row in &mut rows {
                *row = row.wrapping_add(2 * a.step);
            }
        }
    }
    flush(&acc, first, sums);
}

/// Adds the accumulators to the sums. The function is not inlined: together with its registers, the compiler would keep
/// accumulators in memory.
#[inline(never)]
fn flush<const SUMS: usize>(acc: &[[int32x4_t; PAIRS]; SUMS], first: usize, sums: &mut [i64]) {
    for (s, acc) in acc.iter().enumerate() {
        for (pair, square) in acc.iter().enumerate() {
            // SAFETY: a register of four lanes is four i32.
            let square: [i32; 4] = unsafe { std::mem::transmute(*square) };
            for (row, of_row) in square.as_chunks::<2>().0.iter().enumerate() {
                for (column, &sum) in of_row.iter().enumerate() {
                    sums[row * LANES + first + 2 * pair + column] += i64::from(sum) << (8 * s);
                }
            }
        }
    }
}
