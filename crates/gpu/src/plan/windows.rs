//! Tensors that are larger than a shader can access. The tensor is cut in several pieces, and a node that reads or writes one
//! runs as several smaller nodes. Each computes a window of the output from windows of the inputs, by the same shaders. The terms
//! of an element and their order do not change, so no bit changes.
//!
//! This file defines pieces and windows. `split` gives the windows of a node; `copies` binds them, or copies them together.

use crate::device::layout::{self, words_of_k};
use crate::rows::access::Index;
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::graph::{Graph, TensorId, TensorType, View};
use tiebreak_shaders::product::Variant;

/// The cut of a tensor's words in memory: pieces of `piece` words, the last one shorter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub words: u64,
    pub piece: u64,
}

impl Cut {
    /// The cut of a tensor where a shader can access `limit` bytes, a multiple of 256. Pieces hold whole rows if a row fits, so
    /// that windows of rows are pieces. Pieces also hold whole vectors of four words.
    pub(crate) fn of(ty: &TensorType, variant: Variant, limit: u64) -> Cut {
        let words = layout::bytes(ty, variant).div_ceil(4).max(1);
        let most = limit / 4;
        if words <= most {
            return Cut { words, piece: words };
        }
        let last = *ty.shape.last().expect("tensors have rank 1 or more");
        let row = match ty.dtype {
            DType::Q(_) => u64::from(words_of_k(last) * words_of_group(variant)),
            _ => u64::from(last),
        };
        let piece = if row <= most { row * (most / row) } else { most };
        Cut { words, piece }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.piece >= self.words
    }

    /// The first word of each piece, and its number of words.
    pub(crate) fn pieces(self) -> impl Iterator<Item = (u64, u64)> {
        let starts = (0..self.words).step_by(self.piece as usize);
        starts.map(move |start| (start, self.piece.min(self.words - start)))
    }
}

/// Words, in one plane, of a group of four elements of K, as `words_of_k` counts groups.
pub(crate) fn words_of_group(variant: Variant) -> u32 {
    if variant == Variant::Words { 4 } else { 1 }
}

/// The binding of a window of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// The piece with this number, without a copy.
    Piece(usize),
    /// Copied together: these words of the tensor, in row-major order, from or to memory of their own.
    Copied(View),
}

/// A part of a node.
pub(crate) struct Window {
    /// The part as a graph of one node, which reads tensors 0, 1, ... and writes the last.
    pub graph: Graph,
    /// The begin of the part in the node's index space, if the node is a map or patches.
    pub origin: [u32; 4],
    /// The bindings of the node's inputs, in the order of [`tiebreak_contract::program::graph::Primitive::inputs`], and then of
    /// its output.
    pub bindings: Vec<Binding>,
}

/// A tensor whose smallest part for a node is too large.
#[derive(Debug)]
pub(crate) struct TooLarge {
    pub tensor: TensorId,
    /// Bytes of that part.
    pub bytes: u64,
}

/// A part of an operator's index space.
#[derive(Clone, Copy)]
pub(crate) struct IndexRange {
    pub first: Index,
    pub len: Index,
}

/// Words of a tensor that a part takes, and the allowed number.
pub(crate) type Volume = (u64, u64);

pub(crate) fn volume(len: &[u32]) -> u64 {
    len.iter().map(|&n| u64::from(n)).product()
}

/// The words of a tensor with these strides, `len` along each dimension from `first` on. Indices are counted in 32 bits; the
/// engine checks that every tensor fits.
pub(crate) fn window(strides: Index, first: Index, len: Index) -> View {
    part_of(&View { tensor: TensorId(0), offset: 0, dims: len, strides }, first, len)
}

/// `len` of a view's elements along each dimension, from `first` on.
pub(crate) fn part_of(view: &View, first: Index, len: Index) -> View {
    View { offset: view.at(first) as u32, dims: len, ..view.clone() }
}

/// A view's dims, with 1 for each dimension along which the view does not move.
pub(crate) fn distinct(view: &View) -> Index {
    std::array::from_fn(|d| if view.strides[d] == 0 { 1 } else { view.dims[d] })
}

/// The greatest parts of an index space that `volumes` allows, cut along outer dimensions first. The error is the number of the
/// volume that is too large for any part.
pub(crate) fn extents(dims: Index, volumes: &dyn Fn(Index) -> Vec<Volume>) -> Result<Index, usize> {
    let mut len = dims;
    while let Some(large) = volumes(len).iter().position(|(words, most)| words > most) {
        let with = |d: usize, n: u32| {
            let mut len = len;
            len[d] = n;
            volumes(len)[large]
        };
        let shrinks = |d: &usize| len[*d] > 1 && with(*d, 1).0 < volumes(len)[large].0;
        let d = (0..4).find(shrinks).ok_or(large)?;
        // Volumes grow with every extent.
        let fits = |n: u32| with(d, n).0 <= with(d, n).1;
        let (mut low, mut high) = (1, len[d]);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        len[d] = low;
    }
    Ok(len)
}

