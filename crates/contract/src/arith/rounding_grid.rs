//! The numbers that a logged product may be rounded to: binary32 cut to its first `bits` bits (16 is bfloat16). For results far
//! below the absmaxes of their row and column, a floor bounds how fine the numbers are. Contract: `docs/ROUNDING.md`, section 2.
//!
//! Every value of a grid has an *index*: an integer that grows with the value by one from neighbour to neighbour, 0 at
//! zero. A rounding decision is the last bits of an index.

use super::float;

/// Bits of a binary32 that do not belong to its fraction.
const HEAD: i32 = 9;
/// The greatest exponent of a floor: adding 2^(floor + 23) must stay finite.
pub const FLOOR_MAX: i32 = 104;

/// The grid of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundingGrid {
    /// Leading bits of the binary32 pattern that are kept, 10..=32.
    bits: i32,
    /// Values below 2^(floor + bits - 9) are multiples of 2^floor.
    floor: i32,
}

/// The rule by which the grids of a product follow from its operands.
///
/// ```
/// use tiebreak_contract::arith::rounding_grid::GridRule;
///
/// let one = 1.0f32.to_bits();
/// // Sixteen bits without a floor are bfloat16: its values at 1 are 2^-7 apart.
/// let grid = GridRule { bits: 16, floor: 0 }.grid(64, one, one);
/// assert_eq!(f32::from_bits(grid.round(1.005f32.to_bits())), 1.0078125);
/// let index = grid.index(1.0);
/// assert_eq!([grid.value(index), grid.value(index + 1)], [1.0, 1.0078125]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GridRule {
    /// Leading bits that are kept, 10..=32.
    pub bits: u8,
    /// Bits between the product's size and the floor; 0 = only binary32's subnormals are a floor.
    pub floor: u8,
}

/// The exponent that a scale group's absmax gives to the floor: the absmax's biased field, at least 1. The same function gives a
/// value's own exponent.
#[inline(always)]
pub fn field(absmax: u32) -> i32 {
    ((absmax >> 23) as i32).max(1)
}

impl GridRule {
    /// The index that a program's rounding gives a result. `high` is the nearest binary32; `value` is `high` with its rest added.
    /// On binary32 itself the index is that of `high`: the rest may have been rounded to exactly half a unit, and then no longer
    /// tells the side.
    #[doc(hidden)] // for the layers above
    pub fn rounded(self, grid: RoundingGrid, high: u32, value: f64) -> i64 {
        grid.index(if self.bits == 32 { f64::from(f32::from_bits(high)) } else { value })
    }

    /// True if a product may be rounded to the grid (docs/ROUNDING.md, section 2).
    pub fn is_allowed(self) -> bool {
        matches!((self.bits, self.floor), (16, 0 | 4..=40) | (26..=30 | 32, 0))
    }

    /// True if the grid is finer than bfloat16: kernels accumulate in binary64, and a product is known in two parts.
    #[doc(hidden)] // for the layers above
    pub fn is_wide(self) -> bool {
        self.bits > 16
    }

    /// The addend that, with both absmaxes' fields, gives the floor's exponent. The size of a dot product of K terms is about
    /// 2^(ea + eb) * sqrt(K).
    #[doc(hidden)] // for the layers above
    pub fn floor_offset(self, k: u32) -> i32 {
        k.max(1).ilog2() as i32 / 2 - i32::from(self.floor) - 2 * 126
    }

    /// The least exponent that a floor may have: the quantum of binary32's subnormals, cut to the grid's bits.
    #[doc(hidden)] // for the layers above
    pub fn floor_min(self) -> i32 {
        -149 + 32 - i32::from(self.bits)
    }

    /// The grid of an element whose row and column have these absmaxes ([`super::digits::group_absmax`]).
    #[doc(hidden)] // for the layers above
    pub fn grid(self, k: u32, absmax_a: u32, absmax_b: u32) -> RoundingGrid {
        let least = self.floor_min();
        let floor = if self.floor == 0 {
            least
        } else {
            (field(absmax_a) + field(absmax_b) + self.floor_offset(k)).clamp(least, FLOOR_MAX)
        };
        RoundingGrid { bits: i32::from(self.bits), floor }
    }
}

/// 2^exponent, for exponents of normal binary64 numbers.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

impl RoundingGrid {
    /// The exponent of the grid's step at a finite x.
    pub fn quantum(self, x: f64) -> i32 {
        self.floor.max(exponent(x) - (self.bits - HEAD))
    }

