//! Integers of three digits as halves: an instruction adds two products of 16-bit integers to each i32 lane.
//!
//! q = high * 2^11 + low, |low| <= 2^10 and |high| <= 2^11, and three products give the sum (Karatsuba, Ofman, 1962). L is the
//! product of the low halves, H of the high halves, and B of the sums of both halves. The sum is H * 2^22 + (B - H - L) * 2^11 +
//! L. So two indices of K take three instructions for each vector, where digits as bytes take four and a half.
//!
//! H, L and B - H - L are below 2^31 for all indices of K between two flushes. B itself may leave the lane's range; then B wraps,
//! and the difference wraps to the right bits.

use std::marker::PhantomData;

use super::form::{Form, Layout};
use super::isa::{DotHalves, Isa, LANES, lanes};
use super::runs::{Runs, Words};
use crate::cpu::product::bands::Piece;

/// Bits of a low half.
const CUT: u32 = 11;
/// The planes: low halves, high halves, and their sums.
const PLANES: usize = 3;

/// Both operands in halves; register tiles of `ROWS` rows and `NV` vectors of columns.
pub(super) struct Halves<I, const ROWS: usize, const NV: usize>(PhantomData<I>);

impl<I: DotHalves, const ROWS: usize, const NV: usize> Layout for Halves<I, ROWS, NV> {
    type Isa = I;
    const PLANES: [usize; 2] = [PLANES; 2];
    const ROWS: usize = ROWS;
    const VECTORS: usize = NV;
    const PLACES: usize = PLACES;

    #[inline(always)]
    fn cut<const SIDE: usize>(places: &[[i32; LANES]], planes: &mut [[u32; LANES]]) {
        for row in 0..LANES {
            let pair = [places[0][row], places[1][row]];
            let low = pair.map(|q| Piece::Low(CUT).of(q));
            let high = pair.map(|q| Piece::High(CUT).of(q));
            let both = [low[0] + high[0], low[1] + high[1]];
            for (words, [first, second]) in planes.iter_mut().zip([low, high, both]) {
                words[row] = first as u32 & 0xffff | (second as u32) << 16;
            }
        }
    }
}

impl<I: DotHalves, const ROWS: usize, const NV: usize> Form for Halves<I, ROWS, NV> {
    // With fewer lanes in a register, words of b are read more often, so that those of a flush stay in the first-level cache.
    const FLUSH: usize = if I::REGISTERS == 1 { FLUSH } else { FLUSH.next_power_of_two() / 2 };

    unsafe fn add(a: &Words<'_>, runs: &Runs, b: &[u32], columns: usize, sums: &mut [i64]) {
        // SAFETY: the caller's promise.
        unsafe {
            I::run(
                #[inline(always)]
                || {
                    if columns <= LANES {
                        kernel::<I, ROWS, NV, 1>(a, runs, b, sums)
                    } else {
                        kernel::<I, ROWS, NV, NV>(a, runs, b, sums)
                    }
                },
            );
        }
    }
}

/// Indices of K in a word, and the most words between two flushes.
const PLACES: usize = 2;
const FLUSH: usize = 255;
// A term of H is at most 2^11 * 2^11, and a term of B - H - L at most twice 2^11 * 2^10.
const _: () = assert!(FLUSH * PLACES * (1 << (2 * CUT)) < 1 << 31);

/// Adds up the first `USED` of a panel's `NV` vectors of columns.
///
/// # Safety
/// The machine has the instructions `I`.
#[inline(always)]
unsafe fn kernel<I: DotHalves, const ROWS: usize, const NV: usize, const USED: usize>(
    a: &Words<'_>,
    runs: &Runs,
    b: &[u32],
    sums: &mut [i64],
) {
    // SAFETY: the caller's promise.
    let zero = unsafe { I::zero() };
    let mut acc = [[[zero; USED]; ROWS]; PLANES];
    let of_word = PLANES * NV * LANES;
    for (words, starts) in runs.iter::<ROWS>() {
        let mut rows = a.rows(starts, words.len(), PLANES);
        for b in b[words.start * of_word..words.end * of_word].chunks_exact(of_word) {
            for (p, acc) in acc.iter_mut().enumerate() {
                let mut vb = [zero; USED];
                for (b, vb) in b[p * NV * LANES..].as_chunks::<LANES>().0.iter().zip(&mut vb) {
                    // SAFETY: the caller's promise.
                    *vb = unsafe { I::load(b) };
                }
                for (row, acc) in rows.iter().zip(acc) {
                    // SAFETY: `rows` has checked that all words of the run exist; and the caller's promise.
                    let va = unsafe { I::splat(row.add(p * a.plane).cast::<i32>().read_unaligned()) };
                    for (acc, &vb) in acc.iter_mut().zip(&vb) {
                        // SAFETY: the caller's promise.
                        *acc = unsafe { I::dot_halves(*acc, va, vb) };
                    }
                }
            }
            for row in &mut rows {
                *row = row.wrapping_add(a.step);
            }
        }
    }
    // The flush takes a copy, since accumulators whose address is taken would be kept in memory.
    let done = acc;
    flush::<I, ROWS, NV, USED>(&done, sums);
}

/// Adds the accumulators to the sums. The function is not inlined: together with its registers, the compiler would keep
/// accumulators in memory.
#[inline(never)]
fn flush<I: Isa, const ROWS: usize, const NV: usize, const USED: usize>(
    acc: &[[[I::Vector; USED]; ROWS]; PLANES],
    sums: &mut [i64],
) {
    // SAFETY: only the kernel calls this function, and it runs where the machine has these instructions.
    unsafe {
        I::run(
            #[inline(always)]
            || {
                let [low, high, both] = acc;
                for (r, sums) in sums.chunks_exact_mut(NV * LANES).enumerate() {
                    for (v, sums) in sums.as_chunks_mut::<LANES>().0[..USED].iter_mut().enumerate() {
                        let [low, high, both] = [low, high, both].map(|plane| lanes::<I>(&plane[r][v]));
                        for i in 0..LANES {
                            let middle = both[i].wrapping_sub(high[i]).wrapping_sub(low[i]);
                            sums[i] += (i64::from(high[i]) << (2 * CUT))
                                + (i64::from(middle) << CUT)
                                + i64::from(low[i]);
                        }
                    }
                }
            },
        );
    }
}
