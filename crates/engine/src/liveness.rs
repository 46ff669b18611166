//! The lifetimes of tensors: the tensors that an engine may free, and the least memory that a graph needs.

use tiebreak_contract::program::graph::{Graph, Node, TensorId};
use tiebreak_contract::program::step::{Program, state_bytes};

/// For each node, the tensors whose last reader it is, so that engines can free them there. Inputs and outputs of the graph are
/// never among them.
pub(crate) fn last_uses(graph: &Graph) -> Vec<Vec<TensorId>> {
    last_touches(graph, touched_by_nodes(graph))
}

/// [`last_uses`], where inputs are freed as well.
pub(crate) fn last_uses_with_inputs(graph: &Graph) -> Vec<Vec<TensorId>> {
    last(graph, touched_by_nodes(graph), graph.outputs.iter().map(|port| port.tensor))
}

/// The same for any sequence of steps that touch tensors: for each step, the tensors that no later step touches.
pub fn last_touches(graph: &Graph, touched: Vec<Vec<TensorId>>) -> Vec<Vec<TensorId>> {
    last(graph, touched, graph.inputs.iter().chain(&graph.outputs).map(|port| port.tensor))
}

fn touched_by_nodes(graph: &Graph) -> Vec<Vec<TensorId>> {
    let touched = |node: &Node| node.primitive.inputs().into_iter().chain([node.output]).collect();
    graph.nodes.iter().map(touched).collect()
}

fn last(
    graph: &Graph,
    touched: Vec<Vec<TensorId>>,
    never: impl Iterator<Item = TensorId>,
) -> Vec<Vec<TensorId>> {
    let mut kept = vec![false; graph.tensors.len()];
    never.for_each(|tensor| kept[tensor.0 as usize] = true);
    let mut last = touched;
    for tensors in last.iter_mut().rev() {
        tensors.retain(|tensor| !std::mem::replace(&mut kept[tensor.0 as usize], true));
    }
    last
}

/// The bytes of tensors that are alive while each node runs, inputs and outputs of the graph included, in the canonical layout.
pub(crate) fn live_bytes(graph: &Graph) -> Vec<u64> {
    let bytes = |id: TensorId| graph.tensor(id).bytes() as u64;
    let mut live: u64 = graph.inputs.iter().map(|port| bytes(port.tensor)).sum();
    let nodes = graph.nodes.iter().zip(last_uses(graph));
    nodes
        .map(|(node, dying)| {
            live += bytes(node.output);
            let most = live;
            live -= dying.into_iter().map(bytes).sum::<u64>();
            most
        })
        .collect()
}

/// The most bytes of tensors that are alive at once while a graph runs, inputs and outputs included, in the canonical layout.
pub fn peak_bytes(graph: &Graph) -> u64 {
    let inputs = graph.inputs.iter().map(|port| graph.tensor(port.tensor).bytes() as u64).sum();
    live_bytes(graph).into_iter().fold(inputs, u64::max)
}

/// The most bytes of tensors that are alive at once in a step: the state, the gradients that wait for their sum, and the tensors
/// of the running graph.
pub fn step_bytes(program: &Program) -> u64 {
    step_bytes_of(program, peak_bytes(&program.micro))
}

/// [`step_bytes`], where the graph of a micro-batch takes `micro_peak` bytes.
pub(crate) fn step_bytes_of(program: &Program, micro_peak: u64) -> u64 {
    let bytes = |ports: &[tiebreak_contract::program::graph::Port], graph: &Graph| -> u64 {
        ports.iter().map(|port| graph.tensor(port.tensor).bytes() as u64).sum()
    };
    let gradients = bytes(&program.micro.outputs, &program.micro);
    let state = state_bytes(&program.state());
    // A micro-batch does not read the slots, so they are added to the needs of its graph.
    let read = program.released();
    let slots = state_bytes(&program.state()[read..]);
    // The tree over micro-batches keeps one partial sum for each bit of their number.
    let waiting = u64::from(program.micro_batches.ilog2()) * gradients;
    let micro = slots + waiting + micro_peak;
    let accumulate = state + waiting + peak_bytes(&program.accumulate);
    let update = peak_bytes(&program.update);
    micro.max(if program.micro_batches > 1 { accumulate } else { 0 }).max(update)
}
