//! Confidence bounds of a share from a count: the exact ones (Clopper and Pearson, 1934), and Wilson's interval.

/// The probability of at least `count` hits among `trials`, each with probability `share`.
///
/// # Panics
/// If `share` is no probability.
pub fn at_least(count: u64, trials: u64, share: f64) -> f64 {
    assert!((0.0..=1.0).contains(&share), "{share} is a probability");
    match (count, share) {
        (0, _) => return 1.0,
        _ if count > trials || share == 0.0 => return 0.0,
        _ if share == 1.0 => return 1.0,
        _ => {}
    }
    let n = trials as f64;
    let ln = |k: f64| {
        libm::lgamma(n + 1.0) - libm::lgamma(k + 1.0) - libm::lgamma(n - k + 1.0)
            + k * share.ln()
            + (n - k) * (-share).ln_1p()
    };
    (count..=trials).map(|k| ln(k as f64).exp()).sum::<f64>().min(1.0)
}

/// The greatest share of which so few hits as `count` still have the probability `1 - confidence`: a one-sided upper bound.
///
/// ```
/// use tiebreak_monitor::interval::upper;
///
/// // No hit among 10: (1 - share)^10 = 0.05.
/// assert!((upper(0, 10, 0.95) - 0.25887).abs() < 1e-5);
/// assert_eq!(upper(10, 10, 0.95), 1.0);
/// ```
///
/// # Panics
/// If there are more hits than trials, or the confidence is not between 0 and 1.
pub fn upper(count: u64, trials: u64, confidence: f64) -> f64 {
    1.0 - lower(trials - count, trials, confidence)
}

/// The least share of which so many hits as `count` still have the probability `1 - confidence`: a one-sided lower bound.
///
/// # Panics
/// As [`upper`].
pub fn lower(count: u64, trials: u64, confidence: f64) -> f64 {
    assert!(count <= trials, "{count} of {trials} is a share");
    assert!(confidence > 0.0 && confidence < 1.0, "{confidence} is a confidence");
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if count > 0 && at_least(count, trials, middle) < 1.0 - confidence {
            low = middle
        } else {
            high = middle
        }
    }
    low
}

/// Wilson's interval of a share: `found` of `trials`, at z standard deviations (1.96 for 95 %, 3.29 for 99.9 %).
///
/// # Panics
/// If nothing was tried, or more was found than tried.
///
/// ```
/// use tiebreak_monitor::interval::wilson;
///
/// let (low, high) = wilson(90, 100, 1.96);
/// assert!((low - 0.8256).abs() < 1e-4 && (high - 0.9448).abs() < 1e-4);
/// ```
pub fn wilson(found: u64, trials: u64, z: f64) -> (f64, f64) {
    assert!(trials > 0 && found <= trials, "{found} of {trials} is a share");
    let (n, share) = (trials as f64, found as f64 / trials as f64);
    let z2 = z * z / n;
    let centre = (share + z2 / 2.0) / (1.0 + z2);
    let half = z / (1.0 + z2) * (share * (1.0 - share) / n + z2 / (4.0 * n)).sqrt();
    ((centre - half).max(0.0), (centre + half).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAILS: [(u64, u64, f64, f64); 6] = [
        (1, 10, 0.25, 0.943686485290527),
        (3, 20, 0.5, 0.999798774719238),
        (7, 30, 0.125, 0.0725292177714414),
        (40, 100, 0.375, 0.337246167104341),
        (100, 100, 0.9375, 0.00157444552901449),
        (12, 1000, 0.0078125, 0.0980275729854011),
    ];
    const BOUNDS: [(u64, u64, f64, f64, f64); 6] = [
        (0, 10, 0.95, 0.0, 0.258865550893),
        (1, 10, 0.95, 0.005116196892, 0.394163302437),
        (5, 10, 0.95, 0.222441101008, 0.777558898992),
        (10, 10, 0.95, 0.741134449107, 1.0),
        (3, 100, 0.975, 0.006229971538, 0.085176052974),
        (20, 200, 0.975, 0.062159366254, 0.150212787868),
    ];

    /// Sums of the terms as fractions, by Python's fractions.
    #[test]
    fn tails_are_the_sums_of_their_terms() {
        for (count, trials, share, exact) in TAILS {
            let found = at_least(count, trials, share);
            assert!((found / exact - 1.0).abs() < 1e-9, "{count} of {trials}: {found:e} for {exact:e}");
        }
        assert_eq!([at_least(0, 5, 0.0), at_least(1, 5, 0.0), at_least(5, 5, 1.0)], [1.0, 0.0, 1.0]);
    }

    /// Roots of the same sums, by bisection on Python's fractions.
    #[test]
    fn bounds_are_where_the_tail_is_the_error() {
        for (count, trials, confidence, low, high) in BOUNDS {
            let found = [lower(count, trials, confidence), upper(count, trials, confidence)];
            let close = |found: f64, exact: f64| (found - exact).abs() < 1e-9;
            assert!(close(found[0], low) && close(found[1], high), "{count} of {trials}: {found:?}");
        }
    }
}
