//! Rows between two products, for a device that computes all of it at once: q k^T, softmax and p v of attention, or dout v^T, the
//! softmax's gradient and ds k. `plan/fuse_attention` finds them in a graph; `wgsl/attention` describes them to the device.

use super::fusion::RowFusion;
use tiebreak_contract::program::graph::TensorId;

/// A product, a fusion over the rows of its result, and the product of what one of the fusion's nodes gives, digitised by rows.
pub(crate) struct AttentionFusion {
    /// The product that the rows take.
    pub first: usize,
    pub rows: RowFusion,
    /// The member whose output is digitised.
    pub result: usize,
    /// The nodes that digitise it, and the product that takes that as its left operand.
    pub absmax: usize,
    pub quantise: usize,
    pub second: usize,
    /// Digits and absmaxes of both products' operands.
    pub operands: [[TensorId; 4]; 2],
    /// Whether nothing depends on the first product's places beyond the diagonal.
    pub causal: bool,
    /// What the rows read, but for the first product, and what of their outputs others read.
    pub reads: Vec<TensorId>,
    pub writes: Vec<TensorId>,
}

impl AttentionFusion {
    /// All of its nodes, in order.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        let mut nodes = self.rows.nodes();
        nodes.extend([self.first, self.absmax, self.quantise, self.second]);
        nodes.sort_unstable();
        nodes
    }
}
