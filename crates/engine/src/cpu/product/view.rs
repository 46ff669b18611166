//! Strided views of binary32 tensors, and the order in which digitising reads them: rows in strips, K in pieces that end with
//! scale groups.

use std::ops::Range;

use rayon::prelude::*;

use super::simd;

/// Rows that are transposed together: one cache line of a tensor whose rows are contiguous.
pub(super) const ROWS: usize = 16;
/// Elements of K that are transposed together, a multiple of eight, so that a tile stays in the first-level cache.
pub(super) const DEPTH: usize = 256;

/// One axis of a strided tensor. The stride is in elements; 0 repeats one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Elements along the axis.
    pub len: usize,
    /// Elements of the tensor from one index to the next.
    pub stride: usize,
}

/// A `[batch, rows, K]` view of binary32 patterns, its batch over two axes (outer first). The code is fast where K or the rows
/// are contiguous, and right for any strides.
#[derive(Clone, Copy, Debug)]
pub struct StridedView<'a> {
    pub(super) data: &'a [u32],
    offset: usize,
    batch: [Axis; 2],
    pub(super) rows: Axis,
    pub(super) k: Axis,
}

impl<'a> StridedView<'a> {
    /// # Panics
    /// If an element is outside `data`.
    pub fn new(data: &'a [u32], offset: usize, batch: [Axis; 2], rows: Axis, k: Axis) -> Self {
        let axes = [batch[0], batch[1], rows, k];
        if axes.iter().all(|axis| axis.len > 0) {
            let last = axes.iter().try_fold(offset, |at, axis| {
                (axis.len - 1).checked_mul(axis.stride).and_then(|step| at.checked_add(step))
            });
            assert!(last.is_some_and(|last| last < data.len()), "the view leaves its tensor");
        }
        StridedView { data, offset, batch, rows, k }
    }

    /// A row-major `[batch, rows, k]` tensor.
    ///
    /// # Panics
    /// If `data` is shorter.
    pub fn contiguous(data: &'a [u32], batch: usize, rows: usize, k: usize) -> Self {
        let one = Axis { len: 1, stride: 0 };
        let batch = Axis { len: batch, stride: rows * k };
        Self::new(data, 0, [one, batch], Axis { len: rows, stride: k }, Axis { len: k, stride: 1 })
    }

    pub(super) fn batches(&self) -> usize {
        self.batch[0].len * self.batch[1].len
    }

    /// [batch, rows, K].
    pub fn shape(&self) -> [usize; 3] {
        [self.batches(), self.rows.len, self.k.len]
    }

    /// The elements from the start of a row to the end of the data, the stride of rows and the stride of K.
    pub(crate) fn tail_of_row(&self, batch: usize, row: usize) -> (&'a [u32], usize, usize) {
        (&self.data[self.start(batch, row)..], self.rows.stride, self.k.stride)
    }

    /// The index in `data` where row `row` of batch `batch` starts.
    pub(super) fn start(&self, batch: usize, row: usize) -> usize {
        let [outer, inner] = self.batch;
        let (i, j) = (batch / inner.len, batch % inner.len);
        self.offset + i * outer.stride + j * inner.stride + row * self.rows.stride
    }

    /// The `strip`-th strip of the view: `ROWS` rows, or the rest of a batch.
    pub(super) fn strip(&self, strip: usize) -> Strip<'_> {
        let strips = self.rows.len.div_ceil(ROWS);
        let (batch, row) = (strip / strips, strip % strips * ROWS);
        Strip { view: self, start: self.start(batch, row), rows: ROWS.min(self.rows.len - row) }
    }
}

/// A few neighbouring rows of a view.
pub(super) struct Strip<'a> {
    view: &'a StridedView<'a>,
    start: usize,
    rows: usize,
}

impl Strip<'_> {
    /// Calls `visit(row, first_k, elements)` for pieces that cover the indices `part` of every row, in order of K within a row. A
    /// piece has at most `DEPTH` elements and crosses no multiple of `block`. `part` begins at a multiple of `DEPTH`.
    pub(super) fn for_each_piece(
        &self,
        block: usize,
        part: Range<usize>,
        mut visit: impl FnMut(usize, usize, &[u32]),
    ) {
        let StridedView { data, rows, k, .. } = *self.view;
        if k.stride == 1 {
            for row in 0..self.rows {
                let start = self.start + row * rows.stride;
                for (first, len) in pieces(part.clone(), block) {
                    visit(row, first, &data[start + first..][..len]);
                }
            }
            return;
        }
        let mut tile = [[0u32; DEPTH]; ROWS];
        for (first, len) in pieces(part, block) {
            let turned = match rows.stride == 1 && self.rows == ROWS {
                true => simd::turn(&data[self.start + first * k.stride..], k.stride, len, &mut tile),
                false => 0,
            };
            for i in turned..len {
                let start = self.start + (first + i) * k.stride;
                for (row, to) in tile.iter_mut().enumerate().take(self.rows) {
                    to[i] = data[start + row * rows.stride];
                }
            }
            for (row, elements) in tile.iter().enumerate().take(self.rows) {
                visit(row, first, &elements[..len]);
            }
        }
    }
}

/// `part` cut at the multiples of `block` (a power of two) and of `DEPTH`, as (first, length).
pub(super) fn pieces(part: Range<usize>, block: usize) -> impl Iterator<Item = (usize, usize)> {
    let (step, end) = (DEPTH.min(block), part.end);
    part.step_by(step).map(move |first| (first, step.min(end - first)))
}

/// Units of a task: all `len`. With fewer tasks than threads, the units are a multiple of `multiple` that gives enough tasks.
pub(super) fn units_of_task(tasks: usize, len: usize, multiple: usize) -> usize {
    let wanted = 4 * rayon::current_num_threads();
    if tasks * 2 > wanted { len } else { len.div_ceil(wanted.div_ceil(tasks)).next_multiple_of(multiple) }
}

/// The number of elements that is worth a task of its own.
const TASK: usize = 1 << 13;

/// Calls `visit(batch, number, words)` for the strips of each batch, on all threads. `of_batch` and `of_strip` are the words of a
/// batch and of a strip; a strip is made of `elements` elements.
pub(super) fn for_each_strip<T: Send>(
    words: &mut [T],
    [of_batch, of_strip]: [usize; 2],
    elements: usize,
    visit: impl Fn(usize, usize, &mut [T]) + Sync,
) {
    let least = TASK / elements.max(1) + 1;
    let batches = words.par_chunks_mut(of_batch).enumerate();
    batches.with_min_len(least / of_batch.div_ceil(of_strip) + 1).for_each(|(batch, words)| {
        let strips = words.par_chunks_mut(of_strip).enumerate().with_min_len(least);
        strips.for_each(|(number, words)| visit(batch, number, words));
    });
}

/// The length of a scale group, at least 1.
pub(super) fn group_len(k: usize, block: usize) -> usize {
    if block == 0 { k.max(1) } else { block }
}

/// The number of scale groups along K, at least 1.
pub(super) fn blocks(k: usize, block: usize) -> usize {
    k.div_ceil(group_len(k, block)).max(1)
}

/// 2^exponent, for exponents of normal doubles.
pub(super) fn power_of_two(exponent: i32) -> f64 {
    debug_assert!((-1022..=1023).contains(&exponent));
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// Adding this number to a binary32 number up to 2^22 rounds it to the nearest even integer, in the low bits. Between 2^23 and
/// 2^24, binary32 has the integers only.
pub(super) const INTEGERS: f32 = 12_582_912.0;
