//! The most segments that can deviate, by the number that were drawn and found right.

use crate::detection::missed_by_draw;

/// The most of `all` segments that deviate, with confidence `confidence`, if `drawn` of them were drawn without replacement
/// after the run was closed, and none of the drawn ones deviates. The bound is the exact one-sided hypergeometric bound: more
/// deviating segments would have been met with a probability of at least `confidence`.
///
/// ```
/// use tiebreak_monitor::statement::bound::most_deviating;
///
/// assert_eq!(most_deviating(100, 100, 0.95), 0); // all were replayed
/// assert_eq!(most_deviating(100, 0, 0.95), 100); // nobody looked
/// // Three of ten bad ones are missed by five draws with probability C(7, 5) / C(10, 5) = 1/12, four with 1/42.
/// assert_eq!((most_deviating(10, 5, 0.95), most_deviating(10, 5, 0.9)), (3, 2));
/// ```
///
/// # Panics
/// If more segments are drawn than there are, or `confidence` is not between 0 and 1.
pub fn most_deviating(all: u64, drawn: u64, confidence: f64) -> u64 {
    assert!(drawn <= all, "drawn segments are some of all");
    assert!(0.0 < confidence && confidence < 1.0, "{confidence} is a confidence");
    // A probability that is the limit itself refutes, whatever its last bits are.
    let limit = (1.0 - confidence) * (1.0 + 1e-9);
    // The more deviate, the less likely all of them are missed.
    let (mut possible, mut refuted) = (0, all - drawn + 1);
    while refuted - possible > 1 {
        let middle = possible + (refuted - possible) / 2;
        if missed_by_draw(all, middle, drawn, 0.0) > limit {
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

    /// C(all - bad, drawn) / C(all, drawn), factor by factor.
    fn missed(all: u64, bad: u64, drawn: u64) -> f64 {
        (0..drawn).map(|i| (all - bad).saturating_sub(i) as f64 / (all - i) as f64).product()
    }

    #[test]
    fn the_bound_is_the_largest_number_that_is_not_refuted() {
        for all in [1, 2, 7, 20, 50] {
            for drawn in 0..=all {
                for confidence in [0.5, 0.9, 0.95, 0.999] {
                    let most = most_deviating(all, drawn, confidence);
                    let refuted = |bad| missed(all, bad, drawn) <= (1.0 - confidence) * (1.0 + 1e-9);
                    assert!(!refuted(most) || most == 0, "{drawn} of {all}, {confidence}: {most}");
                    assert!(most == all || refuted(most + 1), "{drawn} of {all}, {confidence}: {most}");
                }
            }
        }
    }
}
