//! The fast path in plain binary64, with a relative error below 2^-50.
//!
//! The code uses neither libm nor fused operations, so its results are the same everywhere (although only the
//! rounded results are promised).

use super::slow::{Centres, split};

const LN2_HI: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000); // 32 bits: products with exponents are exact
const LN2_LO: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);

/// 1/n! for n = 2..=13.
const INVERSE_FACTORIAL: [f64; 12] = [
    1.0 / 2.0,
    1.0 / 6.0,
    1.0 / 24.0,
    1.0 / 120.0,
    1.0 / 720.0,
    1.0 / 5040.0,
    1.0 / 40_320.0,
    1.0 / 362_880.0,
    1.0 / 3_628_800.0,
    1.0 / 39_916_800.0,
    1.0 / 479_001_600.0,
    1.0 / 6_227_020_800.0,
];

/// Adding this number and subtracting it rounds to an integer, which the lowest bits of the sum have.
const ROUNDER: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52

/// (2^k, exp(r) - 1) with x = k ln 2 + r, |r| <= 0.35.
#[inline(always)]
fn parts(x: f64) -> (f64, f64) {
    let shifted = x * std::f64::consts::LOG2_E + ROUNDER;
    let k = shifted - ROUNDER;
    let r = (x - k * LN2_HI) - k * LN2_LO;
    let scale = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    let c = &INVERSE_FACTORIAL;
    // Two halves of the polynomial are computed side by side.
    let rr = r * r;
    let even = c[0] + rr * (c[2] + rr * (c[4] + rr * (c[6] + rr * (c[8] + rr * c[10]))));
    let odd = c[1] + rr * (c[3] + rr * (c[5] + rr * (c[7] + rr * (c[9] + rr * c[11]))));
    (scale, r + rr * (even + r * odd))
}

#[inline(always)]
pub(crate) fn exp(x: f64) -> f64 {
    let (scale, p) = parts(x);
    scale + scale * p
}

#[inline(always)]
pub(crate) fn tanh(x: f64) -> f64 {
    let (scale, p) = parts(2.0 * x);
    let t = if scale == 1.0 { p } else { (scale - 1.0) + scale * p };
    t / (t + 2.0)
}

#[inline(always)]
pub(crate) fn log(x: f64) -> f64 {
    let (m, e) = split(x);
    let s = (m - 1.0) / (m + 1.0);
    let ss = s * s;
    let mut sum = 0.0;
    for n in (0..=11).rev() {
        sum = sum * ss + 1.0 / f64::from(2 * n + 1);
    }
    let e = f64::from(e);
    // The large term is added last, so that its rounding is the only one that counts.
    (2.0 * s * sum + e * LN2_LO) + e * LN2_HI
}

/// For 0 < x < 4; for other numbers the result means nothing.
#[inline(always)]
pub(crate) fn erf(x: f64, centres: &Centres) -> f64 {
    let shifted = x * 8.0 + ROUNDER;
    let c = (shifted - ROUNDER) / 8.0;
    let h = x - c;
    let (value, slope) = centres[(shifted.to_bits() as usize & 63).min(centres.len() - 1)];
    let mut power = h;
    let mut sum = 0.0;
    let (mut before, mut g) = (0.0, slope.hi);
    for inverse in INVERSE {
        sum += g * power * inverse;
        power *= h;
        let next = -2.0 * (c * g + before) * inverse;
        (before, g) = (g, next);
    }
    value.hi + sum
}

/// 1/(n + 1).
const INVERSE: [f64; 16] = {
    let mut table = [0.0; 16];
    let mut n = 0;
    while n < 16 {
        table[n] = 1.0 / (n + 1) as f64;
        n += 1;
    }
    table
};
