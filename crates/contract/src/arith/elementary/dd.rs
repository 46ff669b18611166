//! Double-double arithmetic: a number as an unevaluated sum of two binary64, about 104 bits. The slow path of the
//! elementary functions uses this module. The arithmetic needs only + - * / of binary64 in round-to-nearest (Dekker
//! 1971, Knuth TAOCP 4.2.2).

use std::ops::{Add, Mul, Sub};

/// hi + lo with |lo| <= ulp(hi) / 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dd {
    pub hi: f64,
    pub lo: f64,
}

fn two_sum(a: f64, b: f64) -> Dd {
    let hi = a + b;
    let b_part = hi - a;
    let a_part = hi - b_part;
    Dd { hi, lo: (a - a_part) + (b - b_part) }
}

fn quick_two_sum(a: f64, b: f64) -> Dd {
    let hi = a + b;
    Dd { hi, lo: b - (hi - a) }
}

/// The exact product, by Veltkamp's splitting.
fn two_product(a: f64, b: f64) -> Dd {
    const SPLITTER: f64 = 134_217_729.0; // 2^27 + 1
    let split = |x: f64| {
        let t = SPLITTER * x;
        let high = t - (t - x);
        (high, x - high)
    };
    let hi = a * b;
    let ((ah, al), (bh, bl)) = (split(a), split(b));
    Dd { hi, lo: ((ah * bh - hi) + ah * bl + al * bh) + al * bl }
}

impl Dd {
    pub(crate) const ONE: Dd = Dd { hi: 1.0, lo: 0.0 };

    pub(crate) fn new(hi: f64) -> Dd {
        Dd { hi, lo: 0.0 }
    }

    pub(crate) fn from_bits(hi: u64, lo: u64) -> Dd {
        Dd { hi: f64::from_bits(hi), lo: f64::from_bits(lo) }
    }

    /// Times a power of two, exactly.
    pub(crate) fn scale(self, factor: f64) -> Dd {
        Dd { hi: self.hi * factor, lo: self.lo * factor }
    }

    /// Divided by a binary64.
    pub(crate) fn over(self, divisor: f64) -> Dd {
        self.div(Dd::new(divisor))
    }

    pub(crate) fn div(self, other: Dd) -> Dd {
        let q1 = self.hi / other.hi;
        let rest = self - other * Dd::new(q1);
        let q2 = rest.hi / other.hi;
        let rest = rest - other * Dd::new(q2);
        let q3 = rest.hi / other.hi;
        let q = quick_two_sum(q1, q2);
        q + Dd::new(q3)
    }

    pub(crate) fn neg(self) -> Dd {
        Dd { hi: -self.hi, lo: -self.lo }
    }

    /// Rounded once to binary32, to nearest even, subnormals and overflow included: through round-to-odd in binary64
    /// (Boldo and Melquiond 2008), which has enough bits for the second rounding to be right.
    pub(crate) fn to_f32(self) -> f32 {
        let Dd { hi, lo } = quick_two_sum(self.hi, self.lo);
        let bits = hi.to_bits();
        if lo == 0.0 || bits & 1 == 1 {
            return hi as f32;
        }
        let odd = if (lo > 0.0) == (hi > 0.0) { bits + 1 } else { bits - 1 };
        f64::from_bits(odd) as f32
    }
}

impl Add for Dd {
    type Output = Dd;

    fn add(self, other: Dd) -> Dd {
        let s = two_sum(self.hi, other.hi);
        let t = two_sum(self.lo, other.lo);
        let s = quick_two_sum(s.hi, s.lo + t.hi);
        quick_two_sum(s.hi, s.lo + t.lo)
    }
}

impl Sub for Dd {
    type Output = Dd;

    #[expect(clippy::suspicious_arithmetic_impl, reason = "a difference is the sum with the negative")]
    fn sub(self, other: Dd) -> Dd {
        self + other.neg()
    }
}

impl Mul for Dd {
    type Output = Dd;

    fn mul(self, other: Dd) -> Dd {
        let p = two_product(self.hi, other.hi);
        quick_two_sum(p.hi, p.lo + (self.hi * other.lo + self.lo * other.hi))
    }
}
