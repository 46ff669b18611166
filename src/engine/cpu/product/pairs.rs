//! Integer products by 16-bit dot products: AVX2's `vpmaddwd` adds two products of 16-bit integers in each i32 lane.
//!
//! Integers of two digits fill 15 bits, so sums of their products would leave an i32 after a few places of K. One side is
//! therefore cut in a low and a high half ([`Piece`]), each with an accumulator of its own that holds hundreds of places. Three
//! digits against one or two work likewise, the longer side cut; more need both sides cut and are slower than binary64.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_set1_epi32,
    _mm256_setzero_si256, _mm256_storeu_si256,
};

use rayon::prelude::*;

use super::bands::{Band, Piece, band_height, bands, interleave};
use super::operand::Operand;
use super::scale_back::{Scale, Sum, fits_i64, product_bits};
use super::simd::{Path, vectorised};
use crate::arith::digits::{ProductPart, magnitude_bits};

/// Rows of a register tile, and columns of a vector: twelve accumulators of the sixteen registers.
const ROWS: usize = 6;
const LANES: usize = 8;
/// The most columns of a panel.
const WIDTH_MAX: usize = 2 * LANES;
/// Rows of a band, whole tiles: their packed integers stay in the second-level cache.
const BAND_ROWS: usize = 16 * ROWS;
/// The most pairs of K that are multiplied before the next tile is: a panel's stay in the first-level cache.
const DEPTH: usize = 512;

/// Whether this kernel computes products of these digits and this length.
pub(super) fn computes(a: &Operand, b: &Operand) -> bool {
    let (more, fewer) = (a.digits().max(b.digits()), a.digits().min(b.digits()));
    // Halves are worth up to twice what they make together.
    more <= 3 && fewer <= 2 && a.k() > 0 && fits_i64(product_bits(a, b) + 1, a.block_range(0).1)
}

/// `out[block, batch, m, n]`, not empty, for operands that [`computes`] accepts, on a machine with AVX2.
pub(super) fn product(
    path: Path,
    part: ProductPart,
    a: &Operand,
    b: &Operand,
    batch: usize,
    out: &mut [u32],
) {
    let size = a.rows() * b.rows();
    let matrix = match (a.digits(), b.digits()) {
        (1, 1 | 2) | (2, 1) => matrix_product::<1, 1, 1, 2>,
        (3, _) => matrix_product::<2, 1, 2, 1>,
        _ => matrix_product::<1, 2, 2, 1>,
    };
    out.par_chunks_mut(size)
        .enumerate()
        .for_each(|(i, out)| matrix(path, part, [a, b], [i / batch, i % batch], out));
}

/// How many pairs of K an accumulator holds, if each side's integers are in so many pieces.
fn pairs_held(a: &Operand, b: &Operand, cut: u32) -> usize {
    // Two products of a half of 2^(bits - cut) or less.
    let bits = product_bits(a, b) - cut + 1;
    (i32::MAX as usize) >> bits
}

/// One block of one sample of the batch: `PA` and `PB` pieces of each integer, one of them 1, `SUMS` = PA * PB, `NV` vectors of
/// columns.
fn matrix_product<const PA: usize, const PB: usize, const SUMS: usize, const NV: usize>(
    path: Path,
    part: ProductPart,
    [a, b]: [&Operand; 2],
    [block, batch]: [usize; 2],
    out: &mut [u32],
) {
    let (first, len) = a.block_range(block);
    let (m, n) = (a.rows(), b.rows());
    let pairs = len.div_ceil(2);
    let scale = Scale::new(path, part, a, b, batch, block);
    let cut = |pieces, operand: &Operand| if pieces == 1 { 0 } else { magnitude_bits(operand.digits()) / 2 };
    let (cut_a, cut_b) = (cut(PA, a), cut(PB, b));
    let depth = pairs_held(a, b, cut_a + cut_b).min(DEPTH);
    let width = NV * LANES;
    let panel_words = pairs * PB * width;
    let mut panels = vec![0u32; n.div_ceil(width) * panel_words];
    panels.par_chunks_mut(panel_words).enumerate().for_each(|(panel, words)| {
        let rows = (0..width.min(n - panel * width)).map(|i| b.row(batch, panel * width + i));
        pack(path, rows, first..first + len, [PB, width], cut_b, words);
    });
    // Whole tiles, as far as there are rows.
    let height = band_height(4, 1, m, BAND_ROWS).next_multiple_of(ROWS);
    bands(out, 1, m, n, height).into_par_iter().for_each(|band| {
        let Band { row, out, .. } = band;
        let rows = out.len() / n;
        let tile_words = pairs * PA * ROWS;
        let mut tiles = vec![0u32; rows.div_ceil(ROWS) * tile_words];
        for (tile, words) in tiles.chunks_exact_mut(tile_words).enumerate() {
            let rows = (tile * ROWS..rows.min((tile + 1) * ROWS)).map(|i| a.row(batch, row + i));
            pack(path, rows, first..first + len, [PA, ROWS], cut_a, words);
        }
        let mut sums = vec![[0i64; WIDTH_MAX]; rows.next_multiple_of(ROWS)];
        for (panel, b) in panels.chunks_exact(panel_words).enumerate() {
            sums.fill([0; WIDTH_MAX]);
            for start in (0..pairs).step_by(depth) {
                let count = depth.min(pairs - start);
                let b = &b[start * PB * width..][..count * PB * width];
                for (a, sums) in tiles.chunks_exact(tile_words).zip(sums.chunks_exact_mut(ROWS)) {
                    let a = &a[start * PA * ROWS..][..count * PA * ROWS];
                    // SAFETY: `product` runs where AVX2 was detected.
                    unsafe { kernel::<PA, PB, SUMS, NV>(a, b, cut_a + cut_b, sums) };
                }
            }
            let column = panel * width;
            let columns = width.min(n - column);
            for (i, (sums, out)) in sums.iter().zip(out.chunks_exact_mut(n)).enumerate() {
                i64::scale_back(&scale, row + i, column, &sums[..columns], &mut out[column..][..columns]);
            }
        }
    });
}

