//! What runs, and in which order: every node by itself, or several nodes at once where nobody looks at what is between them.

use super::Plan;
use super::device::Device;
use super::launch::Launch;
use crate::engine::Observer;
use crate::engine::plan::last_touches;
use crate::program::graph::{Graph, TensorId};

/// What runs at once: a node, or several that one kernel computes.
pub struct Unit<P> {
    /// The nodes, in order.
    pub nodes: Vec<usize>,
    /// The node in whose place it runs.
    pub at: usize,
    /// The tensors that launches number: those that it reads, then those that it writes. What no other node reads of its nodes'
    /// outputs is not among them, and gets no memory.
    pub reads: Vec<TensorId>,
    pub writes: Vec<TensorId>,
    pub launches: Vec<Launch<P>>,
}

impl<P> Unit<P> {
    /// A node that runs by itself.
    pub fn node(graph: &Graph, index: usize, launches: Vec<Launch<P>>) -> Unit<P> {
        let node = &graph.nodes[index];
        let (reads, writes) = (node.primitive.inputs(), vec![node.output]);
        Unit { nodes: vec![index], at: index, reads, writes, launches }
    }

    /// For each dispatch the operator of the node in whose place it runs, and how many nodes run with it.
    pub fn names(&self, graph: &Graph) -> impl Iterator<Item = String> {
        let node = &graph.nodes[self.at];
        let rest = if self.is_fused() { format!(" (of {} nodes)", self.nodes.len()) } else { String::new() };
        let name = format!("{}{rest}", node.operator);
        let dispatches = self.launches.iter().map(|launch| launch.step.dispatches.len()).sum();
        std::iter::repeat_n(name, dispatches)
    }

    /// Whether it computes more than one node.
    pub fn is_fused(&self) -> bool {
        self.nodes.len() > 1
    }
}

impl<D: Device> Plan<D> {
    /// What runs with this observer, in order, each with the tensors that nothing later touches: nodes run at once where it wants to see
    /// none of them.
    pub fn schedule(
        &self,
        graph: &Graph,
        observer: Option<&dyn Observer>,
    ) -> Vec<(&Unit<D::Pipeline>, Vec<TensorId>)> {
        let wanted =
            |&node: &usize| observer.is_some_and(|observer| observer.wants(node, &graph.nodes[node]));
        let mut units: Vec<Option<&Unit<D::Pipeline>>> = self.nodes.iter().map(Some).collect();
        for fused in self.fused.iter().filter(|fused| !fused.nodes.iter().any(wanted)) {
            fused.nodes.iter().for_each(|&node| units[node] = None);
            units[fused.at] = Some(fused);
        }
        let units: Vec<&Unit<D::Pipeline>> = units.into_iter().flatten().collect();
        let touched = |unit: &&Unit<D::Pipeline>| [&unit.reads[..], &unit.writes].concat();
        let dying = last_touches(graph, units.iter().map(touched).collect());
        units.into_iter().zip(dying).collect()
    }
}

/// Who writes and who reads tensors.
pub struct Uses {
    /// The node that each tensor is the output of.
    pub writer: Vec<Option<usize>>,
    /// The nodes that read it, in order.
    pub readers: Vec<Vec<usize>>,
}

impl Uses {
    pub fn of(graph: &Graph) -> Uses {
        let (mut writer, mut readers) =
            (vec![None; graph.tensors.len()], vec![Vec::new(); graph.tensors.len()]);
        for (i, node) in graph.nodes.iter().enumerate() {
            writer[node.output.0 as usize] = Some(i);
            for tensor in node.primitive.inputs() {
                readers[tensor.0 as usize].push(i);
            }
        }
        Uses { writer, readers }
    }
}
