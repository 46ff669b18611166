//! The probability that an inspection finds a snapshot of a run among the chips that it draws.

use crate::regime::{Regime, TrainingRun};

/// Weights below this share of the greatest one add nothing to a sum in binary64.
const NEGLIGIBLE: f64 = 1e-20;

/// ln of the number of ways to choose `k` of `n`.
fn ln_choose(n: f64, k: f64) -> f64 {
    libm::lgamma(n + 1.0) - libm::lgamma(k + 1.0) - libm::lgamma(n - k + 1.0)
}

/// A draw of chips without replacement, some of them a run's. The number of the run's chips in the draw is hypergeometric.
#[derive(Clone, Copy, Debug)]
struct Draw {
    /// Chips of the fleet.
    fleet: f64,
    /// Chips of the run.
    run: f64,
    /// Chips in the draw.
    drawn: f64,
}

impl Draw {
    fn least(&self) -> f64 {
        (self.drawn + self.run - self.fleet).max(0.0)
    }

    fn most(&self) -> f64 {
        self.drawn.min(self.run)
    }

    /// The probability of `hits + 1` over that of `hits`.
    fn ratio(&self, hits: f64) -> f64 {
        let missed = self.fleet - self.run - self.drawn;
        (self.run - hits) * (self.drawn - hits) / ((hits + 1.0) * (missed + hits + 1.0))
    }

    /// ln of the sum over all numbers of hits of q^hits times their probability, without a factor that does not depend on q.
    fn ln_sum(&self, q: f64) -> f64 {
        // The weights rise, then fall: their ratio falls with the hits, so the greatest weight is where the ratio crosses 1.
        let (mut low, mut high) = (self.least(), self.most());
        while low < high {
            let middle = ((low + high) / 2.0).floor();
            if q * self.ratio(middle) >= 1.0 { low = middle + 1.0 } else { high = middle }
        }
        let top = low;
        let mut sum = 1.0;
        let (mut weight, mut hits) = (1.0, top);
        while hits < self.most() && weight > NEGLIGIBLE {
            weight *= q * self.ratio(hits);
            hits += 1.0;
            sum += weight;
        }
        (weight, hits) = (1.0, top);
        while hits > self.least() && weight > NEGLIGIBLE {
            hits -= 1.0;
            weight /= q * self.ratio(hits);
            sum += weight;
        }
        let ln_top = ln_choose(self.run, top) + ln_choose(self.fleet - self.run, self.drawn - top);
        ln_top + top * q.ln() + sum.ln()
    }
}

/// The probability that none of `drawn` chips shows a snapshot, if `run` of `fleet` chips are the run's and each of these has no
/// snapshot with probability `without`. No chip is drawn twice. The result is right to six digits for a billion chips, to twelve
/// for a thousand.
///
/// ```
/// // Two of ten chips are the run's, and each has a snapshot: neither is among three with probability 8/10 * 7/9 * 6/8.
/// let missed = tiebreak_monitor::detection::missed_by_draw(10, 2, 3, 0.0);
/// assert!((missed - 7.0 / 15.0).abs() < 1e-12);
/// ```
///
/// # Panics
/// If more chips are the run's, or are drawn, than the fleet has, or `without` is no probability.
pub fn missed_by_draw(fleet: u64, run: u64, drawn: u64, without: f64) -> f64 {
    assert!(run <= fleet && drawn <= fleet, "chips are some of the fleet's");
    assert!((0.0..=1.0).contains(&without), "{without} is a probability");
    let draw = Draw { fleet: fleet as f64, run: run as f64, drawn: drawn as f64 };
    if run == 0 || drawn == 0 || without == 1.0 {
        return 1.0;
    }
    if without == 0.0 {
        // Every chip of the run shows a snapshot, so the draw must not include any.
        let possible = draw.least() == 0.0;
        let ln = ln_choose(draw.fleet - draw.run, draw.drawn) - ln_choose(draw.fleet, draw.drawn);
        return if possible { ln.exp().min(1.0) } else { 0.0 };
    }
    (draw.ln_sum(without) - draw.ln_sum(1.0)).exp().min(1.0)
}

