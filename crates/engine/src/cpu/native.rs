//! Floating-point matrix products on the CPU, in several orders: a trainer's "native kernels" on a machine without a GPU. Their
//! results differ from each other in the last bits, as the results of different GPUs do; results of the logged profile must not.
//!
//! Nothing in the contract depends on these results.

use rayon::prelude::*;

use super::library::{Factor, Number};
use super::product::StridedView;

/// An order of summation, with or without fused multiply-add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Native {
    /// The `gemm` crate: blocks of K, fused where the machine can.
    #[default]
    Gemm,
    /// Terms one after another.
    Sequential {
        /// True if a term is added by a fused multiply-add.
        fused: bool,
    },
    /// Sixteen interleaved partial sums, then a tree.
    Interleaved {
        /// True if a term is added by a fused multiply-add.
        fused: bool,
    },
}

impl Native {
    /// All orders, each with and without fused multiply-add where there is a choice.
    pub const ALL: [Native; 5] = [
        Native::Gemm,
        Native::Sequential { fused: false },
        Native::Sequential { fused: true },
        Native::Interleaved { fused: false },
        Native::Interleaved { fused: true },
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Native::Gemm => "gemm",
            Native::Sequential { fused: false } => "sequential",
            Native::Sequential { fused: true } => "sequential-fma",
            Native::Interleaved { fused: false } => "interleaved",
            Native::Interleaved { fused: true } => "interleaved-fma",
        }
    }

    /// The most roundings that a term of a binary64 product of K terms passes: one of the term, then those of sums. Each is to
    /// nearest.
    pub(crate) fn binary64_roundings(self, k: usize) -> usize {
        match self {
            // A slice's terms in any order, then the slices one after another.
            Native::Gemm => k.min(SLICE) + k.div_ceil(SLICE),
            Native::Sequential { .. } | Native::Interleaved { .. } => k,
        }
    }
}

/// Rows of a task. The number is fixed, so that the calls of a library do not depend on the number of threads.
const BAND: usize = 64;
/// Rows of a task of the library, which packs the other operand anew for each task.
const GEMM_BAND: usize = 512;
/// Partial sums of [`Native::Interleaved`].
const LANES: usize = 16;
/// Terms that the library adds at once in binary64. The bound shortens the longest chain of additions.
const SLICE: usize = 256;

/// The format of the accumulation.
trait Real: Number {
    fn of(bits: u32) -> Self;
    fn multiply_add<const FUSED: bool>(self, x: Self, y: Self) -> Self;
    fn plus(self, other: Self) -> Self;
    /// The nearest binary32, and the rest of the value, rounded to binary32 as well.
    fn parts(self) -> [u32; 2];
}

