//! Host scalars: the learning rate of a step and AdamW's bias corrections, without any libm. Contract: section 6.

use serde::Deserialize;

/// The kind of fall of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// No fall.
    Constant,
    /// In a straight line, to the floor at the last step.
    Linear,
    /// Along half a cosine, to the floor at the last step.
    Cosine,
    /// By a factor, after certain steps.
    Step,
}

/// The learning rate over a run: linear warm-up, then a fall.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// The learning rate after warm-up.
    pub peak: f32,
    /// Steps of linear warm-up; step t of them has peak * t / warmup.
    #[serde(default)]
    pub warmup: u32,
    /// The kind of fall. If it is absent: a cosine if there is a floor, else no fall.
    #[serde(default)]
    pub kind: Option<Decay>,
    /// The learning rate of the last step of a line or a cosine. If it is absent: 0 if a kind is named.
    #[serde(default)]
    pub floor: Option<f32>,
    /// The factor of each fall, for the kind `step`.
    #[serde(default)]
    pub gamma: Option<f32>,
    /// The number of steps between two falls, for the kind `step`.
    #[serde(default)]
    pub every: Option<u32>,
    /// The steps after which the rate falls, ascending; for the kind `step`, in place of `every`.
    #[serde(default)]
    pub milestones: Option<Vec<u32>>,
}

impl Schedule {
    /// The kind of fall of the learning rate.
    #[doc(hidden)] // for the layers above
    pub fn kind(&self) -> Decay {
        self.kind.unwrap_or(if self.floor.is_some() { Decay::Cosine } else { Decay::Constant })
    }

    /// The learning rate of the last step of a line or a cosine; `None` for the other kinds.
    #[doc(hidden)] // for the layers above
    pub fn floor(&self) -> Option<f32> {
        matches!(self.kind(), Decay::Linear | Decay::Cosine).then(|| self.floor.unwrap_or(0.0))
    }

    /// The learning rate of step `step` (from 1) of `steps`, as a binary32 pattern. The computation is in
    /// binary64, with each operation rounded once, in the order written; the result is rounded to binary32.
    ///
    /// ```
    /// use tiebreak_contract::program::schedule::Schedule;
    ///
    /// let schedule = Schedule { peak: 0.5, warmup: 4, floor: Some(0.0), ..Schedule::default() };
    /// let rate = |step| f32::from_bits(schedule.learning_rate(step, 100));
    /// assert_eq!([rate(1), rate(4), rate(52), rate(100)], [0.125, 0.5, 0.25, 0.0]);
    /// ```
    pub fn learning_rate(&self, step: u32, steps: u32) -> u32 {
        let peak = f64::from(self.peak);
        if step <= self.warmup {
            return ((peak * f64::from(step) / f64::from(self.warmup)) as f32).to_bits();
        }
        let floor = f64::from(self.floor().unwrap_or(0.0));
        let span = steps.saturating_sub(self.warmup).max(1);
        let done = (step - self.warmup).min(span);
        let rate = match self.kind() {
            Decay::Constant => peak,
            Decay::Linear => floor + (peak - floor) * (f64::from(span - done) / f64::from(span)),
            Decay::Cosine => floor + (peak - floor) * (0.5 * (1.0 + cos_pi(done, span))),
            Decay::Step => peak * power(f64::from(self.gamma.unwrap_or(1.0)), self.falls(step)),
        };
        (rate as f32).to_bits()
    }

    /// The number of falls before this step (from 1).
    fn falls(&self, step: u32) -> u32 {
        let done = step.saturating_sub(1);
        match &self.milestones {
            Some(milestones) => milestones.partition_point(|&milestone| milestone <= done) as u32,
            None => done / self.every.unwrap_or(u32::MAX).max(1),
        }
    }

