//! Departures of a series: the distance of each value from the one that its neighbours lead to.

use serde::Serialize;

/// The number of neighbours that an expectation is made from, if there are so many.
const NEIGHBOURS: usize = 6;
/// The least number of neighbours.
const NEIGHBOURS_MIN: usize = 4;
/// The factor by which values at the ends of a series may depart more: no neighbour shows how the series bends there.
const END: f64 = 2.0;
/// The standard deviation of a normal distribution over its median absolute deviation.
const NORMAL: f64 = 1.4826;

/// A value beside its expectation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Departure {
    /// The value.
    pub value: f64,
    /// The value that a line through the neighbours has there.
    pub expected: f64,
    /// The difference in standard deviations, with its sign.
    pub sigmas: f64,
}

/// The departures of a series. A position without a value, or with too few others, has none. The spread is the median of all
/// differences, so that a few odd values do not widen it; `floors` are the least standard deviations, a position each.
///
/// # Panics
/// If there are not as many floors as values.
pub fn departures(values: &[Option<f64>], floors: &[f64]) -> Vec<Option<Departure>> {
    assert_eq!(values.len(), floors.len(), "a floor for each value");
    let known: Vec<(usize, f64)> = values
        .iter()
        .enumerate()
        .filter_map(|(i, value)| Some((i, value.filter(|x| x.is_finite())?)))
        .collect();
    let expected: Vec<Option<(f64, Expected)>> = values
        .iter()
        .enumerate()
        .map(|(i, value)| Some((value.filter(|x| x.is_finite())?, expectation(&known, i)?)))
        .collect();
    let mut differences: Vec<f64> = expected
        .iter()
        .flatten()
        .map(|(value, expected)| (value - expected.value).abs() / expected.wide)
        .collect();
    if differences.is_empty() {
        return vec![None; values.len()];
    }
    let spread = NORMAL * median(&mut differences);
    let departure = |(found, floor): (Option<(f64, Expected)>, &f64)| {
        let (value, Expected { value: expected, wide }) = found?;
        let sigmas = (value - expected) / (wide * spread.max(*floor)).max(f64::MIN_POSITIVE);
        Some(Departure { value, expected, sigmas })
    };
    expected.into_iter().zip(floors).map(departure).collect()
}

/// The value of a line at a position.
struct Expected {
    value: f64,
    /// The standard deviation of a difference from it, over that of a value amid its neighbours: more at the ends of a series.
    wide: f64,
}

/// The value at position `i` of the line of Theil and Sen through the nearest others.
fn expectation(known: &[(usize, f64)], i: usize) -> Option<Expected> {
    let mut others: Vec<(f64, f64)> =
        known.iter().filter(|(j, _)| *j != i).map(|&(j, value)| (j as f64 - i as f64, value)).collect();
    others.sort_by(|a, b| a.0.abs().total_cmp(&b.0.abs()));
    others.truncate(NEIGHBOURS);
    if others.len() < NEIGHBOURS_MIN {
        return None;
    }
    let pairs = others.iter().enumerate().flat_map(|(k, a)| others[..k].iter().map(move |b| (a, b)));
    let slope = median(&mut pairs.map(|(a, b)| (a.1 - b.1) / (a.0 - b.0)).collect::<Vec<f64>>());
    let value = median(&mut others.iter().map(|(x, y)| y - slope * x).collect::<Vec<f64>>());
    // The variance of a fitted line at 0: 1/n + mean^2 / sum of squares.
    let n = others.len() as f64;
    let mean = others.iter().map(|(x, _)| x).sum::<f64>() / n;
    let squares: f64 = others.iter().map(|(x, _)| (x - mean).powi(2)).sum();
    let wide = ((1.0 + 1.0 / n + mean * mean / squares) / (1.0 + 1.0 / NEIGHBOURS as f64)).sqrt();
    let one_sided = others.iter().all(|(x, _)| *x > 0.0) || others.iter().all(|(x, _)| *x < 0.0);
    Some(Expected { value, wide: if one_sided { END * wide } else { wide } })
}

/// The median of some numbers, at least one.
pub(super) fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() % 2 {
        1 => numbers[middle],
        _ => f64::midpoint(numbers[middle - 1], numbers[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_departs_nowhere_and_one_value_departs_alone() {
        let line: Vec<Option<f64>> = (0..12).map(|i| Some(5.0 - 0.5 * f64::from(i))).collect();
        let floors = [0.1; 12];
        let found = departures(&line, &floors);
        assert!(found.iter().all(|departure| departure.unwrap().sigmas.abs() < 1e-9), "{found:?}");
        let mut odd = line.clone();
        odd[4] = Some(5.0);
        let found = departures(&odd, &floors);
        // The line has 3 there.
        let there = found[4].unwrap();
        assert!((there.expected - 3.0).abs() < 1e-12 && (there.sigmas - 20.0).abs() < 1e-9, "{there:?}");
        let others = found.iter().enumerate().filter(|(i, _)| *i != 4);
        assert!(others.clone().all(|(_, departure)| departure.unwrap().sigmas.abs() < 5.0), "{found:?}");
    }

    #[test]
    fn the_spread_is_that_of_most_values() {
        // Of six neighbours of a 1 four are -1: each value departs by 2 from its expectation, which is the spread.
        let values: Vec<Option<f64>> = (0..20).map(|i| Some([1.0, -1.0][i % 2])).collect();
        let found = departures(&values, &[0.0; 20]);
        let middle = found[10].unwrap();
        assert!((middle.sigmas - 1.0 / NORMAL).abs() < 1e-12 && middle.expected == -1.0, "{middle:?}");
    }

    #[test]
    fn few_values_have_no_expectation() {
        assert_eq!(departures(&[Some(1.0); 4], &[1.0; 4]), [None; 4]);
        let gaps = [Some(1.0), None, Some(1.0), Some(f64::NAN), Some(1.0), Some(1.0), Some(2.0)];
        let found = departures(&gaps, &[0.5; 7]);
        assert_eq!(
            found.iter().map(Option::is_some).collect::<Vec<_>>(),
            [true, false, true, false, true, true, true]
        );
        // Four neighbours at -1, -2, -4 and -6: the line's variance is 1/4 + 3.25^2/14.75 there.
        let wide = END * ((1.25 + 10.5625 / 14.75) / (7.0 / 6.0f64)).sqrt();
        assert!((found[6].unwrap().sigmas * wide - 2.0).abs() < 1e-12, "{found:?}");
    }
}
