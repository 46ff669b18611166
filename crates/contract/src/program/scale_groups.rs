//! The relation between absmaxes and integers that section 9 of `docs/ARITHMETIC.md` demands of kinds 8 and 9.

use super::graph::{Graph, Node, Primitive, TensorId, TensorType, View, block_count, leaf_block, row_major};
use crate::arith::DType;

/// True if a tensor holds the absmaxes of a view's scale groups, for long groups by way of the absmaxes of shorter ones. `maker`
/// gives the node that makes a tensor.
pub(crate) fn are_of_view<'g>(
    view: &View,
    block: u32,
    absmaxes: TensorId,
    maker: &impl Fn(TensorId) -> Option<&'g Node>,
) -> bool {
    let made = |id| match maker(id).map(|node| &node.primitive) {
        Some(Primitive::Absmax { input, block }) => Some((input, *block)),
        _ => None,
    };
    let Some((input, of)) = made(absmaxes) else { return false };
    let [b0, b1, rows, k] = view.dims;
    let leaf = leaf_block(view.strides[3]);
    if leaf >= if block == 0 { k } else { block } {
        return (input, of) == (view, block);
    }
    let blocks = block_count(k, leaf);
    let dims = [b0, b1, rows, blocks];
    let between = View { tensor: input.tensor, offset: 0, dims, strides: row_major(dims) };
    *input == between && of == block / leaf && made(input.tensor) == Some((view, leaf))
}

/// True if a product's operand, cut in blocks, has these absmaxes: those that the operand is quantised with. For patches of
/// digits they are a copy, for each row and block, of the absmaxes that the images are quantised with.
pub(crate) fn are_of_operand<'g>(
    graph: &Graph,
    operand: TensorId,
    block: u32,
    absmaxes: TensorId,
    maker: &impl Fn(TensorId) -> Option<&'g Node>,
) -> bool {
    let primitive = |id| maker(id).map(|node| &node.primitive);
    match primitive(operand) {
        Some(Primitive::Quantise { absmaxes: own, block: of, .. }) => *own == absmaxes && *of == block,
        Some(Primitive::DigitPatches { input, patches }) => {
            let (Some(Primitive::Quantise { absmaxes: own, .. }), [_, rows, k], [_, of_operand, places]) =
                (primitive(*input), &graph.tensor(*input).shape[..], &graph.tensor(operand).shape[..])
            else {
                return false;
            };
            let blocks = block_count(*places, block);
            let Some(images) = patches.images(*rows, *k) else { return false };
            let [dims, strides] = patches.absmaxes(images, blocks);
            let copied = View { tensor: *own, offset: 0, dims, strides };
            let copies = matches!(primitive(absmaxes), Some(Primitive::Map { body, inputs, .. })
                if body.name == "copy.v1" && *inputs == [copied]);
            let ty = TensorType { dtype: DType::U32, shape: vec![1, *of_operand, blocks] };
            copies && *graph.tensor(absmaxes) == ty
        }
        _ => false,
    }
}
