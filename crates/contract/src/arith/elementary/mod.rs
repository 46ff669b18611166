//! exp, log, tanh and erf, correctly rounded for every binary32. Contract: `docs/ARITHMETIC.md`, section 3; how and why:
//! `docs/ELEMENTARY.md`.
//!
//! Each function computes in binary64 with an error below 2^-47 and rounds. In about one input of 2^21 the result is so close to
//! the middle of two binary32 that the error could matter. Then double-double decides, with an error below 2^-90. A check over
//! all inputs (`docs/ELEMENTARY.md`) showed that this is always enough; there is no proof. Exact cases are handled first.

mod dd;
mod fast;
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

/// Elements that [`each`] takes at once.
const LANES: usize = 64;

/// `whole(x)` of each element, for inputs that are mostly `usual`. A loop without branches computes `fast` of the usual elements,
/// from the absolute value or the value itself; the others follow one by one. The caller inlines it where the vectors are wide.
#[inline(always)]
fn each(
    x: &[u32],
    out: &mut [u32],
    usual: impl Fn(u32) -> bool,
    fast: impl Fn(u32) -> (u32, f64),
    whole: fn(u32) -> u32,
) {
    for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
        let mut open = [0u32; LANES];
        for ((&x, out), open) in x.iter().zip(&mut *out).zip(&mut open) {
            let (sign, y) = fast(x);
            let slack = y * FAST_ERROR;
            let (low, high) = ((y - slack) as f32, (y + slack) as f32);
            *out = sign | low.to_bits();
            *open = u32::from(!usual(x)) | (low.to_bits() ^ high.to_bits());
        }
        if open.iter().fold(0, |any, open| any | open) == 0 {
            continue;
        }
        for ((&x, out), open) in x.iter().zip(out).zip(open) {
            if open != 0 {
                *out = whole(x);
            }
        }
    }
}

/// [`exp`] of each element.
#[doc(hidden)] // for the layers above
#[inline(always)]
pub fn exp_each(x: &[u32], out: &mut [u32]) {
    let usual = |x: u32| (0x3300_0001..0x42d0_0000).contains(&(x & !SIGN));
    each(x, out, usual, |x| (0, fast::exp(f64::from(f32::from_bits(x)))), exp);
}

/// [`tanh`] of each element.
#[doc(hidden)] // for the layers above
#[inline(always)]
pub fn tanh_each(x: &[u32], out: &mut [u32]) {
    let usual = |x: u32| (0x3980_0000..0x41a0_0000).contains(&(x & !SIGN));
    let fast = |x: u32| (x & SIGN, fast::tanh(f64::from(f32::from_bits(x & !SIGN))));
    each(x, out, usual, fast, tanh);
}

/// [`erf`] of each element.
#[doc(hidden)] // for the layers above
#[inline(always)]
pub fn erf_each(x: &[u32], out: &mut [u32]) {
    let usual = |x: u32| (1..0x4080_0000).contains(&(x & !SIGN));
    let centres: &slow::Centres = &slow::ERF_AT;
    let fast = |x: u32| (x & SIGN, fast::erf(f64::from(f32::from_bits(x & !SIGN)), centres));
    each(x, out, usual, fast, erf);
}

/// e^x.
///
/// ```
/// use tiebreak_contract::arith::elementary::exp;
///
/// // The binary32 nearest to e, whatever library the machine has.
/// assert_eq!(exp(1.0f32.to_bits()), 0x402d_f854);
/// assert_eq!(f32::from_bits(exp(f32::NEG_INFINITY.to_bits())), 0.0);
/// ```
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
///
/// ```
/// use tiebreak_contract::arith::elementary::log;
/// use tiebreak_contract::arith::float::NAN;
///
/// assert_eq!(log(1.0f32.to_bits()), 0);
/// // There is one NaN.
/// assert_eq!(log((-1.0f32).to_bits()), NAN);
/// ```
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
    sign | settle(fast::erf(v, &slow::ERF_AT), || slow::erf(v))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_is_what_the_function_gives() {
        let special = [
            0,
            SIGN,
            ONE,
            INFINITY,
            NEG_INFINITY,
            NAN,
            0xffff_ffff,
            1,
            0x42cf_ffff,
            0x42d0_0000,
            0x41a0_0000,
            0x407f_ffff,
            0x4080_0000,
        ];
        let all = special.into_iter().chain((0..=u32::MAX).step_by(65_521));
        let x: Vec<u32> = all.collect();
        let mut out = vec![0; x.len()];
        let functions =
            [(exp_each as fn(&[u32], &mut [u32]), exp as fn(u32) -> u32), (tanh_each, tanh), (erf_each, erf)];
        for (each, one) in functions {
            each(&x, &mut out);
            for (&x, &out) in x.iter().zip(&out) {
                assert_eq!(out, one(x), "of {x:08x}");
            }
        }
    }
}
