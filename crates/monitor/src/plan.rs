//! The number of chips to sample, and the inverse questions: the run that a budget finds, and the rate at which chips have to
//! log.

use crate::detection::{exact, formula};
use crate::regime::{Regime, RegimeError, TrainingRun, bounded, check_probability};

/// The chips to sample at each inspection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Samples {
    /// Eq. 1 of the paper.
    pub formula: f64,
    /// Eq. 1 to the first order, -ln(1-p) / (b (1 - e^(-f T_m))) * T_m/T: the numbers of the paper's Table 1.
    pub first_order: f64,
    /// The least whole number that finds the run with the probability if no chip is drawn twice and logs are kept ([`exact`]).
    /// The whole fleet if even that does not suffice.
    pub exact: u64,
    /// The probability that `exact` gives, which is below the requested one only if the whole fleet is sampled.
    pub probability: f64,
    inspections_per_year: f64,
}

impl Samples {
    /// Converts chips at each inspection to chips a year of 365 days.
    pub fn per_year(&self, samples: f64) -> f64 {
        samples * self.inspections_per_year
    }

    /// The number of the paper's Table 1: the first order, a year.
    pub fn first_order_per_year(&self) -> f64 {
        self.per_year(self.first_order)
    }
}

/// The number of chips to sample at each inspection so that a run is found with probability `probability`.
///
/// # Errors
/// If a number is outside its bounds, or the run needs more chips than there are.
pub fn samples(regime: &Regime, run: &TrainingRun, probability: f64) -> Result<Samples, RegimeError> {
    regime.check_run(run)?;
    check_probability(probability)?;
    let (share, inspections) = (regime.share(run), regime.inspections(run));
    let hit = share * regime.logged(run.days.min(regime.period));
    let ln_missed = (-probability).ln_1p();
    let (mut low, mut high) = (1, regime.fleet.chips);
    while low < high {
        let middle = low + (high - low) / 2;
        if exact(regime, run, middle) >= probability { high = middle } else { low = middle + 1 }
    }
    Ok(Samples {
        formula: ln_missed / (-hit).ln_1p() / inspections,
        first_order: -ln_missed / hit / inspections,
        exact: low,
        probability: exact(regime, run, low),
        inspections_per_year: regime.inspections_per_year(),
    })
}

/// A run of the same FLOP that takes `k` times as long on a `k`-th of the chips; for k below 1 it is shorter, on more chips.
///
/// # Errors
/// If such a run is outside the bounds, or needs more chips than there are.
pub fn stretch(regime: &Regime, run: &TrainingRun, k: f64) -> Result<TrainingRun, RegimeError> {
    let stretched = TrainingRun { days: run.days * k, ..*run };
    regime.check_run(&stretched)?;
    Ok(stretched)
}

/// The probability that at least one of `runs` independent runs is found, if each is found with `probability`.
pub fn of_many(probability: f64, runs: u32) -> f64 {
    -(f64::from(runs) * (-probability).ln_1p()).exp_m1()
}

/// The smallest run of so many days that inspections of `samples` chips find with a probability.
///
/// # Errors
/// If a number is outside its bounds, or no run that fits into the fleet is found with that probability.
pub fn smallest_run(
    regime: &Regime,
    days: f64,
    samples: u64,
    probability: f64,
) -> Result<TrainingRun, RegimeError> {
    check_probability(probability)?;
    let chip = regime.fleet.flop_per_day * days;
    let of = |chips: u64| TrainingRun { flop: chips as f64 * chip, days };
    regime.check_run(&of(1))?;
    bounded("the samples of an inspection", samples as f64, 1.0, regime.fleet.chips as f64)?;
    let (mut low, mut high) = (1, regime.fleet.chips);
    let most = exact(regime, &of(high), samples);
    if most < probability {
        let bounds = format!("at most {most:.6}, the probability for a run on the whole fleet");
        return Err(RegimeError::Bounds { name: "the probability of detection", value: probability, bounds });
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if exact(regime, &of(middle), samples) >= probability { high = middle } else { low = middle + 1 }
    }
    Ok(of(low))
}