    /// The error in numbers that are each within the bounds of their keys, if there is one: (key, why).
    #[doc(hidden)] // for the layers above
    pub fn error(&self) -> Option<(&'static str, String)> {
        let kind = self.kind();
        if self.floor.is_some() && self.floor().is_none() {
            return Some(("floor", "only a line or a cosine leads to a floor; leave it out".into()));
        }
        if self.floor.is_some_and(|floor| floor > self.peak) {
            return Some(("floor", "must be at least 0 and at most the peak".into()));
        }
        let steps = [
            ("gamma", self.gamma.is_some()),
            ("every", self.every.is_some()),
            ("milestones", self.milestones.is_some()),
        ];
        if let (true, Some((key, _))) = (kind != Decay::Step, steps.iter().find(|(_, written)| *written)) {
            return Some((key, "the key needs kind = \"step\"".into()));
        }
        if kind == Decay::Step && self.gamma.is_none() {
            return Some((
                "gamma",
                "kind = \"step\" needs the factor of each fall, such as gamma = 0.1".into(),
            ));
        }
        if kind == Decay::Step && self.every.is_some() == self.milestones.is_some() {
            return Some(("kind", "kind = \"step\" needs either `every` or `milestones`".into()));
        }
        if self.milestones.as_ref().is_some_and(|all| !all.is_sorted_by(|a, b| a < b)) {
            return Some(("milestones", "must be steps from 1, each after the one before it".into()));
        }
        (self.every == Some(0)).then(|| ("every", "must be at least 1".into()))
    }
}

/// base^n in binary64: the squares of the base whose bits n has, multiplied from the lowest bit up.
fn power(base: f64, mut n: u32) -> f64 {
    let (mut product, mut square) = (1.0, base);
    while n > 0 {
        if n & 1 == 1 {
            product *= square;
        }
        square *= square;
        n >>= 1;
    }
    product
}

/// cos(pi * n / d) for n <= d, in binary64. Exact integer comparison folds the argument to 0..=1/2. The cosine's
/// Taylor series to x^22 is summed from its smallest term. The error is below 2^-50; the operations define the
/// bits.
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
        let s = Schedule { peak: 1e-3, warmup: 10, floor: Some(1e-4), ..Schedule::default() };
        let lr = |step| f32::from_bits(s.learning_rate(step, 110));
        assert_eq!(lr(1), (f64::from(1e-3f32) / 10.0) as f32);
        assert_eq!(lr(10), 1e-3);
        assert_eq!(lr(110), 1e-4);
        // The cosine's middle: cos(pi/2) folds to n/d = 1/2.
        assert_eq!(lr(60), (0.5 * (f64::from(1e-3f32) + f64::from(1e-4f32))) as f32);
        assert!(lr(11) < lr(10) && lr(11) > 0.99e-3);
    }

    #[test]
    fn kinds_fall_where_they_say() {
        let rates = |table: &str| -> Vec<f32> {
            let schedule: Schedule = toml::from_str(table).unwrap();
            assert_eq!(schedule.error(), None, "{table}");
            (1..=5).map(|step| f32::from_bits(schedule.learning_rate(step, 5))).collect()
        };
        assert_eq!(rates("peak = 1\nkind = \"constant\""), [1.0; 5]);
        assert_eq!(rates("peak = 1\nwarmup = 1\nkind = \"linear\""), [1.0, 0.75, 0.5, 0.25, 0.0]);
        assert_eq!(rates("peak = 1\nkind = \"step\"\nevery = 2\ngamma = 0.5"), [1.0, 1.0, 0.5, 0.5, 0.25]);
        let milestones = "peak = 1\nkind = \"step\"\nmilestones = [1, 4]\ngamma = 0.5";
        assert_eq!(rates(milestones), [1.0, 0.5, 0.5, 0.5, 0.25]);
        assert_eq!(rates("peak = 1\nkind = \"cosine\""), rates("peak = 1\nfloor = 0.0"));
        for (table, key) in [
            ("peak = 1\nkind = \"constant\"\nfloor = 0.1", "floor"),
            ("peak = 1\ngamma = 0.1", "gamma"),
            ("peak = 1\nkind = \"step\"\nevery = 2", "gamma"),
            ("peak = 1\nkind = \"step\"\ngamma = 0.1", "kind"),
            ("peak = 1\nkind = \"step\"\ngamma = 0.1\nmilestones = [3, 3]", "milestones"),
            ("peak = 1\nkind = \"step\"\ngamma = 0.1\nevery = 0", "every"),
        ] {
            let schedule: Schedule = toml::from_str(table).unwrap();
            assert_eq!(schedule.error().unwrap().0, key, "{table}");
        }
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
