//! The lifetimes of tensors: the tensors that an engine may free, and the least memory that a graph needs.

use std::collections::{HashMap, HashSet};

use crate::update_share::UpdateShare;
use tiebreak_contract::program::graph::{Graph, Node, TensorId};
use tiebreak_contract::program::part::GraphPart;
use tiebreak_contract::program::step::Program;

/// For each node, the tensors whose last reader it is, so that engines can free them there. Inputs and outputs of the graph are
/// never among them.
pub(crate) fn last_uses(graph: &Graph) -> Vec<Vec<TensorId>> {
    last_touches(graph, touched_by_nodes(graph))
}

/// [`last_uses`], where inputs are freed as well.
pub(crate) fn last_uses_with_inputs(graph: &Graph) -> Vec<Vec<TensorId>> {
    last(graph, touched_by_nodes(graph), graph.outputs.iter().map(|port| port.tensor))
}

/// The outputs of a graph that its nodes make, each with the last node that makes or reads it.
pub(crate) fn last_uses_of_outputs(graph: &Graph) -> Vec<(TensorId, usize)> {
    let last = last(graph, touched_by_nodes(graph), [].into_iter());
    let is_output: HashSet<TensorId> = graph.outputs.iter().map(|port| port.tensor).collect();
    let each = last.iter().enumerate().flat_map(|(node, tensors)| tensors.iter().map(move |id| (*id, node)));
    each.filter(|(id, _)| is_output.contains(id)).collect()
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

/// What a session does with the tensors of a step beyond computing them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keeping {
    /// The slots, and gradients that wait for their sum, lie outside of memory ([`crate::outside`]).
    pub outside: bool,
    /// The state before the step is kept, as audits do.
    pub before: bool,
    /// The engine holds a graph's inputs until its end, and the state before the step is a copy, as GPUs do.
    pub holds: bool,
}

/// The most bytes of tensors that are alive at once in a step: the state, the gradients that wait for their sum, and the tensors
/// of the running graph.
pub fn step_bytes(program: &Program) -> u64 {
    step_bytes_of(program, &UpdateShare::whole(program), peak_bytes(&program.micro), Keeping::default())
}

/// [`step_bytes`] of a session that holds a share of the slots, where the graph of a micro-batch takes `micro_peak` bytes.
pub(crate) fn step_bytes_of(
    program: &Program,
    share: &UpdateShare,
    micro_peak: u64,
    keeping: Keeping,
) -> u64 {
    let outputs = program.micro.outputs.iter();
    let gradients: u64 = outputs.map(|port| program.micro.tensor(port.tensor).bytes() as u64).sum();
    let table = program.state();
    let held = |count: usize| -> u64 {
        let places = share.held.iter().filter(|&&place| place < count);
        places.map(|&place| table[place].ty().bytes() as u64).sum()
    };
    let [state, read] = [table.len(), program.released()].map(held);
    // A micro-batch does not read the slots.
    let slots = if keeping.outside { 0 } else { state - read };
    // The tree over micro-batches keeps one partial sum for each bit of their number. Two of them are the operands of an addition.
    let waiting = u64::from(program.micro_batches.ilog2());
    let in_memory = |sums: u64| if keeping.outside { 0 } else { sums * gradients };
    let micro = slots + in_memory(waiting) + micro_peak;
    let lefts = |port: usize| keeping.outside && port.is_multiple_of(2);
    let added = owning_peak(&program.accumulate, |_| keeping.holds, lefts);
    let accumulate = if waiting == 0 { 0 } else { slots + read + in_memory(waiting - 1) + added };
    // The session holds the gradient during the update, and the state before the step if it is kept.
    let GraphPart { graph, inputs } = &share.update;
    let of_state = |port: usize| inputs[port] < table.len();
    let is_slot = |port: usize| keeping.outside && of_state(port) && inputs[port] >= program.released();
    let stays = |port| keeping.before || keeping.holds || !of_state(port);
    // The gradients and parameters that the share's update does not read are there all the same.
    let unread = (0..program.update.inputs.len()).filter(|place| inputs.binary_search(place).is_err());
    let unread = unread.filter(|place| *place >= table.len() || share.held.binary_search(place).is_ok());
    let bytes_of = |place: usize| program.update.tensor(program.update.inputs[place].tensor).bytes() as u64;
    let update = owning_peak(graph, stays, is_slot) + unread.map(bytes_of).sum::<u64>();
    let copied = if keeping.before && keeping.holds { state } else { 0 };
    micro.max(accumulate).max(update) + copied
}

/// The most bytes of tensors that are alive at once while a graph runs on inputs that may be freed, but for those that are `held`. Inputs
/// that lie `outside` of memory come in before they are read, and the outputs that replace them go out again. Inputs are given by their
/// places.
fn owning_peak(graph: &Graph, held: impl Fn(usize) -> bool, outside: impl Fn(usize) -> bool) -> u64 {
    let bytes = |id: TensorId| graph.tensor(id).bytes() as u64;
    let inputs = || graph.inputs.iter().enumerate();
    let mut away: HashSet<TensorId> =
        inputs().filter(|(place, _)| outside(*place)).map(|(_, port)| port.tensor).collect();
    let stays: HashSet<TensorId> =
        inputs().filter(|(place, _)| held(*place) && !outside(*place)).map(|(_, port)| port.tensor).collect();
    let names: HashSet<&str> =
        inputs().filter(|(place, _)| outside(*place)).map(|(_, port)| port.name.as_str()).collect();
    let outputs = graph.outputs.iter().filter(|port| names.contains(port.name.as_str()));
    let goes: HashSet<TensorId> = outputs.map(|port| port.tensor).collect();
    let mut gone: HashMap<usize, u64> = HashMap::new();
    for (id, last) in last_uses_of_outputs(graph) {
        *gone.entry(last).or_default() += if goes.contains(&id) { bytes(id) } else { 0 };
    }
    let mut live: u64 =
        inputs().filter(|(place, _)| !outside(*place)).map(|(_, port)| bytes(port.tensor)).sum();
    let mut most = live;
    for (index, (node, dying)) in graph.nodes.iter().zip(last_uses_with_inputs(graph)).enumerate() {
        let inputs = node.primitive.inputs().into_iter();
        live += inputs.filter(|id| away.remove(id)).map(bytes).sum::<u64>() + bytes(node.output);
        most = most.max(live);
        live -= dying.into_iter().filter(|id| !stays.contains(id)).map(bytes).sum::<u64>();
        live -= gone.get(&index).copied().unwrap_or(0);
    }
    most
}
