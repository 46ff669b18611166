//! The table of thresholds: for each class of product, the distance from a boundary of the grid up to which a rounding is logged.
//! The table is part of the job, so it is committed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bounds::{Adding, FREE_MAX};
use super::legal::Accumulation;
use super::near_tie::Tolerance;
use tiebreak_contract::arith::rounding_grid::GridRule;
use tiebreak_contract::program::graph::LoggedProduct;
use tiebreak_contract::program::products::{ProductClass, ProductTable};

/// The greatest threshold.
const MOST: u32 = 1 << 24;
/// The greatest threshold in the paper's preset: a quarter of the grid's step, less one unit so that a decision is one bit.
const PAPER_MOST: u32 = (1 << 22) - 1;

/// A known setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// The setting of Srivastava, Arora and Boneh: binary64 kernels on the binary32 grid, thresholds in fractions of the grid's
    /// step, and auditors that round binary64 products of their own.
    Paper,
}

/// The `[rounding]` table of a job: the logged profile.
///
/// ```
/// use tiebreak_record::rounding::thresholds::Rounding;
///
/// let default = Rounding::default();
/// assert_eq!((default.rule().bits, default.is_paper()), (16, false));
/// // A threshold that no job may have is named by its key.
/// let (key, _) = Rounding { threshold: Some(u32::MAX), ..default }.error().expect("it is too large");
/// assert_eq!(key, "threshold");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rounding {
    /// A known setting; absent = the default profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// The grid: leading bits of binary32 that results keep. 16 is bfloat16, for kernels that accumulate in binary32. Absent =
    /// 16, and 32 in the paper's preset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<u8>,
    /// A floor on the grid: results are not finer than 2^-floor of the size that their row's and column's absmaxes give; 0 = no
    /// floor. Absent = 14 for bfloat16, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<u8>,
    /// The threshold of every class that has none of its own, in units of 2^-32 of the norms, or 2^-60 for grids of more than 16
    /// bits. In the paper's preset the unit is 2^-24 of the grid's step. Absent = a default that grows with sqrt(K); in the
    /// preset, the greatest threshold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<u32>,
    /// Thresholds of single classes, in the units of `threshold`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub class: BTreeMap<ProductClass, u32>,
}

/// The bfloat16 grid's floor.
const FLOOR: u8 = 14;
/// Thresholds without a calibration, in units for each sqrt(K): four times the measurement of `tiebreak log calibrate` for CPU
/// and software Vulkan kernels (`docs/ROUNDING.md`, section 3). A quarter of it missed a decision within a hundred steps.
const THRESHOLD_BINARY32: f64 = 160.0;
/// The error of binary64 sums relative to the norms does not grow with K. The default is eighteen times the measured error.
const THRESHOLD_BINARY64: f64 = 2048.0;

impl Rounding {
    /// The wrong key and why, if there is one.
    pub fn error(&self) -> Option<(String, String)> {
        if !matches!(self.bits(), 16 | 26..=30 | 32) {
            return Some(("bits".into(), "must be 16 (bfloat16), 26 to 30, or 32 (binary32)".into()));
        }
        if self.is_paper() && self.bits() == 16 {
            return Some((
                "bits".into(),
                "the paper's preset has kernels in binary64: 26 to 30, or 32".into(),
            ));
        }
        if self.bits() > 16 && self.floor.is_some_and(|floor| floor != 0) {
            return Some(("floor".into(), "only the bfloat16 grid has a floor; leave it out".into()));
        }
        if self.floor.is_some_and(|floor| floor != 0 && !(4..=40).contains(&floor)) {
            return Some(("floor".into(), "must be 0 (none) or 4 to 40".into()));
        }
        let most = self.most();
        let fits = |threshold: u32| (1..=most).contains(&threshold);
        let why = if self.is_paper() {
            format!("must be 1 to {most}, in units of 2^-24 of the grid's step")
        } else {
            format!(
                "must be 1 to {most}, in units of 2^-32 (2^-60 above 16 bits) of the norms of row and column"
            )
        };
        if self.threshold.is_some_and(|threshold| !fits(threshold)) {
            return Some(("threshold".into(), why));
        }
        let wrong = self.class.iter().find(|(_, threshold)| !fits(**threshold));
        wrong.map(|(class, _)| (format!("class.{}", class.name()), why))
    }

    /// The setting that leaves a trainer of these products more freedom than native kernels need, if there is one. The result is
    /// its key, and a text with its value, the allowed maximum, and K.
    #[doc(hidden)] // for the layers above
    pub fn excess(&self, products: &[LoggedProduct]) -> Option<(String, String)> {
        let accumulation = self.accumulation();
        for product in products {
            let (class, k) = (product.class, product.dims()[3]);
            if accumulation.gamma(k).is_infinite() {
                let why = format!(
                    "{} has products of K = {k} terms, so many that no bound on a native kernel's error is proved (K u is 1/2 or more); \
                     use smaller micro-batches, or the exact profile",
                    class.name()
                );
                return Some(("rounding".into(), why));
            }
            let most =
                Adding::of(accumulation).iter().map(|adding| adding.threshold_max(k)).max().unwrap_or(0);
            let (key, given) = match (self.class.get(&class), self.threshold) {
                (Some(&given), _) => (format!("rounding.class.{}", class.name()), given),
                (None, Some(given)) => ("rounding.threshold".into(), given),
                (None, None) => continue, // the defaults are below
            };
            // The paper's thresholds are at most a quarter of the grid's step, for any K.
            if !self.is_paper() && given > most {
                let why = format!(
                    "is {given}; native kernels need at most {most} where {} has products of K = {k} terms, and a larger threshold only \
                     gives the trainer more roundings to choose (docs/ROUNDING.md, section 3)",
                    class.name()
                );
                return Some((key, why));
            }
        }
        None
    }

