//! The frequencies of rotary position embeddings in turns a position, as integers of 64 bits: from fixed-point arithmetic of 192
//! bits, and from no library's functions. Contract: `docs/ARITHMETIC.md`, section 8.1, "Rotary tables".

use std::cmp::Ordering;

/// A number of at least 0 and below 2^64, with 192 bits behind the point and the lowest limb first. Operations round down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fixed([u64; 4]);

impl Fixed {
    const ZERO: Fixed = Fixed([0; 4]);

    fn integer(n: u64) -> Fixed {
        Fixed([0, 0, 0, n])
    }

    /// The sum, which is below 2^64.
    fn plus(self, other: Fixed) -> Fixed {
        let (mut sum, mut carry) = ([0; 4], 0u128);
        for (to, (a, b)) in sum.iter_mut().zip(self.0.into_iter().zip(other.0)) {
            carry += u128::from(a) + u128::from(b);
            *to = carry as u64;
            carry >>= 64;
        }
        Fixed(sum)
    }

    /// The difference of a number and one that is not greater.
    fn minus(self, other: Fixed) -> Fixed {
        let (mut difference, mut borrow) = ([0; 4], false);
        for (to, (a, b)) in difference.iter_mut().zip(self.0.into_iter().zip(other.0)) {
            let (first, left) = a.overflowing_sub(b);
            let (second, right) = first.overflowing_sub(borrow.into());
            *to = second;
            borrow = left || right;
        }
        Fixed(difference)
    }

    /// The product, which is below 2^64.
    fn times(self, other: Fixed) -> Fixed {
        let mut limbs = [0u64; 8];
        for (i, &a) in self.0.iter().enumerate() {
            let mut carry = 0u128;
            for (j, &b) in other.0.iter().enumerate() {
                carry += u128::from(limbs[i + j]) + u128::from(a) * u128::from(b);
                limbs[i + j] = carry as u64;
                carry >>= 64;
            }
            limbs[i + 4] = carry as u64;
        }
        Fixed([limbs[3], limbs[4], limbs[5], limbs[6]])
    }

    /// The quotient by an integer.
    fn over(self, n: u64) -> Fixed {
        let (mut quotient, mut rest) = ([0; 4], 0u128);
        for (to, &limb) in quotient.iter_mut().zip(&self.0).rev() {
            rest = rest << 64 | u128::from(limb);
            *to = (rest / u128::from(n)) as u64;
            rest %= u128::from(n);
        }
        Fixed(quotient)
    }

    fn halved(self, times: usize) -> Fixed {
        let bit = |at: usize| self.0.get(at / 64).map_or(0, |limb| limb >> (at % 64) & 1);
        let limb = |from: usize| (0..64).fold(0, |limb, i| limb | bit(from + times + i) << i);
        Fixed([0, 64, 128, 192].map(limb))
    }

    fn is_less(self, other: Fixed) -> bool {
        self.0.iter().rev().cmp(other.0.iter().rev()) == Ordering::Less
    }

    /// 1 / self for a number above 1, bit by bit.
    fn inverse(self) -> Fixed {
        let (mut rest, mut inverse) = (Fixed::integer(1), Fixed::ZERO);
        for bit in (0..192).rev() {
            rest = rest.plus(rest);
            if !rest.is_less(self) {
                rest = rest.minus(self);
                inverse.0[bit / 64] |= 1 << (bit % 64);
            }
        }
        inverse
    }
}

/// The sum of z^n / n over odd n.
fn inverse_tanh(z: Fixed) -> Fixed {
    let (square, mut power, mut sum) = (z.times(z), z, Fixed::ZERO);
    for n in (1..).step_by(2) {
        if power == Fixed::ZERO {
            break;
        }
        sum = sum.plus(power.over(n));
        power = power.times(square);
    }
    sum
}

/// The angle whose tangent is 1/n.
fn inverse_tan(n: u64) -> Fixed {
    let (mut power, mut parts) = (Fixed::integer(1).over(n), [Fixed::ZERO; 2]);
    for k in 0.. {
        if power == Fixed::ZERO {
            break;
        }
        let part = &mut parts[k % 2];
        *part = part.plus(power.over(2 * k as u64 + 1));
        power = power.over(n * n);
    }
    parts[0].minus(parts[1])
}

/// e^x for x below 1.
fn exponential(x: Fixed) -> Fixed {
    let (mut term, mut sum) = (Fixed::integer(1), Fixed::ZERO);
    for n in 1.. {
        if term == Fixed::ZERO {
            break;
        }
        sum = sum.plus(term);
        term = term.times(x).over(n);
    }
    sum
}

/// The integers nearest to 2^64 theta^(-i/pairs) / (2 pi) for i = 0, 1, ..: the turns of pair i from one position to the next.
/// `theta` is finite and at least 1.
pub(crate) fn turns(theta: f32, pairs: u32) -> impl Iterator<Item = u64> {
    let ln2 = inverse_tanh(Fixed::integer(1).over(3));
    let ln2 = ln2.plus(ln2);
    let (bits, one) = (theta.to_bits(), 1u64 << 23);
    let (exponent, mantissa) = (u64::from(bits >> 23).saturating_sub(127), u64::from(bits) & (one - 1) | one);
    // theta = 2^exponent * mantissa / 2^23; z is (mantissa - 2^23) / (mantissa + 2^23).
    let z = inverse_tanh(Fixed::integer(mantissa - one).over(mantissa + one));
    let logarithm = z.plus(z).plus(ln2.times(Fixed::integer(exponent)));
    let by_machin = inverse_tan(5).times(Fixed::integer(4)).minus(inverse_tan(239));
    let a_turn = by_machin.times(Fixed::integer(8)).inverse();
    (0u32..).map(move |i| {
        let mut rest = logarithm.times(Fixed::integer(i.into())).over(pairs.into());
        let mut halvings = 1;
        while !rest.is_less(ln2) {
            rest = rest.minus(ln2);
            halvings += 1;
        }
        // theta^(-i/pairs) = 2^-halvings * e^(ln 2 - rest).
        let exact = exponential(ln2.minus(rest)).times(a_turn).halved(halvings);
        exact.0[2] + (exact.0[1] >> 63)
    })
}

/// Bits behind the point of a binary32 number of at least 1.
const FRACTION: u32 = 23;

/// The frequency of a pair of channels, of `turn`, with wavelengths `factor` times longer. With bands, these are (low, high) and
/// the positions that the model was made for: a pair that turns more than `high` times over them keeps its frequency, one that
/// turns less than `low` times gets the longer wavelength, and between both a part of each. All three numbers are at least 1 and
/// below 2^16, `high` is more than `low`, and the positions are at most 2^20.
pub(crate) fn scaled(turn: u64, factor: f32, bands: Option<([f32; 2], u32)>) -> u64 {
    let fixed = |x: f32| {
        let (bits, one) = (x.to_bits(), 1u32 << FRACTION);
        u128::from(bits & (one - 1) | one) << (bits >> FRACTION).saturating_sub(127)
    };
    let turn = u128::from(turn);
    let kept = bands.map_or(0, |(bands, positions)| {
        let [low, high] = bands.map(fixed);
        let turns = (u128::from(positions) * turn) << FRACTION;
        let share = if turns <= low << 64 {
            0
        } else if turns >= high << 64 {
            1 << 64
        } else {
            (turns - (low << 64)) / (high - low)
        };
        (turn * share) >> 64
    });
    (kept + ((turn - kept) << FRACTION) / fixed(factor)) as u64
}
