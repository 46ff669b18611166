//! Products of few rows, as of one token with weights: each row of b is read once where it lies, and nothing is packed.

use rayon::prelude::*;

use super::operand::Operand;
use super::scale_back::{Scale, Sum, fits_i64, product_bits};
use super::simd::{Path, vectorised};
use tiebreak_contract::arith::digits::ProductPart;

/// The most rows of a. Each of them multiplies rows of b that lie in the second-level cache, while packing b takes as long as some rows.
const ROWS: usize = 4;
/// Rows of b that a task takes.
const COLUMNS: usize = 64;

/// True if these kernels compute the product: a has few rows and b many, those of b are contiguous, and every sum fits.
pub(super) fn computes(a: &Operand, b: &Operand) -> bool {
    let few = a.rows() <= ROWS && b.rows() >= COLUMNS;
    few && b.contiguous(0).is_some() && fits_i64(product_bits(a, b), a.block_range(0).1)
}

/// `out[block, batch, m, n]`, not empty, for operands that [`computes`] accepts.
pub(super) fn product(
    path: Path,
    part: ProductPart,
    a: &Operand,
    b: &Operand,
    batch: usize,
    out: &mut [u32],
) {
    let (m, n) = (a.rows(), b.rows());
    out.par_chunks_mut(m * n).enumerate().for_each(|(matrix, out)| {
        let (block, batch) = (matrix / batch, matrix % batch);
        let (first, len) = a.block_range(block);
        let scale = Scale::new(path, part, a, b, batch, block);
        let rows = b.contiguous(batch).expect("the rows of b are contiguous");
        tasks(out, n, COLUMNS).into_par_iter().enumerate().for_each_init(
            Vec::new,
            |scratch, (task, outs)| {
                let column = task * COLUMNS;
                for (row, out) in outs.into_iter().enumerate() {
                    let mut sums = [0; COLUMNS];
                    let sums = &mut sums[..out.len()];
                    let of_a = a.row(batch, row, first..first + len, scratch);
                    dots(path, of_a, rows.get(column * b.k() + first..).unwrap_or_default(), b.k(), sums);
                    i64::scale_back(&scale, row, column, sums, out);
                }
            },
        );
    });
}

/// The rows of an output of `n` columns, each cut in tasks of as many columns.
pub(super) fn tasks(out: &mut [u32], n: usize, columns: usize) -> Vec<Vec<&mut [u32]>> {
    let mut tasks = Vec::new();
    tasks.resize_with(n.div_ceil(columns), Vec::new);
    for row in out.chunks_mut(n) {
        tasks.iter_mut().zip(row.chunks_mut(columns)).for_each(|(task, columns)| task.push(columns));
    }
    tasks
}

/// Rows of b that are read side by side: as many streams of memory take two thirds of the time of one.
const TOGETHER: usize = 8;
/// Terms of a row's sum that are added apart.
const LANES: usize = 8;

vectorised! {
    /// The dot products of a row and of rows that begin `stride` integers apart and are as long. No sum of any terms leaves an i64.
    fn dots(row: &[i32], rows: &[i32], stride: usize, sums: &mut [i64]) {
        let (of_row, rest) = row.as_chunks::<LANES>();
        let mut rows = rows.chunks(stride.max(1));
        for sums in sums.chunks_mut(TOGETHER) {
            // The first of them stands for rows behind the last one, whose sums nobody reads.
            let first = rows.clone().next().map_or(row, |first| &first[..row.len()]);
            let others: [&[i32]; TOGETHER] =
                std::array::from_fn(|_| rows.next().map_or(first, |other| &other[..row.len()]));
            let chunks = others.map(|other| &other.as_chunks::<LANES>().0[..of_row.len()]);
            let mut lanes = [[0i64; LANES]; TOGETHER];
            for (i, x) in of_row.iter().enumerate() {
                for (lanes, other) in lanes.iter_mut().zip(chunks) {
                    for ((lane, &x), &y) in lanes.iter_mut().zip(x).zip(&other[i]) {
                        *lane += i64::from(x) * i64::from(y);
                    }
                }
            }
            for ((sum, lanes), other) in sums.iter_mut().zip(lanes).zip(others) {
                let of_rest = rest.iter().zip(&other[row.len() - rest.len()..]);
                *sum = lanes.into_iter().sum::<i64>() + of_rest.map(|(&x, &y)| i64::from(x) * i64::from(y)).sum::<i64>();
            }
        }
    }
}
