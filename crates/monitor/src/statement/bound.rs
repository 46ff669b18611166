//! The most things that can deviate, such as segments of a run or chips of a fleet, by a draw of them.

use crate::detection::met_at_most;

/// The most of `all` things that deviate, with confidence `confidence`, if `drawn` of them were drawn without replacement after
/// they were closed, and at most `bad` of the drawn ones deviate. A drawn one that nobody looked at counts as bad: whoever does
/// not show it may choose which. The bound is the exact one-sided hypergeometric bound: of more deviating things the draw would
/// have met more than `bad` with a probability of at least `confidence`.
///
/// ```
/// use tiebreak_monitor::statement::bound::most_deviating;
///
/// assert_eq!(most_deviating(100, 100, 0, 0.95), 0); // all were replayed
/// assert_eq!(most_deviating(100, 0, 0, 0.95), 100); // nobody looked
/// // Three of ten bad ones are missed by five draws with probability C(7, 5) / C(10, 5) = 1/12, four with 1/42.
/// assert_eq!((most_deviating(10, 5, 0, 0.95), most_deviating(10, 5, 0, 0.9)), (3, 2));
/// // Nobody looked at one of the five. At most one of five bad ones is met with 1/252 + 25/252, of six with 6/252.
/// assert_eq!((most_deviating(10, 5, 1, 0.95), most_deviating(10, 5, 1, 0.9)), (5, 5));
/// ```
///
/// # Panics
/// If more things are drawn than there are, more are bad than drawn, or `confidence` is not between 0 and 1.
pub fn most_deviating(all: u64, drawn: u64, bad: u64, confidence: f64) -> u64 {
    assert!(drawn <= all && bad <= drawn, "drawn things are some of all, and bad ones some of these");
    assert!(0.0 < confidence && confidence < 1.0, "{confidence} is a confidence");
    if bad == drawn {
        return all;
    }
    // A probability that is the limit itself refutes, whatever its last bits are.
    let limit = (1.0 - confidence) * (1.0 + 1e-9);
    // The more deviate, the less likely few of them are met.
    let (mut possible, mut refuted) = (bad, all - drawn + bad + 1);
    while refuted - possible > 1 {
        let middle = possible + (refuted - possible) / 2;
        if met_at_most(all, middle, drawn, bad) > limit {
            possible = middle;
        } else {
            refuted = middle;
        }
    }
    possible
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C(n, k), factor by factor.
    fn choose(n: u64, k: u64) -> f64 {
        (0..k).map(|i| n.saturating_sub(i) as f64 / (i + 1) as f64).product()
    }

    /// The probability that at most `met` of `bad` things are among `drawn`.
    fn probability(all: u64, bad: u64, drawn: u64, met: u64) -> f64 {
        let ways = (0..=met.min(drawn)).map(|k| choose(bad, k) * choose(all - bad, drawn - k));
        ways.sum::<f64>() / choose(all, drawn)
    }

    #[test]
    fn the_bound_is_the_largest_number_that_is_not_refuted() {
        for all in [1, 2, 7, 20, 50] {
            for drawn in 0..=all {
                for (confidence, met) in [(0.5, 0), (0.9, 1), (0.95, 0), (0.95, 2), (0.999, 5)] {
                    let met = drawn.min(met);
                    let most = most_deviating(all, drawn, met, confidence);
                    let refuted =
                        |bad| probability(all, bad, drawn, met) <= (1.0 - confidence) * (1.0 + 1e-9);
                    let what = format!("{met} of {drawn} of {all}, {confidence}: {most}");
                    assert!(!refuted(most) || most == met, "{what}");
                    assert!(most == all || refuted(most + 1), "{what}");
                }
            }
        }
    }
}
