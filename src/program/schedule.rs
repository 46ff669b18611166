//! Host scalars: the learning rate of a step and AdamW's bias corrections, without any libm. Contract: section 6.

use serde::{Deserialize, Serialize};

/// The learning rate over a run: linear warm-up, then constant or a cosine down to `floor`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// The learning rate after warm-up.
    pub peak: f32,
    /// Steps of linear warm-up; step t of them has peak * t / warmup.
    #[serde(default)]
    pub warmup: u32,
    /// The last learning rate of the cosine; without it the rate stays at the peak.
    #[serde(default)]
    pub floor: Option<f32>,
}

impl Schedule {
    /// The learning rate of step `step` (from 1) of `steps`, as a binary32 pattern. Computed in binary64, each
    /// operation rounded once, in the order written; rounded to binary32 at the end.
    pub fn learning_rate(&self, step: u32, steps: u32) -> u32 {
        let peak = f64::from(self.peak);
        if step <= self.warmup {
            return ((peak * f64::from(step) / f64::from(self.warmup)) as f32).to_bits();
        }
        let Some(floor) = self.floor else { return self.peak.to_bits() };
        let floor = f64::from(floor);
        let span = steps.saturating_sub(self.warmup).max(1);
        let done = (step - self.warmup).min(span);
        let shape = 0.5 * (1.0 + cos_pi(done, span));
        ((floor + (peak - floor) * shape) as f32).to_bits()
    }

    /// What is wrong with the numbers, if anything: (key, why).
    pub fn error(&self) -> Option<(&'static str, String)> {
        let fine = |x: f32| x.is_finite() && x >= 0.0;
        if !fine(self.peak) {
            return Some(("peak", "must be a finite number of at least 0".into()));
        }
        if self.floor.is_some_and(|floor| !fine(floor) || floor > self.peak) {
            return Some(("floor", "must be at least 0 and at most the peak".into()));
        }
        None
    }
}

/// cos(pi * n / d) for n <= d, in binary64: the argument is folded to 0..=1/2 by exact integer comparison, and the
/// cosine's Taylor series to x^22 is summed from its smallest term. The error is below 2^-50; the bits are defined
/// by the operations.
fn cos_pi(n: u32, d: u32) -> f64 {
    let (n, d) = (u64::from(n), u64::from(d));
    let (folded, sign) = if 2 * n > d { (d - n, -1.0) } else { (n, 1.0) };
    let x = std::f64::consts::PI * (folded as f64 / d as f64);
    let xx = x * x;
    // Horner: 1 - xx/(1*2) * (1 - xx/(3*4) * (1 - ...)).
    let mut sum = 1.0;
    for k in (1..=11u32).rev() {
        sum = 1.0 - xx / f64::from((2 * k - 1) * (2 * k)) * sum;
    }
    sign * sum
}

/// 1 - beta^step by successive binary64 products, rounded to binary32: AdamW's bias correction (step from 1).
/// `beta` is the binary32 number of the job, taken exactly.
pub fn bias_correction(beta: f32, step: u32) -> u32 {
    let mut power = 1.0f64;
    for _ in 0..step {
        power *= f64::from(beta);
        if power == 0.0 {
            break;
        }
    }
    ((1.0 - power) as f32).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_has_its_corners() {
        let s = Schedule { peak: 1e-3, warmup: 10, floor: Some(1e-4) };
        let lr = |step| f32::from_bits(s.learning_rate(step, 110));
        assert_eq!(lr(1), (f64::from(1e-3f32) / 10.0) as f32);
        assert_eq!(lr(10), 1e-3);
        assert_eq!(lr(110), 1e-4);
        // The cosine's middle: cos(pi/2) folds to n/d = 1/2.
        assert_eq!(lr(60), (0.5 * (f64::from(1e-3f32) + f64::from(1e-4f32))) as f32);
        assert!(lr(11) < lr(10) && lr(11) > 0.99e-3);
    }

    #[test]
    fn cosine_is_accurate() {
        for n in 0..=1000 {
            let exact = (std::f64::consts::PI * f64::from(n) / 1000.0).cos();
            assert!((cos_pi(n, 1000) - exact).abs() < 1e-15, "cos(pi {n}/1000)");
        }
    }

    #[test]
    fn bias_corrections_end_at_one() {
        assert_eq!(bias_correction(0.9, 1), ((1.0 - f64::from(0.9f32)) as f32).to_bits());
        assert_eq!(bias_correction(0.9, 100_000), 1f32.to_bits());
    }
}