    /// The index of the value nearest to x, ties to the even index. x is finite.
    pub fn index(self, x: f64) -> i64 {
        let quantum = self.quantum(x);
        // The product is exact: its factors are powers of two times integers of 53 bits, far from binary64's limits. Adding and
        // subtracting 1.5 * 2^52 rounds values below 2^51 to an integer; steps are below 2^25.
        const INTEGERS: f64 = 6_755_399_441_055_744.0;
        let steps = (x.abs() * power(-quantum) + INTEGERS - INTEGERS) as i64;
        let octave = i64::from(quantum - self.floor);
        let index = (octave << (self.bits - HEAD)) + steps;
        if x < 0.0 { -index } else { index }
    }

    /// The value at an index; exact.
    pub fn value(self, index: i64) -> f64 {
        let absmax = index.unsigned_abs() as i64;
        let fraction = self.bits - HEAD;
        // Far beyond binary32 all values are infinite anyway.
        let octave = (absmax >> fraction).saturating_sub(1).clamp(0, i64::from(900 - self.floor));
        let steps = absmax - (octave << fraction);
        let value = steps as f64 * power(self.floor + octave as i32);
        if index < 0 { -value } else { value }
    }

    /// The binary32 pattern at an index: +0 at 0, infinity beyond the finite values.
    pub fn pattern(self, index: i64) -> u32 {
        let value = self.value(index) as f32; // exact, or beyond binary32
        if value == 0.0 { 0 } else { value.to_bits() }
    }

    /// x, a binary32 pattern, rounded to the grid: NaN stays [`float::NAN`], a zero becomes +0.
    pub fn round(self, x: u32) -> u32 {
        let value = f32::from_bits(x);
        if value.is_nan() {
            float::NAN
        } else if value.is_infinite() {
            x
        } else {
            self.pattern(self.index(f64::from(value)))
        }
    }
}

/// floor(log2 |x|) of a finite x, and binary32's least normal exponent for anything below it, zero included.
fn exponent(x: f64) -> i32 {
    ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(-126)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BF16: GridRule = GridRule { bits: 16, floor: 0 };

    #[test]
    fn without_a_floor_sixteen_bits_are_bfloat16() {
        let grid = BF16.grid(64, 0x3f80_0000, 0x3f80_0000);
        for x in [0u32, 1, 0x8000, 0x8001, 0x3f80_8000, 0x3f81_8000, 0x3f80_7fff, 0x3f80_8001, 0x7f7f_ffff] {
            let expected = half::bf16::from_f32(f32::from_bits(x)).to_f32();
            assert_eq!(grid.round(x), expected.to_bits(), "{x:#x}");
        }
        assert_eq!(grid.round(0x8000_0001), 0, "a zero is +0");
        assert_eq!(grid.round(0xffc0_0001), float::NAN);
    }

    #[test]
    fn an_index_names_its_value_and_neighbours_differ_by_one() {
        for (bits, floor) in [(16, -133), (16, -20), (26, -143), (32, -149), (16, 104)] {
            let grid = RoundingGrid { bits, floor };
            let mut last = f64::NEG_INFINITY;
            let some = (-600i64..600).chain((1 << 14) - 300..(1 << 14) + 300);
            for index in some {
                let value = grid.value(index);
                assert!(value > last || index == (1 << 14) - 300, "values grow");
                last = value;
                if value.abs() < 3e38 {
                    assert_eq!(grid.index(value), index, "{grid:?}");
                }
            }
        }
    }

    #[test]
    fn indices_beyond_binary32_are_infinite() {
        for (bits, floor) in [(16, -133), (32, -149), (16, 104)] {
            let grid = RoundingGrid { bits, floor };
            for index in [grid.index(2f64.powi(200)), i64::MAX >> 8, 1 << 40] {
                assert_eq!(grid.pattern(index), float::INFINITY, "{bits} {floor} {index}");
                assert_eq!(grid.pattern(-index), float::NEG_INFINITY);
            }
        }
    }

    #[test]
    fn a_floor_keeps_small_results_coarse() {
        // Absmaxes of 1.0: fields 127 each, so the floor is 2^(127 + 127 - 252 + 3 - 14) for K = 64.
        let grid = GridRule { bits: 16, floor: 14 }.grid(64, 0x3f80_0000, 0x3f80_0000);
        assert_eq!(grid.quantum(1e-9), 2 + 3 - 14);
        assert_eq!(grid.quantum(100.0), 6 - 7);
        assert_eq!(grid.round(0.0003f32.to_bits()), 0);
    }
}
