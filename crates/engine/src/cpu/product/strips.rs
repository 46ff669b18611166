//! Integers of at most 16 bits in the order in which AVX2's `vpmaddwd` multiplies them. A strip has eight rows. The pairs of K
//! are one after another; a pair has eight words side by side, with two integers in each word. A strip serves as rows or as
//! columns of a register tile. So an operand that is digitised into strips ([`quantise`]) is multiplied in place.
//!
//! Missing rows of the last strip are zeros, and so are indices past K, up to a multiple of eight.

use std::arch::x86_64::{
    __m256i, _mm256_add_ps, _mm256_and_si256, _mm256_blend_epi16, _mm256_castps_si256, _mm256_loadu_ps,
    _mm256_maskload_ps, _mm256_mul_ps, _mm256_packus_epi32, _mm256_permute4x64_epi64, _mm256_set1_ps,
    _mm256_setzero_si256, _mm256_slli_epi32,
};
use std::ops::Range;

use rayon::prelude::*;

use super::simd::{Path, load, store, turned};
use super::view::{
    DEPTH, INTEGERS, StridedView, for_each_strip, group_len, pieces, power_of_two, units_of_task,
};
use tiebreak_contract::arith::digits;

/// Rows of a strip.
pub(super) const ROWS: usize = 8;
/// The number of pairs of K in a strip is a multiple of this.
pub(super) const GROUP: usize = 4;
/// A pair of K of a strip: two integers of each row.
pub(super) type Pair = [u32; ROWS];
/// Strips that are digitised together where rows are contiguous: two cache lines of the tensor.
const TOGETHER: usize = 4;

/// True if operands of this number of digits are digitised into strips on this machine: products run on `vpmaddwd`, and the
/// integers have 16 bits.
pub(super) fn serve(digits: u32) -> bool {
    match Path::fastest() {
        Path::Avx2 | Path::Avx512 => digits <= 2,
        // Products of one digit have dot products of bytes there.
        Path::AvxVnni => digits == 2,
        _ => false,
    }
}

/// Pairs of a strip whose rows have length `k`.
pub(super) fn pairs(k: usize) -> usize {
    k.div_ceil(2).next_multiple_of(GROUP)
}

/// Words of the strips of `[batch, rows, k]`.
pub(super) fn words([batch, rows, k]: [usize; 3]) -> usize {
    batch * rows.div_ceil(ROWS) * pairs(k) * ROWS
}

/// The integers `k` of row `row` of a batch's strips.
pub(super) fn read_row(strips: &[i32], pairs: usize, row: usize, k: Range<usize>, to: &mut [i32]) {
    let strip = &strips[row / ROWS * pairs * ROWS..][..pairs * ROWS];
    for (to, place) in to.iter_mut().zip(k) {
        let word = strip[place / 2 * ROWS + row % ROWS];
        *to = if place % 2 == 0 { i32::from(word as i16) } else { word >> 16 };
    }
}

/// Transposes the rows of a strip, `[ROWS][pairs]`, to pairs.
#[target_feature(enable = "avx2")]
pub(super) fn turn_rows(rows: &[u32], to: &mut [Pair]) {
    let pairs = rows.len() / ROWS;
    for first in (0..pairs).step_by(ROWS) {
        let count = ROWS.min(pairs - first);
        let mut words = [_mm256_setzero_si256(); ROWS];
        for (row, words) in words.iter_mut().enumerate() {
            let mut of_row = [0u32; ROWS];
            of_row[..count].copy_from_slice(&rows[row * pairs + first..][..count]);
            *words = load(&of_row);
        }
        for (to, words) in to[first..first + count].iter_mut().zip(turned(words)) {
            store(to, words);
        }
    }
}

/// The computation of the integers of one row's scale group.
#[derive(Clone, Copy)]
enum Scaling {
    /// All are 0: the group is marked, or the row is missing.
    Zero,
    /// Multiplication by this power of two, which is exact.
    Times(f32),
    /// Multiplication by this power of two, which binary32 does not have.
    Far(f64),
}

impl Scaling {
    fn new(absmax: u32, digits: u32) -> Scaling {
        if digits::is_marked(absmax) {
            return Scaling::Zero;
        }
        let scale = power_of_two(digits::magnitude_bits(digits) as i32 - digits::exponent(absmax));
        if scale <= f64::from(f32::MAX) { Scaling::Times(scale as f32) } else { Scaling::Far(scale) }
    }

    /// The integer of one element, as in `operand::quantise_group`.
    fn apply(self, x: u32) -> u16 {
        let scale = match self {
            Scaling::Zero => return 0,
            Scaling::Times(scale) => f64::from(scale),
            Scaling::Far(scale) => scale,
        };
        (f64::from(f32::from_bits(x)) * scale).round_ties_even() as i32 as u16
    }
}

