//! Memorisation: a model has just seen the points of a segment, and remembers them better than points that it never saw.
//!
//! M(d, W) is the mean loss of held-out points minus the loss of d. A segment's delta of d is M after the segment minus M before it,
//! so large deltas are those of points that the segment trained on. FBQ(p) is the share of a segment's points whose delta is not
//! above the p-quantile of the held-out deltas. A share k of points that were not trained on has FBQ(p) of k p at least, so that FBQ(p)/p
//! bounds k from above.

use serde::Serialize;

use crate::interval::{lower, upper};

/// The least number of points, and of held-out points, of which something is said.
pub const POINTS_MIN: usize = 10;

/// The memory of a segment's points.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Memory {
    /// Points of the segment.
    pub points: usize,
    /// Held-out points.
    pub held_out: usize,
    /// Points that are not above the quantile.
    pub below: usize,
    /// The share of held-out deltas up to the one that stands for the quantile.
    pub quantile: f64,
    /// FBQ(p) / p, the estimate of the bound; 1 at most.
    pub untrained: f64,
    /// The greatest share of points without training that these counts leave possible: exact, one-sided, and true with the
    /// confidence that was asked for, if held-out points are drawn as the segment's are.
    pub untrained_most: f64,
    /// The probability that a point of the segment has a greater delta than a held-out one. Without any memory it is a half.
    pub remembered: f64,
    /// The standard error of `remembered`.
    pub error: f64,
}

/// Deltas of points, from their losses before and after the segment: M after it minus M before it. Points with a loss that is not
/// finite have none.
fn deltas(losses: &[[f64; 2]], mean: [f64; 2]) -> Vec<f64> {
    let delta = |[before, after]: &[f64; 2]| (mean[1] - after) - (mean[0] - before);
    losses.iter().map(delta).filter(|delta| delta.is_finite()).collect()
}

impl Memory {
    /// The memory that losses before and after a segment show; `None` for too few points with finite losses.
    ///
    /// # Panics
    /// If `quantile` or `confidence` is not between 0 and 1.
    pub fn of(points: &[[f64; 2]], held: &[[f64; 2]], quantile: f64, confidence: f64) -> Option<Memory> {
        assert!(quantile > 0.0 && quantile < 1.0, "{quantile} is a quantile");
        let finite: Vec<[f64; 2]> =
            held.iter().filter(|losses| losses.iter().all(|loss| loss.is_finite())).copied().collect();
        let mean = [0, 1].map(|i| finite.iter().map(|losses| losses[i]).sum::<f64>() / finite.len() as f64);
        let (mut ours, mut theirs) = (deltas(points, mean), deltas(&finite, mean));
        if ours.len() < POINTS_MIN || theirs.len() < POINTS_MIN {
            return None;
        }
        ours.sort_unstable_by(f64::total_cmp);
        theirs.sort_unstable_by(f64::total_cmp);
        let (n, m) = (ours.len() as u64, theirs.len() as u64);
        let rank = ((quantile * m as f64).floor() as u64).clamp(1, m);
        let threshold = theirs[rank as usize - 1];
        let below = ours.partition_point(|delta| *delta <= threshold) as u64;
        // Two one-sided bounds, each with half of the error: of the points' share below the threshold, and of the share that
        // points without training would have there.
        let half = (1.0 + confidence) / 2.0;
        let share = rank as f64 / m as f64;
        let placed: Vec<f64> = ours.iter().map(|delta| placement(*delta, &theirs)).collect();
        let others: Vec<f64> = theirs.iter().map(|delta| placement(*delta, &ours)).collect();
        let error = (variance(&placed) / n as f64 + variance(&others) / m as f64).sqrt();
        Some(Memory {
            points: ours.len(),
            held_out: theirs.len(),
            below: below as usize,
            quantile: share,
            untrained: (below as f64 / n as f64 / share).min(1.0),
            untrained_most: (upper(below, n, half) / lower(rank, m, half)).min(1.0),
            remembered: placed.iter().sum::<f64>() / n as f64,
            error: error.max(1.0 / (n as f64 * m as f64).sqrt()),
        })
    }
}

/// The share of sorted numbers that are below `x`; equal ones count half.
fn placement(x: f64, sorted: &[f64]) -> f64 {
    let [below, upto] =
        [sorted.partition_point(|y| *y < x), sorted.partition_point(|y| *y <= x)].map(|count| count as f64);
    f64::midpoint(below, upto) / sorted.len() as f64
}

fn variance(numbers: &[f64]) -> f64 {
    let n = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / n;
    numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Held-out points lose 0 to 0.19 less after the segment; the segment's points lose that and `more`.
    fn of(more: &[f64]) -> Memory {
        let loss = |i: usize, more: f64| [3.0, 3.0 - (i % 20) as f64 / 100.0 - more];
        let held: Vec<_> = (0..20).map(|i| loss(i, 0.0)).collect();
        let points: Vec<_> = more.iter().enumerate().map(|(i, more)| loss(i, *more)).collect();
        Memory::of(&points, &held, 0.25, 0.95).unwrap()
    }

    #[test]
    fn points_like_held_out_ones_are_not_remembered() {
        let found = of(&[0.0; 20]);
        // The fifth of twenty held-out deltas stands for the quantile, and five points are not above it.
        assert_eq!((found.points, found.held_out, found.below, found.quantile), (20, 20, 5, 0.25));
        assert!(found.untrained == 1.0 && found.untrained_most == 1.0);
        assert!((found.remembered - 0.5).abs() < 1e-12, "{found:?}");
        // Placements are (i + 1/2)/20: their variance is 35/400, for points and held-out ones alike.
        assert!((found.error - (2.0 * 35.0 / 400.0 / 20.0f64).sqrt()).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn points_that_were_learnt_bound_the_share_that_was_not() {
        let found = of(&[1.0; 200]);
        assert_eq!((found.below, found.remembered, found.untrained), (0, 1.0, 0.0));
        // No one of 200 with confidence 0.975, over the lower bound of 5 of 20: both by Python's fractions.
        assert!((found.untrained_most - 0.018_275_340 / 0.086_571_469).abs() < 1e-6, "{found:?}");
        assert_eq!(found.error, 1.0 / 4000f64.sqrt());
        // Of each twenty points that were not learnt five are not above the threshold, which stands for a quarter.
        let half: Vec<f64> = (0..200).map(|i| if i % 40 < 20 { 1.0 } else { 0.0 }).collect();
        let found = of(&half);
        assert_eq!((found.below, found.untrained, found.remembered), (25, 0.5, 0.75));
        // Without any change nothing is learnt, and no share is excluded.
        let still = [[2.0, 2.0]; 50];
        assert_eq!(Memory::of(&still, &still, 0.25, 0.95).unwrap().untrained_most, 1.0);
        assert!(found.untrained_most > 0.5);
    }

    #[test]
    fn few_points_and_losses_that_are_no_numbers_say_nothing() {
        let losses = [[1.0, 0.5]; 10];
        assert!(Memory::of(&losses[..9], &losses, 0.1, 0.95).is_none());
        let mut bad = losses;
        bad[3][1] = f64::NAN;
        assert!(Memory::of(&losses, &bad, 0.1, 0.95).is_none());
        assert!(Memory::of(&losses, &losses, 0.1, 0.95).is_some());
    }
}
