//! IEEE-754 binary32 on bit patterns: round to nearest even, one rounding per operation, subnormals kept,
//! every NaN result is [`NAN`]. Contract: `docs/ARITHMETIC.md`, sections 1 and 2.

/// The one NaN of the contract.
pub const NAN: u32 = 0x7fc0_0000;
/// Plus infinity.
pub const INFINITY: u32 = 0x7f80_0000;
/// Minus infinity.
pub const NEG_INFINITY: u32 = 0xff80_0000;
/// 1.
pub const ONE: u32 = 0x3f80_0000;
/// The sign bit.
pub const SIGN: u32 = 0x8000_0000;
/// Minus zero, the neutral element of [`add`].
pub const NEG_ZERO: u32 = SIGN;

/// True if the pattern is a finite number.
pub fn is_finite(x: u32) -> bool {
    x & INFINITY != INFINITY
}

/// True if the pattern is any NaN.
pub fn is_nan(x: u32) -> bool {
    x & !SIGN > INFINITY
}

/// The pattern of `x`, with every NaN made [`NAN`].
pub fn canonical(x: f32) -> u32 {
    if x.is_nan() { NAN } else { x.to_bits() }
}

/// The pattern of a binary16 number, which binary32 has exactly (IEEE 754, section 3.6); every NaN is [`NAN`].
pub fn from_f16(half: u16) -> u32 {
    let (sign, exponent, fraction) =
        (u32::from(half) >> 15 << 31, half >> 10 & 0x1f, u32::from(half) & 0x3ff);
    match exponent {
        31 if fraction != 0 => NAN,
        31 => sign | 0x7f80_0000,
        // A subnormal is its fraction times 2^-24, and both are exact in binary32.
        0 => sign | (fraction as f32 * f32::from_bits((127 - 24) << 23)).to_bits(),
        _ => sign | (u32::from(exponent) + 127 - 15) << 23 | fraction << 13,
    }
}

/// The pattern of a bfloat16 number, which is the upper half of its binary32; every NaN is [`NAN`].
pub fn from_bf16(half: u16) -> u32 {
    canonical(f32::from_bits(u32::from(half) << 16))
}

fn value(x: u32) -> f32 {
    f32::from_bits(x)
}

/// a + b.
pub fn add(a: u32, b: u32) -> u32 {
    canonical(value(a) + value(b))
}

/// a - b.
pub fn sub(a: u32, b: u32) -> u32 {
    canonical(value(a) - value(b))
}

/// a * b.
pub fn mul(a: u32, b: u32) -> u32 {
    canonical(value(a) * value(b))
}

/// a / b.
pub fn div(a: u32, b: u32) -> u32 {
    canonical(value(a) / value(b))
}

/// Square root; `sqrt(-0) = -0`, `sqrt(x < 0) = NaN`.
pub fn sqrt(a: u32) -> u32 {
    canonical(value(a).sqrt())
}

/// Flips the sign bit; NaN stays [`NAN`].
pub fn neg(a: u32) -> u32 {
    if is_nan(a) { NAN } else { a ^ SIGN }
}

/// 1 if `a < b`, else 0 (also when either is NaN; -0 equals +0).
pub fn lt(a: u32, b: u32) -> u32 {
    (value(a) < value(b)) as u32
}

/// The binary32 value nearest to an unsigned integer (RNE).
pub fn from_u32(n: u32) -> u32 {
    (n as f32).to_bits()
}

/// A key that sorts patterns as numbers, -0 below +0 and NaN above all.
pub fn order_key(x: u32) -> u32 {
    if is_nan(x) {
        NAN | SIGN
    } else if x & SIGN == 0 {
        x | SIGN
    } else {
        !x
    }
}

/// The pattern whose [`order_key`] is `key`.
pub fn from_order_key(key: u32) -> u32 {
    if key & SIGN != 0 { key & !SIGN } else { !key }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pattern agrees with another implementation.
    #[test]
    fn halves_are_widened_exactly() {
        for bits in 0..=u16::MAX {
            assert_eq!(from_f16(bits), canonical(half::f16::from_bits(bits).to_f32()), "{bits:04x}");
            assert_eq!(from_bf16(bits), canonical(half::bf16::from_bits(bits).to_f32()), "{bits:04x}");
        }
    }
}
