//! Digits as bytes: `vpdpbusd` adds four products of an unsigned and a signed byte to each i32 lane.
//!
//! 128 is added to a's digits, so that they are unsigned. The surplus 128 * (sum of b's digits) is subtracted at the end. Digits
//! d of a and e of b have weight 256^(d + e), so pairs of one weight share an accumulator.

use std::arch::x86_64::{
    __m512i, _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_si512,
};

use super::form::{Form, LANES, lanes};
use super::runs::{Runs, Words};

/// Rows of a register tile.
const ROWS: usize = 4;

/// `DA` and `DB` digits, `SUMS` = DA + DB - 1 accumulators, `NV` vectors of columns.
pub(super) struct Bytes<const DA: usize, const DB: usize, const SUMS: usize, const NV: usize>;

impl<const DA: usize, const DB: usize, const SUMS: usize, const NV: usize> Form for Bytes<DA, DB, SUMS, NV> {
    const PLANES: [usize; 2] = [DA, DB];
    const ROWS: usize = ROWS;
    const VECTORS: usize = NV;
    const PLACES: usize = 4;
    // An accumulator adds at most 3 pairs of 255 * 128 for each index of K.
    const FLUSH: usize = 4096;

    // The sum over digits e of 256^e times b's digits is the sum of the integers.
    const SURPLUS: i64 = -offset(DA);

    #[inline(always)]
    fn cut<const SIDE: usize>(places: &[[i32; LANES]], planes: &mut [[u32; LANES]]) {
        let signed = if SIDE == 0 { 0 } else { 0x8080_8080 };
        let offset = const { offset(Self::PLANES[SIDE]) } as u32;
        for (d, words) in planes.iter_mut().enumerate() {
            for (row, word) in words.iter_mut().enumerate() {
                let byte = |i: usize| ((places[i][row] as u32).wrapping_add(offset) >> (8 * d)) & 255;
                *word = (byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24) ^ signed;
            }
        }
    }

    unsafe fn add(a: &Words<'_>, runs: &Runs, b: &[u32], _: usize, sums: &mut [i64]) {
        // SAFETY: the caller's promise.
        unsafe { kernel::<DA, DB, SUMS, NV>(a, runs, b, sums) }
    }
}

const _: () = assert!(Bytes::<3, 3, 5, 1>::FLUSH * 4 * 3 * 255 * 128 < 1 << 31);

/// 128 in every digit. With this number added, the bytes of an integer are its balanced digits plus 128.
const fn offset(digits: usize) -> i64 {
    let (mut sum, mut d) = (0, 0);
    while d < digits {
        sum += 128 << (8 * d);
        d += 1;
    }
    sum
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn kernel<const DA: usize, const DB: usize, const SUMS: usize, const NV: usize>(
    a: &Words<'_>,
    runs: &Runs,
    b: &[u32],
    sums: &mut [i64],
) {
    let mut acc = [[[_mm512_setzero_si512(); NV]; ROWS]; SUMS];
    let of_word = DB * NV * LANES;
    for (words, starts) in runs.iter::<ROWS>() {
        let mut rows = a.rows(starts, words.len(), DA);
        for b in b[words.start * of_word..words.end * of_word].chunks_exact(of_word) {
            let mut vb = [[_mm512_setzero_si512(); NV]; DB];
            for (b, vb) in b.chunks_exact(LANES).zip(vb.as_flattened_mut()) {
                // SAFETY: the chunk is a vector of 16 words.
                *vb = unsafe { _mm512_loadu_si512(b.as_ptr().cast::<__m512i>()) };
            }
            // All digits of b meet one digit of a at a time, so only one register of a is held.
            for d in 0..DA {
                for r in 0..ROWS {
                    // SAFETY: `rows` has checked that all words of the run exist.
                    let va = unsafe { rows[r].add(d * a.plane).cast::<i32>().read_unaligned() };
                    let va = _mm512_set1_epi32(va);
                    for e in 0..DB {
                        for v in 0..NV {
                            acc[d + e][r][v] = _mm512_dpbusd_epi32(acc[d + e][r][v], va, vb[e][v]);
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
    flush(&done, sums);
}

/// The function is not inlined: together with its registers, the compiler would keep accumulators in memory.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline(never)]
fn flush<const SUMS: usize, const NV: usize>(acc: &[[[__m512i; NV]; ROWS]; SUMS], sums: &mut [i64]) {
    for (s, acc) in acc.iter().enumerate() {
        for (acc, sums) in acc.iter().zip(sums.chunks_exact_mut(NV * LANES)) {
            for (&acc, sums) in acc.iter().zip(sums.as_chunks_mut::<LANES>().0) {
                for (sum, lane) in sums.iter_mut().zip(lanes(acc)) {
                    *sum += i64::from(lane) << (8 * s);
                }
            }
        }
    }
}