    /// A warning, if an audit will probably find that more values of a product are within its threshold than may be free.
    #[doc(hidden)] // for the layers above
    pub fn advice(&self, products: &[LoggedProduct]) -> Option<String> {
        let share = |product: &LoggedProduct| {
            let k = product.dims()[3];
            // Sums of terms of random sign are about the norms / sqrt(K), and a step of the grid is 2^(8.5 - bits) of that.
            // Smaller sums have smaller steps, which gives half as many more (measured, K = 2048).
            let steps = f64::from(self.tolerance(product.class, k).norms) * (k as f64).sqrt();
            3.0 * steps * 2f64.powf(f64::from(self.bits()) - 8.5)
        };
        let freest = products.iter().max_by(|a, b| share(a).total_cmp(&share(b)))?;
        (share(freest) > FREE_MAX).then(|| {
            format!(
                "products of class {} have K = {} terms, and about {:.0} % of their values within the threshold; above {:.0} % an audit does not \
                 decide: calibrate the thresholds (`tiebreak log calibrate`), or use smaller micro-batches",
                freest.class.name(),
                freest.dims()[3],
                100.0 * share(freest).min(1.0),
                100.0 * FREE_MAX
            )
        })
    }

    /// The threshold that is below every result of `tiebreak log calibrate`, if there is one. The result is its key, and a text
    /// with its value and the least one.
    #[doc(hidden)] // for the layers above
    pub fn shortfall(&self) -> Option<(String, String)> {
        let classes = self.class.iter().map(|(class, &given)| (format!("class.{}", class.name()), given));
        let mut all = self.threshold.map(|given| ("threshold".into(), given)).into_iter().chain(classes);
        let (key, given) = all.find(|&(_, given)| given < self.least())?;
        let why = format!(
            "is {given}; `tiebreak log calibrate` gives no kernel less than {}, and an audit could not decide",
            self.least()
        );
        Some((format!("rounding.{key}"), why))
    }

    /// True if thresholds are those of the paper, and auditors may round products of their own.
    #[doc(hidden)] // for the layers above
    pub fn is_paper(&self) -> bool {
        self.preset == Some(Preset::Paper)
    }

    fn bits(&self) -> u8 {
        self.bits.unwrap_or(if self.is_paper() { 32 } else { 16 })
    }

    fn most(&self) -> u32 {
        if self.is_paper() { PAPER_MOST } else { MOST }
    }

    /// The rule by which an element's grid follows from the absmaxes.
    #[doc(hidden)] // for the layers above
    pub fn rule(&self) -> GridRule {
        let floor = if self.bits() > 16 { 0 } else { FLOOR };
        GridRule { bits: self.bits(), floor: self.floor.unwrap_or(floor) }
    }

    /// The accumulation of this grid's native kernels.
    #[doc(hidden)] // for the layers above
    pub fn accumulation(&self) -> Accumulation {
        if self.bits() <= 16 { Accumulation::Binary32 } else { Accumulation::Binary64 }
    }

    /// The tolerance of a class's products of K terms.
    #[doc(hidden)] // for the layers above
    pub fn tolerance(&self, class: ProductClass, k: usize) -> Tolerance {
        let given = self.class.get(&class).copied().or(self.threshold);
        if self.is_paper() {
            let steps = f64::from(given.unwrap_or(PAPER_MOST)) * self.unit();
            return Tolerance { norms: 0.0, value: 0.0, steps: steps as f32 };
        }
        let default = match self.accumulation() {
            Accumulation::Binary32 => THRESHOLD_BINARY32 * (k as f64).sqrt(),
            Accumulation::Binary64 => THRESHOLD_BINARY64,
        };
        let norms = (given.map_or(default, f64::from) * self.unit()) as f32;
        Tolerance { norms, value: self.relative(), steps: 0.0 }
    }

    /// The term of a tolerance that scales with the result: sums whose terms agree in sign have errors relative to the sum. The
    /// term is small against the grid's steps, so it costs little.
    #[doc(hidden)] // for the layers above
    pub fn relative(&self) -> f32 {
        match self.accumulation() {
            Accumulation::Binary32 => 2f32.powi(-20),
            Accumulation::Binary64 => 2f32.powi(-44),
        }
    }

    /// A threshold's unit, relative to the product of the norms of the row and the column, or to the grid's step.
    fn unit(&self) -> f64 {
        if self.is_paper() {
            return 2f64.powi(-24);
        }
        2f64.powi(if self.accumulation() == Accumulation::Binary32 { -32 } else { -60 })
    }

    /// A measured error, relative to the norms or the grid's step, in the table's units. The result is rounded up, and is at
    /// least large enough for another step's values.
    #[doc(hidden)] // for the layers above
    pub fn units(&self, relative: f64) -> u32 {
        (relative / self.unit()).ceil().clamp(f64::from(self.least()), f64::from(self.most())) as u32
    }

    /// The least threshold that a calibration gives.
    fn least(&self) -> u32 {
        match self.accumulation() {
            _ if self.is_paper() => 1,
            Accumulation::Binary32 => 64,
            Accumulation::Binary64 => 1024,
        }
    }

    /// Logs every class of product on this grid.
    #[doc(hidden)] // for the layers above
    pub fn apply(&self, table: &mut ProductTable) {
        for class in ProductClass::ALL {
            table.set_logged(class, self.rule());
        }
    }
}
