//! The near-tie rule, which decides the roundings that are logged.
//!
//! A native result v stands for every value within a tolerance t of it. So the rounding is logged if those values round to more
//! than one value of the grid. The tolerance is a threshold times the 2-norms of the row and the column, since an error of
//! summation scales with the norms. A small fraction of the result itself is added (`docs/ROUNDING.md`, section 3).

use super::{BITS_MAX, Decision};
use tiebreak_contract::arith::rounding_grid::{GridRule, RoundingGrid};

/// The data of a product's rows or columns that the scan needs.
pub struct Side {
    /// The absmaxes of [batch, rows].
    pub absmaxes: Vec<u32>,
    /// The norms that the tolerance scales with, [batch, rows].
    pub norms: Vec<f32>,
}

/// A product whose results are tested: [batch, M, N] of K terms each.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    /// [batch, M, N, K].
    pub dims: [usize; 4],
    /// The rule by which an element's grid follows from the absmaxes.
    pub rule: GridRule,
    /// The left operand's rows, [batch, M].
    pub a: &'a Side,
    /// The right operand's rows, [batch, N].
    pub b: &'a Side,
    /// The distance from a boundary within which a result is a near tie.
    pub tolerance: Tolerance,
}

/// The distance from a result within which another machine's result may be: the sum of these terms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tolerance {
    /// The term relative to the product of the row's and the column's norm.
    pub norms: f32,
    /// The term relative to the result.
    pub value: f32,
    /// The term relative to the grid's step at the result, as in the paper.
    pub steps: f32,
}

impl Tolerance {
    /// The fast test's tolerance for each unit of a result.
    pub fn relative(self, rule: GridRule) -> f32 {
        let Tolerance { value, steps, .. } = self;
        (value + steps * 2f32.powi(9 - i32::from(rule.bits))) * 1.000_001
    }
}

/// A result that could round to more than one value.
///
/// ```
/// use tiebreak_contract::arith::rounding_grid::GridRule;
/// use tiebreak_record::rounding::near_tie::NearTie;
///
/// let one = 1.0f32.to_bits();
/// let grid = GridRule { bits: 16, floor: 0 }.grid(64, one, one);
/// // The trainer's kernel gives 1 + 2^-8 and a little, just above the middle of two bfloat16 values.
/// let value = 1.003_906_4;
/// let trainer = NearTie { place: 5, value, rounded: grid.index(value), tolerance: 1e-6, grid };
/// assert_eq!(grid.value(trainer.rounded), 1.007_812_5);
/// let [low, high] = trainer.range();
/// assert_eq!(high - low, 1, "another machine's could round down");
/// let decision = trainer.decision(trainer.rounded).expect("20 bits are enough");
/// // An auditor's kernel is a little lower and rounds down by itself; with the decision it has the trainer's bits.
/// let auditor = 1.003_905_9;
/// assert_eq!(grid.value(grid.index(auditor)), 1.0);
/// assert_eq!(decision.index(grid, auditor), trainer.rounded);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NearTie {
    /// The element's index in [batch, M, N].
    pub place: usize,
    /// The result.
    pub value: f64,
    /// The index of the grid that the result is rounded to.
    pub rounded: i64,
    /// The distance within which another machine's result may be.
    pub tolerance: f64,
    /// The grid of the element.
    pub grid: RoundingGrid,
}

impl NearTie {
    /// The first and the last index that values within the tolerance round to.
    pub fn range(&self) -> [i64; 2] {
        [self.grid.index(self.value - self.tolerance), self.grid.index(self.value + self.tolerance)]
    }

    /// The distance to the nearest boundary between two values, in tolerances.
    pub fn margin(&self) -> f64 {
        let near = self.grid.index(self.value);
        let value = self.grid.value(near);
        let neighbour = self.grid.value(if self.value >= value { near + 1 } else { near - 1 });
        (self.value - 0.5 * (value + neighbour)).abs() / self.tolerance
    }

    /// The decision for an index, with as many bits as a reader needs who knows the value up to the tolerance. The values x and y
    /// are at most half a step and the tolerance apart, and twice that where steps double. A residue of r bits tells apart
    /// indices less than 2^(r - 1) from x.
    pub fn decision(&self, index: i64) -> Option<Decision> {
        let steps = 0.5 + 2.0 * self.tolerance * 2f64.powi(-self.grid.quantum(self.value));
        let bits = (1..=BITS_MAX).find(|&bits| steps < f64::from(1u32 << (bits - 1)))?;
        let residue = index.rem_euclid(1 << bits) as u32;
        Some(Decision { place: self.place as u64, bits, residue })
    }

    /// True if the result is a zero on a grid without a floor, where the tolerance spans more values than a decision tells apart.
    /// Rows without a common nonzero index give such zeros; gradients behind ReLU and dropout have many. All terms are zero, so
    /// every kernel's result is zero, though the norms do not show it. Such a zero is not logged (`docs/ROUNDING.md`, section 3).
    fn is_unlogged_zero(&self) -> bool {
        self.value == 0.0 && self.decision(self.rounded).is_none()
    }
}

impl Product<'_> {
    /// Elements of the result.
    pub fn elements(&self) -> usize {
        let [batch, m, n, _] = self.dims;
        batch * m * n
    }

    /// The row of [batch, M] and the column of [batch, N] whose product an element is.
    pub fn sides(&self, place: usize) -> [usize; 2] {
        let [_, m, n, _] = self.dims;
        [place / n, place / (m * n) * n + place % n]
    }

    /// The grid of an element.
    pub fn grid(&self, place: usize) -> RoundingGrid {
        let ([row, column], k) = (self.sides(place), self.dims[3]);
        self.rule.grid(k as u32, self.a.absmaxes[row], self.b.absmaxes[column])
    }

    /// The product of the norms of an element's row and column.
    pub fn norms(&self, place: usize) -> f64 {
        let [row, column] = self.sides(place);
        f64::from(self.a.norms[row]) * f64::from(self.b.norms[column])
    }

    /// The tolerance of an element of this value.
    pub fn tolerance(&self, place: usize, value: f64) -> f64 {
        let Tolerance { norms, value: relative, steps } = self.tolerance;
        let scaled = f64::from(norms) * self.norms(place) + f64::from(relative) * value.abs();
        if steps == 0.0 {
            return scaled;
        }
        scaled + f64::from(steps) * 2f64.powi(self.grid(place).quantum(value))
    }

    /// An element's near tie with the first and the last index that it may round to, if it is logged. `high` is the nearest
    /// binary32; on grids finer than bfloat16, `rounding_error` is the rest.
    ///
    /// # Errors
    /// If the value is not finite; the error is the element's index.
    pub fn near_tie(
        &self,
        place: usize,
        high: u32,
        rounding_error: Option<u32>,
    ) -> Result<Option<(NearTie, [i64; 2])>, usize> {
        let mut value = f64::from(f32::from_bits(high));
        if let Some(rounding_error) = rounding_error {
            value += f64::from(f32::from_bits(rounding_error));
        }
        if !value.is_finite() {
            return Err(place);
        }
        let (tolerance, grid) = (self.tolerance(place, value), self.grid(place));
        let rounded = self.rule.rounded(grid, high, value);
        let tie = NearTie { place, value, rounded, tolerance, grid };
        let range = tie.range();
        Ok((range[0] != range[1] && !tie.is_unlogged_zero()).then_some((tie, range)))
    }
}