/// Digitises a view into strips, in memory of at least [`words`] words.
pub(super) fn quantise(q: &mut [i32], view: StridedView<'_>, absmaxes: &[u32], digits: u32, block: usize) {
    let [batch, rows, k] = view.shape();
    let pairs = pairs(k);
    let (strips, groups) = (rows.div_ceil(ROWS), absmaxes.len() / (batch * rows).max(1));
    let group = group_len(k, block);
    let words: &mut [u32] = bytemuck::cast_slice_mut(&mut q[..batch * strips * pairs * ROWS]);
    if words.is_empty() {
        return;
    }
    let (of_batch, of_task) = (strips * pairs * ROWS, TOGETHER * pairs * ROWS);
    let per_batch = strips.div_ceil(TOGETHER);
    let each = units_of_task(batch * per_batch, k, DEPTH).next_multiple_of(2 * GROUP);
    let digitise = |[batch, row]: [usize; 2], part: Range<usize>, mut strips: [&mut [Pair]; TOGETHER]| {
        for (first, len) in pieces(part.clone(), group) {
            let mut scalings = [Scaling::Zero; TOGETHER * ROWS];
            for (scaling, row) in scalings.iter_mut().zip(row..rows) {
                let absmax = absmaxes[(batch * rows + row) * groups + first / group];
                *scaling = Scaling::new(absmax, digits);
            }
            let at = (first - part.start) / 2;
            let of_piece = at..at + self::pairs(len);
            let to = strips.each_mut().map(|strip| strip.get_mut(of_piece.clone()).unwrap_or_default());
            quantise_piece(view, [batch, row], [first, len], &scalings, to);
        }
    };
    if each >= k {
        for_each_strip(words, [of_batch, of_task], TOGETHER * ROWS * k, |batch, task, words| {
            let mut strips = words.chunks_exact_mut(pairs * ROWS).map(|strip| strip.as_chunks_mut().0);
            let strips = std::array::from_fn(|_| strips.next().unwrap_or_default());
            digitise([batch, task * TOGETHER * ROWS], 0..k, strips);
        });
        return;
    }
    let tasks = words.chunks_mut(of_batch).flat_map(|of| of.chunks_mut(of_task));
    let parts = tasks.enumerate().flat_map(|(task, words)| {
        let (batch, row) = (task / per_batch, task % per_batch * TOGETHER * ROWS);
        let mut strips: Vec<_> = words
            .chunks_exact_mut(pairs * ROWS)
            .map(|strip| strip.as_chunks_mut().0.chunks_mut(each / 2))
            .collect();
        (0..k).step_by(each).map(move |first| {
            let mut parts = strips.iter_mut().map(|parts| parts.next().expect("strips have one K"));
            let of_part = std::array::from_fn(|_| parts.next().unwrap_or_default());
            ([batch, row], first..k.min(first + each), of_part)
        })
    });
    let parts = parts.collect::<Vec<_>>().into_par_iter();
    parts.for_each(|(at, part, strips)| digitise(at, part, strips));
}

/// Digitises indices `first..first + len` of a few strips' rows from row `row` on, within one scale group of each row.
fn quantise_piece(
    view: StridedView<'_>,
    [batch, row]: [usize; 2],
    [first, len]: [usize; 2],
    scalings: &[Scaling; TOGETHER * ROWS],
    mut strips: [&mut [Pair]; TOGETHER],
) {
    let rows = view.shape()[1] - row;
    let (data, row_stride, k_stride) = view.tail_of_row(batch, row);
    let far = scalings.iter().any(|scaling| matches!(scaling, Scaling::Far(_)));
    if k_stride == 1 {
        for (strip, to) in strips.iter_mut().enumerate() {
            let of: [&[u32]; ROWS] = std::array::from_fn(|r| match strip * ROWS + r {
                row if row < rows => &data[row * row_stride + first..][..len],
                _ => &[],
            });
            let scalings = scalings[strip * ROWS..].first_chunk().expect("there are enough");
            // SAFETY: [`serve`] is true only where AVX2 was detected.
            unsafe { quantise_rows(of, scalings, to) };
        }
    } else if row_stride == 1 && !far {
        // SAFETY: as above.
        unsafe { quantise_columns(&data[first * k_stride..], k_stride, len, scalings, &mut strips) };
    } else {
        for (strip, to) in strips.iter_mut().enumerate() {
            for (pair, to) in to.iter_mut().enumerate() {
                for (r, to) in to.iter_mut().enumerate() {
                    let row = strip * ROWS + r;
                    let half = |place: usize| match place < len && row < rows {
                        true => scalings[row].apply(data[row * row_stride + (first + place) * k_stride]),
                        false => 0,
                    };
                    *to = u32::from(half(2 * pair)) | u32::from(half(2 * pair + 1)) << 16;
                }
            }
        }
    }
}

