//! Integer products by AVX-512 VNNI, whose instructions multiply short integers and add the products to lanes of 32 bits.
//!
//! A [`Form`] defines the cut of integers in words: digits as [`bytes`], or [`halves`] of integers of three digits. The words of
//! b are [`packed`]. The words of a are packed too, except for patches, which are read in place from their [`images`].

mod bytes;
mod form;
mod halves;
mod images;
mod packed;
mod runs;

use std::ops::Range;

use rayon::prelude::*;

use super::bands::{Band, band_height, bands};
use super::operand::Operand;
use super::scale_back::{Scale, Sum, fits_i64, product_bits};
use super::simd::Path;
use bytes::Bytes;
use form::{Form, LANES};
use halves::Halves;
use images::Images;
use packed::{Panels, Rows};
use runs::{Runs, Words};
use tiebreak_contract::arith::digits::ProductPart;

/// Rows of a band: their packed words stay in the second-level cache while panels of b pass.
const BAND_ROWS: usize = 64;
/// Columns that a band of rows adds up together. Their sums stay in the second-level cache while words of K pass.
const GROUP_COLUMNS: usize = 512;
/// Rows of an output that are transposed together: a cache line of it.
const TURNED: usize = 16;

/// True if this kernel computes products of these digits and this length.
pub(super) fn computes(a: &Operand, b: &Operand) -> bool {
    // Unsigned digits make partial sums up to four times as large.
    let more = match (a.digits(), b.digits()) {
        (1, 1) | (2, 2) | (3, 2) | (2, 3) => 3,
        (3, 3) => 0,
        _ => return false,
    };
    a.k() > 0 && fits_i64(product_bits(a, b) + more, a.block_range(0).1)
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
    let (m, n) = (a.rows(), b.rows());
    if batch == 1 && a.images().is_none() && b.images().is_some() {
        // Images are read in place on the left side only.
        let mut turned = vec![0; out.len()];
        product(path, part, b, a, batch, &mut turned);
        return out
            .chunks_exact_mut(m * n)
            .zip(turned.chunks_exact(m * n))
            .for_each(|(out, q)| turn(q, n, out));
    }
    out.par_chunks_mut(m * n).enumerate().for_each(|(matrix, out)| {
        let at = [matrix / batch, matrix % batch];
        match (a.digits(), b.digits()) {
            (1, 1) => matrix_product::<Bytes<1, 1, 1, 4>>(path, part, [a, b], at, out),
            (2, 2) => matrix_product::<Bytes<2, 2, 3, 2>>(path, part, [a, b], at, out),
            (3, 2) => matrix_product::<Bytes<3, 2, 4, 1>>(path, part, [a, b], at, out),
            (2, 3) => matrix_product::<Bytes<2, 3, 4, 1>>(path, part, [a, b], at, out),
            _ if n <= LANES => matrix_product::<Halves<8, 1>>(path, part, [a, b], at, out),
            _ => matrix_product::<Halves<4, 2>>(path, part, [a, b], at, out),
        }
    });
}

/// Transposes a matrix `[n, m]` to `[m, n]`.
fn turn(from: &[u32], n: usize, to: &mut [u32]) {
    let m = from.len() / n;
    to.par_chunks_mut(TURNED * n).enumerate().for_each(|(i, to)| {
        for (column, from) in from.chunks_exact(m).enumerate() {
            for (to, &x) in to[column..].iter_mut().step_by(n).zip(&from[i * TURNED..]) {
                *to = x;
            }
        }
    });
}

/// The rows of a band as tiles.
enum Tiles<'t, F> {
    Packed(&'t Rows),
    /// Rows of patches, and the first index of K.
    Images(&'t Images<'t, F>, Range<usize>, usize),
}

