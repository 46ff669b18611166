//! The exact tail of the Poisson distribution, and the greatest rate that a count leaves possible.

/// The probability of at most `count` events where `mean` are expected.
///
/// # Panics
/// If the mean is no number from 0 on.
pub fn at_most(count: u64, mean: f64) -> f64 {
    assert!(mean >= 0.0 && mean.is_finite(), "{mean} is an expected number");
    if mean == 0.0 {
        return 1.0;
    }
    let ln = |n: f64| n * mean.ln() - mean - libm::lgamma(n + 1.0);
    let n = count as f64;
    if n < mean {
        // Terms fall from the last one down.
        let (mut term, mut sum, mut k) = (1.0, 1.0, n);
        while k > 0.0 && term > sum * f64::EPSILON / 4.0 {
            term *= k / mean;
            k -= 1.0;
            sum += term;
        }
        (ln(n).exp() * sum).min(1.0)
    } else {
        // Terms above the count fall from the first one on.
        let (mut term, mut sum, mut k) = (1.0, 1.0, n + 1.0);
        while term > sum * f64::EPSILON / 4.0 {
            k += 1.0;
            term *= mean / k;
            sum += term;
        }
        (1.0 - ln(n + 1.0).exp() * sum).max(0.0)
    }
}

/// The greatest mean at which at most `count` events still have the probability `1 - confidence`: a one-sided upper bound.
///
/// # Panics
/// If the confidence is no probability between 0 and 1.
pub fn upper_mean(count: u64, confidence: f64) -> f64 {
    assert!(confidence > 0.0 && confidence < 1.0, "{confidence} is a probability");
    let (mut low, mut high) = (0.0, count as f64 + 1.0);
    while at_most(count, high) > 1.0 - confidence {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if at_most(count, middle) > 1.0 - confidence { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of the terms in 60 decimal digits, by Python's decimal.
    #[test]
    fn tails_are_the_sums_of_their_terms() {
        for (count, mean, exact) in [
            (0, 2.5, 0.0820849986239),
            (2, 5.0, 0.124652019483),
            (1, 10.0, 0.000499399227387),
            (80, 100.0, 0.0226491766423),
            (100, 100.0, 0.52656219853),
            (130, 100.0, 0.998293159629),
            (3, 36.5, 1.23918431306e-12),
            (9800, 10000.0, 0.0227492220109),
            (0, 700.0, 9.85967654376e-305),
        ] {
            let found = at_most(count, mean);
            assert!((found / exact - 1.0).abs() < 1e-10, "{count} of {mean}: {found:e} for {exact:e}");
        }
        assert_eq!(at_most(7, 0.0), 1.0);
    }

    /// Exact limits of Garwood (1936), as tables of the chi-square distribution give them.
    #[test]
    fn upper_limits_are_those_of_the_tables() {
        for (count, confidence, limit) in [
            (0, 0.95, 2.9957),
            (0, 0.975, 3.6889),
            (1, 0.975, 5.5716),
            (10, 0.975, 18.3904),
            (100, 0.975, 121.6275),
        ] {
            let found = upper_mean(count, confidence);
            assert!((found / limit - 1.0).abs() < 1e-4, "{count} at {confidence}: {found} for {limit}");
        }
    }
}
