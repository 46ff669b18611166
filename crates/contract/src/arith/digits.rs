//! The matrix product: digitising to integers on a power-of-two scale, the exact integer dot product, and one
//! rounding back to binary32. Contract: `docs/ARITHMETIC.md`, section 4.

use super::float;

/// The most digits a product may ask for.
pub const DIGITS_MAX: u32 = 4;

/// Absmax bits of a `digits`-digit integer: |q| <= 2^m with m = 8d - 2, so that q splits into d balanced
/// base-256 digits that fit i8.
pub fn magnitude_bits(digits: u32) -> u32 {
    debug_assert!((1..=DIGITS_MAX).contains(&digits));
    8 * digits - 2
}

/// The absmax of a scale group: the greatest `bits & 0x7fffffff` (0 for an empty group). As integers, absmaxes sort like
/// |x|, with infinity above every finite value and NaN above infinity. So one integer maximum also marks a group that holds
/// infinity or NaN.
pub fn group_absmax(group: impl IntoIterator<Item = u32>) -> u32 {
    group.into_iter().map(|x| x & !float::SIGN).max().unwrap_or(0)
}

/// True if a group of this absmax holds NaN or infinity: every output that uses the group is NaN.
pub fn is_marked(absmax: u32) -> bool {
    absmax >= float::INFINITY
}

/// The group's exponent: the least e with max|x| < 2^e; 0 for a zero or marked group.
pub fn exponent(absmax: u32) -> i32 {
    if absmax == 0 || is_marked(absmax) {
        0
    } else if absmax < 0x0080_0000 {
        // Subnormal: absmax * 2^-149.
        (32 - absmax.leading_zeros()) as i32 - 149
    } else {
        (absmax >> 23) as i32 - 126
    }
}

/// q = RNE(x * 2^(m - e)) for a member x of a group with this absmax, by integer shifting; 0 in a marked group.
///
/// ```
/// use tiebreak_contract::arith::digits::{group_absmax, quantise};
///
/// let group = [1.0f32, -0.5, 0.25].map(f32::to_bits);
/// let absmax = group_absmax(group);
/// // One digit holds six bits, and all are below 2^1 in size: an integer is the number times 2^(6 - 1).
/// assert_eq!(group.map(|x| quantise(x, absmax, 1)), [32, -16, 8]);
/// ```
pub fn quantise(x: u32, absmax: u32, digits: u32) -> i32 {
    if is_marked(absmax) {
        return 0;
    }
    let field = (x >> 23 & 0xff) as i32;
    let fraction = x & 0x007f_ffff;
    // |x| = mantissa * 2^(scale)
    let (mantissa, scale) = if field == 0 { (fraction, -149) } else { (fraction | 0x0080_0000, field - 150) };
    let shift = scale + magnitude_bits(digits) as i32 - exponent(absmax);
    let q = if shift >= 0 {
        // |q| <= 2^m <= 2^30 bounds the shift whenever the mantissa is not 0.
        if mantissa == 0 { 0 } else { mantissa << shift }
    } else {
        round_shift(u128::from(mantissa), (-shift) as u32) as u32
    };
    if x & float::SIGN != 0 { -(q as i32) } else { q as i32 }
}

/// n / 2^shift, rounded to nearest, ties to even.
fn round_shift(n: u128, shift: u32) -> u128 {
    if shift == 0 {
        return n;
    }
    if shift > 127 {
        return 0;
    }
    let quotient = n >> shift;
    let rest = n & ((1 << shift) - 1);
    let half = 1u128 << (shift - 1);
    quotient + u128::from(rest > half || (rest == half && quotient & 1 == 1))
}

/// The `digits` balanced base-256 digits of q, least significant first; each in -128..=127.
pub fn balanced_digits(q: i32, digits: u32) -> [i8; DIGITS_MAX as usize] {
    let mut rest = i64::from(q);
    let mut out = [0i8; DIGITS_MAX as usize];
    for digit in out.iter_mut().take(digits as usize) {
        *digit = rest as i8;
        rest = (rest - i64::from(*digit)) >> 8;
    }
    debug_assert_eq!(rest, 0, "q does not fit its digits");
    out
}