/// Merges neighbouring dimensions along which every view continues evenly, so that parts need not end where a dimension ends.
pub(crate) fn merge(dims: &mut Index, views: &mut [View]) {
    let mut d = 2;
    for _ in 0..3 {
        let even = |v: &View| dims[d + 1] == 1 || v.strides[d] == v.strides[d + 1].wrapping_mul(dims[d + 1]);
        if dims[d] == 1 || views.iter().all(even) {
            for view in views.iter_mut() {
                if dims[d + 1] == 1 {
                    view.strides[d + 1] = view.strides[d];
                }
                view.strides.copy_within(0..d, 1);
                view.strides[0] = 0;
            }
            dims[d + 1] *= dims[d];
            dims.copy_within(0..d, 1);
            dims[0] = 1;
        } else {
            d = d.saturating_sub(1);
        }
    }
    views.iter_mut().for_each(|view| view.dims = *dims);
}

/// The least part of a view that contains all of its elements within `words` words of memory from `start` on: the begin along
/// each dimension, and the length.
pub(crate) fn overlap(view: &View, start: u64, words: u64) -> Option<(Index, Index)> {
    let offset = u64::from(view.offset);
    let reach = |d: usize| u64::from(view.dims[d].saturating_sub(1)) * u64::from(view.strides[d]);
    let all: u64 = (0..4).map(reach).sum();
    let (mut first, mut len) = ([0; 4], view.dims);
    for d in (0..4).filter(|&d| view.strides[d] != 0) {
        let stride = u64::from(view.strides[d]);
        // Elements with a lower index are before the memory, whatever their other indices are; elements from the end on are
        // behind it.
        let low = start.saturating_sub(offset + all - reach(d)).div_ceil(stride);
        let high = (start + words).checked_sub(offset + 1)? / stride + 1;
        let end = high.min(u64::from(view.dims[d]));
        (first[d], len[d]) = (low as u32, end.checked_sub(low)? as u32);
    }
    (!len.contains(&0)).then_some((first, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Views of all kinds: padded, transposed, broadcast, and of one element.
    fn views() -> Vec<View> {
        let view = |offset, dims, strides| View { tensor: TensorId(0), offset, dims, strides };
        vec![
            view(0, [2, 3, 4, 5], [60, 20, 5, 1]),
            view(7, [2, 3, 4, 5], [80, 21, 5, 1]),
            view(3, [5, 4, 3, 2], [1, 5, 20, 60]),
            view(9, [1, 6, 1, 11], [0, 1, 0, 6]),
            view(4, [3, 1, 2, 7], [0, 9, 7, 1]),
            view(65, [1; 4], [0; 4]),
        ]
    }

    fn places(view: &View) -> Vec<(Index, usize)> {
        let dims = view.dims.map(|n| n as usize);
        let all = 0..dims.iter().product();
        let index = all.map(|i| tiebreak_contract::program::element::unravel(i, view.dims));
        index.map(|index| (index, view.at(index))).collect()
    }

    #[test]
    fn an_overlap_has_every_element_of_its_memory() {
        for view in views() {
            for (start, words) in (0..200).flat_map(|start| [(start, 1), (start, 17), (start, 100)]) {
                let found = overlap(&view, start, words);
                for (index, place) in places(&view) {
                    if !(start..start + words).contains(&(place as u64)) {
                        continue;
                    }
                    let (first, len) = found.expect("an element lies there");
                    assert!((0..4).all(|d| (first[d]..first[d] + len[d]).contains(&index[d])), "{view:?}");
                }
            }
        }
    }

    #[test]
    fn merged_dimensions_name_the_same_elements_in_order() {
        for (first, second) in views().into_iter().zip(views()) {
            let mut dims = first.dims;
            let broadcast = View { strides: [0, second.strides[1], 0, second.strides[3]], ..second };
            let mut merged = [first.clone(), broadcast.clone()];
            merge(&mut dims, &mut merged);
            for (before, after) in [first, broadcast].iter().zip(&merged) {
                let order =
                    |view: &View| places(view).into_iter().map(|(_, place)| place).collect::<Vec<_>>();
                assert_eq!(order(before), order(after));
            }
        }
        let mut dims = [2, 3, 4, 5];
        merge(&mut dims, &mut views()[..1]);
        assert_eq!(dims, [1, 1, 1, 120]);
    }

    #[test]
    fn parts_are_as_large_as_may_be_and_cut_from_outside() {
        // The volumes are two operands of a product of [8, M] by [8, N], and its result.
        let volumes = |most: u64| {
            move |[_, _, m, n]: Index| {
                [volume(&[8, m]), volume(&[8, n]), volume(&[m, n])].map(|words| (words, most)).to_vec()
            }
        };
        assert_eq!(extents([1, 1, 30, 40], &volumes(1200)), Ok([1, 1, 30, 40]));
        assert_eq!(extents([1, 1, 30, 40], &volumes(320)), Ok([1, 1, 8, 40]));
        assert_eq!(extents([1, 1, 30, 40], &volumes(80)), Ok([1, 1, 8, 10]));
        assert_eq!(extents([1, 1, 30, 40], &volumes(7)), Err(0));
    }
}
