//! Integer products by 16-bit dot products: AVX2's `vpmaddwd` adds two products of 16-bit integers in each i32 lane.
//!
//! Integers of two digits reach 2^14, so an i32 holds four sums of two products, and the sums of a product need more bits. Each
//! output therefore has two accumulators, both of 32 bits: `low` adds groups of such sums modulo 2^32, and `high` adds the
//! groups' upper halves. `high` times 2^16 is below the sum, by less than 2^16 for each group. The difference is `low` minus that
//! product, modulo 2^32, so the two give the sum exactly. This scheme costs half the multiplications of cutting one side's
//! integers, whose products an i32 could add for longer.
//!
//! Integers of three digits are cut in a low and a high half ([`Piece`]), and each half has a product of its own.

use std::arch::x86_64::{
    __m256d, __m256i, _CMP_UNORD_Q, _mm256_add_epi32, _mm256_blendv_ps, _mm256_castps_si256,
    _mm256_castsi256_si128, _mm256_cmp_ps, _mm256_cvtepi32_pd, _mm256_cvtpd_ps, _mm256_extracti128_si256,
    _mm256_fmadd_pd, _mm256_madd_epi16, _mm256_mul_pd, _mm256_set_m128, _mm256_set_pd, _mm256_set1_epi32,
    _mm256_set1_pd, _mm256_set1_ps, _mm256_setzero_pd, _mm256_setzero_si256, _mm256_slli_epi32,
    _mm256_srai_epi32, _mm256_storeu_pd, _mm256_sub_epi32,
};
use std::ops::Range;

use rayon::prelude::*;

use super::bands::{Band, Piece, band_height, bands};
use super::operand::Operand;
use super::planes::Plane;
use super::scale_back::{Scale, Sum, product_bits};
use super::simd::{Path, load, store};
use super::strips::{GROUP, Pair, ROWS};
use tiebreak_contract::arith::digits::{ProductPart, magnitude_bits};
use tiebreak_contract::arith::float;

/// Rows of a register tile: half a strip. The columns of a tile are a strip.
const HALF: usize = ROWS / 2;
/// Rows of a band, in whole strips. Their integers stay in the second-level cache, and the integers of short rows in the
/// first-level cache.
const BAND_ROWS: usize = 96;
const BAND_BYTES: usize = 1 << 15;
/// The most pairs of K between two flushes: `high` holds 2^15 groups of at least two pairs.
const FLUSH: usize = 1 << 15;
/// Pairs of a group where the integers are short enough: below 2^15 in absolute value, a sum of two products is below 2^26.
const LONG_GROUP: usize = 16;

/// The K from which on ranges of K are tasks, if the output is so small that each task may have sums of its own.
const LONG_K: usize = 4096;
const LONG_OUTPUT: usize = 1 << 16;

/// Integers up to 2^53 are exact in binary64.
const EXACT_BITS: u32 = 53;

/// The sums of a register tile, whole numbers: `[row][column]`; in registers, and in memory.
type Sums = [[__m256d; 2]; HALF];
type Tile = [[f64; ROWS]; HALF];

/// The planes of an operand, each with the power of two that is its unit.
type Planes<'o> = Vec<(Plane<'o>, f64)>;

/// Memory of planes that are no longer used: new memory costs as much as making a plane.
type Spare = Vec<Vec<u32>>;

/// True if this kernel computes products of these digits and this length.
pub(super) fn computes(a: &Operand, b: &Operand) -> bool {
    let (more, fewer) = (a.digits().max(b.digits()), a.digits().min(b.digits()));
    more <= 3
        && fewer <= 2
        && a.k() > 0
        && (a.block_range(0).1 as u128) << product_bits(a, b) <= 1 << EXACT_BITS
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
    let matrices = out.len() / size;
    out.par_chunks_mut(size).enumerate().for_each(|(i, out)| {
        let matrix = Matrix::new(path, [a, b], [i / batch, i % batch]);
        let scale = Scale::new(path, part, a, b, i % batch, i / batch);
        if matrix.len >= LONG_K && size <= LONG_OUTPUT {
            matrix.long(&scale, out);
        } else {
            matrix.product(&scale, matrices, out);
        }
    });
}

/// One block of one sample of the batch.
struct Matrix<'o> {
    path: Path,
    a: &'o Operand,
    b: &'o Operand,
    batch: usize,
    /// The range of K.
    first: usize,
    len: usize,
    /// Pairs of a group: the most whose sum an i32 holds.
    group: usize,
}

