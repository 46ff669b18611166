//! The rules of rounding decisions. Some roundings of a native kernel could differ on another machine, and are logged; others no
//! honest kernel can have taken. Contract and proofs: `docs/ROUNDING.md`.
//!
//! [`near_tie`] decides what is logged, and [`search`] is its fast test. [`thresholds`] gives the distances from a boundary, and
//! [`bounds`] their limits. [`codec`] and [`log`] define the format, and [`legal`] the allowed values. `observers` applies the
//! rules while a step runs.

pub mod bounds;
pub mod codec;
mod groups;
pub mod legal;
pub mod log;
pub mod near_tie;
pub mod search;
pub mod thresholds;

/// A logged rounding: the last bits of the grid index of one element's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The element's index in the product, row-major.
    pub place: u64,
    /// The number of logged bits of the index, 1..=[`BITS_MAX`]: one for a rounding up or down.
    pub bits: u8,
    /// The index modulo 2^bits.
    pub residue: u32,
}

/// The most bits of a decision. A threshold of more than 2^18 grid steps has no use.
pub const BITS_MAX: u8 = 20;

impl Decision {
    /// The index with this residue that is nearest to the index of x; of two equally near ones, the one on x's side.
    #[doc(hidden)] // for the layers above
    pub fn index(&self, grid: tiebreak_contract::arith::rounding_grid::RoundingGrid, x: f64) -> i64 {
        let near = grid.index(x);
        let modulus = 1i64 << self.bits;
        let up = (i64::from(self.residue) - near).rem_euclid(modulus);
        match (2 * up).cmp(&modulus) {
            std::cmp::Ordering::Less => near + up,
            std::cmp::Ordering::Greater => near + up - modulus,
            std::cmp::Ordering::Equal if x >= grid.value(near) => near + up,
            std::cmp::Ordering::Equal => near - up,
        }
    }

    /// True if an index of a range has this residue. An honest trainer's own index has it, and is legal. So this function decides
    /// if a decision is legal. [`Decision::index`] would be wrong about it if the threshold was too tight.
    #[doc(hidden)] // for the layers above
    pub fn is_of(&self, [first, last]: [i64; 2]) -> bool {
        (i64::from(self.residue) - first).rem_euclid(1 << self.bits) <= last - first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_of_the_ranges_that_hold_its_residue() {
        for bits in 1..=4u8 {
            for index in -40i64..40 {
                let residue = index.rem_euclid(1 << bits) as u32;
                let decision = Decision { place: 0, bits, residue };
                for first in -45i64..45 {
                    for last in first..first + 20 {
                        let held = (first..=last).any(|i| i.rem_euclid(1 << bits) == i64::from(residue));
                        assert_eq!(decision.is_of([first, last]), held);
                    }
                }
            }
        }
    }
}
