//! The candidates for a node, or for several at once, as data: kernels with the memory that they take.

use super::windows::{Binding, Cut, volume};
use crate::device::kernel::{Kernel, Limits};
use tiebreak_contract::program::graph::{Graph, Node, TensorId, TensorType};
use tiebreak_shaders::product::Variant;

/// The target that a graph is planned for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub limits: Limits,
    /// The variant of products.
    pub variant: Variant,
    /// The most bytes of a buffer: a multiple of 256. Larger tensors are cut in pieces.
    pub buffer: u64,
    /// True if nodes over the same rows are computed at once.
    pub fuses_rows: bool,
}

impl Target {
    /// The cut of a tensor in memory.
    pub(crate) fn cut(&self, ty: &TensorType) -> Cut {
        Cut::of(ty, self.variant, self.buffer)
    }

    /// The cuts of a node's inputs, and then of its output.
    pub(crate) fn cuts(&self, graph: &Graph, node: &Node) -> Vec<Cut> {
        let mut tensors = node.primitive.inputs();
        tensors.push(node.output);
        tensors.into_iter().map(|id| self.cut(graph.tensor(id))).collect()
    }

    /// True if a node touches no tensor that is cut in pieces.
    pub(crate) fn is_whole(&self, graph: &Graph, node: &Node) -> bool {
        self.cuts(graph, node).iter().all(Cut::is_whole)
    }
}

/// Memory that a launch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A piece of a tensor, which is numbered in the order in which its unit reads and writes tensors.
    Tensor { number: usize, piece: usize },
    /// Memory beside the tensors, which the units of a graph share.
    Scratch(usize),
}

/// The memory that a kernel takes in binding order, each with the bytes that the kernel accesses.
pub(crate) type Buffers = Vec<(Slot, u64)>;

/// A kernel with the memory that it takes.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub kernel: Kernel,
    pub buffers: Buffers,
}

/// One way to compute a node, or several at once.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    /// The nodes, in order.
    pub nodes: Vec<usize>,
    /// The node in whose place it runs.
    pub at: usize,
    /// The tensors that launches number: the inputs, then the outputs. An output of its nodes that no other node reads is not
    /// among them, and gets no memory.
    pub reads: Vec<TensorId>,
    pub writes: Vec<TensorId>,
    /// The launches, in order; none for groupings, which run on the host.
    pub launches: Vec<Launch>,
}

impl Candidate {
    /// A node that runs by itself.
    pub(crate) fn node(graph: &Graph, index: usize, launches: Vec<Launch>) -> Candidate {
        let node = &graph.nodes[index];
        let (reads, writes) = (node.primitive.inputs(), vec![node.output]);
        Candidate { nodes: vec![index], at: index, reads, writes, launches }
    }

    /// Nodes that one kernel computes. The kernel takes whole tensors: the inputs, then the outputs.
    pub(crate) fn fused(
        graph: &Graph,
        target: &Target,
        nodes: Vec<usize>,
        at: usize,
        [reads, writes]: [Vec<TensorId>; 2],
        kernel: Kernel,
    ) -> Candidate {
        let cuts = reads.iter().chain(&writes).map(|id| target.cut(graph.tensor(*id))).enumerate();
        let buffers = cuts.map(|(number, cut)| bound(number, &Binding::Piece(0), cut)).collect();
        Candidate { nodes, at, reads, writes, launches: vec![Launch { kernel, buffers }] }
    }

    /// True if shaders alone compute it.
    pub(crate) fn has_shaders(&self) -> bool {
        self.launches.iter().all(|launch| launch.kernel.shader().is_some())
    }
}

/// The memory and the bytes that a kernel accesses of tensor `number` where a window of it is bound.
pub(crate) fn bound(number: usize, binding: &Binding, cut: Cut) -> (Slot, u64) {
    match binding {
        Binding::Piece(piece) => {
            let words = cut.piece.min(cut.words - *piece as u64 * cut.piece);
            (Slot::Tensor { number, piece: *piece }, words * 4)
        }
        Binding::Copied(view) => (Slot::Scratch(number), volume(&view.dims).max(1) * 4),
    }
}
