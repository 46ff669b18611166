//! The scalar reference of every primitive: the value of output elements from single input elements.
//!
//! This module is the meaning of a node. The reference engine runs whole graphs with it. The leaf checker runs
//! one tile with it, from verified elements.

use std::ops::Range;

use super::expr::Body;
use super::graph::{Graph, Node, Primitive, TensorId, View, block_count};
use super::im2col::ConvGeometry;
use crate::arith::digits::ProductPart;
use crate::arith::{DType, digits, float, tree};

/// A source of input elements. Elements of quantised tensors are sign-extended integers.
pub trait Source {
    /// The reason why an element is not available.
    type Error;
    /// Element `index` of `tensor`, row-major.
    ///
    /// # Errors
    /// If the element is not available.
    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, Self::Error>;
}

impl<S: Source> Source for &mut S {
    type Error = S::Error;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, S::Error> {
        (**self).get(tensor, index)
    }
}

/// The elements `range` of a node's output.
///
/// # Errors
/// Errors are the source's.
pub fn range<S: Source>(
    graph: &Graph,
    node: &Node,
    range: Range<usize>,
    source: &mut S,
) -> Result<Vec<u32>, S::Error> {
    match &node.primitive {
        Primitive::GroupOrder { classes, .. } => {
            let classes = all(graph, *classes, source)?;
            let mut order: Vec<u32> = (0..classes.len() as u32).collect();
            order.sort_by_key(|&i| classes[i as usize]); // a stable sort
            Ok(order[range].to_vec())
        }
        Primitive::GroupOffsets { classes, bound } => {
            let classes = all(graph, *classes, source)?;
            let mut offsets = vec![0u32; *bound as usize + 1];
            for class in classes {
                // Classes are checked against the bound where data enters.
                offsets[class as usize + 1] += 1;
            }
            for i in 1..offsets.len() {
                offsets[i] += offsets[i - 1];
            }
            Ok(offsets[range].to_vec())
        }
        _ => range.map(|i| element(graph, node, i, source)).collect(),
    }
}

fn all<S: Source>(graph: &Graph, tensor: TensorId, source: &mut S) -> Result<Vec<u32>, S::Error> {
    (0..graph.tensor(tensor).len()).map(|i| source.get(tensor, i)).collect()
}

/// The index in `dims` of the row-major element `i`.
pub fn unravel(mut i: usize, dims: [u32; 4]) -> [u32; 4] {
    let mut index = [0; 4];
    for d in (0..4).rev() {
        let size = dims[d] as usize;
        index[d] = (i % size) as u32;
        i /= size;
    }
    index
}

/// One output element of a node that is not a grouping.
fn element<S: Source>(graph: &Graph, node: &Node, i: usize, source: &mut S) -> Result<u32, S::Error> {
    let width = || *graph.tensor(node.output).shape.last().expect("tensors have rank 1 or more") as usize;
    match &node.primitive {
        Primitive::Map { body, dims, inputs } => mapped(body, *dims, inputs, i, source),
        Primitive::Gather { table, indices, stride_index, stride_row, stride_column, .. } => {
            let strides = [*stride_index, *stride_row, *stride_column];
            gathered([*table, *indices], strides, [i / width(), i % width()], source)
        }
        Primitive::Im2col { input, geometry } => pixel(graph, *input, geometry, i, source),
        Primitive::DigitPatches { input, patches } => {
            let [_, rows, k] = graph.tensor(*input).shape[..] else {
                unreachable!("integers are [batch, rows, K]")
            };
            let images = patches.images(rows, k).expect("rows are whole images");
            patches.source(images, i).map_or(Ok(0), |place| source.get(*input, place))
        }
        Primitive::RowMax { input, block } => maximum(graph, *input, *block, i, source),
        Primitive::TreeSum { input, len, inner, block, .. } => {
            block_sum(*input, [*len, *inner, *block], i, source)
        }
        Primitive::SegmentSum { input, order, offsets } => {
            segment_sum([*input, *order, *offsets], width(), i, source)
        }
        Primitive::Absmax { input, block } => absmax(input, *block, i, source),
        Primitive::Quantise { input, absmaxes, digits, block } => {
            quantised(input, *absmaxes, *digits, *block, i, source)
        }
        Primitive::Product { a, absmaxes_a, b, absmaxes_b, block, part } => {
            product(graph, [*a, *b], [*absmaxes_a, *absmaxes_b], *block, *part, i, source)
        }
        Primitive::GroupOrder { .. } | Primitive::GroupOffsets { .. } => {
            unreachable!("groupings are evaluated whole")
        }
        Primitive::Native { .. } => unreachable!("native products have no contract"),
    }
}

