//! embedding.v1: rows of a table by token, and rows of a table by position.

use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::expr::{Body, BodyWriter};
use crate::program::graph::{Primitive, TensorId, View};

/// table [V, C], tokens u32 [N] (each below V) -> [N, C]. The gradient adds a token's rows, in the order of their
/// positions, by the tree over the token's count.
pub fn token_embedding(b: &mut Builder, table: TensorId, tokens: TensorId) -> TensorId {
    let [bound, channels] = b.shape(table)[..] else { panic!("an embedding table is a matrix") };
    let [n] = b.shape(tokens)[..] else { panic!("tokens are a vector") };
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
        vec![(table, b.node(sum, DType::F32, &[bound, channels]))]
    });
    output
}

/// x [B*T, C] + table [T, C], by position. The gradient of the table adds over samples by the tree.
pub fn position_embedding(b: &mut Builder, x: TensorId, table: TensorId) -> TensorId {
    let [n, channels] = b.shape(x)[..] else { panic!("an embedded text is a matrix") };
    let [positions, _] = b.shape(table)[..] else { panic!("a position table is a matrix") };
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
        let dtable = b.tree_sum(dy, [1, samples, row], &[positions, channels]);
        vec![(x, dy), (table, dtable)]
    });
    output
}
