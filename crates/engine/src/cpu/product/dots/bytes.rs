//! Digits as bytes: an instruction adds four products of bytes to each i32 lane.
//!
//! Where a's bytes have no sign, 128 is added to its digits. The surplus 128 * (sum of b's digits) is subtracted at the end. Digits
//! d of a and e of b have weight 256^(d + e), so pairs of one weight share an accumulator.

use std::marker::PhantomData;

use super::form::{Form, Layout};
use super::isa::{DotBytes, Isa, LANES, lanes};
use super::runs::{Runs, Words};

/// `DA` and `DB` digits, `SUMS` = DA + DB - 1 accumulators; register tiles of `ROWS` rows and `NV` vectors of columns.
pub(super) struct Bytes<
    I,
    const DA: usize,
    const DB: usize,
    const SUMS: usize,
    const ROWS: usize,
    const NV: usize,
>(PhantomData<I>);

impl<I: DotBytes, const DA: usize, const DB: usize, const SUMS: usize, const ROWS: usize, const NV: usize>
    Layout for Bytes<I, DA, DB, SUMS, ROWS, NV>
{
    type Isa = I;
    const PLANES: [usize; 2] = [DA, DB];
    const ROWS: usize = ROWS;
    const VECTORS: usize = NV;
    const PLACES: usize = 4;

    // The sum over digits e of 256^e times b's digits is the sum of the integers.
    const SURPLUS: i64 = if I::UNSIGNED { -offset(DA) } else { 0 };

    #[inline(always)]
    fn cut<const SIDE: usize>(places: &[[i32; LANES]], planes: &mut [[u32; LANES]]) {
        cut(places, planes, SIDE == 1 || !I::UNSIGNED);
    }
}

impl<I: DotBytes, const DA: usize, const DB: usize, const SUMS: usize, const ROWS: usize, const NV: usize>
    Form for Bytes<I, DA, DB, SUMS, ROWS, NV>
{
    const FLUSH: usize = FLUSH;

    unsafe fn add(a: &Words<'_>, runs: &Runs, b: &[u32], _: usize, sums: &mut [i64]) {
        // SAFETY: the caller's promise.
        unsafe {
            I::run(
                #[inline(always)]
                || kernel::<I, DA, DB, SUMS, ROWS, NV>(a, runs, b, sums),
            );
        }
    }
}

/// The most words of K between two flushes: an accumulator adds at most 3 pairs of 255 * 128 for each index of K.
const FLUSH: usize = 4096;
const _: () = assert!(FLUSH * 4 * 3 * 255 * 128 < 1 << 31);

/// Cuts four integers of sixteen rows, `[index][row]`, to a word of each digit, `[digit][row]`, with signs or with 128 added.
#[inline(always)]
pub(super) fn cut(places: &[[i32; LANES]], planes: &mut [[u32; LANES]], signed: bool) {
    let sign = if signed { 0x8080_8080 } else { 0 };
    let offset = offset(planes.len()) as u32;
    for (d, words) in planes.iter_mut().enumerate() {
        for (row, word) in words.iter_mut().enumerate() {
            let byte = |i: usize| ((places[i][row] as u32).wrapping_add(offset) >> (8 * d)) & 255;
            *word = (byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24) ^ sign;
        }
    }
}

/// 128 in every digit. With this number added, the bytes of an integer are its balanced digits plus 128.
pub(super) const fn offset(digits: usize) -> i64 {
    let (mut sum, mut d) = (0, 0);
    while d < digits {
        sum += 128 << (8 * d);
        d += 1;
    }
    sum
}

/// # Safety
/// The machine has the instructions `I`.
#[inline(always)]
unsafe fn kernel<
    I: DotBytes,
    const DA: usize,
    const DB: usize,
    const SUMS: usize,
    const ROWS: usize,
    const NV: usize,
>(
    a: &Words<'_>,
    runs: &Runs,
    b: &[u32],
    sums: &mut [i64],
) {
    // SAFETY: the caller's promise.
    let zero = unsafe { I::zero() };
    let mut acc = [[[zero; NV]; ROWS]; SUMS];
    let of_word = DB * NV * LANES;
    for (words, starts) in runs.iter::<ROWS>() {
        let mut rows = a.rows(starts, words.len(), DA);
        for b in b[words.start * of_word..words.end * of_word].chunks_exact(of_word) {
            let mut vb = [[zero; NV]; DB];
            for (b, vb) in b.as_chunks::<LANES>().0.iter().zip(vb.as_flattened_mut()) {
                // SAFETY: the caller's promise.
                *vb = unsafe { I::load(b) };
            }
            // All digits of b meet one digit of a at a time, so only one register of a is held.
            for d in 0..DA {
                for r in 0..ROWS {
                    // SAFETY: `rows` has checked that all words of the run exist; and the caller's promise.
                    let va = unsafe { I::splat(rows[r].add(d * a.plane).cast::<i32>().read_unaligned()) };
                    for e in 0..DB {
                        for v in 0..NV {
                            // SAFETY: the caller's promise.
                            acc[d + e][r][v] = unsafe { I::dot_bytes(acc[d + e][r][v], va, vb[e][v]) };
                        }
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
    flush::<I, SUMS, ROWS, NV>(&done, sums);
}

/// Adds the accumulators to the sums. The function is not inlined: together with its registers, the compiler would keep
/// accumulators in memory.
#[inline(never)]
fn flush<I: Isa, const SUMS: usize, const ROWS: usize, const NV: usize>(
    acc: &[[[I::Vector; NV]; ROWS]; SUMS],
    sums: &mut [i64],
) {
    // SAFETY: only the kernel calls this function, and it runs where the machine has these instructions.
    unsafe {
        I::run(
            #[inline(always)]
            || {
                for (s, acc) in acc.iter().enumerate() {
                    for (acc, sums) in acc.iter().zip(sums.chunks_exact_mut(NV * LANES)) {
                        for (acc, sums) in acc.iter().zip(sums.as_chunks_mut::<LANES>().0) {
                            for (sum, &lane) in sums.iter_mut().zip(lanes::<I>(acc)) {
                                *sum += i64::from(lane) << (8 * s);
                            }
                        }
                    }
                }
            },
        );
    }
}