/// The least rate of snapshots, a chip and day, at which inspections of `samples` chips find a run with a probability by Eq. 1;
/// `None` if no rate suffices.
///
/// # Errors
/// If a number is outside its bounds, or the run needs more chips than there are.
pub fn least_rate(
    regime: &Regime,
    run: &TrainingRun,
    samples: u64,
    probability: f64,
) -> Result<Option<f64>, RegimeError> {
    regime.check_run(run)?;
    check_probability(probability)?;
    bounded("the samples of an inspection", samples as f64, 1.0, regime.fleet.chips as f64)?;
    let draws = samples as f64 * regime.inspections(run);
    let hit = -((-probability).ln_1p() / draws).exp_m1();
    let logged = hit / regime.share(run);
    let rate = -(-logged).ln_1p() / run.days.min(regime.period);
    debug_assert!(
        logged >= 1.0
            || (formula(&Regime { rate, ..*regime }, run, samples as f64) - probability).abs() < 1e-6
    );
    Ok((logged < 1.0).then_some(rate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detection::stretched;
    use crate::regime::Fleet;

    const DAY: f64 = 86_400.0;

    fn regime(chips: u64, flop_per_second: f64) -> Regime {
        let fleet = Fleet { chips, flop_per_day: flop_per_second * DAY };
        Regime { fleet, rate: 0.1, period: 30.0 }
    }

    fn month(flop: f64) -> TrainingRun {
        TrainingRun { flop, days: 30.0 }
    }

    /// Table 1 of the paper as printed, which is the first order and truncated; and Eq. 1.
    #[test]
    fn table_1_is_the_first_order() {
        /// Chips of a fleet, the printed samples a year, and those of Eq. 1.
        type Cell = (u64, f64, f64);
        let rows: [(f64, &[Cell]); 6] = [
            (3.14e23, &[(1_000, 243.0, 229.1), (100_000, 2.43e4, 24_323.0), (10_000_000, 2.43e6, 2.434e6)]),
            (5.76e23, &[(1_000, 132.0, 118.0), (100_000, 1.33e4, 13_253.0), (10_000_000, 1.33e6, 1.327e6)]),
            (2.56e24, &[(1_000, 29.0, 10.05), (100_000, 2.98e3, 2_971.0), (10_000_000, 2.99e5, 2.985e5)]),
            (9.9e24, &[(100_000, 771.0, 758.0), (10_000_000, 7.72e4, 77_177.0)]),
            (1.27e26, &[(100_000, 60.0, 44.7), (10_000_000, 6.02e3, 6_003.0)]),
            (1.3e28, &[(10_000_000, 58.0, 43.3)]),
        ];
        for (flop, fleets) in rows {
            for &(chips, printed, eq1) in fleets {
                let samples = samples(&regime(chips, 1e15), &month(flop), 0.9).unwrap();
                let first = samples.first_order_per_year();
                // Three digits, truncated or rounded.
                let unit = 10f64.powf(printed.log10().floor() - 2.0).max(1.0);
                assert!((first - printed).abs() <= unit, "{flop:e} of {chips}: {first} for {printed}");
                let yearly = samples.per_year(samples.formula);
                assert!((yearly / eq1 - 1.0).abs() < 2e-3, "{flop:e} of {chips}: {yearly} for {eq1}");
                assert!(samples.probability >= 0.9);
            }
        }
    }

    /// Footnote 5: samples a year for all chips of the world, beside the inspectors of the IAEA.
    #[test]
    fn the_comparison_with_the_iaea_comes_out() {
        let samples = samples(&regime(10_000_000, 3e15), &month(1e25), 0.9).unwrap();
        assert_eq!((samples.per_year(samples.formula) / 10.0).round() as u64, 22_924);
        // The printed 232,000 is the first order for Chinchilla-280B's FLOP.
        let first = super::samples(&regime(10_000_000, 3e15), &month(9.9e24), 0.9).unwrap();
        assert_eq!((first.first_order_per_year() / 1000.0).round() as u64, 232);
    }

    #[test]
    fn a_run_that_does_not_fit_is_refused_by_what_would_fit() {
        let error = samples(&regime(1_000, 1e15), &month(9.9e24), 0.9).unwrap_err();
        assert!(
            matches!(error, RegimeError::TooLarge { needed, least, .. } if needed > 3800.0 && least > 114.0)
        );
        for run in [
            month(f64::NAN),
            month(0.0),
            TrainingRun { flop: 1e20, days: -1.0 },
            TrainingRun { flop: 1e20, days: 1e9 },
        ] {
            assert!(
                matches!(samples(&regime(1_000, 1e15), &run, 0.9), Err(RegimeError::Bounds { .. })),
                "{run:?}"
            );
        }
        let words = samples(&regime(1_000, 1e15), &month(f64::NAN), 0.9).unwrap_err().to_string();
        assert_eq!(words, "a run's FLOP is NaN; it has to be from 1 to 1e40");
        for probability in [0.0, 1.0, f64::NAN, -1.0] {
            assert!(samples(&regime(1_000, 1e15), &month(1e22), probability).is_err());
        }
    }

    /// Appendix C.1: a longer run on fewer chips is found nearly as often while the share is small, but not otherwise.
    #[test]
    fn longer_runs_lose_little_for_small_shares() {
        let detection = |share: f64, k: f64| stretched(share, (0.1f64).ln() / (-share).ln_1p(), k) / 0.9;
        for share in [0.01, 0.1, 0.2] {
            for k in [1.0, 2.0, 10.0, 100.0] {
                assert!(detection(share, k) > 0.95, "{share} {k}: {}", detection(share, k));
            }
        }
        assert!((detection(0.2, 100.0) - 0.9703).abs() < 1e-3);
        assert!((detection(0.5, 100.0) - 0.901).abs() < 2e-3 && (detection(0.9, 100.0) - 0.661).abs() < 2e-3);
    }

    /// Theorem 1: a run on more chips for a shorter time is found no less often.
    #[test]
    fn shorter_runs_on_more_chips_are_found_no_less_often() {
        let regime = Regime { period: 3000.0, ..regime(100_000, 1e15) };
        let run = TrainingRun { flop: 1e25, days: 300.0 };
        let found = [1.0, 0.5, 0.1, 0.01].map(|k| exact(&regime, &stretch(&regime, &run, k).unwrap(), 500));
        assert!(found.windows(2).all(|pair| pair[1] >= pair[0]), "{found:?}");
    }

    /// Each inverse gives back its input.
    #[test]
    fn inverse_questions_agree_with_the_plan() {
        let regime = regime(100_000, 1e15);
        let smallest = smallest_run(&regime, 45.0, 40, 0.9).unwrap();
        assert!(exact(&regime, &smallest, 40) >= 0.9);
        let chip = regime.fleet.flop_per_day * 45.0;
        assert!(exact(&regime, &TrainingRun { flop: smallest.flop - chip, days: 45.0 }, 40) < 0.9);
        assert_eq!(samples(&regime, &smallest, 0.9).unwrap().exact, 40);
        let run = month(1e25);
        let rate = least_rate(&regime, &run, 200, 0.9).unwrap().unwrap();
        assert!((formula(&Regime { rate, ..regime }, &run, 200.0) - 0.9).abs() < 1e-9);
        assert_eq!(least_rate(&regime, &month(1e23), 1, 0.9).unwrap(), None);
        let error = smallest_run(&Regime { rate: 1e-5, ..regime }, 45.0, 40, 0.9).unwrap_err();
        assert!(matches!(error, RegimeError::Bounds { name: "the probability of detection", .. }), "{error}");
        assert!((of_many(0.5, 3) - 0.875).abs() < 1e-12);
    }
}