/// Rows of integers as `[pair of K][piece][row]`, two 16-bit integers a word; `to` has `rows` rows in each of `pieces` pieces and is
/// zero where there are none.
fn pack<'a>(
    path: Path,
    integers: impl Iterator<Item = &'a [i32]>,
    k: std::ops::Range<usize>,
    [pieces, rows]: [usize; 2],
    cut: u32,
    to: &mut [u32],
) {
    let halves = [Piece::Low(cut), Piece::High(cut)];
    let pieces = if pieces == 1 { &[Piece::Whole][..] } else { &halves };
    let words = k.len().div_ceil(2);
    let mut planes = vec![0; pieces.len() * words];
    for (row, q) in integers.enumerate() {
        for (piece, plane) in pieces.iter().zip(planes.chunks_exact_mut(words)) {
            pair_words(path, &q[k.clone()], *piece, plane);
        }
        interleave(&planes, words, rows, row, to);
    }
}

vectorised! {
    /// Pairs of pieces of integers as words; an odd one out is paired with 0.
    fn pair_words(q: &[i32], piece: Piece, out: &mut [u32]) {
        let pairs = q.chunks_exact(2);
        let last = pairs.remainder();
        for (word, pair) in out.iter_mut().zip(pairs) {
            *word = (piece.of(pair[0]) as u32 & 0xffff) | (piece.of(pair[1]) as u32) << 16;
        }
        if let [q] = last {
            out[out.len() - 1] = piece.of(*q) as u32 & 0xffff;
        }
    }
}

/// Adds the dot products of a tile of rows and a panel of columns to `sums`: those of the second pieces count 2^`cut` times.
#[target_feature(enable = "avx2")]
fn kernel<const PA: usize, const PB: usize, const SUMS: usize, const NV: usize>(
    a: &[u32],
    b: &[u32],
    cut: u32,
    sums: &mut [[i64; WIDTH_MAX]],
) {
    let mut acc = [[[_mm256_setzero_si256(); NV]; ROWS]; SUMS];
    for (a, b) in a.chunks_exact(PA * ROWS).zip(b.chunks_exact(PB * NV * LANES)) {
        let mut vb = [[_mm256_setzero_si256(); NV]; PB];
        for (e, vb) in vb.iter_mut().enumerate() {
            for (v, vb) in vb.iter_mut().enumerate() {
                let words = &b[(e * NV + v) * LANES..][..LANES];
                // SAFETY: the slice holds one vector.
                *vb = unsafe { _mm256_loadu_si256(words.as_ptr().cast::<__m256i>()) };
            }
        }
        for r in 0..ROWS {
            for d in 0..PA {
                let va = _mm256_set1_epi32(a[d * ROWS + r] as i32);
                for (e, vb) in vb.iter().enumerate() {
                    for (acc, &vb) in acc[d + e][r].iter_mut().zip(vb) {
                        *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(va, vb));
                    }
                }
            }
        }
    }
    for (s, acc) in acc.iter().enumerate() {
        for (acc, sums) in acc.iter().zip(sums.iter_mut()) {
            for (v, &acc) in acc.iter().enumerate() {
                let mut lanes = [0i32; LANES];
                // SAFETY: the array holds one vector.
                unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast::<__m256i>(), acc) };
                for (sum, lane) in sums[v * LANES..].iter_mut().zip(lanes) {
                    *sum += i64::from(lane) << (cut * s as u32);
                }
            }
        }
    }
}
