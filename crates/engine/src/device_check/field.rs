//! Arithmetic modulo two primes just below 2^61, for Freivalds' test of a product.

/// Bits of an element.
const BITS: u32 = 61;
const MASK: u64 = (1 << BITS) - 1;

/// The integers modulo the prime 2^61 - `below`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    below: u64,
}

impl Field {
    /// The Mersenne prime 2^61 - 1.
    pub(super) const MERSENNE: Field = Field { below: 1 };
    /// The largest prime below it, 2^61 - 31. Both are used where sums are so large that a multiple of one prime could be wrong.
    pub(super) const SECOND: Field = Field { below: 31 };

    /// The prime.
    pub(super) fn prime(self) -> u64 {
        (1 << BITS) - self.below
    }

    /// The representative of a number: below the prime.
    pub(super) fn reduced(self, x: u128) -> u64 {
        // 2^61 is `below`, so the bits above move down as a multiple of it: to below 2^72, and then to below 2^62.
        let once = self.folded(x);
        let twice = self.folded(once) as u64;
        let left = (twice & MASK) + (twice >> BITS) * self.below;
        if left >= self.prime() { left - self.prime() } else { left }
    }

    /// A smaller number of the same class.
    fn folded(self, x: u128) -> u128 {
        (x & u128::from(MASK)) + (x >> BITS) * u128::from(self.below)
    }

    /// The representative of an integer that may be negative.
    pub(super) fn of(self, x: i128) -> u64 {
        let size = self.reduced(x.unsigned_abs());
        if x < 0 && size != 0 { self.prime() - size } else { size }
    }

    /// The sum of products of small integers and elements. It takes up to 2^32 terms with |integer| <= 2^30.
    pub(super) fn dot(self, integers: &[i32], elements: &[u64]) -> u64 {
        let terms = integers.iter().zip(elements);
        self.of(terms.map(|(&q, &x)| i128::from(q) * i128::from(x)).sum())
    }

    /// The sum of products of representatives. It takes up to 2^50 terms.
    pub(super) fn dot_elements(self, left: impl Iterator<Item = u64>, right: &[u64]) -> u64 {
        let terms = left.zip(right);
        self.reduced(terms.map(|(x, &y)| self.folded(u128::from(x) * u128::from(y))).sum())
    }

    /// An element out of a random word, uniform over the representatives; `None` if another word is needed.
    pub(super) fn drawn(self, word: u64) -> Option<u64> {
        Some(word & MASK).filter(|element| *element < self.prime())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: [Field; 2] = [Field::MERSENNE, Field::SECOND];

    fn power(field: Field, base: u64, mut exponent: u64) -> u64 {
        let (mut result, mut square) = (1, base);
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = field.reduced(u128::from(result) * u128::from(square));
            }
            square = field.reduced(u128::from(square) * u128::from(square));
            exponent >>= 1;
        }
        result
    }

    /// Miller and Rabin's test with the first twelve primes as bases decides for every number below 2^64.
    #[test]
    fn both_moduli_are_prime() {
        for field in FIELDS {
            let odd = (field.prime() - 1) >> (field.prime() - 1).trailing_zeros();
            for base in [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37] {
                let mut x = power(field, base, odd);
                let mut passes = x == 1;
                for _ in 0..(field.prime() - 1).trailing_zeros() {
                    passes |= x == field.prime() - 1;
                    x = power(field, x, 2);
                }
                assert!(passes, "{} is not prime (base {base})", field.prime());
            }
        }
    }

    #[test]
    fn reduction_is_that_of_the_remainder() {
        for field in FIELDS {
            let p = u128::from(field.prime());
            let edges = [
                0,
                1,
                p - 1,
                p,
                p + 1,
                2 * p - 1,
                2 * p,
                p * p,
                u128::MAX,
                1 << 61,
                1 << 122,
                (1 << 122) - 1,
            ];
            for x in edges
                .into_iter()
                .chain((0..10_000).map(|i: u128| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)))
            {
                assert_eq!(u128::from(field.reduced(x)), x % p, "{x}");
                let signed = (x >> 1) as i128;
                assert_eq!(i128::from(field.of(-signed)), (-signed).rem_euclid(p as i128), "-{signed}");
                assert_eq!(i128::from(field.of(signed)), signed.rem_euclid(p as i128), "{signed}");
            }
        }
    }

    #[test]
    fn sums_of_the_largest_terms_are_exact() {
        for field in FIELDS {
            let p = i128::from(field.prime());
            for q in [1 << 30, -(1 << 30)] {
                let terms = 5000;
                let expected = (i128::from(q) * (p - 1) % p * terms as i128).rem_euclid(p);
                assert_eq!(i128::from(field.dot(&vec![q; terms], &vec![field.prime() - 1; terms])), expected);
            }
            let terms = 5000;
            let large = vec![field.prime() - 1; terms];
            // (p - 1)^2 is 1.
            assert_eq!(field.dot_elements(large.iter().copied(), &large), terms as u64);
        }
    }

    #[test]
    fn words_beyond_the_prime_are_not_taken() {
        assert_eq!(Field::MERSENNE.drawn(u64::MAX), None);
        assert_eq!(Field::SECOND.drawn(Field::SECOND.prime()), None);
        assert_eq!(Field::SECOND.drawn(Field::SECOND.prime() - 1), Some(Field::SECOND.prime() - 1));
        assert_eq!(Field::MERSENNE.drawn(1 << 61), Some(0));
    }
}
