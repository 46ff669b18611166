//! The published bounds of native kernels: how large a threshold may be, and how honest kernels decide. Measured with
//! `tiebreak log calibrate` and `tiebreak audit`, as `docs/ROUNDING.md`, section 8, says.

use super::legal::Accumulation;

/// How a native kernel adds K terms, as far as its error depends on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adding {
    /// In binary32, rounding to nearest: CPUs and shaders.
    Binary32,
    /// In binary32, cutting off instead of rounding: tensor cores.
    Binary32Cut,
    /// In binary64.
    Binary64,
}

impl Adding {
    /// The ways in which kernels of an accumulation may add.
    pub fn of(accumulation: Accumulation) -> &'static [Adding] {
        match accumulation {
            Accumulation::Binary32 => &[Adding::Binary32, Adding::Binary32Cut],
            Accumulation::Binary64 => &[Adding::Binary64],
        }
    }

    /// The most that a threshold for products of K terms may be, in units of 2^-32 of the norms (2^-60 for binary64): a constant,
    /// a part for each sqrt(K), for sums of terms of random sign, and a part for each term, for sums of one sign.
    ///
    /// A kernel that rounds to nearest was measured at up to 40 sqrt(K), and 0.6 K for sums of one sign; one that cuts off as tensor
    /// cores of compute capability 8.0 do loses up to 33 K of such a sum. A calibrated threshold is three times that. The proved bound
    /// is 2^9 K in these units.
    pub fn threshold_max(self, k: usize) -> u32 {
        let [constant, root, linear] = match self {
            Adding::Binary32 => [64.0, 320.0, 4.0],
            Adding::Binary32Cut => [64.0, 640.0, 128.0],
            Adding::Binary64 => [16384.0, 0.0, 4.0],
        };
        // Far below u32::MAX for every K that has a proved bound; a cast of a larger one is the greatest number.
        (constant + root * (k as f64).sqrt() + linear * k as f64) as u32
    }
}

/// The largest parts of the values that a product's decisions are about which an honest kernel rounds to another than the nearest: towards
/// zero, and away from it. At most 0.6 % together were measured of kernels that round to nearest, which have no side. One that cuts
/// off errs towards zero, by at most the third of a threshold that is calibrated to it: a sixth of the tolerance on both sides.
pub fn taken_max(accumulation: Accumulation) -> [f64; 2] {
    match accumulation {
        Accumulation::Binary32 => [0.17, 0.02],
        Accumulation::Binary64 => [0.02, 0.02],
    }
}

/// The largest part of the pairs of such decisions about one element of a weight's gradient in two steps that goes the same way rather
/// than opposite ones, above the half that chance gives.
pub const SAME_WAY_MAX: f64 = 0.5;
/// The largest part of a product's elements that may have been the trainer's to choose.
pub const FREE_MAX: f64 = 0.05;
/// The chance that an honest run fails any test of its decisions, all looks together.
pub const FALSE_ALARM: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_bounded_by_what_kernels_need() {
        let most = |adding: Adding, k| adding.threshold_max(k);
        // What `log calibrate` wrote for sums of one sign on the five CPU kernels.
        for (k, units) in [(64, 115), (1024, 767), (8192, 10_529), (65_536, 116_182)] {
            assert!(most(Adding::Binary32, k) > 2 * units, "{k}");
        }
        for k in [16, 64, 1024, 65_536, 1 << 21] {
            // The defaults.
            assert!(f64::from(most(Adding::Binary32, k)) > 160.0 * (k as f64).sqrt());
            assert!(most(Adding::Binary64, k) > 2048);
            assert!(most(Adding::Binary32, k) < most(Adding::Binary32Cut, k));
            // Below the proved bound K u.
            assert!((most(Adding::Binary32Cut, k) as usize) < k << 9);
        }
        assert!(most(Adding::Binary32Cut, 65_536) < 1 << 24, "the greatest number that a job can say");
    }
}
