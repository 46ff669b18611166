//! The published bounds of native kernels: the size of thresholds, and the decisions of honest kernels. Both were measured with
//! `tiebreak log calibrate` and `tiebreak audit`, as `docs/ROUNDING.md`, section 8, says.

use super::legal::Accumulation;

/// The way in which a native kernel adds K terms, as far as its error depends on it.
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

    /// The greatest threshold for products of K terms, in units of 2^-32 of the norms (2^-60 for binary64). The bound adds a
    /// constant, a multiple of sqrt(K) for sums of terms of random sign, and a multiple of K for sums of one sign.
    ///
    /// A kernel that rounds to nearest was measured at up to 40 sqrt(K), and at 0.6 K for sums of one sign. A kernel that cuts
    /// off, as tensor cores of compute capability 8.0 do, loses up to 33 K of a sum of one sign. A calibrated threshold is three
    /// times the measured error. The proved bound is 2^9 K in these units.
    pub fn threshold_max(self, k: usize) -> u32 {
        let [constant, root, linear] = match self {
            Adding::Binary32 => [64.0, 320.0, 4.0],
            Adding::Binary32Cut => [64.0, 640.0, 128.0],
            Adding::Binary64 => [16384.0, 0.0, 4.0],
        };
        // The result is far below u32::MAX for every K that has a proved bound; for a larger K the cast gives the greatest
        // number.
        (constant + root * (k as f64).sqrt() + linear * k as f64) as u32
    }
}

/// The largest fractions of a product's logged values that an honest kernel rounds to another value than the nearest: towards
/// zero, and away from zero. For kernels that round to nearest, which prefer no side, at most 0.6 % together were measured. A
/// kernel that cuts off errs towards zero, by at most a third of a threshold calibrated to it: a sixth of the tolerance on both
/// sides.
pub fn taken_max(accumulation: Accumulation) -> [f64; 2] {
    match accumulation {
        Accumulation::Binary32 => [0.17, 0.02],
        Accumulation::Binary64 => [0.02, 0.02],
    }
}

/// Among pairs of decisions that go the same way or opposite ways, the largest surplus of same ones that an honest kernel shows,
/// as a share of the pairs. A pair is about one element of a weight's gradient in two steps, with values not rounded to the
/// nearest.
pub const SAME_WAY_MAX: f64 = 0.5;
/// The largest fraction of a product's elements whose rounding the trainer may have been free to choose.
pub const FREE_MAX: f64 = 0.05;
/// The probability that an honest run fails any test of its decisions, over all tests together.
pub const FALSE_ALARM: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_bounded_by_what_kernels_need() {
        let most = |adding: Adding, k| adding.threshold_max(k);
        // The thresholds that `log calibrate` wrote for sums of one sign on the five CPU kernels.
        for (k, units) in [(64, 115), (1024, 767), (8192, 10_529), (65_536, 116_182)] {
            assert!(most(Adding::Binary32, k) > 2 * units, "{k}");
        }
        for k in [16, 64, 1024, 65_536, 1 << 21] {
            // The bounds are above the defaults.
            assert!(f64::from(most(Adding::Binary32, k)) > 160.0 * (k as f64).sqrt());
            assert!(most(Adding::Binary64, k) > 2048);
            assert!(most(Adding::Binary32, k) < most(Adding::Binary32Cut, k));
            // The bounds are below the proved bound K u.
            assert!((most(Adding::Binary32Cut, k) as usize) < k << 9);
        }
        assert!(most(Adding::Binary32Cut, 65_536) < 1 << 24, "the greatest number that a job can say");
    }
}
