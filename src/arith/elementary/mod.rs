//! exp, log, tanh and erf, correctly rounded for every binary32. Contract: `docs/ARITHMETIC.md`, section 3; how and why:
//! `docs/ELEMENTARY.md`.
//!
//! Each function computes in binary64 with an error below 2^-47 and rounds, unless the result is so close to the middle
//! of two binary32 that the error could matter (about one input in 2^21): then double-double, error below 2^-90,
//! decides. That this is always enough was checked over all inputs (`docs/ELEMENTARY.md`), not proved; exact cases are
//! taken first.

mod dd;
mod fast;
#[cfg(feature = "engine")]
pub mod oracle;
mod slow;

use super::float::{INFINITY, NAN, NEG_INFINITY, ONE, SIGN, is_nan};
use dd::Dd;

/// Relative error bound of the fast path, with a margin of eight.
const FAST_ERROR: f64 = 1.0 / (1u64 << 47) as f64;

/// `y` rounded to binary32 if every value within the error rounds to the same.
#[inline(always)]
fn decided(y: f64) -> Option<u32> {
    let slack = y * FAST_ERROR;
    let (low, high) = ((y - slack) as f32, (y + slack) as f32);
    (low.to_bits() == high.to_bits()).then(|| low.to_bits())
}

fn settle(fast: f64, slow: impl FnOnce() -> Dd) -> u32 {
    decided(fast).unwrap_or_else(|| slow().to_f32().to_bits())
}

/// e^x.
pub fn exp(x: u32) -> u32 {
    let absmax = x & !SIGN;
    if absmax <= 0x3300_0000 {
        return ONE; // |x| <= 2^-25: closer to 1 than half of any neighbour's distance
    }
    let v = f64::from(f32::from_bits(x));
    if absmax >= 0x42d0_0000 {
        // |x| >= 104, infinity and NaN.
        return match () {
            () if is_nan(x) => NAN,
            () if x & SIGN == 0 => INFINITY,
            () => 0,
        };
    }
    settle(fast::exp(v), || slow::exp(v))
}

/// The natural logarithm.
pub fn log(x: u32) -> u32 {
    match x {
        _ if is_nan(x) => return NAN,
        0 | SIGN => return NEG_INFINITY,
        _ if x & SIGN != 0 => return NAN,
        INFINITY => return INFINITY,
        ONE => return 0,
        _ => {}
    }
    let v = f64::from(f32::from_bits(x)); // subnormal binary32 are normal binary64
    settle(fast::log(v), || slow::log(v))
}

/// The hyperbolic tangent.
pub fn tanh(x: u32) -> u32 {
    let absmax = x & !SIGN;
    let sign = x & SIGN;
    if absmax < 0x3980_0000 {
        return x; // |x| < 2^-12: x^2/3 is below half of the distance to any neighbour
    }
    if absmax >= 0x41a0_0000 {
        return if is_nan(x) { NAN } else { sign | ONE }; // |x| >= 20
    }
    let v = f64::from(f32::from_bits(absmax));
    sign | settle(fast::tanh(v), || slow::tanh(v))
}

/// The error function.
pub fn erf(x: u32) -> u32 {
    let absmax = x & !SIGN;
    let sign = x & SIGN;
    if absmax == 0 {
        return x;
    }
    if absmax >= 0x4080_0000 {
        return if is_nan(x) { NAN } else { sign | ONE }; // |x| >= 4
    }
    let v = f64::from(f32::from_bits(absmax));
    sign | settle(fast::erf(v), || slow::erf(v))
}
