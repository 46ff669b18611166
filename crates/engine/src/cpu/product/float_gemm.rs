//! Integer products by floating-point products of the `gemm` crate. The products are exact because no partial sum exceeds the
//! format's range of exact integers: 2^24 in binary32, 2^53 in binary64. Longer sums are added as integers.

use rayon::prelude::*;

use super::super::library::{Factor, Number};
use super::bands::{Band, Piece, band_height, bands};
use super::operand::Operand;
use super::scale_back::{Scale, Sum, fits_i64, product_bits};
use super::simd::{Path, vectorised};
use tiebreak_contract::arith::digits::{ProductPart, magnitude_bits};
use tiebreak_contract::arith::float;

/// Rows and columns of a tile, and the most of K in one call.
const TILE_M: usize = 512;
const TILE_N: usize = 256;
const TILE_K: usize = 1024;
/// The least K for which splitting an operand pays: shorter calls would spend their time outside the multiplications.
const WORTHWHILE_K: usize = 256;

/// A format whose integers up to 2^BITS are exact.
trait Exact: Number {
    const BITS: u32;
    fn convert(path: Path, q: &[i32], piece: Piece, out: &mut [Self]);
    fn add_to<S: Sum>(self, sum: &mut S, shift: u32);
    /// Rounds sums `[rows, columns]` that are whole numbers and complete.
    fn scale_back(scale: &Scale<'_>, row: usize, column: usize, sums: &[Self], out: &mut [u32]);
}

macro_rules! exact {
    ($type:ty, $bits:literal, $convert:ident, $round:ident) => {
        impl Exact for $type {
            const BITS: u32 = $bits;
            fn convert(path: Path, q: &[i32], piece: Piece, out: &mut [Self]) {
                $convert(path, q, piece, out);
            }
            fn add_to<S: Sum>(self, sum: &mut S, shift: u32) {
                *sum += S::from(self as i64) << shift;
            }
            fn scale_back(scale: &Scale<'_>, row: usize, column: usize, sums: &[Self], out: &mut [u32]) {
                if !scale.rounds() {
                    let sums: Vec<i64> = sums.iter().map(|&sum| sum as i64).collect();
                    return i64::scale_back(scale, row, column, &sums, out);
                }
                let (row, columns) = scale.factors(row, column, sums.len());
                $round(scale.path, sums, row, columns, out);
            }
        }
        vectorised! {
            fn $convert(q: &[i32], piece: Piece, out: &mut [$type]) {
                for (x, &q) in out.iter_mut().zip(q) {
                    *x = piece.of(q) as $type;
                }
            }
        }
        vectorised! {
            /// Rounds as `scale_back::round_row`: the product of an integer below 2^53 and powers of two is exact.
            fn $round(sums: &[$type], row: f64, columns: &[f64], out: &mut [u32]) {
                for ((&sum, &column), out) in sums.iter().zip(columns).zip(out) {
                    // A sum of 0 may be -0 here; adding +0 makes it +0 and changes nothing else.
                    let x = ((f64::from(sum) + 0.0) * row * column) as f32;
                    *out = if x.is_nan() { float::NAN } else { x.to_bits() };
                }
            }
        }
    };
}
exact!(f32, 24, convert_f32, round_f32);
exact!(f64, 53, convert_f64, round_f64);

/// `out[block, batch, m, n]`, not empty.
pub(super) fn product(
    path: Path,
    part: ProductPart,
    a: &Operand,
    b: &Operand,
    batch: usize,
    out: &mut [u32],
) {
    let longest = a.block_range(0).1;
    match (product_bits(a, b), fits_i64(product_bits(a, b), longest)) {
        (bits, _) if bits + WORTHWHILE_K.ilog2() <= <f32 as Exact>::BITS => {
            compute::<f32, i64>(path, part, a, b, batch, out)
        }
        (_, true) => compute::<f64, i64>(path, part, a, b, batch, out),
        (_, false) => compute::<f64, i128>(path, part, a, b, batch, out),
    }
}

fn compute<F: Exact, S: Sum>(
    path: Path,
    part: ProductPart,
    a: &Operand,
    b: &Operand,
    batch: usize,
    out: &mut [u32],
) {
    let (m, n) = (a.rows(), b.rows());
    let height = band_height(2, out.len() / (m * n), m, 16, TILE_M);
    bands(out, batch, m, n, height).into_par_iter().for_each_init(Memory::<F, S>::default, |memory, band| {
        compute_band(path, part, [a, b], memory, band)
    });
}

/// The memory for computing a band, with any contents. The memory is kept from one band to the next, since new memory costs as
/// much as a small product.
struct Memory<F, S> {
    tiles: [Vec<F>; 3],
    sums: Vec<S>,
    row: Vec<i32>,
}

impl<F, S> Default for Memory<F, S> {
    fn default() -> Self {
        Memory { tiles: Default::default(), sums: Vec::new(), row: Vec::new() }
    }
}

/// `len` elements of memory.
fn at_least<T: Copy + Default>(memory: &mut Vec<T>, len: usize) -> &mut [T] {
    if memory.len() < len {
        memory.resize(len, T::default());
    }
    &mut memory[..len]
}

fn compute_band<F: Exact, S: Sum>(
    path: Path,
    part: ProductPart,
    [a, b]: [&Operand; 2],
    memory: &mut Memory<F, S>,
    band: Band<'_>,
) {
    let Band { block, batch, row, out } = band;
    let n = b.rows();
    let rows = out.len() / n;
    let scale = Scale::new(path, part, a, b, batch, block);
    let (first, len) = a.block_range(block);

    // If whole integers would allow only short sums, a's integers are cut in halves of `half` bits. One more bit takes the
    // carry of the low half: |high| <= 2^(m_a - shift), |low| <= 2^(shift - 1).
    let (bits, bits_a) = (product_bits(a, b), magnitude_bits(a.digits()));
    let half = bits_a / 2;
    let split = bits + WORTHWHILE_K.ilog2() > F::BITS;
    let pieces: &[Piece] = if split { &[Piece::Low(half), Piece::High(half)] } else { &[Piece::Whole] };
    let term_bits = if split { bits - half } else { bits };
    // Short enough sums stay in the format until the rounding: no integers are needed to add them.
    let stays = !split && (len as u128) << bits <= 1 << F::BITS;
    let depth = (1usize << (F::BITS - term_bits)).min(TILE_K);
    assert!((depth as u128) << term_bits <= 1 << F::BITS, "a partial sum may leave the exact integers");

    let width = n.min(TILE_N);
    let depth = depth.min(len.max(1));
    let Memory { tiles: [tile_a, tile_b, tile_c], sums, row: scratch } = memory;
    let [tile_a, tile_b] = [at_least(tile_a, rows * depth), at_least(tile_b, width * depth)];
    let (tile_c, sums) =
        (at_least(tile_c, rows * width), at_least(sums, if stays { 0 } else { rows * width }));
    for column in (0..n).step_by(width) {
        let columns = width.min(n - column);
        sums.fill(S::default());
        for start in (first..first + len).step_by(depth) {
            let depth = depth.min(first + len - start);
            for (j, to) in tile_b.chunks_exact_mut(depth).take(columns).enumerate() {
                let q = b.row(batch, column + j, start..start + depth, scratch);
                F::convert(path, q, Piece::Whole, to);
            }
            for &piece in pieces {
                for (i, to) in tile_a.chunks_exact_mut(depth).take(rows).enumerate() {
                    F::convert(path, a.row(batch, row + i, start..start + depth, scratch), piece, to);
                }
                let continues = stays && start > first;
                multiply(rows, columns, depth, tile_a, tile_b, tile_c, continues);
                if stays {
                    continue;
                }
                for (&x, sum) in tile_c.iter().zip(&mut sums[..rows * columns]) {
                    x.add_to(sum, piece.shift());
                }
            }
        }
        for i in 0..rows {
            let out = &mut out[i * n + column..][..columns];
            if stays {
                F::scale_back(&scale, row + i, column, &tile_c[i * columns..][..columns], out);
                continue;
            }
            S::scale_back(&scale, row + i, column, &sums[i * columns..][..columns], out);
        }
    }
}

/// Computes c = a b^T, or c + a b^T, on this thread: a `[rows, depth]`, b `[columns, depth]`, c `[rows, columns]`.
fn multiply<F: Exact>(
    rows: usize,
    columns: usize,
    depth: usize,
    a: &[F],
    b: &[F],
    c: &mut [F],
    continues: bool,
) {
    assert!(a.len() >= rows * depth && b.len() >= columns * depth && c.len() >= rows * columns);
    let factor = |first: &[F]| Factor { first: first.as_ptr(), row: depth, along: 1 };
    // SAFETY: the lengths are asserted, and c is borrowed mutably, so it overlaps neither factor.
    unsafe { F::product([rows, columns, depth], factor(a), factor(b), c.as_mut_ptr(), continues) };
}
