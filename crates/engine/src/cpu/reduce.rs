//! Tree sums, row maxima and gathers on the CPU.

use std::ops::Range;

use rayon::prelude::*;

#[cfg(target_arch = "x86_64")]
use super::product::Path;
use tiebreak_contract::arith::float;

/// Columns that one task sums at a time. The partial sums of a tree's path stay in the second-level cache.
const COLUMNS: usize = 512;

#[inline(always)]
fn add_each(left: &[u32], right: &mut [u32]) {
    for (r, l) in right.iter_mut().zip(left) {
        *r = float::add(*l, *r);
    }
}

#[inline(always)]
fn canonical_copy(row: &[u32], out: &mut [u32]) {
    for (o, &x) in out.iter_mut().zip(row) {
        *o = if float::is_nan(x) { float::NAN } else { x };
    }
}

/// Runs `f` compiled for AVX2 where that is chosen.
#[inline(always)]
fn wide<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        if Path::fastest() >= Path::Avx2 {
            // SAFETY: AVX2 was detected.
            return unsafe { with_avx2(f) };
        }
    }
    f()
}

/// The tree of `arith::tree` over rows, for all columns of a strip at once. The binary counter is the same, with
/// a strip in place of a number.
fn sum_rows<'a>(rows: impl Iterator<Item = &'a [u32]>, out: &mut [u32]) {
    let width = out.len();
    let mut waiting: Vec<Vec<u32>> = Vec::new();
    let mut free: Vec<Vec<u32>> = Vec::new();
    for (count, row) in rows.enumerate() {
        let mut node = free.pop().unwrap_or_else(|| vec![0; width]);
        wide(
            #[inline(always)]
            || canonical_copy(row, &mut node),
        );
        let mut height = 0;
        while count >> height & 1 == 1 {
            // Subtrees wait from the largest to the smallest, so the last one has the least height.
            if let Some(left) = waiting.pop() {
                wide(
                    #[inline(always)]
                    || add_each(&left, &mut node),
                );
                free.push(left);
            }
            height += 1;
        }
        waiting.push(node);
    }
    let Some(mut total) = waiting.pop() else {
        out.fill(0);
        return;
    };
    while let Some(left) = waiting.pop() {
        wide(
            #[inline(always)]
            || add_each(&left, &mut total),
        );
    }
    out.copy_from_slice(&total);
}

/// The tree over one contiguous row, level by level in `scratch`.
fn sum_row(row: &[u32], scratch: &mut Vec<u32>) -> u32 {
    scratch.clear();
    scratch.extend(row.iter().map(|&x| if float::is_nan(x) { float::NAN } else { x }));
    let mut len = scratch.len();
    if len == 0 {
        return 0;
    }
    while len > 1 {
        let pairs = len / 2;
        for i in 0..pairs {
            scratch[i] = float::add(scratch[2 * i], scratch[2 * i + 1]);
        }
        if len % 2 == 1 {
            scratch[pairs] = scratch[len - 1];
        }
        len = len.div_ceil(2);
    }
    scratch[0]
}

/// Rows of `len` elements that are reduced block by block.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    len: usize,
    block: usize,
    count: usize,
}

impl Blocks {
    /// The blocks of a primitive: `block` = 0 is the whole row.
    pub(crate) fn new(len: usize, block: u32) -> Blocks {
        let block = if block == 0 { len.max(1) } else { block as usize };
        Blocks { len, block, count: len.div_ceil(block).max(1) }
    }

    /// The elements that output `i` reduces, counted over all rows.
    fn range(&self, i: usize) -> Range<usize> {
        let first = i % self.count * self.block;
        let row = i / self.count * self.len;
        row + first..row + self.len.min(first + self.block)
    }

    /// The number of outputs of a task.
    fn per_task(&self) -> usize {
        (16_384 / self.block.min(self.len).max(1)).max(1)
    }
}

/// The tree sums of blocks: [outer, len, inner] -> [outer, blocks, inner].
pub(crate) fn tree_sum(input: &[u32], blocks: Blocks, inner: usize, out: &mut [u32]) {
    if inner == 1 {
        let per_task = blocks.per_task();
        out.par_chunks_mut(per_task).enumerate().for_each(|(task, out)| {
            let mut scratch = Vec::with_capacity(blocks.block.min(blocks.len));
            for (i, sum) in out.iter_mut().enumerate() {
                let range = blocks.range(task * per_task + i);
                *sum = wide(
                    #[inline(always)]
                    || sum_row(&input[range], &mut scratch),
                );
            }
        });
        return;
    }
    out.par_chunks_mut(inner).enumerate().for_each(|(i, out)| {
        let range = blocks.range(i);
        out.par_chunks_mut(COLUMNS).enumerate().for_each(|(strip, out)| {
            let first = range.start * inner + strip * COLUMNS;
            let width = out.len();
            let rows = (0..range.len()).map(|j| &input[first + j * inner..first + j * inner + width]);
            sum_rows(rows, out);
        });
    });
}

/// out[s] = the tree sum of rows input[order[i]], for i in offsets[s]..offsets[s+1]; rows have `width` elements.
pub(crate) fn segment_sum(input: &[u32], order: &[u32], offsets: &[u32], width: usize, out: &mut [u32]) {
    out.par_chunks_mut(width).enumerate().for_each(|(segment, out)| {
        let places = offsets[segment] as usize..offsets[segment + 1] as usize;
        let rows = order[places].iter().map(|&i| &input[i as usize * width..(i as usize + 1) * width]);
        sum_rows(rows, out);
    });
}

/// Elements that a task gathers, in whole rows.
const GATHERED: usize = 1 << 14;

/// out[row][column] = table[choices[row] * of_choice + row * of_row + column * of_column], for rows of `width` elements.
pub(crate) fn gather(
    table: &[u32],
    choices: &[u32],
    [of_choice, of_row, of_column]: [u32; 3],
    width: usize,
    out: &mut [u32],
) {
    let of_task = (GATHERED / width).max(1);
    out.par_chunks_mut(of_task * width).enumerate().for_each(|(task, out)| {
        let rows = task * of_task..;
        for ((row, out), &choice) in rows.clone().zip(out.chunks_mut(width)).zip(&choices[rows.start..]) {
            let from = &table[choice as usize * of_choice as usize + row * of_row as usize..];
            if of_column == 1 {
                out.copy_from_slice(&from[..out.len()]);
            } else {
                out.iter_mut().enumerate().for_each(|(column, x)| *x = from[column * of_column as usize]);
            }
        }
    });
}

/// The maxima of blocks by order key: [.., len] -> [.., blocks].
pub(crate) fn row_max(input: &[u32], blocks: Blocks, out: &mut [u32]) {
    let per_task = blocks.per_task();
    out.par_chunks_mut(per_task).enumerate().for_each(|(task, out)| {
        for (i, max) in out.iter_mut().enumerate() {
            let row = &input[blocks.range(task * per_task + i)];
            let key = wide(
                #[inline(always)]
                || row.iter().map(|&x| float::order_key(x)).max().unwrap_or(0),
            );
            *max = float::from_order_key(key);
        }
    });
}
