//! Rows between two products, for a device that computes rows and products at once. In attention they are q k^T, softmax and p
//! v, or dout v^T, the softmax's gradient and ds k. `plan/fuse_attention` finds them in a graph; `wgsl/attention` describes them
//! to the device.

use super::fusion::RowFusion;
use tiebreak_contract::program::graph::TensorId;

/// A product, a fusion over the rows of its result, and the product of an output of the fusion, digitised by rows.
pub(crate) struct AttentionFusion {
    /// The product whose rows the fusion takes.
    pub first: usize,
    pub rows: RowFusion,
    /// The member whose output is digitised.
    pub result: usize,
    /// The nodes that digitise the output, and the product that takes the digits as its left operand.
    pub absmax: usize,
    pub quantise: usize,
    pub second: usize,
    /// Digits and absmaxes of both products' operands.
    pub operands: [[TensorId; 4]; 2],
    /// True if nothing depends on the first product's elements beyond the diagonal.
    pub causal: bool,
    /// The rows' inputs, without the first product, and the outputs that others read.
    pub reads: Vec<TensorId>,
    pub writes: Vec<TensorId>,
}

impl AttentionFusion {
    /// All nodes, in order.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        let mut nodes = self.rows.nodes();
        nodes.extend([self.first, self.absmax, self.quantise, self.second]);
        nodes.sort_unstable();
        nodes
    }
}