/// [`Primitive::Map`]: the body on the views' elements at the index of element `i`.
fn mapped<S: Source>(
    body: &Body,
    dims: [u32; 4],
    inputs: &[View],
    i: usize,
    source: &mut S,
) -> Result<u32, S::Error> {
    let index = unravel(i, dims);
    let mut values = [0; 8];
    for (value, view) in values.iter_mut().zip(inputs) {
        *value = source.get(view.tensor, view.at(index))?;
    }
    Ok(body.eval(&values[..inputs.len()], index))
}

/// [`Primitive::Gather`]: the table's element for `column` of `row`; strides of index, row and column.
fn gathered<S: Source>(
    [table, indices]: [TensorId; 2],
    strides: [u32; 3],
    [row, column]: [usize; 2],
    source: &mut S,
) -> Result<u32, S::Error> {
    let [stride_index, stride_row, stride_column] = strides.map(|stride| stride as usize);
    let choice = source.get(indices, row)? as usize;
    source.get(table, choice * stride_index + row * stride_row + column * stride_column)
}

/// [`Primitive::Im2col`]: the pixel of element `i` of the patches, +0 outside of the image.
fn pixel<S: Source>(
    graph: &Graph,
    input: TensorId,
    geometry: &ConvGeometry,
    i: usize,
    source: &mut S,
) -> Result<u32, S::Error> {
    let shape = &graph.tensor(input).shape;
    let [height, width, channels] = [1, 2, 3].map(|d| shape[d] as usize);
    let ([_, across], [_, taps_across]) = (geometry.size, geometry.kernel);
    let (patch, place) = (i / (geometry.kernel[0] * taps_across) as usize / channels, i / channels);
    let tap = (place % (geometry.kernel[0] * taps_across) as usize) as u32;
    let (sample, patch) =
        (patch / (geometry.size[0] * across) as usize, patch % (geometry.size[0] * across) as usize);
    let patch = patch as u32;
    let row = geometry.source(patch / across, tap / taps_across, shape[1]);
    let column = geometry.source(patch % across, tap % taps_across, shape[2]);
    let (Some(row), Some(column)) = (row, column) else { return Ok(0) };
    let pixel = (sample * height + row as usize) * width + column as usize;
    source.get(input, pixel * channels + i % channels)
}

/// [`Primitive::RowMax`]: the maximum of block `i`.
fn maximum<S: Source>(
    graph: &Graph,
    input: TensorId,
    block: u32,
    i: usize,
    source: &mut S,
) -> Result<u32, S::Error> {
    let len = *graph.tensor(input).shape.last().expect("tensors have rank 1 or more");
    let blocks = block_count(len, block) as usize;
    let row = i / blocks * len as usize;
    let mut key = 0;
    for j in block_range(len, block, i % blocks) {
        key = key.max(float::order_key(source.get(input, row + j as usize)?));
    }
    Ok(float::from_order_key(key))
}

/// [`Primitive::TreeSum`]: the sum `i` of [outer, len, inner], by blocks of len.
fn block_sum<S: Source>(
    input: TensorId,
    [len, inner, block]: [u32; 3],
    i: usize,
    source: &mut S,
) -> Result<u32, S::Error> {
    let (blocks, inner) = (block_count(len, block) as usize, inner as usize);
    let (block_index, column) = (i / inner, i % inner);
    let first = block_index / blocks * len as usize * inner + column;
    let places = block_range(len, block, block_index % blocks);
    tree_sum(places.map(|j| (input, first + j as usize * inner)), source)
}

/// [`Primitive::SegmentSum`]: the sum of a segment's rows in column `i % width`.
fn segment_sum<S: Source>(
    [input, order, offsets]: [TensorId; 3],
    width: usize,
    i: usize,
    source: &mut S,
) -> Result<u32, S::Error> {
    let (segment, column) = (i / width, i % width);
    let (begin, end) = (source.get(offsets, segment)?, source.get(offsets, segment + 1)?);
    let mut terms = Vec::new();
    for place in begin..end {
        let row = source.get(order, place as usize)? as usize;
        terms.push((input, row * width + column));
    }
    tree_sum(terms, source)
}

