//! The way from exact integer sums to binary32, with one rounding, as in [`tiebreak_contract::arith::digits::scale_back`].

use super::operand::Operand;
use super::simd::{Path, vectorised};
use super::view::power_of_two;
use tiebreak_contract::arith::digits::{self, ProductPart};
use tiebreak_contract::arith::float;

/// An integer wide enough for the exact sums of a product.
pub(super) trait Sum:
    Copy + Default + Send + std::ops::AddAssign + std::ops::Shl<u32, Output = Self> + From<i64>
{
    /// Rounds one row of sums, `sums.len()` columns from `column`, into `out`.
    fn scale_back(scale: &Scale<'_>, row: usize, column: usize, sums: &[Self], out: &mut [u32]);
}

/// The scales of one block of one batch.
pub(super) struct Scale<'o> {
    pub path: Path,
    part: ProductPart,
    a: &'o Operand,
    b: &'o Operand,
    batch: usize,
    block: usize,
    /// 2^(e_b - m_a - m_b) for each row of b, NaN for a marked row; then zeros up to a multiple of eight.
    columns: Vec<f64>,
}

impl<'o> Scale<'o> {
    pub(crate) fn new(
        path: Path,
        part: ProductPart,
        a: &'o Operand,
        b: &'o Operand,
        batch: usize,
        block: usize,
    ) -> Self {
        let bits = product_bits(a, b) as i32;
        let mut columns = Vec::with_capacity(b.rows().next_multiple_of(8));
        columns.extend(b.absmaxes_of(batch, block).map(|absmax| factor(absmax, -bits)));
        columns.resize(b.rows().next_multiple_of(8), 0.0);
        Scale { path, part, a, b, batch, block, columns }
    }

    /// True if sums are rounded to binary32; otherwise the output is their rounding errors.
    pub(crate) fn rounds(&self) -> bool {
        self.part == ProductPart::Rounded
    }

    /// The factors of a row and of `len` columns from `column`.
    pub(crate) fn factors(&self, row: usize, column: usize, len: usize) -> (f64, &[f64]) {
        (self.row(row), &self.columns[column..][..len])
    }

    /// The factor of a row.
    pub(crate) fn row(&self, row: usize) -> f64 {
        factor(self.a.absmax(self.batch, row, self.block), 0)
    }

    /// The factors of eight columns from `column`, a multiple of eight, including those past the last column.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn eight_columns(&self, column: usize) -> &[f64; 8] {
        self.columns[column..].first_chunk().expect("columns are filled up to a multiple of eight")
    }
}

/// The sums of a few columns in all rows of a band, `[row][width]`.
pub(super) struct Panel<'s> {
    pub sums: &'s [i64],
    pub width: usize,
    /// The first column and the number of columns.
    pub column: usize,
    pub columns: usize,
}