impl<'o> Matrix<'o> {
    fn new(path: Path, [a, b]: [&'o Operand; 2], [block, batch]: [usize; 2]) -> Matrix<'o> {
        let (first, len) = a.block_range(block);
        let full = |o: &Operand| o.absmaxes_of(batch, block).any(reaches_the_end);
        let group = match (a.digits(), b.digits()) {
            // Eight products of 2^14 and 2^14 are 2^31, one too many for an i32; all other sums stay below.
            (2, 2) if full(a) && full(b) => GROUP / 2,
            (2, 2) => GROUP,
            _ => LONG_GROUP,
        };
        Matrix { path, a, b, batch, first, len, group }
    }

    /// The planes of rows of an operand for indices `k` of this block, in memory from `spare` if they need any.
    fn planes(
        &self,
        operand: &'o Operand,
        rows: Range<usize>,
        k: Range<usize>,
        spare: &mut Spare,
    ) -> Planes<'o> {
        let cut = magnitude_bits(operand.digits()) / 2;
        let halves = [Piece::Low(cut), Piece::High(cut)];
        let pieces = if operand.digits() <= 2 { &[Piece::Whole][..] } else { &halves };
        let plane = |&piece: &Piece| {
            let memory = spare.pop().unwrap_or_default();
            let plane = Plane::new(self.path, operand, self.batch, rows.clone(), k.clone(), piece, memory);
            (plane, f64::from(1 << piece.shift()))
        };
        pieces.iter().map(plane).collect()
    }

    fn product(&self, scale: &Scale<'_>, matrices: usize, out: &mut [u32]) {
        let (m, n) = (self.a.rows(), self.b.rows());
        let k = self.first..self.first + self.len;
        let b = self.planes(self.b, 0..n, k.clone(), &mut Spare::new());
        let most = (BAND_BYTES / (2 * self.len)).next_multiple_of(2 * ROWS).max(BAND_ROWS);
        let height = band_height(4, matrices, m, 16, most);
        bands(out, 1, m, n, height).into_par_iter().for_each_init(Spare::new, |spare, band| {
            let Band { row, out, .. } = band;
            let rows = row..row + out.len() / n;
            let a = self.planes(self.a, rows.clone(), k.clone(), spare);
            // SAFETY: `product` runs where AVX2 and FMA were detected.
            unsafe {
                match self.group {
                    LONG_GROUP => compute_band::<LONG_GROUP>([&a, &b], scale, rows, out),
                    GROUP => compute_band::<GROUP>([&a, &b], scale, rows, out),
                    _ => compute_band::<{ GROUP / 2 }>([&a, &b], scale, rows, out),
                }
            }
            keep(a, spare);
        });
    }

    /// The product of long rows. Integer sums have no order, so tasks add ranges of K, which are put in strips a few indices at a
    /// time.
    fn long(&self, scale: &Scale<'_>, out: &mut [u32]) {
        const STEP: usize = 1024;
        let (m, n) = (self.a.rows(), self.b.rows());
        let (halves, panels) = (m.div_ceil(HALF), n.div_ceil(ROWS));
        let steps = self.len.div_ceil(STEP);
        let each = steps.div_ceil(2 * rayon::current_num_threads());
        let tasks = (0..steps.div_ceil(each)).into_par_iter().map(|task| {
            let mut tiles: Vec<Tile> = vec![Default::default(); halves * panels];
            let spare = &mut Spare::new();
            for step in task * each..steps.min((task + 1) * each) {
                let k = self.first + step * STEP..self.first + self.len.min((step + 1) * STEP);
                let [a, b] = [(self.a, m), (self.b, n)]
                    .map(|(operand, rows)| self.planes(operand, 0..rows, k.clone(), spare));
                let planes = [&a, &b];
                // SAFETY: `product` runs where AVX2 and FMA were detected.
                unsafe {
                    match self.group {
                        LONG_GROUP => add_to_tiles::<LONG_GROUP>(planes, halves, &mut tiles),
                        GROUP => add_to_tiles::<GROUP>(planes, halves, &mut tiles),
                        _ => add_to_tiles::<{ GROUP / 2 }>(planes, halves, &mut tiles),
                    }
                }
                keep(a, spare);
                keep(b, spare);
            }
            tiles
        });
        let tiles = tasks.reduce_with(|mut tiles, more| {
            add_each(tiles.as_flattened_mut().as_flattened_mut(), more.as_flattened().as_flattened());
            tiles
        });
        for (i, tile) in tiles.expect("K is long").iter().enumerate() {
            let (first, column) = (i % halves * HALF, i / halves * ROWS);
            let columns = ROWS.min(n - column);
            for (row, sums) in (first..m).zip(tile) {
                let sums: Vec<i64> = sums.iter().map(|&sum| sum as i64).collect();
                let out = &mut out[row * n + column..][..columns];
                i64::scale_back(scale, row, column, &sums[..columns], out);
            }
        }
    }
}

fn keep(planes: Planes<'_>, spare: &mut Spare) {
    spare.extend(planes.into_iter().filter_map(|(plane, _)| plane.into_memory()));
}

/// True if a group of two digits and this absmax may hold 2^14 itself: its greatest element rounds up to it.
fn reaches_the_end(absmax: u32) -> bool {
    const MANTISSA: u32 = (1 << 23) - 1;
    const HALF_A_UNIT: u32 = 1 << 9;
    let subnormal = absmax <= MANTISSA;
    absmax & MANTISSA > MANTISSA - HALF_A_UNIT || subnormal && absmax != 0
}

/// Computes the product of some rows, `[rows, N]`.
#[target_feature(enable = "avx2,fma")]
fn compute_band<const P: usize>(
    [a, b]: [&Planes<'_>; 2],
    scale: &Scale<'_>,
    rows: Range<usize>,
    out: &mut [u32],
) {
    let n = out.len() / rows.len();
    let factors: Vec<f64> = rows.clone().map(|row| scale.row(row)).collect();
    // Strips of b are the outer loop: one strip stays in the first-level cache while the strips of the band pass.
    for (panel, column) in (0..n).step_by(ROWS).enumerate() {
        let columns = ROWS.min(n - column);
        let of_columns = scale.eight_columns(column);
        for (half, out) in out.chunks_mut(HALF * n).enumerate() {
            let sums = sums::<P>(a, b, half, panel);
            for (i, (sums, out)) in sums.into_iter().zip(out.chunks_exact_mut(n)).enumerate() {
                let (out, row) = (&mut out[column..column + columns], half * HALF + i);
                if !scale.rounds() {
                    let sums = in_memory(sums).map(|sum| sum as i64);
                    i64::scale_back(scale, rows.start + row, column, &sums[..columns], out);
                    continue;
                }
                let rounded = rounded(sums, factors[row], of_columns);
                match out.first_chunk_mut() {
                    Some(out) => store(out, rounded),
                    None => {
                        let mut all = [0; ROWS];
                        store(&mut all, rounded);
                        out.copy_from_slice(&all[..columns]);
                    }
                }
            }
        }
    }
}

/// Adds the sums of every tile, `[panel][half]`.
#[target_feature(enable = "avx2,fma")]
fn add_to_tiles<const P: usize>([a, b]: [&Planes<'_>; 2], halves: usize, tiles: &mut [Tile]) {
    for (i, tile) in tiles.iter_mut().enumerate() {
        for (sums, of_tile) in sums::<P>(a, b, i % halves, i / halves).into_iter().zip(tile) {
            add_each(of_tile, &in_memory(sums));
        }
    }
}

fn add_each(sums: &mut [f64], more: &[f64]) {
    sums.iter_mut().zip(more).for_each(|(sum, x)| *sum += x);
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn in_memory([left, right]: [__m256d; 2]) -> [f64; ROWS] {
    let mut sums = [0f64; ROWS];
    // SAFETY: the array has eight elements.
    unsafe {
        _mm256_storeu_pd(sums.as_mut_ptr(), left);
        _mm256_storeu_pd(sums.as_mut_ptr().add(4), right);
    }
    sums
}

/// `sums[n] * row * columns[n]` as binary32, rounded as in `scale_back::round_row`: whole numbers below 2^53 times powers of two
/// are exact.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn rounded(sums: [__m256d; 2], row: f64, columns: &[f64; ROWS]) -> __m256i {
    let (row, [a, b, c, d, e, f, g, h]) = (_mm256_set1_pd(row), *columns);
    let columns = [_mm256_set_pd(d, c, b, a), _mm256_set_pd(h, g, f, e)];
    let four = |i: usize| {
        let x = _mm256_mul_pd(_mm256_mul_pd(sums[i], row), columns[i]);
        _mm256_cvtpd_ps(x)
    };
    let x = _mm256_set_m128(four(1), four(0));
    let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x);
    _mm256_castps_si256(_mm256_blendv_ps(x, _mm256_set1_ps(f32::from_bits(float::NAN)), is_nan))
}

/// The sums of half a strip of a's rows and a strip of b's, over groups of `P` pairs.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn sums<const P: usize>(a: &Planes<'_>, b: &Planes<'_>, half: usize, panel: usize) -> Sums {
    if let ([(a, _)], [(b, _)]) = (&a[..], &b[..]) {
        let (a, b) = (a.strip(half / 2), b.strip(panel));
        if a.len() <= FLUSH {
            // Whole integers have the weight 1, and short rows need no sums of sums.
            return kernel::<P>(a, half % 2, b);
        }
    }
    let mut sums = [[_mm256_setzero_pd(); 2]; HALF];
    for (a, weight_a) in a {
        for (b, weight_b) in b {
            let (a, b, weight) = (a.strip(half / 2), b.strip(panel), _mm256_set1_pd(weight_a * weight_b));
            for (a, b) in a.chunks(FLUSH).zip(b.chunks(FLUSH)) {
                let more = kernel::<P>(a, half % 2, b);
                for (sums, more) in sums.iter_mut().zip(more) {
                    *sums = [
                        _mm256_fmadd_pd(more[0], weight, sums[0]),
                        _mm256_fmadd_pd(more[1], weight, sums[1]),
                    ];
                }
            }
        }
    }
    sums
}

/// The dot products of some pairs. Every step is exact, so fused operations change nothing.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn kernel<const P: usize>(a: &[Pair], half: usize, b: &[Pair]) -> Sums {
    let mut low = [_mm256_setzero_si256(); HALF];
    let mut high = [_mm256_setzero_si256(); HALF];
    let ((long_a, rest_a), (long_b, rest_b)) = (a.as_chunks::<P>(), b.as_chunks::<P>());
    for (a, b) in long_a.iter().zip(long_b) {
        add_group(a, half, b, &mut low, &mut high);
    }
    if P > GROUP {
        for (a, b) in rest_a.as_chunks::<GROUP>().0.iter().zip(rest_b.as_chunks::<GROUP>().0) {
            add_group(a, half, b, &mut low, &mut high);
        }
    }
    let units = _mm256_set1_pd(65536.0);
    let mut sums = [[_mm256_setzero_pd(); 2]; HALF];
    for r in 0..HALF {
        let rest = _mm256_sub_epi32(low[r], _mm256_slli_epi32::<16>(high[r]));
        let whole = |high, rest| _mm256_fmadd_pd(_mm256_cvtepi32_pd(high), units, _mm256_cvtepi32_pd(rest));
        sums[r] = [
            whole(_mm256_castsi256_si128(high[r]), _mm256_castsi256_si128(rest)),
            whole(_mm256_extracti128_si256::<1>(high[r]), _mm256_extracti128_si256::<1>(rest)),
        ];
    }
    sums
}