impl Real for f32 {
    #[inline(always)]
    fn of(bits: u32) -> Self {
        f32::from_bits(bits)
    }
    #[inline(always)]
    fn multiply_add<const FUSED: bool>(self, x: Self, y: Self) -> Self {
        if FUSED { x.mul_add(y, self) } else { self + x * y }
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn parts(self) -> [u32; 2] {
        [self.to_bits(), 0]
    }
}

impl Real for f64 {
    #[inline(always)]
    fn of(bits: u32) -> Self {
        f64::from(f32::from_bits(bits))
    }
    #[inline(always)]
    fn multiply_add<const FUSED: bool>(self, x: Self, y: Self) -> Self {
        if FUSED { x.mul_add(y, self) } else { self + x * y }
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn parts(self) -> [u32; 2] {
        parts_of(self)
    }
}

/// The nearest binary32 and the rest, rounded to binary32.
pub(super) fn parts_of(sum: f64) -> [u32; 2] {
    let high = sum as f32;
    [high.to_bits(), ((sum - f64::from(high)) as f32).to_bits()]
}

/// The product of `a` [batch, M, K] and `b` [batch, N, K]: [batch, M, N] in binary32. If `out` is twice as long, the product is
/// in binary64, as [2, batch, M, N]: each nearest binary32, then each rest.
pub fn product(native: Native, a: &StridedView, b: &StridedView, out: &mut [u32]) {
    let [batch, m, k] = a.shape();
    let [_, n, _] = b.shape();
    let elements = batch * m * n;
    if elements == 0 {
        return;
    }
    match out.len() / elements {
        1 if native == Native::Gemm => single_gemm(a, b, [m, n, k], out),
        1 => compute::<f32>(native, a, b, [m, n, k], out, &mut []),
        2 => {
            let (high, low) = out.split_at_mut(elements);
            compute::<f64>(native, a, b, [m, n, k], high, low);
        }
        _ => unreachable!("a native product's output has one or two parts"),
    }
}

/// The library's binary32 product of the views, without packing them.
fn single_gemm(a: &StridedView, b: &StridedView, [m, n, k]: [usize; 3], out: &mut [u32]) {
    let bands = out.chunks_mut(m * n).enumerate().flat_map(|(sample, out)| {
        out.chunks_mut(GEMM_BAND * n).enumerate().map(move |(band, out)| (sample, band * GEMM_BAND, out))
    });
    let bands: Vec<(usize, usize, &mut [u32])> = bands.collect();
    bands.into_par_iter().for_each(|(sample, row, out)| {
        let (a, a_rows, a_k) = a.tail_of_row(sample, row);
        let (b, b_rows, b_k) = b.tail_of_row(sample, 0);
        let rows = out.len() / n;
        let reach = |rows: usize, stride: usize, along: usize| (rows - 1) * stride + (k.max(1) - 1) * along;
        assert!(
            reach(rows, a_rows, a_k) < a.len() && reach(n, b_rows, b_k) < b.len(),
            "a view leaves its tensor"
        );
        let (a, b): (&[f32], &[f32]) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
        let sums: &mut [f32] = bytemuck::cast_slice_mut(out);
        let a = Factor { first: a.as_ptr(), row: a_rows, along: a_k };
        let b = Factor { first: b.as_ptr(), row: b_rows, along: b_k };
        // SAFETY: every element that the strides reach was checked to exist, and the result is borrowed mutably, so it overlaps
        // neither factor.
        unsafe { f32::product([rows, n, k], a, b, sums.as_mut_ptr(), false) };
    });
}

fn compute<T: Real>(
    native: Native,
    a: &StridedView,
    b: &StridedView,
    [m, n, k]: [usize; 3],
    high: &mut [u32],
    low: &mut [u32],
) {
    let batches = high.len() / (m * n);
    // b is [K, N] for the orders that go along N, and [N, K] for the order that goes along K.
    let along_k = matches!(native, Native::Interleaved { .. });
    let packed: Vec<T> = pack(b, 0..batches, 0..n, k, along_k);
    let mut lows = low.chunks_mut(m * n);
    let bands: Vec<(usize, usize, &mut [u32], &mut [u32])> = high
        .chunks_mut(m * n)
        .enumerate()
        .flat_map(|(sample, out)| {
            let mut rest = lows.next().unwrap_or_default().chunks_mut(BAND * n);
            let bands: Vec<_> = out
                .chunks_mut(BAND * n)
                .enumerate()
                .map(|(band, out)| (sample, band * BAND, out, rest.next().unwrap_or_default()))
                .collect();
            bands
        })
        .collect();
    bands.into_par_iter().for_each(|(sample, row, high, low)| {
        let rows = high.len() / n;
        let a: Vec<T> = pack(a, sample..sample + 1, row..row + rows, k, true);
        let b = &packed[sample * n * k..][..n * k];
        let mut sums = vec![T::default(); rows * n];
        match native {
            Native::Gemm => sliced_gemm(&a, b, [rows, n, k], &mut sums),
            Native::Sequential { fused: true } | Native::Interleaved { fused: true } => {
                fused(native, &a, b, [n, k], &mut sums);
            }
            _ => ordered::<T, false>(native, &a, b, [n, k], &mut sums),
        }
        for (i, sum) in sums.iter().enumerate() {
            let [h, l] = sum.parts();
            high[i] = h;
            if let Some(low) = low.get_mut(i) {
                *low = l;
            }
        }
    });
}

/// Rows of a view as [samples, rows, K], or [samples, K, rows].
fn pack<T: Real>(
    view: &StridedView,
    samples: std::ops::Range<usize>,
    rows: std::ops::Range<usize>,
    k: usize,
    along_k: bool,
) -> Vec<T> {
    let (count, first, first_sample) = (rows.len(), rows.start, samples.start);
    let mut out = vec![T::default(); samples.len() * count * k];
    if out.is_empty() {
        return out;
    }
    if along_k {
        out.par_chunks_mut(k).enumerate().for_each(|(row, out)| {
            let (elements, _, stride) = view.tail_of_row(first_sample + row / count, first + row % count);
            for (i, to) in out.iter_mut().enumerate() {
                *to = T::of(elements[i * stride]);
            }
        });
    } else {
        out.par_chunks_mut(count).enumerate().for_each(|(i, out)| {
            let (elements, rows, stride) = view.tail_of_row(first_sample + i / k, first);
            for (row, to) in out.iter_mut().enumerate() {
                *to = T::of(elements[row * rows + i % k * stride]);
            }
        });
    }
    out
}

/// The product of a [rows, K] and b [K, N]: the library's sums of [`SLICE`] terms, added one after another.
fn sliced_gemm<T: Real>(a: &[T], b: &[T], [rows, n, k]: [usize; 3], sums: &mut [T]) {
    assert!(a.len() == rows * k && b.len() == k * n && sums.len() == rows * n, "gemm shapes");
    let mut slice = if k > SLICE { vec![T::default(); sums.len()] } else { Vec::new() };
    for first in (0..k).step_by(SLICE) {
        let to = if first == 0 { &mut *sums } else { &mut slice[..] };
        let shape = [rows, n, SLICE.min(k - first)];
        let a = Factor { first: a[first..].as_ptr(), row: k, along: 1 };
        let b = Factor { first: b[first * n..].as_ptr(), row: 1, along: n };
        // SAFETY: the lengths are asserted, and the result is borrowed mutably, so it overlaps neither factor.
        unsafe { T::product(shape, a, b, to.as_mut_ptr(), false) };
        if first > 0 {
            sums.iter_mut().zip(&slice).for_each(|(sum, &part)| *sum = sum.plus(part));
        }
    }
}

/// A product with fused multiply-add, compiled to the instruction where the machine has it. Elsewhere `mul_add` is exact but
/// slow.
fn fused<T: Real>(native: Native, a: &[T], b: &[T], shape: [usize; 2], sums: &mut [T]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn with_fma<T: Real>(native: Native, a: &[T], b: &[T], shape: [usize; 2], sums: &mut [T]) {
            ordered::<T, true>(native, a, b, shape, sums);
        }
        if is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx2") {
            // SAFETY: the features were detected just now.
            return unsafe { with_fma(native, a, b, shape, sums) };
        }
    }
    ordered::<T, true>(native, a, b, shape, sums);
}

