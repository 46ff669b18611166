//! One element of a logged product in two parts, from the rows of its operands: the meaning of the nodes that
//! [`super::logged::logged_product`] makes on grids finer than bfloat16, without a graph. It serves who needs few elements.

use super::expr::Body;
use super::logged::{HIGH_DIGITS_MAX, LOW_DIGITS, split_above, two_parts_body};
use crate::arith::digits::{ProductPart, group_absmax, quantise, scale_back_part};
use crate::arith::{float, rounding_grid};

/// A row of an operand, digitised in a high part and the rest.
pub struct TwoPartRow {
    /// The integers of the high part and of the rest, K each.
    pub integers: [Vec<i32>; 2],
    /// The absmaxes of the high part and of the rest, binary32 patterns.
    pub absmaxes: [u32; 2],
    /// The digits of the high part and of the rest.
    pub digits: [u32; 2],
}

impl TwoPartRow {
    /// Digitises a row of binary32 patterns for a class of `digits` digits.
    pub fn new(row: &[u32], digits: u8) -> TwoPartRow {
        let high_digits = digits.min(HIGH_DIGITS_MAX);
        let constant = split_constant(group_absmax(row.iter().copied()), high_digits);
        let (mut high, mut rest) = (Vec::with_capacity(row.len()), Vec::with_capacity(row.len()));
        for &x in row {
            let above = float::sub(float::add(x, constant), constant);
            high.push(above);
            rest.push(float::sub(x, above));
        }
        let digits = [u32::from(high_digits), u32::from(LOW_DIGITS)];
        let absmaxes = [&high, &rest].map(|part| group_absmax(part.iter().copied()));
        let parts = [(high, 0), (rest, 1)];
        let integers =
            parts.map(|(part, i)| part.into_iter().map(|x| quantise(x, absmaxes[i], digits[i])).collect());
        TwoPartRow { integers, absmaxes, digits }
    }
}

/// The constant of a split of a row with this absmax.
fn split_constant(absmax: u32, digits: u8) -> u32 {
    // The field of 2^e is one more than the field of the greatest member.
    let field = (rounding_grid::field(absmax) + split_above(digits) + 1).min(254);
    ((field as u32) << 23) + (1 << 22)
}

/// Computes elements of products in two parts.
pub struct TwoPartProduct {
    sum: Body,
}

impl Default for TwoPartProduct {
    fn default() -> TwoPartProduct {
        TwoPartProduct { sum: two_parts_body() }
    }
}

impl TwoPartProduct {
    /// The element of a row and a column: the nearest binary32 of the product, and the rest, as patterns.
    ///
    /// # Panics
    /// If the rows have different lengths.
    pub fn element(&self, a: &TwoPartRow, b: &TwoPartRow) -> [u32; 2] {
        let sum = |[i, j]: [usize; 2]| exact_sum(&a.integers[i], &b.integers[j]);
        let part = |part, sum, [i, j]: [usize; 2]| {
            scale_back_part(part, sum, [a.absmaxes[i], b.absmaxes[j]], [a.digits[i], b.digits[j]])
        };
        // 0 names the high part of an operand, 1 the rest.
        let larger = [[0, 0], [0, 1], [1, 0]];
        let sums = larger.map(sum);
        let mut inputs = [0; 7];
        for (i, (&sides, &sum)) in larger.iter().zip(&sums).enumerate() {
            inputs[i] = part(ProductPart::Rounded, sum, sides);
            inputs[i + 4] = part(ProductPart::RoundingError, sum, sides);
        }
        inputs[3] = part(ProductPart::Rounded, sum([1, 1]), [1, 1]);
        [0, 1].map(|i| self.sum.eval(&inputs, [i, 0, 0, 0]))
    }
}

/// The exact dot product of two rows of integers up to 2^30.
fn exact_sum(a: &[i32], b: &[i32]) -> i128 {
    assert_eq!(a.len(), b.len(), "the rows of a product have one length");
    let mut sum = 0i128;
    // Integers are at most 2^30, so four products are at most 2^62 together.
    for (a, b) in a.chunks(4).zip(b.chunks(4)) {
        sum += i128::from(a.iter().zip(b).map(|(&x, &y)| i64::from(x) * i64::from(y)).sum::<i64>());
    }
    sum
}
