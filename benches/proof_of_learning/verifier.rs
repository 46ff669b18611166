//! The verifier of Proof-of-Learning, by its published code (`verify.py`, `utils.py`): distances of replayed weights from claimed
//! ones over intervals between checkpoints, the largest updates of an epoch, and the test of initial weights.

/// The distances that the code prints, in its order.
pub const METRICS: [&str; 4] = ["l1", "l2", "linf", "cos"];

/// The code's default thresholds (`--delta`).
pub const THRESHOLDS: [f64; 4] = [1000.0, 10.0, 0.1, 0.01];

/// The intervals that the code replays of an epoch for each metric (`--q`).
pub const Q: usize = 2;

/// The probability below which the code says that a tensor was not drawn (`verify_initialization`).
pub const P_VALUE: f64 = 0.01;

/// The four distances of two lists of weights.
pub type Distances = [f64; 4];

/// The distances of a reproduction from the claimed weights. As in the code, the cosine's denominator has the claimed norm twice.
pub fn distances(claimed: &[f32], reproduced: &[f32]) -> Distances {
    let (mut sum, mut squares, mut most, mut dot, mut norm) = (0f64, 0f64, 0f64, 0f64, 0f64);
    for (a, b) in claimed.iter().zip(reproduced) {
        let (a, b) = (f64::from(*a), f64::from(*b));
        let difference = (a - b).abs();
        sum += difference;
        squares += difference * difference;
        most = most.max(difference);
        dot += a * b;
        norm += a * a;
    }
    [sum, squares.sqrt(), most, 1.0 - dot / norm]
}

/// True if a distance is above its threshold.
pub fn is_above(found: &Distances, thresholds: &Distances) -> bool {
    found.iter().zip(thresholds).any(|(found, most)| found > most)
}

/// The greatest distance of each metric.
pub fn greatest<'a>(all: impl IntoIterator<Item = &'a Distances>) -> Distances {
    all.into_iter().fold([f64::NEG_INFINITY; 4], |most, one| std::array::from_fn(|i| most[i].max(one[i])))
}

/// The intervals that are replayed: in each epoch, and for each metric, those of the [`Q`] largest updates. `updates` has the
/// distance of each interval's end from its beginning.
pub fn largest(updates: &[Distances], epochs: usize) -> Vec<usize> {
    let per_epoch = updates.len() as f64 / epochs as f64;
    let bound = |epoch: usize| (per_epoch * epoch as f64).round() as usize;
    let mut chosen = Vec::new();
    for epoch in 0..epochs {
        for (metric, _) in METRICS.iter().enumerate() {
            let mut order: Vec<usize> = (bound(epoch)..bound(epoch + 1)).collect();
            order.sort_by(|a, b| updates[*b][metric].total_cmp(&updates[*a][metric]));
            chosen.extend(order.into_iter().take(Q));
        }
    }
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

/// The probability of weights at least so far from the distribution of `init.v1` with this standard deviation, by the test of
/// Kolmogorov and Smirnov. The code asks SciPy for the exact distribution of the statistic; this is its limit for many weights, with
/// Stephens' correction.
pub fn drawn(weights: &[f32], std: f64) -> f64 {
    let mut sorted: Vec<f64> = weights.iter().map(|weight| f64::from(*weight)).collect();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let gap = |(i, weight): (usize, &f64)| {
        let below = sum_of_eight(4.0 + weight / std * (8f64 / 12.0).sqrt());
        (below - i as f64 / count).abs().max((below - (i + 1) as f64 / count).abs())
    };
    let statistic = sorted.iter().enumerate().map(gap).fold(0.0, f64::max);
    let root = count.sqrt();
    let x = (root + 0.12 + 0.11 / root) * statistic;
    if x < 0.2 {
        return 1.0; // the series converges slowly there, and its sum is 1 to twelve digits
    }
    let term = |j: i32| (-1f64).powi(j - 1) * (-2.0 * f64::from(j * j) * x * x).exp();
    (2.0 * (1..=100).map(term).sum::<f64>()).clamp(0.0, 1.0)
}

/// The probability that eight numbers, each uniform between 0 and 1, have a sum below `x` (Irwin and Hall).
fn sum_of_eight(x: f64) -> f64 {
    // Above the middle the terms cancel less from the other end.
    if x > 4.0 {
        return 1.0 - sum_of_eight(8.0 - x);
    }
    let choose = [1.0, -8.0, 28.0, -56.0, 70.0];
    let terms = choose.iter().enumerate().map(|(k, factor)| factor * (x - k as f64).max(0.0).powi(8));
    terms.sum::<f64>() / 40_320.0
}
