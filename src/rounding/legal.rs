//! Which values an honest native kernel can have rounded to: a proved bound on its distance from the exact product.
//! Derivation: `docs/ROUNDING.md`, section 4. Thresholds have no part in it: they decide what is logged, not what is legal.

use serde::{Deserialize, Serialize};

use crate::arith::digits::{exponent, magnitude_bits};
use crate::arith::grid::Grid;

/// How native kernels accumulate: every product and sum is one of the two neighbours of its exact value, in any order, fused or
/// not, subnormals kept or flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accumulation {
    Binary32,
    Binary64,
}

impl Accumulation {
    /// The most that one rounding to a neighbour changes, relative to the result.
    pub fn unit(self) -> f64 {
        match self {
            Accumulation::Binary32 => f64::EPSILON * f64::from(1u32 << 29), // 2^-23
            Accumulation::Binary64 => f64::EPSILON,                         // 2^-52
        }
    }

    /// The least normal number: what a flushed subnormal is below.
    fn least_normal(self) -> f64 {
        match self {
            Accumulation::Binary32 => f64::from(f32::MIN_POSITIVE),
            Accumulation::Binary64 => f64::MIN_POSITIVE,
        }
    }

    /// K u / (1 - K u): the error of K roundings, relative to the sum of the terms' absolute values.
    pub fn gamma(self, k: usize) -> f64 {
        let product = k as f64 * self.unit();
        if product < 0.5 { product / (1.0 - product) } else { f64::INFINITY }
    }

    /// A bound on |native - x| in units of the product of the 2-norms of the row and the column, for operands of these digits.
    /// Looser than [`Exact::bound`], for statistics over all elements.
    pub fn bound_by_norms(self, k: usize, digits: [u32; 2]) -> f64 {
        let [a, b] = digits.map(|d| 2f64.powi(-(magnitude_bits(d) as i32)));
        let k_float = k as f64;
        (self.gamma(k) + k_float.sqrt() * (a + b) + k_float * a * b) * 1.000_001
    }
}

/// One element's exact product of quantised rows, and what the bound is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exact {
    /// The nearest binary64 to the exact integer product on its scale.
    pub value: f64,
    /// Above the sum of |a b| of the operands before they were quantised.
    absolute: f64,
    /// Above |exact product of the operands - product of the quantised ones|.
    digitisation: f64,
    /// Above the sum of the operands' absolute values.
    operands: f64,
    k: usize,
}

impl Exact {
    /// From an element's quantised row and column (integers of `digits` digits) and their magnitudes, which are finite.
    pub fn of(a: &[i32], b: &[i32], magnitudes: [u32; 2], digits: [u32; 2]) -> Exact {
        let (mut sum, mut absolute, mut halves) = (0i128, 0u128, 0u128);
        let (mut sum_a, mut sum_b) = (0u64, 0u64);
        for (&x, &y) in a.iter().zip(b) {
            sum += i128::from(i64::from(x) * i64::from(y));
            let (x, y) = (u64::from(x.unsigned_abs()), u64::from(y.unsigned_abs()));
            absolute += u128::from(x * y);
            sum_a += x;
            sum_b += y;
        }
        halves += u128::from(sum_a) + u128::from(sum_b);
        let k = a.len();
        let exponents = [0, 1].map(|i| exponent(magnitudes[i]) - magnitude_bits(digits[i]) as i32);
        let [scale_a, scale_b] = exponents.map(|e| 2f64.powi(e));
        let scale = 2f64.powi(exponents[0] + exponents[1]);
        // Each operand is within half a unit of its integer.
        let digitisation = (halves as f64 * 0.5 + k as f64 * 0.25) * scale;
        Exact {
            value: sum as f64 * scale,
            absolute: absolute as f64 * scale + digitisation,
            digitisation,
            operands: (sum_a as f64 + k as f64) * scale_a + (sum_b as f64 + k as f64) * scale_b,
            k,
        }
    }