/// sum * 2^exponent rounded once to binary32 (RNE, to subnormals and to infinity alike). A sum of 0 gives +0; a
/// nonzero sum that underflows keeps its sign.
pub fn round_scaled(sum: i128, exponent: i32) -> u32 {
    if sum == 0 {
        return 0;
    }
    let sign = if sum < 0 { float::SIGN } else { 0 };
    let n = sum.unsigned_abs();
    let top = 127 - n.leading_zeros() as i32 + exponent; // floor(log2 |value|)
    // The quantum of the result: 2^(top - 23), but never below 2^-149.
    let quantum = (top - 23).max(-149);
    let shift = quantum - exponent;
    let mantissa = if shift >= 0 {
        round_shift(n, shift as u32)
    } else {
        n << -shift // exact: at most 24 bits stay significant
    };
    // Adding the mantissa, hidden bit included, to a field that is one too low carries into the exponent by itself.
    let field = (quantum + 149) as u32;
    if field >= 254 {
        // quantum > 104: the exponent is past the finite range before rounding.
        return sign | float::INFINITY;
    }
    let bits = (field << 23) + mantissa as u32;
    sign | bits.min(float::INFINITY)
}

/// The rounding error of [`round_scaled`] for sum * 2^exponent, itself rounded once to binary32. The rounded value and this
/// error add up to the exact value, up to about 48 bits. The error is +0 where the rounded value is infinite.
pub fn rounding_error_scaled(sum: i128, exponent: i32) -> u32 {
    let rounded = round_scaled(sum, exponent);
    if rounded & !float::SIGN == float::INFINITY {
        return 0;
    }
    let field = (rounded >> 23 & 0xff) as i32;
    let mantissa = (rounded & 0x007f_ffff) | (u32::from(field != 0) << 23);
    // |rounded| = mantissa * 2^(scale). Below the sum's own unit nothing was rounded away.
    let shift = field.max(1) - 150 - exponent;
    if shift < 0 {
        return 0;
    }
    let whole = if mantissa == 0 { 0 } else { i128::from(mantissa) << shift };
    round_scaled(sum - if rounded & float::SIGN != 0 { -whole } else { whole }, exponent)
}

/// One block's product: the exact integer dot product of two quantised rows, scaled back and rounded once. `absmax_*` and
/// `digits_*` belong to the rows' scale groups.
///
/// ```
/// use tiebreak_contract::arith::digits::{dot, group_absmax, quantise};
///
/// let a = [1.5f32, -2.0, 0.5].map(f32::to_bits);
/// let b = [4.0f32, 0.25, 0.125].map(f32::to_bits);
/// let [of_a, of_b] = [group_absmax(a), group_absmax(b)];
/// let digits = 2;
/// let [a, b] = [a.map(|x| quantise(x, of_a, digits)), b.map(|x| quantise(x, of_b, digits))];
/// // The sum is one of integers: no order of it, and no device, can change a bit.
/// let forwards = dot(&a, &b, of_a, of_b, digits, digits);
/// assert_eq!(f32::from_bits(forwards), 5.5625);
/// let [mut a, mut b] = [a, b];
/// a.reverse();
/// b.reverse();
/// assert_eq!(dot(&a, &b, of_a, of_b, digits, digits), forwards);
/// ```
pub fn dot(a: &[i32], b: &[i32], absmax_a: u32, absmax_b: u32, digits_a: u32, digits_b: u32) -> u32 {
    assert_eq!(a.len(), b.len(), "the rows of a product have one length");
    let sum = a.iter().zip(b).map(|(&x, &y)| i128::from(x) * i128::from(y)).sum();
    scale_back(sum, absmax_a, absmax_b, digits_a, digits_b)
}

/// The exact sum of a block scaled back to binary32, NaN if either group is marked.
pub fn scale_back(sum: i128, absmax_a: u32, absmax_b: u32, digits_a: u32, digits_b: u32) -> u32 {
    scale_back_part(ProductPart::Rounded, sum, [absmax_a, absmax_b], [digits_a, digits_b])
}

/// The result of rounding an exact sum that a product outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProductPart {
    /// The nearest binary32: [`round_scaled`].
    #[default]
    Rounded,
    /// The rest after rounding: [`rounding_error_scaled`].
    RoundingError,
}

