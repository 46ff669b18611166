//! The values that an honest native kernel can have rounded to: a proved bound on its distance from the exact product.
//!
//! The derivation is in `docs/ROUNDING.md`, section 4. Thresholds play no role here: they decide what is logged, not what is
//! legal.

use serde::{Deserialize, Serialize};

use tiebreak_contract::arith::digits::{exponent, magnitude_bits};
use tiebreak_contract::arith::rounding_grid::RoundingGrid;

/// The accumulation of native kernels. Every product and sum is one of the two neighbours of its exact value, in any order, fused
/// or not, with subnormals kept or flushed. Tensor cores accumulate in their own way, which is shown to cost no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accumulation {
    /// In binary32.
    Binary32,
    /// In binary64.
    Binary64,
}

impl Accumulation {
    /// The most that one rounding to a neighbour changes a result, relative to the result.
    pub(crate) fn unit(self) -> f64 {
        match self {
            Accumulation::Binary32 => f64::EPSILON * f64::from(1u32 << 29), // 2^-23
            Accumulation::Binary64 => f64::EPSILON,                         // 2^-52
        }
    }

    /// The least normal number: flushed subnormals are below it.
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

    /// A bound on |native - x| in units of the product of the 2-norms of the row and the column. The operands have one part of
    /// these digits, or a high part and a rest. The bound is looser than [`Exact::bound`], and serves statistics over all
    /// elements.
    #[doc(hidden)] // for the layers above
    pub fn bound_by_norms(self, k: usize, parts: &[[u32; 2]]) -> f64 {
        (self.gamma(k) + digitisation_by_norms(k, parts)) * 1.000_001
    }
}

/// A bound on |exact product of the operands - product of the quantised operands| in units of the product of the 2-norms of the row
/// and the column. `parts` are as for [`Accumulation::bound_by_norms`].
pub fn digitisation_by_norms(k: usize, parts: &[[u32; 2]]) -> f64 {
    let [a, b] = [0, 1].map(|side| {
        let bits = parts.iter().map(|digits| magnitude_bits(digits[side]) as i32).sum::<i32>();
        // The rest after a high part begins one bit above its half unit.
        2f64.powi(if parts.len() == 1 { -bits } else { 1 - bits })
    });
    let k = k as f64;
    k.sqrt() * (a + b) + k * a * b
}

/// A row of an operand as integers, each part in units of a power of two. The sum of the parts is the row, up to half a unit of
/// the last part.
#[derive(Default)]
pub struct ExactRow {
    parts: Vec<(Vec<i32>, f64)>,
}

impl ExactRow {
    /// Appends a part: integers of `digits` digits of a row with this finite absmax.
    pub fn with(mut self, integers: Vec<i32>, absmax: u32, digits: u32) -> ExactRow {
        self.parts.push((integers, part_unit(absmax, digits)));
        self
    }
}

/// The value of one unit of an integer of `digits` digits in a row with this finite absmax.
pub fn part_unit(absmax: u32, digits: u32) -> f64 {
    2f64.powi(exponent(absmax) - magnitude_bits(digits) as i32)
}

/// The integer sums over K that decide an element's exact product and its bound, for rows of [`IntegerSums::parts`] parts. Sums
/// over ranges of K add up to the sums over K, for any ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntegerSums {
    /// The sums of a_i b_j, for each part i of the row and j of the column, row-major.
    pub products: Vec<i128>,
    /// The sums of |a_i b_j|, in the same order.
    pub absolute: Vec<i128>,
    /// The sums of |a_i|, then of |b_j|.
    pub operands: Vec<i128>,
}

impl IntegerSums {
    /// The sums of no terms, for rows of this number of parts.
    pub fn of_parts(parts: usize) -> IntegerSums {
        let zeros = |len| vec![0; len];
        IntegerSums {
            products: zeros(parts * parts),
            absolute: zeros(parts * parts),
            operands: zeros(2 * parts),
        }
    }

    /// The number of parts of a row.
    pub fn parts(&self) -> usize {
        self.operands.len() / 2
    }

    /// Adds a term: the integers of the row's parts and of the column's parts at one index of K.
    pub fn add(&mut self, left: &[i32], right: &[i32]) {
        let parts = self.parts();
        for (i, &x) in left.iter().enumerate() {
            for (j, &y) in right.iter().enumerate() {
                let product = i64::from(x) * i64::from(y);
                self.products[i * parts + j] += i128::from(product);
                self.absolute[i * parts + j] += i128::from(product.unsigned_abs());
            }
        }
        for (sum, &x) in self.operands.iter_mut().zip(left.iter().chain(right)) {
            *sum += i128::from(x.unsigned_abs());
        }
    }
}

/// One element's exact product of quantised rows, and the numbers that its bound is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exact {
    /// The exact integer product in its unit, to about the precision of binary64.
    pub value: f64,
    /// A bound on the sum of |a b| of the operands before they were quantised.
    absolute: f64,
    /// A bound on |exact product of the operands - product of the quantised operands|.
    digitisation: f64,
    /// A bound on the sum of the operands' absolute values.
    operands: f64,
    k: usize,
}

