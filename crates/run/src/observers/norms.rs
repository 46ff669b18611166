//! 2-norms of the rows of an operand: errors of summation are proportional to them. The norms decide which elements are logged,
//! not which roundings are legal, so any precision suffices. A GPU can follow the order of summation
//! (`cuda-bridge/kernels/near.cuh`), so that a log does not depend on the device that found its near ties.

use rayon::prelude::*;

use tiebreak_contract::arith::digits::{exponent, magnitude_bits};
use tiebreak_contract::program::graph::View;
use tiebreak_engine::cpu::product::simd::{Path, vectorised};

/// The number of rows that are summed at once where rows, not K, are contiguous.
const ROWS: usize = 128;
/// Parallel sums of a row: each takes every sixteenth element of K. The remainder of K has a sum of its own.
const LANES: usize = 16;

/// The norm of each row of a [batch0, batch1, rows, K] view of binary32 patterns; [batch, rows].
pub fn row_norms(view: &View, words: &[u32]) -> Vec<f32> {
    let [b0, b1, rows, k] = view.dims.map(|d| d as usize);
    let [s0, s1, across, along] = view.strides.map(|s| s as usize);
    let mut norms = vec![0f32; b0 * b1 * rows];
    if norms.is_empty() {
        return norms;
    }
    let tasks = norms.par_chunks_mut(rows).enumerate().flat_map(|(sample, norms)| {
        let start = view.offset as usize + sample / b1 * s0 + sample % b1 * s1;
        norms.par_chunks_mut(ROWS).enumerate().map(move |(i, norms)| (start + i * ROWS * across, norms))
    });
    tasks.for_each(|(start, norms)| {
        if along == 1 {
            for (row, norm) in norms.iter_mut().enumerate() {
                *norm = root(squares(Path::fastest(), &words[start + row * across..][..k]));
            }
            return;
        }
        let mut sums = [[0f64; ROWS]; LANES + 1];
        for i in 0..k {
            let from = start + i * along;
            let sums = &mut sums[if i < k / LANES * LANES { i % LANES } else { LANES }];
            if across == 1 {
                add_squares(Path::fastest(), &words[from..from + norms.len()], sums);
            } else {
                for (row, sum) in sums.iter_mut().enumerate().take(norms.len()) {
                    *sum += square(words[from + row * across]);
                }
            }
        }
        for (row, norm) in norms.iter_mut().enumerate() {
            *norm = root(sums[..LANES].iter().map(|lane| lane[row]).sum::<f64>() + sums[LANES][row]);
        }
    });
    norms
}

#[inline(always)]
fn square(x: u32) -> f64 {
    let x = f64::from(f32::from_bits(x));
    x * x
}

vectorised! {
    fn squares(row: &[u32]) -> f64 {
        let mut lanes = [0f64; LANES];
        let mut chunks = row.chunks_exact(LANES);
        for chunk in &mut chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane += square(x);
            }
        }
        lanes.iter().sum::<f64>() + chunks.remainder().iter().map(|&x| square(x)).sum::<f64>()
    }
}

vectorised! {
    fn add_squares(row: &[u32], sums: &mut [f64]) {
        for (sum, &x) in sums.iter_mut().zip(row) {
            *sum += square(x);
        }
    }
}

vectorised! {
    fn squares_of_integers(row: &[i32]) -> f64 {
        let mut lanes = [0f64; LANES];
        let mut chunks = row.chunks_exact(LANES);
        let square = |q: i32| f64::from(q) * f64::from(q);
        for chunk in &mut chunks {
            for (lane, &q) in lanes.iter_mut().zip(chunk) {
                *lane += square(q);
            }
        }
        lanes.iter().sum::<f64>() + chunks.remainder().iter().map(|&q| square(q)).sum::<f64>()
    }
}

/// The norm of a row of integers of `digits` digits, slightly increased. The row's absmax gives their unit.
pub(super) fn norm_of_integers(integers: &[i32], absmax: u32, digits: u32) -> f32 {
    let unit = 2f64.powi(exponent(absmax) - magnitude_bits(digits) as i32);
    (squares_of_integers(Path::fastest(), integers).sqrt() * unit * 1.000_001) as f32
}

/// The square root, slightly increased so that a norm is 0 only if its row is.
fn root(sum: f64) -> f32 {
    (sum.sqrt() * 1.000_001) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::program::graph::TensorId;

    #[test]
    fn rows_and_columns_have_their_norms() {
        let words: Vec<u32> = (0..600).map(|i| (i as f32 - 300.0).to_bits()).collect();
        let view = |dims, strides| View { tensor: TensorId(0), offset: 0, dims, strides };
        let rows = row_norms(&view([1, 2, 3, 100], [0, 300, 100, 1]), &words);
        let columns = row_norms(&view([1, 1, 100, 6], [0, 0, 1, 100]), &words);
        let expected = |places: &mut dyn Iterator<Item = usize>| {
            places.map(|i| (i as f64 - 300.0).powi(2)).sum::<f64>().sqrt()
        };
        for (row, norm) in rows.iter().enumerate() {
            let exact = expected(&mut (row * 100..row * 100 + 100));
            assert!((f64::from(*norm) / exact - 1.0).abs() < 1e-5);
        }
        // A row has the same norm in either memory layout.
        let turned: Vec<u32> = (0..600).map(|i| words[i % 6 * 100 + i / 6]).collect();
        let across = row_norms(&view([1, 1, 6, 100], [0, 0, 1, 6]), &turned);
        assert_eq!(
            across.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            rows.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        );
        for (column, norm) in columns.iter().enumerate() {
            let exact = expected(&mut (0..6).map(|i| i * 100 + column));
            assert!((f64::from(*norm) / exact - 1.0).abs() < 1e-5);
        }
    }

    #[test]
    fn integers_have_the_norm_of_their_row() {
        use tiebreak_contract::arith::digits::{group_absmax, quantise};
        let row: Vec<u32> = (0..100).map(|i| (i as f32 * 1.7 - 60.0).to_bits()).collect();
        let expected = row.iter().map(|&x| f64::from(f32::from_bits(x)).powi(2)).sum::<f64>().sqrt();
        let absmax = group_absmax(row.iter().copied());
        for digits in [3, 4] {
            let integers: Vec<i32> = row.iter().map(|&x| quantise(x, absmax, digits)).collect();
            let norm = f64::from(norm_of_integers(&integers, absmax, digits));
            assert!((norm / expected - 1.0).abs() < 2e-6, "{norm} for {expected}");
        }
    }
}
