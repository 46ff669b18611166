//! Confidence intervals of a measured share.

/// Wilson's interval of a share: `found` of `trials`, at z standard deviations (1.96 for 95 %, 3.29 for 99.9 %).
///
/// # Panics
/// If nothing was tried, or more was found than tried.
///
/// ```
/// use tiebreak_monitor::simulate::interval::wilson;
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
