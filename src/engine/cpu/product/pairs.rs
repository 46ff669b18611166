//! Integer products by 16-bit dot products: AVX2's `vpmaddwd` adds two products of 16-bit integers in each i32 lane.
//!
//! Integers of two digits fill 15 bits, so sums of their products would leave an i32 after a few places of K. One side is
//! therefore cut in a low and a high half ([`Piece`]), each with an accumulator of its own that holds hundreds of places. Three
//! digits against one or two work likewise, the longer side cut; more need both sides cut and are slower than binary64.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_set1_epi32,
    _mm256_setzero_si256, _mm256_storeu_si256,
};

use std::ops::Range;

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

/// A K from which on parts of it are tasks, if the output has so few elements that each task may have sums of its own.
const LONG_K: usize = 4096;
const LONG_OUTPUT: usize = 1 << 16;

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
        // Patches of 16-bit integers are moved as they are.
        (2, 2) if b.has_halves() => matrix_product::<2, 1, 2, 1>,
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
    if len >= LONG_K && m * n <= LONG_OUTPUT {
        let sums = long_sums::<PA, PB, SUMS, NV>(path, [a, b], [block, batch], [cut_a, cut_b], depth);
        for (panel, sums) in sums.chunks_exact(m.next_multiple_of(ROWS)).enumerate() {
            let column = panel * width;
            for (row, (sums, out)) in sums.iter().zip(out.chunks_exact_mut(n)).enumerate() {
                let out = &mut out[column..n.min(column + width)];
                i64::scale_back(&scale, row, column, &sums[..out.len()], out);
            }
        }
        return;
    }
    let panel_words = pairs * PB * width;
    let mut panels = vec![0u32; n.div_ceil(width) * panel_words];
    panels.par_chunks_mut(panel_words).enumerate().for_each(|(panel, words)| {
        let rows = panel * width..n.min((panel + 1) * width);
        pack(path, (b, batch, rows), first..first + len, [PB, width], cut_b, words);
    });
    // Whole tiles, as far as there are rows.
    let height = band_height(4, 1, m, BAND_ROWS).next_multiple_of(ROWS);
    bands(out, 1, m, n, height).into_par_iter().for_each(|band| {
        let Band { row, out, .. } = band;
        let rows = out.len() / n;
        let tile_words = pairs * PA * ROWS;
        let mut tiles = vec![0u32; rows.div_ceil(ROWS) * tile_words];
        for (tile, words) in tiles.chunks_exact_mut(tile_words).enumerate() {
            let rows = row + tile * ROWS..row + rows.min((tile + 1) * ROWS);
            pack(path, (a, batch, rows), first..first + len, [PA, ROWS], cut_a, words);
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

/// The sums of a product of long rows, `[panel][row][column of the panel]`: integers have no order, so tasks add parts of K, packed a
/// few places at a time.
fn long_sums<const PA: usize, const PB: usize, const SUMS: usize, const NV: usize>(
    path: Path,
    [a, b]: [&Operand; 2],
    [block, batch]: [usize; 2],
    [cut_a, cut_b]: [u32; 2],
    depth: usize,
) -> Vec<[i64; WIDTH_MAX]> {
    let ((first, len), (m, n), width) = (a.block_range(block), (a.rows(), b.rows()), NV * LANES);
    let rows = m.next_multiple_of(ROWS);
    let steps = len.div_ceil(2 * depth);
    let each = steps.div_ceil(2 * rayon::current_num_threads());
    let tasks = (0..steps.div_ceil(each)).into_par_iter().map(|task| {
        let mut sums = vec![[0i64; WIDTH_MAX]; n.div_ceil(width) * rows];
        for step in task * each..steps.min((task + 1) * each) {
            let k = first + 2 * depth * step..first + len.min(2 * depth * (step + 1));
            let pairs = k.len().div_ceil(2);
            let mut tiles = vec![0u32; pairs * PA * rows];
            for (tile, words) in tiles.chunks_exact_mut(pairs * PA * ROWS).enumerate() {
                let of = tile * ROWS..m.min((tile + 1) * ROWS);
                pack(path, (a, batch, of), k.clone(), [PA, ROWS], cut_a, words);
            }
            let mut words = vec![0u32; pairs * PB * width];
            for (panel, sums) in sums.chunks_exact_mut(rows).enumerate() {
                let of = panel * width..n.min((panel + 1) * width);
                if of.len() < width {
                    words.fill(0);
                }
                pack(path, (b, batch, of), k.clone(), [PB, width], cut_b, &mut words);
                for (a, sums) in tiles.chunks_exact(pairs * PA * ROWS).zip(sums.chunks_exact_mut(ROWS)) {
                    // SAFETY: `product` runs where AVX2 was detected.
                    unsafe { kernel::<PA, PB, SUMS, NV>(a, &words, cut_a + cut_b, sums) };
                }
            }
        }
        sums
    });
    let add = |mut sums: Vec<[i64; WIDTH_MAX]>, more: Vec<[i64; WIDTH_MAX]>| {
        sums.as_flattened_mut().iter_mut().zip(more.as_flattened()).for_each(|(sum, x)| *sum += x);
        sums
    };
    tasks.reduce_with(add).expect("K is long")
}

/// Rows of an operand's integers as `[pair of K][piece][row]`, two 16-bit integers a word; `to` has `rows` rows in each of `pieces`
/// pieces and is zero where there are none.
fn pack(
    path: Path,
    (operand, batch, of): (&Operand, usize, Range<usize>),
    k: Range<usize>,
    [pieces, rows]: [usize; 2],
    cut: u32,
    to: &mut [u32],
) {
    let halves = [Piece::Low(cut), Piece::High(cut)];
    let pieces = if pieces == 1 { &[Piece::Whole][..] } else { &halves };
    let words = k.len().div_ceil(2);
    if pieces.len() == 1 && operand.has_halves() {
        return pack_halves(operand, of, k, rows, to);
    }
    let mut planes = vec![0; pieces.len() * words];
    let mut scratch = Vec::new();
    for (row, of) in of.enumerate() {
        let q = operand.row(batch, of, k.clone(), &mut scratch);
        for (piece, plane) in pieces.iter().zip(planes.chunks_exact_mut(words)) {
            pair_words(path, q, *piece, plane);
        }
        interleave(&planes, words, rows, row, to);
    }
}

/// The same of rows that are gathered as 16-bit integers, in one piece.
fn pack_halves(operand: &Operand, of: Range<usize>, k: Range<usize>, rows: usize, to: &mut [u32]) {
    let words = k.len().div_ceil(2);
    let mut all = vec![0u32; rows * words];
    for (row, of) in all.chunks_exact_mut(words).zip(of) {
        operand.halves(of, k.clone(), bytemuck::cast_slice_mut(row));
    }
    match rows {
        ROWS => turned::<ROWS>(&all, to),
        LANES => turned::<LANES>(&all, to),
        _ => turned::<WIDTH_MAX>(&all, to),
    }
}

/// [rows][words] -> [words][rows].
fn turned<const N: usize>(rows: &[u32], to: &mut [u32]) {
    let words = rows.len() / N;
    let rows: [&[u32]; N] = std::array::from_fn(|row| &rows[row * words..][..words]);
    for (word, to) in to.as_chunks_mut::<N>().0.iter_mut().enumerate().take(words) {
        *to = std::array::from_fn(|row| rows[row][word]);
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