impl<F: Form> Tiles<'_, F> {
    fn count(&self) -> usize {
        match self {
            Tiles::Packed(rows) => rows.tiles(),
            Tiles::Images(_, rows, _) => rows.len().div_ceil(F::ROWS),
        }
    }

    fn words(&self) -> Words<'_> {
        match self {
            Tiles::Packed(rows) => rows.words::<F>(),
            Tiles::Images(images, ..) => images.words(),
        }
    }

    /// Fills in the runs of a tile's rows for these words of K.
    fn runs(&self, tile: usize, words: Range<usize>, runs: &mut Runs) {
        match self {
            Tiles::Packed(rows) => rows.runs::<F>(tile, words, runs),
            Tiles::Images(images, rows, first) => {
                let of_tile = rows.start + tile * F::ROWS..rows.end.min(rows.start + (tile + 1) * F::ROWS);
                images.runs(of_tile, *first, words, runs);
            }
        }
    }
}

/// The memory for computing a band, with any contents.
#[derive(Default)]
struct Memory {
    packed: Rows,
    sums: Vec<i64>,
    /// The runs of each tile.
    runs: Vec<Runs>,
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
    let images = a.images().and_then(|(gather, q)| Images::<F>::cut(gather, q));
    // Rows are packed sixteen at a time.
    let multiple = if images.is_some() { F::ROWS } else { LANES };
    let height = band_height(4, 1, m, multiple, BAND_ROWS);
    bands(out, 1, m, n, height).into_par_iter().for_each_init(Memory::default, |memory, band| {
        let Memory { packed, sums, runs } = memory;
        let Band { row, out, .. } = band;
        let rows = row..row + out.len() / n;
        let tiles = match &images {
            Some(images) => Tiles::Images(images, rows, first),
            None => {
                packed.pack::<F>(a, batch, rows, places.clone());
                Tiles::Packed(packed)
            }
        };
        // Sums that are added to once stay in the first-level cache if the sums of a panel are rounded before those of the next
        // panel are made.
        let panels_of_group = if panels.words_of_k() <= F::FLUSH { 1 } else { GROUP_COLUMNS / F::WIDTH };
        for group in (0..n.div_ceil(F::WIDTH)).step_by(panels_of_group) {
            let group = group..n.div_ceil(F::WIDTH).min(group + panels_of_group);
            add_up(&tiles, &panels, group.clone(), sums, runs);
            let of_panels = sums.chunks_exact(tiles.count() * F::ROWS * F::WIDTH);
            for (column, sums) in group.map(|panel| panel * F::WIDTH).zip(of_panels) {
                let columns = panels.columns(column / F::WIDTH);
                for (i, (sums, out)) in sums.chunks_exact(F::WIDTH).zip(out.chunks_exact_mut(n)).enumerate() {
                    i64::scale_back(&scale, row + i, column, &sums[..columns], &mut out[column..][..columns]);
                }
            }
        }
    });
}

/// The sums of a band's rows and some panels, `[panel][row][column]`. Words of K are the outer loop: the words of a panel stay in
/// the first caches while tiles pass, and the words of the rows while panels pass.
fn add_up<F: Form>(
    tiles: &Tiles<'_, F>,
    panels: &Panels<F>,
    group: Range<usize>,
    sums: &mut Vec<i64>,
    runs: &mut Vec<Runs>,
) {
    sums.clear();
    for panel in group.clone() {
        for _ in 0..tiles.count() * F::ROWS {
            sums.extend_from_slice(panels.surplus(panel));
        }
    }
    runs.resize_with(tiles.count(), Runs::default);
    for start in (0..panels.words_of_k()).step_by(F::FLUSH) {
        let words = start..panels.words_of_k().min(start + F::FLUSH);
        for (tile, runs) in runs.iter_mut().enumerate() {
            runs.clear();
            tiles.runs(tile, words.clone(), runs);
        }
        for (panel, sums) in group.clone().zip(sums.chunks_exact_mut(tiles.count() * F::ROWS * F::WIDTH)) {
            let b = panels.words(panel, words.clone());
            for (runs, sums) in runs.iter().zip(sums.chunks_exact_mut(F::ROWS * F::WIDTH)) {
                // SAFETY: `product` runs on the VNNI path only, which was detected.
                unsafe { F::add(&tiles.words(), runs, b, panels.columns(panel), sums) };
            }
        }
    }
}