/// [`Primitive::Absmax`]: the absmax of scale group `i`.
fn absmax<S: Source>(input: &View, block: u32, i: usize, source: &mut S) -> Result<u32, S::Error> {
    let blocks = block_count(input.dims[3], block) as usize;
    let (row, b) = (i / blocks, i % blocks);
    let index = row_index(input, row);
    let mut absmax = 0;
    for k in block_range(input.dims[3], block, b) {
        let x = source.get(input.tensor, input.at([index[0], index[1], index[2], k]))?;
        absmax = digits::group_absmax([absmax, x]);
    }
    Ok(absmax)
}

/// [`Primitive::Quantise`]: the integer of element `i`, sign-extended.
fn quantised<S: Source>(
    input: &View,
    absmaxes: TensorId,
    digits: u8,
    block: u32,
    i: usize,
    source: &mut S,
) -> Result<u32, S::Error> {
    let k_len = input.dims[3];
    let (row, k) = (i / k_len as usize, (i % k_len as usize) as u32);
    let blocks = block_count(k_len, block) as usize;
    let b = k.checked_div(block).unwrap_or(0) as usize;
    let index = row_index(input, row);
    let x = source.get(input.tensor, input.at([index[0], index[1], index[2], k]))?;
    let absmax = source.get(absmaxes, row * blocks + b)?;
    Ok(digits::quantise(x, absmax, u32::from(digits)) as u32)
}

/// [`Primitive::Product`]: the dot product `i` of the operands over its block of K, scaled back.
fn product<S: Source>(
    graph: &Graph,
    [a, b]: [TensorId; 2],
    [absmaxes_a, absmaxes_b]: [TensorId; 2],
    block: u32,
    part: ProductPart,
    i: usize,
    source: &mut S,
) -> Result<u32, S::Error> {
    let ([batch, m, k], [_, n, _]) = (matrix(graph, a), matrix(graph, b));
    let blocks = block_count(k as u32, block) as usize;
    let (column, rest) = (i % n, i / n);
    let (row, rest) = (rest % m, rest / m);
    let (sample, block_index) = (rest % batch, rest / batch);
    let (row_a, row_b) = (sample * m + row, sample * n + column);
    let mut sum = 0i128;
    for j in block_range(k as u32, block, block_index) {
        let x = source.get(a, row_a * k + j as usize)? as i32;
        let y = source.get(b, row_b * k + j as usize)? as i32;
        sum += i128::from(i64::from(x) * i64::from(y));
    }
    let absmax_a = source.get(absmaxes_a, row_a * blocks + block_index)?;
    let absmax_b = source.get(absmaxes_b, row_b * blocks + block_index)?;
    let digits = |t| match graph.tensor(t).dtype {
        DType::Q(d) => u32::from(d),
        _ => unreachable!("products take quantised operands"),
    };
    let absmaxes = [absmax_a, absmax_b];
    Ok(digits::scale_back_part(part, sum, absmaxes, [digits(a), digits(b)]))
}

/// The view index of row `row` of a [batch0, batch1, rows, K] view, at K = 0.
fn row_index(view: &View, row: usize) -> [u32; 4] {
    unravel(row, [view.dims[0], view.dims[1], view.dims[2], 1])
}

/// The indices along K of block `b`.
fn block_range(k: u32, block: u32, b: usize) -> Range<u32> {
    if block == 0 { 0..k } else { b as u32 * block..k.min((b as u32 + 1) * block) }
}

/// [batch, rows, K] of a quantised operand.
fn matrix(graph: &Graph, tensor: TensorId) -> [usize; 3] {
    let shape = &graph.tensor(tensor).shape;
    [shape[0] as usize, shape[1] as usize, shape[2] as usize]
}

fn tree_sum<S: Source>(
    places: impl IntoIterator<Item = (TensorId, usize)>,
    source: &mut S,
) -> Result<u32, S::Error> {
    let mut failed = None;
    let sum = tree::sum(places.into_iter().map_while(|(tensor, place)| match source.get(tensor, place) {
        Ok(x) => Some(x),
        Err(error) => {
            failed = Some(error);
            None
        }
    }));
    failed.map_or(Ok(sum), Err)
}