/// The result `part` of a block's exact sum, scaled back to binary32; NaN if either group is marked.
pub fn scale_back_part(part: ProductPart, sum: i128, absmaxes: [u32; 2], digits: [u32; 2]) -> u32 {
    if absmaxes.into_iter().any(is_marked) {
        return float::NAN;
    }
    let bits = digits.map(magnitude_bits).into_iter().sum::<u32>() as i32;
    let scale = absmaxes.map(exponent).into_iter().sum::<i32>() - bits;
    match part {
        ProductPart::Rounded => round_scaled(sum, scale),
        ProductPart::RoundingError => rounding_error_scaled(sum, scale),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(x: f32) -> u32 {
        x.to_bits()
    }

    #[test]
    fn rounding_back_agrees_with_exact_doubles() {
        // Integers below 2^53 on scales where f64 is exact: the conversion f64 -> f32 rounds once.
        for (sum, exponent) in [
            (1i128, 0),
            (-3, -149),
            (3, -150),
            (1, -150),
            (-1, -151),
            (0x1ffffff, -3),
            (0xffffff8, 96),
            (0x1ffffff, 103),
            (-5, -151),
        ] {
            let exact = sum as f64 * 2f64.powi(exponent);
            let rounded = exact as f32;
            assert_eq!(round_scaled(sum, exponent), rounded.to_bits(), "{sum} * 2^{exponent}");
        }
        assert_eq!(round_scaled(i128::MIN, 0), float::SIGN | bits(2f32.powi(127)));
        assert_eq!(round_scaled(1, 128), float::INFINITY);
        assert_eq!(round_scaled(-1, 4000), float::NEG_INFINITY);
        assert_eq!(round_scaled(-1, -4000), float::SIGN);
    }

    #[test]
    fn the_rest_completes_the_rounded_part() {
        for shift in 0..80u32 {
            for sum in [
                1i128 << shift,
                (1 << shift) + 1,
                (3 << shift) - 1,
                0x1_2345_6789 << shift,
                -(5 << shift) - 3,
            ] {
                for exponent in [-40, 0, -149, -200] {
                    let part = |bits: u32| f64::from(f32::from_bits(bits));
                    let (high, low) =
                        (part(round_scaled(sum, exponent)), part(rounding_error_scaled(sum, exponent)));
                    if sum.unsigned_abs() < 1 << 48 && exponent >= -120 {
                        assert_eq!(high + low, sum as f64 * 2f64.powi(exponent), "{sum} * 2^{exponent}");
                    }
                    let off = (high + low - sum as f64 * 2f64.powi(exponent)).abs();
                    let unit = (sum as f64 * 2f64.powi(exponent - 48)).abs().max(2f64.powi(-150));
                    assert!(off <= unit, "{sum} * 2^{exponent}");
                }
            }
        }
        assert_eq!(rounding_error_scaled(1, 128), 0);
    }

    #[test]
    fn quantise_reaches_the_bound_and_keeps_small_values() {
        let absmax = group_absmax([bits(0.999_999_94), bits(0.5)]);
        assert_eq!(exponent(absmax), 0);
        assert_eq!(quantise(bits(0.999_999_94), absmax, 1), 64);
        assert_eq!(quantise(bits(-0.5), absmax, 4), -(1 << 29));
        assert_eq!(quantise(1, 1, 4), 1 << 29); // the least subnormal alone in its group
        assert_eq!(exponent(1), -148);
        assert_eq!(quantise(bits(3.0), float::INFINITY, 2), 0);
    }

    #[test]
    fn digits_are_balanced() {
        for digits in 1..=DIGITS_MAX {
            let top = 1i32 << magnitude_bits(digits);
            for q in [0, 1, -1, 127, 128, -128, -129, top, -top, top / 3] {
                if q.unsigned_abs() > top as u32 {
                    continue;
                }
                let back: i64 = balanced_digits(q, digits)
                    .iter()
                    .enumerate()
                    .map(|(i, &d)| i64::from(d) << (8 * i))
                    .sum();
                assert_eq!(back, i64::from(q));
            }
        }
    }
}
