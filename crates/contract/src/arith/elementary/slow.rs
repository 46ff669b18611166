//! The slow path: exp, log, tanh and erf in double-double, with a relative error below 2^-90.

use std::sync::LazyLock;

use super::dd::Dd;

/// ln 2 in pieces of 32 bits, so that products with an exponent are exact.
const LN2: [u64; 3] = [0x3fe6_2e42_fee0_0000, 0x3dea_39ef_3560_0000, 0x3be9_3c76_7300_7e5f];
const LN2_DD: [u64; 2] = [0x3fe6_2e42_fefa_39ef, 0x3c7a_bc9e_3b39_803f];
const TWO_OVER_SQRT_PI: [u64; 2] = [0x3ff2_0dd7_5042_9b6d, 0x3c71_ae3a_914f_ed80];

/// 2^n for n in the normal range.
fn power_of_two(n: i32) -> f64 {
    f64::from_bits(((n + 1023) as u64) << 52)
}

/// exp(x) - 1 for |x| <= 0.35: the Taylor series by Horner, 1/(n)! as successive divisions.
fn expm1_small(x: Dd) -> Dd {
    let mut sum = Dd::ONE;
    for n in (2..=27).rev() {
        sum = Dd::ONE + (x * sum).over(f64::from(n));
    }
    x * sum
}

/// k and r with x = k ln 2 + r, |r| <= 0.35; |x| < 200.
fn reduce(x: f64) -> (i32, Dd) {
    let k = (x * std::f64::consts::LOG2_E).round_ties_even();
    let [a, b, c] = LN2.map(f64::from_bits);
    (k as i32, (Dd::new(x) - Dd::new(k * a)) - Dd::new(k * b) - Dd::new(k * c))
}

/// exp(x) for |x| < 200.
pub(crate) fn exp(x: f64) -> Dd {
    let (k, r) = reduce(x);
    (Dd::ONE + expm1_small(r)).scale(power_of_two(k))
}

/// log(x) for normal x > 0, x != 1: 2 atanh(s) with s = (m - 1)/(m + 1), plus e ln 2.
pub(crate) fn log(x: f64) -> Dd {
    let (m, e) = split(x);
    let s = Dd::new(m - 1.0).div(Dd::new(m) + Dd::ONE); // m has 24 bits: m - 1 is exact
    let ss = s * s;
    let mut sum = Dd::new(0.0);
    for n in (0..=22).rev() {
        sum = sum * ss + Dd::ONE.over(f64::from(2 * n + 1));
    }
    let log_m = (s * sum).scale(2.0);
    let [hi, lo] = LN2_DD;
    log_m + Dd::from_bits(hi, lo) * Dd::new(f64::from(e))
}

/// x = m 2^e with m in sqrt(1/2)..sqrt(2), about.
pub(crate) fn split(x: f64) -> (f64, i32) {
    let bits = x.to_bits();
    let e = (bits >> 52) as i32 - 1023;
    let m = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 0x3ff0_0000_0000_0000);
    if m > std::f64::consts::SQRT_2 { (m / 2.0, e + 1) } else { (m, e) }
}

/// tanh(x) for 0 < x < 30: t/(t + 2) with t = exp(2x) - 1.
pub(crate) fn tanh(x: f64) -> Dd {
    let (k, r) = reduce(2.0 * x);
    let p = expm1_small(r);
    let t = if k == 0 { p } else { (Dd::ONE + p).scale(power_of_two(k)) - Dd::ONE };
    t.div(t + Dd::new(2.0))
}

/// erf and its derivative at each centre of erf's expansions: multiples of 1/8 up to 4.
pub(crate) type Centres = [(Dd, Dd); 33];

pub(crate) static ERF_AT: LazyLock<Centres> = LazyLock::new(|| {
    std::array::from_fn(|i| {
        let c = i as f64 / 8.0;
        (erf_series(c), erf_slope(c))
    })
});

/// 2/sqrt(pi) exp(-c^2).
fn erf_slope(c: f64) -> Dd {
    let [hi, lo] = TWO_OVER_SQRT_PI;
    Dd::from_bits(hi, lo) * exp(-c * c)
}

/// erf(c) = slope(c) * sum of 2^n c^(2n+1) / (1 3 5 ... (2n+1)): all terms are positive.
fn erf_series(c: f64) -> Dd {
    let mut sum = Dd::ONE;
    for n in (1..=140).rev() {
        sum = Dd::ONE + (Dd::new(2.0 * c * c) * sum).over(f64::from(2 * n + 1));
    }
    erf_slope(c) * Dd::new(c) * sum
}

/// erf(x) for 0 < x < 4, by the Taylor series at the nearest centre. The derivative g = erf' obeys g' = -2 x g,
/// so its own coefficients follow g[n+1] = -2 (c g[n] + g[n-1]) / (n + 1).
pub(crate) fn erf(x: f64) -> Dd {
    let i = (x * 8.0).round_ties_even() as usize;
    let c = i as f64 / 8.0;
    let h = Dd::new(x - c); // exact: both are multiples of x's last place
    if i == 0 {
        return erf_near_zero(x);
    }
    let (value, slope) = ERF_AT[i];
    let mut power = h;
    let mut sum = value;
    let (mut before, mut g) = (Dd::new(0.0), slope);
    for n in 0..34 {
        let n = f64::from(n);
        sum = sum + (g * power).over(n + 1.0);
        power = power * h;
        let next = (Dd::new(c) * g + before).scale(-2.0).over(n + 1.0);
        (before, g) = (g, next);
    }
    sum
}

/// erf(x) for x < 1/16, where the result must be accurate relative to x.
fn erf_near_zero(x: f64) -> Dd {
    let xx = Dd::new(x) * Dd::new(x);
    let mut sum = Dd::new(0.0);
    // sum of (-1)^n x^2n / (n! (2n+1)), by Horner over n! as successive divisions.
    for n in (1..=16).rev() {
        let n = f64::from(n);
        sum = (Dd::ONE.over(2.0 * n + 1.0) + sum).neg() * xx.over(n);
    }
    let [hi, lo] = TWO_OVER_SQRT_PI;
    Dd::from_bits(hi, lo) * Dd::new(x) * (Dd::ONE + sum)
}