/// The probability that at most `met` of `drawn` things are among the `bad` ones of `all`, drawn without replacement.
///
/// # Panics
/// As [`missed_by_draw`].
pub fn met_at_most(all: u64, bad: u64, drawn: u64, met: u64) -> f64 {
    assert!(bad <= all && drawn <= all, "bad and drawn things are some of all");
    let draw = Draw { fleet: all as f64, run: bad as f64, drawn: drawn as f64 };
    let ways = ln_choose(draw.fleet, draw.drawn);
    let of = |hits: u64| {
        let (hits, possible) = (hits as f64, draw.least() <= hits as f64 && hits as f64 <= draw.most());
        let ln = || ln_choose(draw.run, hits) + ln_choose(draw.fleet - draw.run, draw.drawn - hits);
        if possible { (ln() - ways).exp() } else { 0.0 }
    };
    (0..=met.min(drawn)).map(of).sum::<f64>().min(1.0)
}

/// The probability that a run is found by inspections of `samples` chips each, drawn without replacement, of logs that are kept.
/// A later inspection may find in the same log what an earlier one missed. Inspections after the period in which the run ends are
/// not counted.
pub fn exact(regime: &Regime, run: &TrainingRun, samples: u64) -> f64 {
    let chips = (regime.chips_of(run).ceil() as u64).min(regime.fleet.chips);
    let inspections = (run.days / regime.period).ceil() as u64;
    let mut missed = 1.0;
    for inspection in 1..=inspections {
        let days = run.days.min(inspection as f64 * regime.period);
        let without = 1.0 - regime.logged(days);
        missed *= missed_by_draw(regime.fleet.chips, chips, samples.min(regime.fleet.chips), without);
    }
    1.0 - missed
}

/// The same probability by Eq. 1 of the paper: chips are drawn with replacement, and each inspection sees one period of the run.
pub fn formula(regime: &Regime, run: &TrainingRun, samples: f64) -> f64 {
    let hit = regime.share(run) * regime.logged(run.days.min(regime.period));
    -(samples * regime.inspections(run) * (-hit).ln_1p()).exp_m1()
}

/// p_d(k) of appendix C.1: the probability that `samples` chips include one of a run that takes k times as long on a k-th of its
/// chips. Each of the run's chips has a snapshot. `share`: b, the share of the fleet at k = 1.
pub fn stretched(share: f64, samples: f64, k: f64) -> f64 {
    -(k * samples * (-share / k).ln_1p()).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum itself, term by term, from factorials.
    fn by_definition(fleet: u64, run: u64, drawn: u64, without: f64) -> f64 {
        let choose =
            |n: u64, k: u64| (0..k).fold(1.0, |product, i| product * (n - i) as f64 / (i + 1) as f64);
        let terms = (drawn + run).saturating_sub(fleet)..=drawn.min(run);
        let weight = |hits: u64| choose(run, hits) * choose(fleet - run, drawn - hits);
        terms.map(|hits| weight(hits) * without.powi(hits as i32)).sum::<f64>() / choose(fleet, drawn)
    }

    #[test]
    fn draws_are_those_of_the_definition() {
        for fleet in [1, 2, 5, 12, 30, 60] {
            for run in 0..=fleet {
                for drawn in 0..=fleet {
                    for without in [0.0, 0.05, 0.5, 0.999, 1.0] {
                        let [fast, slow] =
                            [missed_by_draw, by_definition].map(|f| f(fleet, run, drawn, without));
                        let close = (fast - slow).abs() <= 1e-10 * slow + 1e-300;
                        assert!(close, "{run} and {drawn} of {fleet}, {without}: {fast} for {slow}");
                    }
                }
            }
        }
    }

    #[test]
    fn large_fleets_tend_to_draws_with_replacement() {
        // 1 % of a billion chips: drawing a chip twice makes no difference.
        let missed = missed_by_draw(1_000_000_000, 10_000_000, 200, 0.25);
        let with_replacement = (1.0f64 - 0.01 * 0.75).powi(200);
        assert!((missed / with_replacement - 1.0).abs() < 1e-5, "{missed} {with_replacement}");
        assert_eq!(missed_by_draw(1_000_000_000, 1_000_000_000, 1_000_000_000, 0.5), 0.0);
    }
}