/// Digitises a strip of rows that are contiguous along K.
#[target_feature(enable = "avx2")]
fn quantise_rows(rows: [&[u32]; ROWS], scalings: &[Scaling; ROWS], to: &mut [Pair]) {
    let whole = quantise_whole_rows(&rows, scalings, to);
    for (step, to) in to.chunks_mut(ROWS).enumerate().skip(whole) {
        let mut words = [_mm256_setzero_si256(); ROWS];
        for ((words, row), scaling) in words.iter_mut().zip(rows).zip(scalings) {
            let row = row.get(step * 2 * ROWS..).unwrap_or_default();
            *words = match (scaling, row.first_chunk()) {
                (Scaling::Zero, _) => continue,
                (Scaling::Times(scale), Some(row)) => sixteen(row, *scale),
                (Scaling::Times(scale), None) => {
                    let mut rest = [0u32; 2 * ROWS];
                    rest[..row.len()].copy_from_slice(row);
                    sixteen(&rest, *scale)
                }
                (Scaling::Far(_), _) => {
                    let mut halves = [0u16; 2 * ROWS];
                    halves.iter_mut().zip(row).for_each(|(half, &x)| *half = scaling.apply(x));
                    load(&bytemuck::cast(halves))
                }
            };
        }
        for (to, words) in to.iter_mut().zip(turned(words)) {
            store(to, words);
        }
    }
}

/// Digitises sixteen indices at a time as long as all rows have them, if all rows are scaled by `Times`. Returns the number of
/// steps done.
#[target_feature(enable = "avx2")]
fn quantise_whole_rows(rows: &[&[u32]; ROWS], scalings: &[Scaling; ROWS], to: &mut [Pair]) -> usize {
    let mut scales = [0f32; ROWS];
    for (scale, scaling) in scales.iter_mut().zip(scalings) {
        let Scaling::Times(times) = scaling else { return 0 };
        *scale = *times;
    }
    let steps = rows.iter().map(|row| row.len()).min().unwrap_or(0) / (2 * ROWS);
    let rows = rows.map(|row| &row.as_chunks::<{ 2 * ROWS }>().0[..steps]);
    for (step, to) in to.as_chunks_mut::<ROWS>().0[..steps].iter_mut().enumerate() {
        let mut words = [_mm256_setzero_si256(); ROWS];
        for r in 0..ROWS {
            words[r] = sixteen(&rows[r][step], scales[r]);
        }
        for (to, words) in to.iter_mut().zip(turned(words)) {
            store(to, words);
        }
    }
    steps
}

/// Digitises strips where rows are contiguous: `len` indices of K, `stride` elements apart.
#[target_feature(enable = "avx2")]
fn quantise_columns(
    data: &[u32],
    stride: usize,
    len: usize,
    scalings: &[Scaling; TOGETHER * ROWS],
    strips: &mut [&mut [Pair]; TOGETHER],
) {
    let mut scales = [[0f32; ROWS]; TOGETHER];
    let mut masks = [[0u32; ROWS]; TOGETHER];
    for (i, scaling) in scalings.iter().enumerate() {
        if let Scaling::Times(scale) = scaling {
            (scales[i / ROWS][i % ROWS], masks[i / ROWS][i % ROWS]) = (*scale, u32::MAX);
        }
    }
    for pair in 0..pairs(len) {
        for (strip, to) in strips.iter_mut().enumerate().filter(|(_, to)| !to.is_empty()) {
            let line = |place: usize| match data.get(place * stride + strip * ROWS..) {
                Some(line) if place < len => scaled(line, &scales[strip]),
                _ => _mm256_setzero_si256(),
            };
            let odd = _mm256_slli_epi32::<16>(line(2 * pair + 1));
            let words = _mm256_blend_epi16::<0b1010_1010>(line(2 * pair), odd);
            store(&mut to[pair], _mm256_and_si256(words, load(&masks[strip])));
        }
    }
}

/// The integers of the first eight elements, or of fewer if there are fewer, in the low halves of words.
#[target_feature(enable = "avx2")]
#[inline]
fn scaled(line: &[u32], scales: &[f32; ROWS]) -> __m256i {
    let x = match line.first_chunk::<ROWS>() {
        // SAFETY: the array has eight elements.
        Some(line) => unsafe { _mm256_loadu_ps(line.as_ptr().cast()) },
        None => {
            let mut mask = [0u32; ROWS];
            mask.iter_mut().take(line.len()).for_each(|lane| *lane = u32::MAX);
            // SAFETY: lanes past the line are masked, so they are not read.
            unsafe { _mm256_maskload_ps(line.as_ptr().cast(), load(&mask)) }
        }
    };
    // SAFETY: the array has eight elements.
    let scales = unsafe { _mm256_loadu_ps(scales.as_ptr()) };
    _mm256_castps_si256(_mm256_add_ps(_mm256_mul_ps(x, scales), _mm256_set1_ps(INTEGERS)))
}

/// The integers of sixteen elements of a row.
#[target_feature(enable = "avx2")]
#[inline]
fn sixteen(row: &[u32; 2 * ROWS], scale: f32) -> __m256i {
    let (scale, zero) = ([scale; ROWS], _mm256_setzero_si256());
    let (halves, _) = row.as_chunks::<ROWS>();
    let half = |i: usize| _mm256_blend_epi16::<0b1010_1010>(scaled(&halves[i], &scale), zero);
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(half(0), half(1)))
}
