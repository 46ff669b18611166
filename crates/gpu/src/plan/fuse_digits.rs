//! Digitising operands by a device's own kernels: the nodes that one launch computes together.

use super::dispatch::{digitising, product_size};
use super::unit::{Candidate, Target};
use super::uses::{Uses, product_operands};
use crate::device::kernel::{Digitise, Kernel};
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::graph::{Graph, Primitive, TensorId, View, block_count};
use tiebreak_shaders::product::Variant;

/// The candidates that compute an operand's absmaxes and digits at once, for every operand that is whole in memory.
pub(crate) fn digits(graph: &Graph, uses: &Uses, target: &Target) -> Vec<Candidate> {
    if target.variant != Variant::Dot {
        return Vec::new();
    }
    let candidate = |at: usize| {
        let node = &graph.nodes[at];
        let Primitive::Quantise { input, absmaxes, digits, block } = &node.primitive else { return None };
        let mut nodes = absmaxes_of(graph, uses, at)?;
        if !target.is_whole(graph, node) {
            return None; // one launch accesses whole tensors
        }
        let what = Digitise::ScaleAndQuantise { digits: u32::from(*digits) };
        let kernel = digitising(graph, input, *block, what)?;
        nodes.push(at);
        let tensors = [vec![input.tensor], vec![*absmaxes, node.output]];
        Some(Candidate::fused(graph, target, nodes, at, tensors, kernel))
    };
    (0..graph.nodes.len()).filter_map(candidate).collect()
}

/// The candidates that compute a product with its left operand's absmaxes and digits, where nobody else reads those and all
/// tensors are whole in memory.
pub(crate) fn columns(graph: &Graph, uses: &Uses, target: &Target) -> Vec<Candidate> {
    if target.variant != Variant::Dot {
        return Vec::new();
    }
    let candidate = |at: usize| {
        let node = &graph.nodes[at];
        let (view, nodes) = on_the_way(graph, uses, at)?;
        let words = matches!(graph.tensor(view.tensor).dtype, DType::F32 | DType::U32);
        if !words || !nodes.iter().all(|&node| target.is_whole(graph, &graph.nodes[node])) {
            return None;
        }
        let ([_, _, b, absmaxes_b], size) = (product_operands(node)?, product_size(graph, node)?);
        let digits = [size.digits_a, size.digits_b];
        let kernel = Kernel::Columns { view: view.clone(), digits, columns: size.columns };
        let tensors = [vec![view.tensor, b, absmaxes_b], vec![node.output]];
        Some(Candidate::fused(graph, target, nodes, at, tensors, kernel))
    };
    (0..graph.nodes.len()).filter_map(candidate).collect()
}

/// The view that is digitised for the left operand of this node alone, with one scale group for each row; and all nodes of the
/// fusion, in order. `None` if the node is no such product.
pub(crate) fn on_the_way<'a>(graph: &'a Graph, uses: &Uses, at: usize) -> Option<(&'a View, Vec<usize>)> {
    let [a, absmaxes_a, b, absmaxes_b] = product_operands(&graph.nodes[at])?;
    let quantise = uses.writer(a)?;
    let Primitive::Quantise { input, block: 0, .. } = &graph.nodes[quantise].primitive else { return None };
    let alone = uses.readers(a) == [at] && uses.readers(absmaxes_a) == [quantise, at];
    if !alone || a == b || absmaxes_a == absmaxes_b || uses.is_output(a) || uses.is_output(absmaxes_a) {
        return None;
    }
    let mut nodes = absmaxes_of(graph, uses, quantise)?;
    nodes.extend([quantise, at]);
    Some((input, nodes))
}

/// The nodes that make the absmaxes of a quantising node, if the absmaxes are of its own view and it is their first reader. There
/// is one such node. There are two where scale groups are long: the first makes the absmaxes of shorter groups for the second
/// alone.
pub(crate) fn absmaxes_of(graph: &Graph, uses: &Uses, quantise: usize) -> Option<Vec<usize>> {
    let Primitive::Quantise { input: operand, absmaxes, block: of_operand, .. } =
        &graph.nodes[quantise].primitive
    else {
        return None;
    };
    if uses.readers(*absmaxes).first() != Some(&quantise) {
        return None;
    }
    let absmax = |tensor: TensorId| {
        let at = uses.writer(tensor)?;
        match &graph.nodes[at].primitive {
            Primitive::Absmax { input, block } => Some((at, input, *block)),
            _ => None,
        }
    };
    let (whole, input, block) = absmax(*absmaxes)?;
    if (input, block) == (operand, *of_operand) {
        return Some(vec![whole]);
    }
    let (part, partial, leaf) = absmax(input.tensor)?;
    let [first, second, rows, k] = operand.dims;
    let blocks = block_count(k, leaf);
    let strides = [second * rows * blocks, rows * blocks, blocks, 1];
    let all = View { tensor: input.tensor, offset: 0, dims: [first, second, rows, blocks], strides };
    let alone = uses.readers(input.tensor) == [whole] && !uses.is_output(input.tensor);
    let together = partial == operand
        && leaf != 0
        && *input == all
        && u64::from(block) * u64::from(leaf) == u64::from(*of_operand);
    (alone && together).then(|| vec![part, whole])
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::program::builder::Builder;
    use tiebreak_contract::program::graph::Node;
    use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};

    /// The fusions of a product of rows of length `k` with themselves, by operator name.
    fn of(k: u32, block: u32, more: impl FnOnce(&mut Builder, TensorId)) -> Vec<Option<Vec<usize>>> {
        let mut table = ProductTable::uniform(2);
        table.set(ProductClass::Linear, ProductDigits { digits_a: 2, digits_b: 3, block });
        let mut b = Builder::new(table);
        let x = b.input("x", DType::F32, &[3, k]);
        let views = [b.whole(x), b.whole(x)];
        let [left, right] = views;
        let output = b.product(ProductClass::Linear, left, right, &[3, 3]);
        b.output("product", output);
        more(&mut b, x);
        let graph = b.finish();
        let uses = Uses::of(&graph);
        let quantise = |node: &(usize, &Node)| matches!(node.1.primitive, Primitive::Quantise { .. });
        let found = graph.nodes.iter().enumerate().filter(quantise);
        found.map(|(i, _)| absmaxes_of(&graph, &uses, i)).collect()
    }

    #[test]
    fn the_first_reader_of_absmaxes_computes_them() {
        // Both operands are the same view: there is one absmax, and the second operand reads it later.
        assert_eq!(of(100, 0, |_, _| ()), [Some(vec![0]), None]);
        assert_eq!(of(256, 64, |_, _| ()), [Some(vec![0]), None]);
        // The absmaxes are found in two levels.
        assert_eq!(of(10_000, 0, |_, _| ()), [Some(vec![0, 1]), None]);
        assert_eq!(of(20_000, 8192, |_, _| ()), [Some(vec![0, 1]), None]);
    }

    #[test]
    fn absmaxes_that_others_see_are_not_left_out() {
        let partial = |b: &mut Builder, x: TensorId| {
            let input = b.whole(x);
            // An equal node is shared.
            let node = b.node(Primitive::Absmax { input, block: 4096 }, DType::U32, &[1, 3, 3]);
            b.output("partial", node);
        };
        assert_eq!(of(10_000, 0, partial), [None, None]);
    }
}
