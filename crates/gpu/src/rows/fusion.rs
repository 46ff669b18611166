//! A row fusion: nodes over the same rows that one kernel computes, with a workgroup for each row. Tensors that are read only
//! inside the fusion never get memory. `plan/fuse_rows` finds them in a graph; `wgsl/rows` writes their shader.

use tiebreak_contract::arith::DType;
use tiebreak_contract::program::graph::{Graph, Node, TensorId};

/// The role of a node for the rows of a fusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A map with an output for every element.
    Wide,
    /// A map with an output for every row.
    Narrow,
    /// The maximum of every row.
    Max,
    /// The tree sum of every row.
    Sum,
}

impl Role {
    /// True if the node needs a whole row for its one output.
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Role::Max | Role::Sum)
    }
}

/// A node of a row fusion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub node: usize,
    pub role: Role,
}

/// Nodes that one kernel computes.
#[derive(Clone, Debug)]
pub(crate) struct RowFusion {
    /// The members, in the graph's order.
    pub members: Vec<Member>,
    pub rows: u32,
    pub len: u32,
    /// Tensors of other nodes that members read, each once.
    pub reads: Vec<TensorId>,
    /// Outputs of members that other nodes read, or that are outputs of the graph.
    pub writes: Vec<TensorId>,
    /// The member in whose place the kernel runs: all inputs of the fusion are computed before it, and all outputs are read after
    /// it.
    pub at: usize,
}

impl RowFusion {
    /// The members' numbers in the graph.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        self.members.iter().map(|member| member.node).collect()
    }
}

/// True if all of a node's tensors have four-byte elements.
pub(crate) fn has_words(graph: &Graph, node: &Node) -> bool {
    let mut tensors = node.primitive.inputs();
    tensors.push(node.output);
    tensors.iter().all(|id| matches!(graph.tensor(*id).dtype, DType::F32 | DType::U32))
}
