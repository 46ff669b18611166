//! The writers and readers of a graph's tensors.

use tiebreak_contract::arith::digits::ProductPart;
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId};

/// The writers and readers of tensors.
pub(crate) struct Uses {
    writer: Vec<Option<usize>>,
    readers: Vec<Vec<usize>>,
    is_output: Vec<bool>,
}

impl Uses {
    pub(crate) fn of(graph: &Graph) -> Uses {
        let count = graph.tensors.len();
        let mut uses = Uses {
            writer: vec![None; count],
            readers: vec![Vec::new(); count],
            is_output: vec![false; count],
        };
        for (index, node) in graph.nodes.iter().enumerate() {
            uses.writer[node.output.0 as usize] = Some(index);
            for tensor in node.primitive.inputs() {
                uses.readers[tensor.0 as usize].push(index);
            }
        }
        graph.outputs.iter().for_each(|port| uses.is_output[port.tensor.0 as usize] = true);
        uses
    }

    /// The node that a tensor is the output of.
    pub(crate) fn writer(&self, tensor: TensorId) -> Option<usize> {
        self.writer[tensor.0 as usize]
    }

    /// The nodes that read a tensor, in order.
    pub(crate) fn readers(&self, tensor: TensorId) -> &[usize] {
        &self.readers[tensor.0 as usize]
    }

    /// True if a tensor is an output of the graph.
    pub(crate) fn is_output(&self, tensor: TensorId) -> bool {
        self.is_output[tensor.0 as usize]
    }
}

/// The digits and absmaxes of a product's operands, if the product is one whole sum, rounded.
pub(crate) fn product_operands(node: &Node) -> Option<[TensorId; 4]> {
    match &node.primitive {
        Primitive::Product { a, absmaxes_a, b, absmaxes_b, block: 0, part: ProductPart::Rounded } => {
            Some([*a, *absmaxes_a, *b, *absmaxes_b])
        }
        _ => None,
    }
}
