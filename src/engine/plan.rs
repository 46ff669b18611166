//! When tensors live: what an engine may free, and the least memory a graph needs.

use crate::program::graph::{Graph, TensorId};

/// The tensors whose last reader is each node, so that engines can free them there; inputs of the graph and
/// outputs never are.
pub fn last_uses(graph: &Graph) -> Vec<Vec<TensorId>> {
    let mut kept = vec![false; graph.tensors.len()];
    for port in graph.inputs.iter().chain(&graph.outputs) {
        kept[port.tensor.0 as usize] = true;
    }
    let mut uses = vec![Vec::new(); graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        for tensor in node.primitive.inputs().into_iter().chain([node.output]) {
            if !std::mem::replace(&mut kept[tensor.0 as usize], true) {
                uses[i].push(tensor);
            }
        }
    }
    uses
}

/// The most bytes of tensors that live at once while a graph runs, inputs and outputs included, in the canonical
/// layout.
pub fn peak_bytes(graph: &Graph) -> u64 {
    let bytes = |id: TensorId| graph.tensor(id).bytes() as u64;
    let mut live: u64 = graph.inputs.iter().map(|port| bytes(port.tensor)).sum();
    let mut peak = live;
    for (node, dying) in graph.nodes.iter().zip(last_uses(graph)) {
        live += bytes(node.output);
        peak = peak.max(live);
        live -= dying.into_iter().map(bytes).sum::<u64>();
    }
    peak
}
