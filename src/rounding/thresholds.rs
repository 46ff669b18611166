//! The table of thresholds: how far from a boundary of the grid a rounding is still logged, by class of product. Part of the
//! job, so it is committed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::legal::Accumulation;
use crate::arith::grid::GridRule;
use crate::program::products::{ProductClass, ProductTable};

/// A threshold's unit: 2^-32 of the product of the norms of the row and the column.
const UNIT: f32 = 1.0 / 4_294_967_296.0;
/// The most a threshold may be: 2^-8 of the norms.
const MOST: u32 = 1 << 24;

/// The `[rounding]` table of a job: the logged profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rounding {
    /// The grid: leading bits of binary32 that results keep. 16 is bfloat16, for kernels that accumulate in binary32.
    #[serde(default = "sixteen")]
    pub bits: u8,
    /// Results are not finer than 2^-floor of their row's and column's scale; 0 = no floor.
    #[serde(default = "fourteen")]
    pub floor: u8,
    /// The threshold of every class that has none of its own, in units of 2^-32 of the norms.
    #[serde(default = "default_threshold")]
    pub threshold: u32,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub class: BTreeMap<ProductClass, u32>,
}

fn sixteen() -> u8 {
    16
}

fn fourteen() -> u8 {
    14
}

/// What `tiebreak log calibrate` measured for CPU and software Vulkan kernels, rounded up (`docs/ROUNDING.md`, section 3).
fn default_threshold() -> u32 {
    512
}

impl Default for Rounding {
    fn default() -> Rounding {
        Rounding {
            bits: sixteen(),
            floor: fourteen(),
            threshold: default_threshold(),
            class: BTreeMap::new(),
        }
    }
}

impl Rounding {
    /// The key that is wrong and why, if any.
    pub fn error(&self) -> Option<(String, String)> {
        if self.bits != 16 {
            return Some(("bits".into(), "must be 16 (bfloat16)".into()));
        }
        if self.floor != 0 && !(4..=40).contains(&self.floor) {
            return Some(("floor".into(), "must be 0 (none) or 4 to 40".into()));
        }
        let fits = |threshold: u32| (1..=MOST).contains(&threshold);
        let why = format!("must be 1 to {MOST}, in units of 2^-32 of the norms of row and column");
        if !fits(self.threshold) {
            return Some(("threshold".into(), why));
        }
        let wrong = self.class.iter().find(|(_, threshold)| !fits(**threshold));
        wrong.map(|(class, _)| (format!("class.{}", class.name()), why))
    }

    pub fn rule(&self) -> GridRule {
        GridRule { bits: self.bits, floor: self.floor }
    }

    /// What native kernels of this grid accumulate in.
    pub fn accumulation(&self) -> Accumulation {
        if self.bits <= 16 { Accumulation::Binary32 } else { Accumulation::Binary64 }
    }

    /// A class's threshold, relative to the norms.
    pub fn of(&self, class: ProductClass) -> f32 {
        self.class.get(&class).copied().unwrap_or(self.threshold) as f32 * UNIT
    }

    /// The table's units of a measured error relative to the norms, rounded up.
    pub fn units(relative: f64) -> u32 {
        (relative / f64::from(UNIT)).ceil().clamp(1.0, f64::from(MOST)) as u32
    }

    /// Every class of product logged on this grid.
    pub fn apply(&self, table: &mut ProductTable) {
        for class in ProductClass::ALL {
            table.set_logged(class, self.rule());
        }
    }
}
