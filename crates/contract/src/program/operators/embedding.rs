//! embedding.v1: rows of a table by token, and rows of a table by position.

use super::operand::im2col;
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::expr::{Body, BodyWriter};
use crate::program::graph::{Primitive, TensorId, View};
use crate::program::im2col::ConvGeometry;

/// The bound of a table's rows where a sample has fewer: the greatest size of a convolution's image.
const ROWS_MAX: u32 = 1 << 15;

/// table [V, C], tokens u32 [N] (each below V) -> [N, C]. The gradient adds a token's rows, in the order of their
/// positions, by the tree over the token's count.
pub(crate) fn token_embedding(b: &mut Builder, table: TensorId, tokens: TensorId) -> TensorId {
    padded_embedding(b, table, tokens, None)
}

/// [`token_embedding`] with a row of the table that has no gradient, if one is named.
pub(crate) fn padded_embedding(
    b: &mut Builder,
    table: TensorId,
    tokens: TensorId,
    padding: Option<u32>,
) -> TensorId {
    let [bound, channels] = b.shape(table)[..] else { panic!("an embedding table is a matrix") };
    let n = b.shape(tokens).iter().product();
    let gather = Primitive::Gather {
        table,
        indices: tokens,
        bound,
        stride_index: channels,
        stride_row: 0,
        stride_column: 1,
    };
    let output = b.node(gather, DType::F32, &[n, channels]);
    b.differentiable(output, move |b, dy| {
        let order = b.node(Primitive::GroupOrder { classes: tokens, bound }, DType::U32, &[n]);
        let offsets = b.node(Primitive::GroupOffsets { classes: tokens, bound }, DType::U32, &[bound + 1]);
        let sum = Primitive::SegmentSum { input: dy, order, offsets };
        let sums = b.node(sum, DType::F32, &[bound, channels]);
        let Some(padding) = padding else { return vec![(table, sums)] };
        let body = Body::new("padding_row.v1", |w| {
            let (sum, row, padding, zero) = (w.input(0), w.index(2), w.word(padding), w.f(0.0));
            let is_padding = w.ueq(row, padding);
            w.select(is_padding, zero, sum)
        });
        vec![(table, b.map(body, &[sums], &[bound, channels]))]
    });
    output
}

/// x [B*T, C] + table [T, C], by position. The gradient of the table adds over samples by the tree.
pub(crate) fn position_embedding(b: &mut Builder, x: TensorId, table: TensorId) -> TensorId {
    let positions = b.shape(table)[0];
    add_rows(b, x, table, positions)
}

/// x [B*T, C] + the first T rows of table [V, C], for the positions of a sample.
///
/// # Errors
/// If `samples` does not divide N, or the table has fewer than T rows, or more than an image's.
pub(crate) fn add_first_rows(
    b: &mut Builder,
    x: TensorId,
    table: TensorId,
    samples: u32,
) -> Result<TensorId, String> {
    let (n, rows) = (b.shape(x)[0], b.shape(table)[0]);
    if samples == 0 || !n.is_multiple_of(samples) || n / samples > rows {
        return Err(format!("{samples} samples of T = {rows} positions, or fewer, are not N = {n} rows"));
    }
    if n / samples < rows && rows >= ROWS_MAX {
        return Err(format!(
            "a table with more rows than a sample has must have fewer than {ROWS_MAX}, has {rows}"
        ));
    }
    Ok(add_rows(b, x, table, n / samples))
}

/// x [B*T, C] + the first T rows of a table, of which the others have the gradient +0.
fn add_rows(b: &mut Builder, x: TensorId, table: TensorId, positions: u32) -> TensorId {
    let [n, channels] = b.shape(x)[..] else { panic!("an embedded text is a matrix") };
    let [rows, _] = b.shape(table)[..] else { panic!("a position table is a matrix") };
    let samples = n / positions;
    let dims = [1, samples, positions, channels];
    let row = positions * channels;
    let x_view = View { tensor: x, offset: 0, dims, strides: [0, row, channels, 1] };
    let table_view = View { tensor: table, offset: 0, dims, strides: [0, 0, channels, 1] };
    let body = Body::new("add.v1", |w: &mut BodyWriter| {
        let (x, y) = (w.input(0), w.input(1));
        w.add(x, y)
    });
    let output = b.map_views(body, dims, vec![x_view, table_view], DType::F32, &[n, channels]);
    b.differentiable(output, move |b, dy| {
        if rows == positions {
            return vec![(x, dy), (table, b.tree_sum(dy, [1, samples, row], &[positions, channels]))];
        }
        // The rows as an image of one column: rows behind it are no pixels.
        let sums = b.tree_sum(dy, [1, samples, row], &[1, positions, 1, channels]);
        let geometry =
            ConvGeometry { size: [rows, 1], kernel: [1, 1], stride: 1, padding: 0, transposed: false };
        vec![(x, dy), (table, im2col(b, sums, geometry))]
    });
    output
}
