//! Integer products by int8 dot products: AVX-512 VNNI's `vpdpbusd` adds four products of an unsigned and a signed
//! byte to each i32 lane.
//!
//! Operands split into planes of balanced digits in -128..=127. a's digits are stored plus 128, so that they are
//! unsigned; the surplus 128 * (sum of b's digits) is taken off at the end. Digits d of a and e of b have weight
//! 256^(d + e), so pairs of one weight share an accumulator.

use std::arch::x86_64::{
    __m512i, _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_si512,
    _mm512_storeu_si512,
};

use rayon::prelude::*;

use super::bands::{Band, band_height, bands, interleave};
use super::operand::Operand;
use super::scale_back::{Scale, Sum, fits_i64, product_bits};
use super::simd::{Path, vectorised};
use crate::arith::digits::ProductPart;

/// Rows of a register tile, and columns of a vector.
const ROWS: usize = 4;
const LANES: usize = 16;
/// The most places of K between two flushes, a multiple of 4: an accumulator adds at most 3 pairs of 255 * 128.
const FLUSH_K: usize = 16_384;
const _: () = assert!(FLUSH_K * 3 * 255 * 128 < 1 << 31);
/// Rows of a band: their packed digits stay in the first-level cache together with a panel of b.
const BAND_ROWS: usize = 64;

/// Whether this kernel computes products of these digits and this length.
pub(super) fn computes(a: &Operand, b: &Operand) -> bool {
    let pair = matches!((a.digits(), b.digits()), (1, 1) | (2, 2) | (3, 2) | (2, 3) | (3, 3));
    // Unsigned digits make partial sums up to four times as large.
    pair && a.k() > 0 && fits_i64(product_bits(a, b) + 3, a.block_range(0).1)
}

/// `out[block, batch, m, n]`, not empty, for operands that [`computes`] accepts.
pub(super) fn product(
    path: Path,
    part: ProductPart,
    a: &Operand,
    b: &Operand,
    batch: usize,
    out: &mut [u32],
) {
    let size = a.rows() * b.rows();
    out.par_chunks_mut(size).enumerate().for_each(|(matrix, out)| {
        let (block, batch) = (matrix / batch, matrix % batch);
        match (a.digits(), b.digits()) {
            (1, 1) => matrix_product::<1, 1, 1, 4>(path, part, a, b, block, batch, out),
            (2, 2) => matrix_product::<2, 2, 3, 2>(path, part, a, b, block, batch, out),
            (3, 2) => matrix_product::<3, 2, 4, 1>(path, part, a, b, block, batch, out),
            (2, 3) => matrix_product::<2, 3, 4, 1>(path, part, a, b, block, batch, out),
            _ => matrix_product::<3, 3, 5, 1>(path, part, a, b, block, batch, out),
        }
    });
}

/// One block of one sample of the batch: `DA` and `DB` digits, `SUMS` = DA + DB - 1, `NV` vectors of columns.
fn matrix_product<const DA: usize, const DB: usize, const SUMS: usize, const NV: usize>(
    path: Path,
    part: ProductPart,
    a: &Operand,
    b: &Operand,
    block: usize,
    batch: usize,
    out: &mut [u32],
) {
    let (first, len) = a.block_range(block);
    let (m, n) = (a.rows(), b.rows());
    let scale = Scale::new(path, part, a, b, batch, block);
    let panels = Panels::<DB, NV>::pack(path, b, DA, batch, first, len);
    let height = band_height(4, 1, m, BAND_ROWS);
    bands(out, 1, m, n, height).into_par_iter().for_each(|band| {
        let Band { row, out, .. } = band;
        let rows = out.len() / n;
        let packed = pack_rows::<DA>(path, a, batch, row, rows, first, len);
        let words = len.div_ceil(4);
        let tile_words = words * DA * ROWS;
        let mut sums = [[0i64; LANES * 4]; ROWS];
        for panel in 0..n.div_ceil(NV * LANES) {
            let column = panel * NV * LANES;
            let columns = (n - column).min(NV * LANES);
            for (tile, packed) in packed.chunks_exact(tile_words).enumerate() {
                for row in &mut sums {
                    row[..NV * LANES].copy_from_slice(panels.surplus(panel));
                }
                for start in (0..words).step_by(FLUSH_K / 4) {
                    let count = (FLUSH_K / 4).min(words - start);
                    let a = &packed[start * DA * ROWS..][..count * DA * ROWS];
                    let b = panels.words(panel, start, count);
                    // SAFETY: `product` runs on the VNNI path only, which was detected.
                    unsafe { kernel::<DA, DB, SUMS, NV>(a, b, &mut sums) };
                }
                for (i, sums) in sums.iter().enumerate().take(rows - (tile * ROWS).min(rows)) {
                    let to = &mut out[(tile * ROWS + i) * n + column..][..columns];
                    i64::scale_back(&scale, row + tile * ROWS + i, column, &sums[..columns], to);
                }
            }
        }
    });
}

/// 128 in every digit: with this added, the bytes of an integer are its balanced digits plus 128.
fn offset(digits: usize) -> i64 {
    (0..digits).map(|d| 128 << (8 * d)).sum()
}

