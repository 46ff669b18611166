//! Integer products by AVX-512 VNNI, whose instructions multiply short integers and add the products to lanes of 32 bits.
//!
//! A [`Form`] says how integers are cut in words: digits as [`bytes`], or [`halves`] of integers of three digits; [`packed`] lays them.

mod bytes;
mod form;
mod halves;
mod packed;

use std::ops::Range;

use rayon::prelude::*;

use super::bands::{Band, band_height, bands};
use super::operand::Operand;
use super::scale_back::{Scale, Sum, fits_i64, product_bits};
use super::simd::Path;
use crate::arith::digits::ProductPart;
use bytes::Bytes;
use form::{Form, ROWS};
use halves::Halves;
use packed::{Panels, Rows};

/// Rows of a band: their packed words stay in the second-level cache while panels of b pass.
const BAND_ROWS: usize = 64;
/// Columns that a band of rows adds up together: their sums stay in the second-level cache while words of K pass.
const GROUP_COLUMNS: usize = 512;

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
        let at = [matrix / batch, matrix % batch];
        match (a.digits(), b.digits()) {
            (1, 1) => matrix_product::<Bytes<1, 1, 1, 4>>(path, part, [a, b], at, out),
            (2, 2) => matrix_product::<Bytes<2, 2, 3, 2>>(path, part, [a, b], at, out),
            (3, 2) => matrix_product::<Bytes<3, 2, 4, 1>>(path, part, [a, b], at, out),
            (2, 3) => matrix_product::<Bytes<2, 3, 4, 1>>(path, part, [a, b], at, out),
            _ => matrix_product::<Halves>(path, part, [a, b], at, out),
        }
    });
}

/// One block of one sample of the batch.
fn matrix_product<F: Form>(
    path: Path,
    part: ProductPart,
    [a, b]: [&Operand; 2],
    [block, batch]: [usize; 2],
    out: &mut [u32],
) {
    let (first, len) = a.block_range(block);
    let (m, n) = (a.rows(), b.rows());
    let scale = Scale::new(path, part, a, b, batch, block);
    let places = first..first + len;
    let panels = Panels::<F>::pack(b, batch, places.clone());
    let height = band_height(4, 1, m, BAND_ROWS);
    bands(out, 1, m, n, height).into_par_iter().for_each_init(Default::default, |(packed, sums), band| {
        let (packed, sums): (&mut Rows, &mut Vec<i64>) = (packed, sums);
        let Band { row, out, .. } = band;
        packed.pack::<F>(a, batch, row..row + out.len() / n, places.clone());
        // Sums that are added to once stay in the first-level cache if those of a panel are rounded before the next panel's are made.
        let panels_of_group = if panels.words_of_k() <= F::FLUSH { 1 } else { GROUP_COLUMNS / F::WIDTH };
        for group in (0..n.div_ceil(F::WIDTH)).step_by(panels_of_group) {
            let group = group..n.div_ceil(F::WIDTH).min(group + panels_of_group);
            add_up(packed, &panels, group.clone(), sums);
            let of_panels = sums.chunks_exact(packed.tiles() * ROWS * F::WIDTH);
            for (column, sums) in group.map(|panel| panel * F::WIDTH).zip(of_panels) {
                let columns = (n - column).min(F::WIDTH);
                for (i, (sums, out)) in sums.chunks_exact(F::WIDTH).zip(out.chunks_exact_mut(n)).enumerate() {
                    i64::scale_back(&scale, row + i, column, &sums[..columns], &mut out[column..][..columns]);
                }
            }
        }
    });
}

/// The sums of packed rows and some panels, `[panel][row][column]`. Words of K are outside: those of a panel stay in the first
/// caches while tiles pass, those of the rows while panels pass.
fn add_up<F: Form>(rows: &Rows, panels: &Panels<F>, group: Range<usize>, sums: &mut Vec<i64>) {
    sums.clear();
    for panel in group.clone() {
        for _ in 0..rows.tiles() * ROWS {
            sums.extend_from_slice(panels.surplus(panel));
        }
    }
    for start in (0..panels.words_of_k()).step_by(F::FLUSH) {
        let words = start..panels.words_of_k().min(start + F::FLUSH);
        for (panel, sums) in group.clone().zip(sums.chunks_exact_mut(rows.tiles() * ROWS * F::WIDTH)) {
            let b = panels.words(panel, words.clone());
            for (tile, sums) in sums.chunks_exact_mut(ROWS * F::WIDTH).enumerate() {
                // SAFETY: `product` runs on the VNNI path only, which was detected.
                unsafe { F::add(rows.words(tile, words.clone()), b, sums) };
            }
        }
    }
}