impl Exact {
    /// The exact product of an element's quantised row and column.
    pub fn of(a: &ExactRow, b: &ExactRow) -> Exact {
        let k = a.parts.first().map_or(0, |(integers, _)| integers.len());
        let mut sums = IntegerSums::of_parts(a.parts.len());
        let (mut left, mut right) = (vec![0; a.parts.len()], vec![0; b.parts.len()]);
        for i in 0..k {
            for (to, row) in [(&mut left, a), (&mut right, b)] {
                to.iter_mut().zip(&row.parts).for_each(|(to, (integers, _))| *to = integers[i]);
            }
            sums.add(&left, &right);
        }
        let units = [a, b].map(|row| row.parts.iter().map(|(_, unit)| *unit).collect::<Vec<f64>>());
        Exact::of_sums(k, &sums, [&units[0], &units[1]])
    }

    /// The exact product from the sums over an element's K terms. `units` are the values of one unit in each part of the row and
    /// of the column ([`part_unit`]).
    pub fn of_sums(k: usize, sums: &IntegerSums, units: [&[f64]; 2]) -> Exact {
        let parts = sums.parts();
        let (mut value, mut absolute) = (0.0, 0.0);
        for (i, left) in units[0].iter().enumerate() {
            for (j, right) in units[1].iter().enumerate() {
                value += sums.products[i * parts + j] as f64 * (left * right);
                absolute += sums.absolute[i * parts + j] as f64 * (left * right);
            }
        }
        let sum = |side: usize| -> f64 {
            let sums = &sums.operands[side * parts..];
            units[side].iter().zip(sums).map(|(unit, &sum)| sum as f64 * unit).sum()
        };
        let (sum_a, sum_b) = (sum(0), sum(1));
        let [half_a, half_b] = units.map(|units| units.last().map_or(0.0, |unit| 0.5 * unit));
        let digitisation = half_a * sum_b + half_b * sum_a + k as f64 * half_a * half_b;
        let operands = sum_a + sum_b + k as f64 * (half_a + half_b);
        Exact { value, absolute: absolute + digitisation, digitisation, operands, k }
    }

    /// A bound on the distance between `value` and the result of a native kernel. The errors of computing `value` are a few units
    /// of binary64 of the absolute sum; the last factor covers the errors of the bound itself.
    pub fn bound(&self, accumulation: Accumulation) -> f64 {
        let flushed = accumulation.least_normal() * (2.0 * self.k as f64 + self.operands);
        let rounding = (accumulation.gamma(self.k) + 8.0 * f64::EPSILON) * self.absolute;
        (rounding + self.digitisation + flushed) * (1.0 + 1e-9)
    }

    /// The first and the last index that an honest kernel's result can have rounded to.
    pub fn legal(&self, grid: RoundingGrid, accumulation: Accumulation) -> [i64; 2] {
        let bound = self.bound(accumulation).min(2f64.powi(130));
        [grid.index(self.value - bound), grid.index(self.value + bound)]
    }
}

/// A rounding that no honest kernel can have taken.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Illegal {
    /// The micro-batch of the product.
    pub micro_batch: u32,
    /// The product's operator.
    pub operator: String,
    /// The product's number among the program's logged products.
    pub product: usize,
    /// The element's index in the product's output, row-major.
    pub element: u64,
    /// The exact product, to about binary64.
    pub exact: f64,
    /// The proved bound on a native kernel's distance from the exact product.
    pub bound: f64,
    /// The trainer's value.
    pub value: f32,
    /// The least and greatest value that an honest kernel's result can have been rounded to.
    pub legal: [f32; 2],
}

impl std::fmt::Display for Illegal {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Illegal { micro_batch, operator, element, exact, bound, value, legal: [low, high], .. } = self;
        write!(
            f,
            "{operator} of micro-batch {micro_batch}, element {element}, is {value:e}; the exact product is {exact:e}, and no kernel \
             that is within {bound:e} of it rounds outside {low:e} to {high:e}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::arith::digits::{group_absmax, quantise};
    use tiebreak_contract::arith::rounding_grid::GridRule;
    use tiebreak_engine::cpu::native::{Native, product};
    use tiebreak_engine::cpu::product::StridedView;

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
                // Every second term nearly cancels the one before.
                (next() & 0x007f_0000) | (exponent << 23) | ((i as u32 & 1) << 31)
            })
            .collect()
    }

    #[test]
    fn no_honest_kernel_is_outside_the_bound() {
        for seed in 0..60u32 {
            let k = [1, 7, 64, 1000][seed as usize % 4];
            let (a, b) = (hard(k, 2 * seed), hard(k, 2 * seed + 1));
            let absmaxes = [group_absmax(a.iter().copied()), group_absmax(b.iter().copied())];
            for digits in [[2, 3], [3, 3], [4, 4]] {
                let q = |row: &[u32], i: usize| {
                    let integers = row.iter().map(|&x| quantise(x, absmaxes[i], digits[i])).collect();
                    ExactRow::default().with(integers, absmaxes[i], digits[i])
                };
                let exact = Exact::of(&q(&a, 0), &q(&b, 1));
                let grid = GridRule { bits: 16, floor: 0 }.grid(k as u32, absmaxes[0], absmaxes[1]);
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
        let one = || ExactRow::default().with(row.clone(), 0x3f80_0000, 3);
        let exact = Exact::of(&one(), &one());
        let bound = exact.bound(Accumulation::Binary32);
        assert!(bound < exact.value * 256.0 * 2f64.powi(-22), "{bound} {}", exact.value);
        let wide = Accumulation::Binary32.bound_by_norms(k as usize, &[[3, 3]]);
        let norm = row.iter().map(|&q| (f64::from(q) * 2f64.powi(1 - 22)).powi(2)).sum::<f64>();
        assert!(bound <= wide * norm, "the bound by norms is the looser one");
    }
}
