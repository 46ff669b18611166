//! Continuity of the recorded loss across the borders of segments.

use super::outlier::{Departure, median};

/// The most steps on either side of a border that are averaged.
const WINDOW_MAX: usize = 8;
/// The standard deviation of a normal distribution over its median absolute deviation.
const NORMAL: f64 = 1.4826;
/// The least spread of jumps, as a share of the loss.
const FLOOR: f64 = 1e-3;
/// The fewest places whose jumps make a spread.
const PLACES_MIN: usize = 10;

/// The jump of the loss at each border: the mean after it minus the mean before it, against the jumps at other places nearby, in
/// standard deviations of all jumps. `losses[i]` is the loss of step i + 1. `borders`: steps, ascending. A border at the beginning
/// or the end of the records has no jump.
pub fn jumps(losses: &[f64], borders: &[u32]) -> Vec<Option<Departure>> {
    let gap = borders.windows(2).map(|pair| (pair[1] - pair[0]) as usize).min().unwrap_or(1);
    let window = (gap / 2).clamp(1, WINDOW_MAX);
    let mean = |steps: &[f64]| steps.iter().sum::<f64>() / steps.len() as f64;
    // The jump after each step at which both windows fit.
    let jump = |step: usize| {
        let fits = step >= window && step + window <= losses.len();
        let jump = fits.then(|| mean(&losses[step..step + window]) - mean(&losses[step - window..step]));
        jump.filter(|jump| jump.is_finite())
    };
    let all: Vec<Option<f64>> = (0..=losses.len()).map(jump).collect();
    // A jump at a place shows in the windows around it, so places less than a window away do not count.
    let expected = |step: usize| {
        let from = step.saturating_sub(3 * window);
        let near = (from..=step + 3 * window).filter(|at| at.abs_diff(step) >= window);
        let mut near: Vec<f64> = near.filter_map(|at| *all.get(at)?).collect();
        (near.len() >= 2).then(|| median(&mut near))
    };
    let differences: Vec<Option<f64>> =
        (0..all.len()).map(|step| Some((all[step]? - expected(step)?).abs())).collect();
    let mut known: Vec<f64> = differences.iter().flatten().copied().collect();
    if known.len() < PLACES_MIN {
        return vec![None; borders.len()];
    }
    let mut levels: Vec<f64> = losses.iter().copied().filter(|loss| loss.is_finite()).map(f64::abs).collect();
    let spread = (NORMAL * median(&mut known)).max(FLOOR * median(&mut levels)).max(f64::MIN_POSITIVE);
    let departure = |step: &u32| {
        let (value, expected) = ((*all.get(*step as usize)?)?, expected(*step as usize)?);
        Some(Departure { value, expected, sigmas: (value - expected) / spread })
    };
    borders.iter().map(departure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_found_at_its_border_alone() {
        // The loss falls by 0.01 a step, with a ripple of 0.02; from step 31 on it is 1 higher.
        let loss = |step: u32| 4.0 - 0.01 * f64::from(step) + 0.02 * f64::from(step % 3);
        let losses: Vec<f64> = (1..=60).map(|step| loss(step) + if step > 30 { 1.0 } else { 0.0 }).collect();
        let borders: Vec<u32> = (0..=6).map(|i| 10 * i).collect();
        let found = jumps(&losses, &borders);
        assert!(found[0].is_none() && found[6].is_none(), "{found:?}");
        let sigmas: Vec<f64> = found[1..6].iter().map(|jump| jump.unwrap().sigmas).collect();
        assert!(sigmas[2] > 20.0, "{sigmas:?}");
        assert!(sigmas.iter().enumerate().all(|(i, sigmas)| i == 2 || sigmas.abs() < 5.0), "{sigmas:?}");
        let there = found[3].unwrap();
        assert!((there.value - 0.95).abs() < 0.03 && (there.expected + 0.05).abs() < 0.03, "{there:?}");
    }

    #[test]
    fn short_records_have_no_jumps() {
        assert_eq!(jumps(&[1.0, 2.0, 3.0, 4.0], &[0, 2, 4]), [None, None, None]);
        assert_eq!(jumps(&[], &[]), []);
        assert_eq!(jumps(&[f64::NAN; 40], &[0, 20, 40]), [None, None, None]);
    }
}
