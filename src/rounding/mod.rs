//! Rounding decisions: how a trainer with native kernels logs the roundings that another machine could take differently, and
//! how an auditor takes them from the log and finds the ones that no honest kernel could have taken.
//! Contract and proofs: `docs/ROUNDING.md`.
//!
//! [`near_tie`] decides what is logged, [`codec`] and [`log`] how it is written, [`legal`] what is allowed; [`record`] is the
//! trainer's side of a step and [`replay`] the auditor's.

pub mod codec;
pub mod legal;
pub mod log;
pub mod near_tie;
pub mod norms;
pub mod record;
pub mod replay;
pub mod thresholds;

/// A logged rounding: the last bits of the grid index of one element's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The element's place in the product, row-major.
    pub place: u64,
    /// How many bits of the index are logged, 1..=[`BITS_MAX`]: one for a rounding up or down.
    pub bits: u8,
    /// The index modulo 2^bits.
    pub residue: u32,
}

/// The most bits of a decision. A threshold of more than 2^18 grid steps has no use.
pub const BITS_MAX: u8 = 20;

impl Decision {
    /// The index nearest to `near`, where x lies, that has this residue; of two as near, the one on x's side.
    pub fn index(&self, grid: crate::arith::grid::Grid, x: f64) -> i64 {
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
}