#[inline(always)]
fn ordered<T: Real, const FUSED: bool>(native: Native, a: &[T], b: &[T], shape: [usize; 2], sums: &mut [T]) {
    match native {
        Native::Interleaved { .. } => interleaved::<T, FUSED>(a, b, shape, sums),
        _ => sequential::<T, FUSED>(a, b, shape, sums),
    }
}

/// The product of a [rows, K] and b [K, N], term by term.
#[inline(always)]
fn sequential<T: Real, const FUSED: bool>(a: &[T], b: &[T], [n, k]: [usize; 2], sums: &mut [T]) {
    for (a, sums) in a.chunks_exact(k.max(1)).zip(sums.chunks_exact_mut(n)) {
        for (&x, b) in a.iter().zip(b.chunks_exact(n)) {
            for (sum, &y) in sums.iter_mut().zip(b) {
                *sum = sum.multiply_add::<FUSED>(x, y);
            }
        }
    }
}

/// The product of a [rows, K] and b [N, K]: sixteen sums side by side, then a tree over them.
#[inline(always)]
fn interleaved<T: Real, const FUSED: bool>(a: &[T], b: &[T], [n, k]: [usize; 2], sums: &mut [T]) {
    for (a, sums) in a.chunks_exact(k.max(1)).zip(sums.chunks_exact_mut(n)) {
        let (a, a_rest) = a.as_chunks::<LANES>();
        for (sum, b) in sums.iter_mut().zip(b.chunks_exact(k)) {
            let (b, b_rest) = b.as_chunks::<LANES>();
            let mut lanes = [T::default(); LANES];
            for (x, y) in a.iter().zip(b) {
                for i in 0..LANES {
                    lanes[i] = lanes[i].multiply_add::<FUSED>(x[i], y[i]);
                }
            }
            for ((lane, &x), &y) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
                *lane = lane.multiply_add::<FUSED>(x, y);
            }
            let mut width = LANES;
            while width > 1 {
                width /= 2;
                for i in 0..width {
                    lanes[i] = lanes[i].plus(lanes[i + width]);
                }
            }
            *sum = lanes[0];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize, mut state: u32) -> Vec<u32> {
        let mut next = move || {
            state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            ((state >> 8) as f32 / 8_388_608.0 - 1.0).to_bits()
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn orders_differ_by_roundings_only() {
        let [batch, m, n, k] = [2, 70, 33, 300];
        let (a, b) = (noise(batch * m * k, 1), noise(batch * n * k, 2));
        let (a, b) = (StridedView::contiguous(&a, batch, m, k), StridedView::contiguous(&b, batch, n, k));
        let run = |native, parts: usize| {
            let mut out = vec![0; parts * batch * m * n];
            product(native, &a, &b, &mut out);
            out
        };
        let exact: Vec<u32> = run(Native::Sequential { fused: true }, 2);
        let mut seen = Vec::new();
        for native in Native::ALL {
            let single = run(native, 1);
            for (x, e) in single.iter().zip(&exact) {
                assert!((f32::from_bits(*x) - f32::from_bits(*e)).abs() < 1e-4, "{native:?}");
            }
            if !seen.contains(&single) {
                seen.push(single);
            }
            let double = run(native, 2);
            assert_eq!(double[..batch * m * n], exact[..batch * m * n], "{native:?} in binary64");
        }
        // The library adds term by term where K is short.
        assert!(seen.len() >= 4, "the orders do not differ");
    }
}