    /// A bound on the distance between `value` and what a native kernel computes. Every term is far above the error of this
    /// computation, which the last factor covers.
    pub fn bound(&self, accumulation: Accumulation) -> f64 {
        let flushed = accumulation.least_normal() * (2.0 * self.k as f64 + self.operands);
        let rounding = (accumulation.gamma(self.k) + f64::EPSILON) * self.absolute;
        (rounding + self.digitisation + flushed) * (1.0 + 1e-9)
    }

    /// The first and the last index that an honest kernel's result can have rounded to.
    pub fn legal(&self, grid: Grid, accumulation: Accumulation) -> [i64; 2] {
        let bound = self.bound(accumulation).min(2f64.powi(130));
        [grid.index(self.value - bound), grid.index(self.value + bound)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arith::digits::{group_magnitude, quantise};
    use crate::arith::grid::GridRule;
    use crate::engine::cpu::native::{Native, product};
    use crate::engine::cpu::product::StridedView;

    /// Rows that make sums hard: wide ranges, cancellation, subnormals.
    fn hard(k: usize, seed: u32) -> Vec<u32> {
        let mut state = seed;
        let mut next = move || {
            state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            (state >> ((state >> 28) + 4) ^ state).wrapping_mul(277_803_737)
        };
        (0..k)
            .map(|i| {
                let spread = match seed % 3 {
                    0 => 1,
                    1 => 12,
                    _ => 60,
                };
                let exponent = 127 - next() % spread - if seed.is_multiple_of(5) { 60 } else { 0 };
                // Every second term nearly takes back the one before.
                (next() & 0x007f_0000) | (exponent << 23) | ((i as u32 & 1) << 31)
            })
            .collect()
    }

    #[test]
    fn no_honest_kernel_is_outside_the_bound() {
        for seed in 0..60u32 {
            let k = [1, 7, 64, 1000][seed as usize % 4];
            let (a, b) = (hard(k, 2 * seed), hard(k, 2 * seed + 1));
            let magnitudes = [group_magnitude(a.iter().copied()), group_magnitude(b.iter().copied())];
            for digits in [[2, 3], [3, 3], [4, 4]] {
                let q = |row: &[u32], i: usize| -> Vec<i32> {
                    row.iter().map(|&x| quantise(x, magnitudes[i], digits[i])).collect()
                };
                let exact = Exact::of(&q(&a, 0), &q(&b, 1), magnitudes, digits);
                let grid = GridRule { bits: 16, floor: 0 }.grid(k as u32, magnitudes[0], magnitudes[1]);
                for native in Native::ALL {
                    let mut out = [0u32];
                    product(
                        native,
                        &StridedView::contiguous(&a, 1, 1, k),
                        &StridedView::contiguous(&b, 1, 1, k),
                        &mut out,
                    );
                    let result = f64::from(f32::from_bits(out[0]));
                    let bound = exact.bound(Accumulation::Binary32);
                    assert!((result - exact.value).abs() <= bound, "{seed} {digits:?} {native:?}");
                    let [low, high] = exact.legal(grid, Accumulation::Binary32);
                    assert!((low..=high).contains(&grid.index(result)));
                }
            }
        }
    }

    #[test]
    fn the_bound_is_not_so_loose_that_anything_is_legal() {
        let k = 256;
        let row: Vec<i32> = (0..k).map(|i| (i % 100 - 50) * 80_000).collect();
        let exact = Exact::of(&row, &row, [0x3f80_0000; 2], [3, 3]);
        let bound = exact.bound(Accumulation::Binary32);
        assert!(bound < exact.value * 256.0 * 2f64.powi(-22), "{bound} {}", exact.value);
        let wide = Accumulation::Binary32.bound_by_norms(k as usize, [3, 3]);
        let norm = row.iter().map(|&q| (f64::from(q) * 2f64.powi(1 - 22)).powi(2)).sum::<f64>();
        assert!(bound <= wide * norm, "the bound by norms is the looser one");
    }
}