impl Scale<'_> {
    /// Rounds the sums of a panel into the columns of `out`, `[rows][N]`; `factors` are [`Scale::row`] of these rows, which begin
    /// with `row`.
    pub(crate) fn panel(&self, panel: &Panel<'_>, row: usize, factors: &[f64], out: &mut [u32]) {
        let (column, n) = (panel.column, out.len() / factors.len());
        if self.rounds() {
            let columns = &self.columns[column..][..panel.columns];
            return round_panel(self.path, panel, factors, columns, n, out);
        }
        for (i, (sums, out)) in panel.sums.chunks_exact(panel.width).zip(out.chunks_exact_mut(n)).enumerate()
        {
            let out = &mut out[column..][..panel.columns];
            i64::scale_back(self, row + i, column, &sums[..panel.columns], out);
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
impl Scale<'_> {
    /// [`Scale::panel`] for sums `high * 2^32 + low`, 0 <= low < 2^32, |high| < 2^51: `[low, high][rows][width]`.
    pub(crate) fn wide_panel(&self, panel: &Panel<'_>, row: usize, factors: &[f64], out: &mut [u32]) {
        let (column, n) = (panel.column, out.len() / factors.len());
        let (lows, highs) = panel.sums.split_at(panel.sums.len() / 2);
        let of_rows = lows.chunks_exact(panel.width).zip(highs.chunks_exact(panel.width));
        for (i, ((lows, highs), out)) in of_rows.zip(out.chunks_exact_mut(n)).enumerate() {
            let (lows, highs) = (&lows[..panel.columns], &highs[..panel.columns]);
            let out = &mut out[column..][..panel.columns];
            if self.rounds() {
                round_wide(self.path, lows, highs, factors[i], &self.columns[column..], out);
            } else {
                let sums =
                    lows.iter().zip(highs).map(|(&low, &high)| (i128::from(high) << 32) + i128::from(low));
                i128::scale_back(self, row + i, column, &sums.collect::<Vec<_>>(), out);
            }
        }
    }
}

/// 2^(e + shift), or NaN if the absmax marks its group.
fn factor(absmax: u32, shift: i32) -> f64 {
    if digits::is_marked(absmax) { f64::NAN } else { power_of_two(digits::exponent(absmax) + shift) }
}

/// m_a + m_b: |q_a * q_b| is at most 2 to this power.
pub(super) fn product_bits(a: &Operand, b: &Operand) -> u32 {
    digits::magnitude_bits(a.digits()) + digits::magnitude_bits(b.digits())
}

/// True if every sum of `len` products of `bits` bits, and every partial sum, has an absolute value below 2^63.
pub(super) fn fits_i64(bits: u32, len: usize) -> bool {
    (len as u128) << bits < 1 << 63
}

impl Sum for i64 {
    fn scale_back(scale: &Scale<'_>, row: usize, column: usize, sums: &[i64], out: &mut [u32]) {
        let (row, columns) = scale.factors(row, column, sums.len());
        match scale.part {
            ProductPart::Rounded => round_row(scale.path, sums, row, columns, out),
            ProductPart::RoundingError => rounding_error_row(scale.path, sums, row, columns, out),
        }
    }
}

/// Sums of 128 bits are rare, so the scalar reference rounds them.
impl Sum for i128 {
    fn scale_back(scale: &Scale<'_>, row: usize, column: usize, sums: &[i128], out: &mut [u32]) {
        let digits = [scale.a.digits(), scale.b.digits()];
        let absmax_a = scale.a.absmax(scale.batch, row, scale.block);
        for (i, (&sum, out)) in sums.iter().zip(out).enumerate() {
            let absmaxes = [absmax_a, scale.b.absmax(scale.batch, column + i, scale.block)];
            *out = digits::scale_back_part(scale.part, sum, absmaxes, digits);
        }
    }
}

#[inline(always)]
fn round(sums: &[i64], row: f64, columns: &[f64], out: &mut [u32]) {
    for ((&sum, &column), out) in sums.iter().zip(columns).zip(out) {
        let x = (to_odd(sum) as f64 * row * column) as f32;
        *out = if x.is_nan() { float::NAN } else { x.to_bits() };
    }
}

vectorised! {
    /// [`round_row`] for each row of a panel: short rows would take longer to call than to round.
    fn round_panel(panel: &Panel<'_>, rows: &[f64], columns: &[f64], n: usize, out: &mut [u32]) {
        const SIXTEEN: usize = 16;
        let of_rows = panel.sums.chunks_exact(panel.width).zip(out.chunks_exact_mut(n)).zip(rows);
        for ((sums, out), &row) in of_rows {
            let out = &mut out[panel.column..][..columns.len()];
            let sums = &sums[..columns.len()];
            let ((sixteen, rest), (columns, columns_rest)) =
                (sums.as_chunks::<SIXTEEN>(), columns.as_chunks::<SIXTEEN>());
            let (out, out_rest) = out.as_chunks_mut::<SIXTEEN>();
            for ((sums, columns), out) in sixteen.iter().zip(columns).zip(out) {
                round(sums, row, columns, out);
            }
            round(rest, row, columns_rest, out_rest);
        }
    }
}

vectorised! {
    /// Rounds `sums[n] * row * columns[n]`. The factors are powers of two from 2^-356 to 2^128, so their product with a 53-bit
    /// sum is a normal double and exact. Only the conversion to binary32 rounds.
    fn round_row(sums: &[i64], row: f64, columns: &[f64], out: &mut [u32]) {
        round(sums, row, columns, out);
    }
}

vectorised! {
    /// The rounding error of [`round_row`] for `sums[n] * row * columns[n]`, rounded. The rounded part is a whole number of the
    /// sum's units, or the error is 0. The difference is below 2^39 units, so it is rounded once, unless the part is subnormal.
    /// Then the difference is at most 2^-150, which every rounding on the way makes 0.
    fn rounding_error_row(sums: &[i64], row: f64, columns: &[f64], out: &mut [u32]) {
        for ((&sum, &column), out) in sums.iter().zip(columns).zip(out) {
            let unit = row * column;
            let rounded = (to_odd(sum) as f64 * unit) as f32;
            let whole = f64::from(rounded) / unit;
            // 2^63 itself has no i64, but modulo 2^64 the difference is the same. Numbers this large are even.
            let near = whole.abs() < (1u64 << 62) as f64;
            let whole = if near { whole as i64 } else { ((whole * 0.5) as i64) << 1 };
            let rest = (sum.wrapping_sub(whole) as f64 * unit) as f32;
            let finite = if rounded.is_infinite() { 0 } else { rest.to_bits() };
            *out = if unit.is_nan() { float::NAN } else { finite };
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
vectorised! {
    /// [`round_row`] for sums `high * 2^32 + low`. From 2^61 on, the sum lies between whole numbers of units of 2^32, or is one. Every
    /// rounding boundary of binary32 is such a number, so the middle of the unit has the sum's side.
    fn round_wide(lows: &[i64], highs: &[i64], row: f64, columns: &[f64], out: &mut [u32]) {
        const HALF_UNIT: f64 = (1u64 << 31) as f64;
        for (((&low, &high), &column), out) in lows.iter().zip(highs).zip(columns).zip(out) {
            let short = high.wrapping_add(1 << 29) as u64 <= 1 << 30;
            let whole = to_odd(high << 32 | low) as f64;
            let middle = (2 * high + i64::from(low != 0)) as f64 * HALF_UNIT;
            let x = (if short { whole } else { middle } * row * column) as f32;
            *out = if x.is_nan() { float::NAN } else { x.to_bits() };
        }
    }
}

/// A sum above 2^53 cut to 53 bits, with the lowest bit 1 if anything was cut (rounding to odd). The last bit is below
/// binary32's rounding bit. So the later rounding to nearest even sees the same side or tie as with the whole sum.
#[inline(always)]
fn to_odd(sum: i64) -> i64 {
    const CUT: i64 = (1 << 10) - 1;
    let sticky = ((sum & CUT) + CUT) & !CUT;
    let odd = (sum & !CUT) | sticky;
    if sum.wrapping_add(1 << 53) as u64 > 1 << 54 { odd } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn rounding_wide_sums_agrees_with_the_scalar_reference() {
        let mut sums = vec![0i128, (1 << 83) - 1, -(1 << 83)];
        for shift in 0..82 {
            let top = 1i128 << shift;
            for below in [0, 1, top >> 24, top >> 25, (top >> 24) + 1, (top >> 25) + 1, (top >> 24) - 1] {
                for sum in [top + below, top - below, top + (top >> 23) - below] {
                    sums.extend([sum, -sum, sum + (1 << 32), -sum - (1 << 31)]);
                }
            }
        }
        let (lows, highs): (Vec<i64>, Vec<i64>) =
            sums.iter().map(|&sum| ((sum & 0xffff_ffff) as i64, (sum >> 32) as i64)).unzip();
        for path in Path::of_machine() {
            for (e_a, e_b) in [(0, 0), (128, 128), (-148, -148), (-70, -70), (-100, -62), (-75, 0)] {
                let columns = vec![power_of_two(e_b - 60); sums.len()];
                let mut out = vec![0; sums.len()];
                round_wide(path, &lows, &highs, power_of_two(e_a), &columns, &mut out);
                for (&sum, &out) in sums.iter().zip(&out) {
                    assert_eq!(
                        out,
                        digits::round_scaled(sum, e_a + e_b - 60),
                        "{path:?}: {sum}, {e_a} + {e_b}"
                    );
                }
            }
        }
    }

    #[test]
    fn rounding_a_row_agrees_with_the_scalar_reference() {
        let mut sums = vec![0i64, i64::MAX, -i64::MAX];
        for shift in 0..62 {
            let top = 1i64 << shift;
            for below in [0, 1, top >> 24, top >> 25, (top >> 24) + 1, (top >> 25) + 1, (top >> 24) - 1] {
                sums.extend([top + below, -top - below, top - below, below - top]);
            }
        }
        for path in Path::of_machine() {
            for (e_a, e_b, bits) in
                [(0, 0, 44), (128, 128, 12), (-148, -148, 60), (-70, -70, 28), (-100, -62, 28), (128, 40, 60)]
            {
                let columns = vec![power_of_two(e_b - bits); sums.len()];
                let mut out = vec![0; sums.len()];
                round_row(path, &sums, power_of_two(e_a), &columns, &mut out);
                for (&sum, &out) in sums.iter().zip(&out) {
                    let expected = digits::round_scaled(sum.into(), e_a + e_b - bits);
                    assert_eq!(out, expected, "{path:?}: {sum} * 2^({e_a} + {e_b} - {bits})");
                }
                rounding_error_row(path, &sums, power_of_two(e_a), &columns, &mut out);
                for (&sum, &out) in sums.iter().zip(&out) {
                    let expected = digits::rounding_error_scaled(sum.into(), e_a + e_b - bits);
                    assert_eq!(out, expected, "{path:?}: rest of {sum} * 2^({e_a} + {e_b} - {bits})");
                }
            }
        }
    }
}