/// Adds one group of pairs to both accumulators of each row.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn add_group<const P: usize>(
    a: &[Pair; P],
    half: usize,
    b: &[Pair; P],
    low: &mut [__m256i; HALF],
    high: &mut [__m256i; HALF],
) {
    if P <= GROUP {
        // The loop goes row by row, with b's pairs in registers: pair by pair, accumulators would be kept in memory.
        let mut pairs = [_mm256_setzero_si256(); P];
        for (pair, b) in pairs.iter_mut().zip(b) {
            *pair = load(b);
        }
        for r in 0..HALF {
            let mut group = _mm256_setzero_si256();
            for (a, &b) in a.iter().zip(&pairs) {
                let products = _mm256_madd_epi16(_mm256_set1_epi32(a[half * HALF + r] as i32), b);
                group = _mm256_add_epi32(group, products);
            }
            low[r] = _mm256_add_epi32(low[r], group);
            high[r] = _mm256_add_epi32(high[r], _mm256_srai_epi32::<16>(group));
        }
        return;
    }
    let mut group = [_mm256_setzero_si256(); HALF];
    for (a, b) in a.iter().zip(b) {
        let b = load(b);
        for r in 0..HALF {
            let products = _mm256_madd_epi16(_mm256_set1_epi32(a[half * HALF + r] as i32), b);
            group[r] = _mm256_add_epi32(group[r], products);
        }
    }
    for r in 0..HALF {
        low[r] = _mm256_add_epi32(low[r], group[r]);
        high[r] = _mm256_add_epi32(high[r], _mm256_srai_epi32::<16>(group[r]));
    }
}