vectorised! {
    /// The digits of a row as words of four places of K, `[digit][word]`, each digit plus 128, then `xor`ed: with 0x80
    /// that gives the signed digits. Places past the end are zeros.
    fn digit_words(q: &[i32], digits: usize, xor: u32, out: &mut [u32]) {
        let offset = offset(digits) as u32;
        let words = out.len() / digits;
        let whole = q.len() / 4;
        for (d, out) in out.chunks_exact_mut(words).enumerate() {
            let shift = 8 * d as u32;
            for (word, q) in out.iter_mut().zip(q.chunks_exact(4)) {
                let byte = |i: usize| ((q[i] as u32).wrapping_add(offset) >> shift) & 255;
                *word = (byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24) ^ xor;
            }
            if whole < words {
                let mut word = 0;
                for i in 0..4 {
                    let q = q.get(4 * whole + i).map_or(0, |&q| q as u32);
                    word |= ((q.wrapping_add(offset) >> shift) & 255) << (8 * i);
                }
                out[whole] = word ^ xor;
            }
        }
    }
}

/// Rows of a as tiles: `[tile][word of K][digit][row of the tile]`, digits plus 128; missing rows are zeros.
fn pack_rows<const DA: usize>(
    path: Path,
    a: &Operand,
    batch: usize,
    row: usize,
    rows: usize,
    first: usize,
    len: usize,
) -> Vec<u32> {
    let words = len.div_ceil(4);
    let mut packed = vec![0x8080_8080; rows.div_ceil(ROWS) * words * DA * ROWS];
    let (mut planes, mut scratch) = (vec![0; words * DA], Vec::new());
    for i in 0..rows {
        let q = a.row(batch, row + i, first..first + len, &mut scratch);
        digit_words(path, q, DA, 0, &mut planes);
        interleave(&planes, words, ROWS, i % ROWS, &mut packed[i / ROWS * words * DA * ROWS..]);
    }
    packed
}

/// All rows of b as panels of `NV * LANES` columns of the product: `[panel][word of K][digit][vector][lane]`.
struct Panels<const DB: usize, const NV: usize> {
    words: Vec<u32>,
    words_of_k: usize,
    /// Minus the surplus of a's unsigned digits, for each column.
    surplus: Vec<i64>,
}

impl<const DB: usize, const NV: usize> Panels<DB, NV> {
    const WIDTH: usize = NV * LANES;

    /// `digits_a` planes of a are stored plus 128: together plus 128 * (1 + 256 + ...).
    fn pack(path: Path, b: &Operand, digits_a: usize, batch: usize, first: usize, len: usize) -> Self {
        let offset = offset(digits_a);
        let (n, words_of_k) = (b.rows(), len.div_ceil(4));
        let panels = n.div_ceil(Self::WIDTH);
        let mut words = vec![0u32; panels * words_of_k * DB * Self::WIDTH];
        let mut surplus = vec![0i64; panels * Self::WIDTH];
        let panel_words = (words_of_k * DB * Self::WIDTH).max(1);
        words.par_chunks_mut(panel_words).zip(surplus.par_chunks_mut(Self::WIDTH)).enumerate().for_each(
            |(panel, (words, surplus))| {
                let columns = (n - panel * Self::WIDTH).min(Self::WIDTH);
                let (mut planes, mut scratch) = (vec![0; words_of_k * DB], Vec::new());
                for (c, surplus) in surplus.iter_mut().enumerate().take(columns) {
                    let row = b.row(batch, panel * Self::WIDTH + c, first..first + len, &mut scratch);
                    digit_words(path, row, DB, 0x8080_8080, &mut planes);
                    interleave(&planes, words_of_k, Self::WIDTH, c, words);
                    // The sum over digits e of 256^e times the digits is the sum of the integers.
                    *surplus = -offset * row.iter().map(|&q| i64::from(q)).sum::<i64>();
                }
            },
        );
        Panels { words, words_of_k, surplus }
    }

    fn words(&self, panel: usize, start: usize, count: usize) -> &[u32] {
        &self.words[(panel * self.words_of_k + start) * DB * Self::WIDTH..][..count * DB * Self::WIDTH]
    }

    fn surplus(&self, panel: usize) -> &[i64] {
        &self.surplus[panel * Self::WIDTH..][..Self::WIDTH]
    }
}

/// Adds the dot products of a tile of rows and a panel of columns to `sums`.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn kernel<const DA: usize, const DB: usize, const SUMS: usize, const NV: usize>(
    a: &[u32],
    b: &[u32],
    sums: &mut [[i64; LANES * 4]; ROWS],
) {
    let mut acc = [[[_mm512_setzero_si512(); NV]; ROWS]; SUMS];
    for (a, b) in a.chunks_exact(DA * ROWS).zip(b.chunks_exact(DB * NV * LANES)) {
        for e in 0..DB {
            let mut vb = [_mm512_setzero_si512(); NV];
            for (v, vb) in vb.iter_mut().enumerate() {
                // SAFETY: the chunk holds DB * NV vectors of 16 words.
                *vb = unsafe {
                    _mm512_loadu_si512(b[(e * NV + v) * LANES..][..LANES].as_ptr().cast::<__m512i>())
                };
            }
            for d in 0..DA {
                for r in 0..ROWS {
                    let va = _mm512_set1_epi32(a[d * ROWS + r] as i32);
                    for v in 0..NV {
                        acc[d + e][r][v] = _mm512_dpbusd_epi32(acc[d + e][r][v], va, vb[v]);
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
                unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast::<__m512i>(), acc) };
                for (sum, lane) in sums[v * LANES..].iter_mut().zip(lanes) {
                    *sum += i64::from(lane) << (8 * s);
                }
            }
        }
    }
}
