//! The choice of tensors that are computed again, and the graph that does it.

use std::collections::HashMap;

use tiebreak_contract::program::graph::{Graph, Node, TensorId};
use tiebreak_contract::program::step::port;

use crate::liveness::{live_bytes, peak_bytes};

/// A node of a graph with repetitions.
pub(super) struct Step {
    /// The node of the original graph that it computes.
    pub node: usize,
    /// True if the node was computed before.
    pub again: bool,
    /// Tensors that the node reads: those of the original graph, and those that take their place. Others are the original ones.
    pub renamed: Vec<(TensorId, TensorId)>,
}

/// The nodes of a graph with repetitions, in its order.
pub(super) struct Schedule {
    pub steps: Vec<Step>,
    /// For each node of the original graph: true if it is computed again.
    pub repeated: Vec<bool>,
}

/// The most segments of a forward pass that are tried.
const SEGMENTS_MAX: usize = 512;

/// The graph with repetitions that needs the least memory, among divisions of the forward pass into segments of about as many bytes
/// each. `None` if none needs less than the graph itself, or if the graph has logged products.
pub(super) fn schedule(graph: &Graph) -> Option<(Graph, Schedule)> {
    if !graph.logged.is_empty() {
        return None;
    }
    let turn = turning_point(graph);
    let mut best = (peak_bytes(graph), None);
    let mut segments = 2;
    while segments <= SEGMENTS_MAX.min(turn) {
        let found = with_repetitions(graph, &segment_of(graph, turn, segments));
        let peak = peak_bytes(&found.0);
        if peak < best.0 {
            best = (peak, Some(found));
        }
        // Two steps for each doubling: 2, 3, 4, 6, 8, ...
        segments += if segments.is_power_of_two() { segments / 2 } else { segments / 3 };
    }
    best.1
}

/// The node at which the backward pass begins: behind the loss, or where most bytes are alive.
fn turning_point(graph: &Graph) -> usize {
    let makes = |tensor| graph.nodes.iter().position(|node| node.output == tensor);
    if let Some(node) = graph.output(port::LOSS).and_then(makes) {
        return node + 1;
    }
    let live = live_bytes(graph);
    let most = live.iter().max().copied().unwrap_or(0);
    live.iter().position(|&bytes| bytes == most).unwrap_or(0)
}

/// The segment of each node of the forward pass. Segments begin where the fewest bytes are read across their border, near the
/// borders of equal parts of all bytes that the forward pass makes.
fn segment_of(graph: &Graph, turn: usize, segments: usize) -> Vec<usize> {
    let bytes = |node: &Node| graph.tensor(node.output).bytes() as u64;
    let across = bytes_across(graph, turn);
    let mut made = 0;
    let ends: Vec<u64> = graph.nodes[..turn]
        .iter()
        .map(|node| {
            made += bytes(node);
            made
        })
        .collect();
    let part = made.div_ceil(segments as u64).max(1);
    let mut begins = vec![false; turn];
    for border in 1..segments as u64 {
        // Half a part on both sides.
        let [from, to] = [border * part - part / 2, border * part + part / 2];
        let first = ends.partition_point(|&end| end < from);
        let last = ends.partition_point(|&end| end < to);
        let near = (first.max(1)..last.min(turn - 1) + 1).min_by_key(|&node| across[node]);
        near.into_iter().for_each(|node| begins[node] = true);
    }
    let mut segment = 0;
    begins
        .into_iter()
        .map(|begins| {
            segment += usize::from(begins);
            segment
        })
        .collect()
}

/// For each node of the forward pass, the bytes that nodes before it make for it and for later ones of the forward pass.
fn bytes_across(graph: &Graph, turn: usize) -> Vec<u64> {
    let mut last_read: HashMap<TensorId, usize> = HashMap::new();
    for (index, node) in graph.nodes[..turn].iter().enumerate() {
        node.primitive.inputs().into_iter().for_each(|tensor| {
            last_read.insert(tensor, index);
        });
    }
    let mut change = vec![0i64; turn + 1];
    for (index, node) in graph.nodes[..turn].iter().enumerate() {
        if let Some(&last) = last_read.get(&node.output) {
            let bytes = graph.tensor(node.output).bytes() as i64;
            change[index + 1] += bytes;
            change[last + 1] -= bytes;
        }
    }
    let mut across = 0i64;
    change[..turn]
        .iter()
        .map(|bytes| {
            across += bytes;
            across as u64
        })
        .collect()
}

/// The graph in which nodes behind the forward pass read repetitions of what no other segment reads. The last segment is not
/// repeated: it is read at once.
fn with_repetitions(graph: &Graph, segment_of: &[usize]) -> (Graph, Schedule) {
    let made_again = made_again(graph, segment_of);
    let turn = segment_of.len();
    let mut repeating = Repeating {
        graph,
        made_again,
        result: Graph {
            tensors: graph.tensors.clone(),
            inputs: graph.inputs.clone(),
            nodes: Vec::new(),
            outputs: graph.outputs.clone(),
            logged: Vec::new(),
        },
        steps: Vec::new(),
        now: HashMap::new(),
    };
    for node in 0..graph.nodes.len() {
        if node >= turn {
            repeating.repeat_inputs_of(node);
        }
        repeating.emit(node, false);
    }
    let mut repeated = vec![false; graph.nodes.len()];
    repeating.steps.iter().filter(|step| step.again).for_each(|step| repeated[step.node] = true);
    (repeating.result, Schedule { steps: repeating.steps, repeated })
}

/// The tensors that the backward pass computes again, each with its node.
fn made_again(graph: &Graph, segment_of: &[usize]) -> HashMap<TensorId, usize> {
    let last = segment_of.last().copied().unwrap_or(0);
    let forward = &graph.nodes[..segment_of.len()];
    let within = forward.iter().enumerate().filter(|(index, _)| segment_of[*index] < last);
    let mut found: HashMap<TensorId, usize> = within.map(|(index, node)| (node.output, index)).collect();
    for (index, node) in forward.iter().enumerate() {
        for input in node.primitive.inputs() {
            if found.get(&input).is_some_and(|&made| segment_of[made] != segment_of[index]) {
                found.remove(&input);
            }
        }
    }
    graph.outputs.iter().for_each(|port| {
        found.remove(&port.tensor);
    });
    found
}

/// A graph with repetitions in the making.
struct Repeating<'g> {
    graph: &'g Graph,
    made_again: HashMap<TensorId, usize>,
    result: Graph,
    steps: Vec<Step>,
    /// The repetition of each tensor that has one.
    now: HashMap<TensorId, TensorId>,
}

impl Repeating<'_> {
    /// Repeats the nodes that a node needs, in their order.
    fn repeat_inputs_of(&mut self, node: usize) {
        let (mut needed, mut asked) = (Vec::new(), self.graph.nodes[node].primitive.inputs());
        while let Some(tensor) = asked.pop() {
            let Some(&made) = self.made_again.get(&tensor) else { continue };
            if self.now.contains_key(&tensor) || needed.contains(&made) {
                continue;
            }
            needed.push(made);
            asked.extend(self.graph.nodes[made].primitive.inputs());
        }
        needed.sort_unstable();
        needed.into_iter().for_each(|made| self.emit(made, true));
    }

    /// Adds a node that reads the latest repetition of each input. The forward pass itself runs before any repetition.
    fn emit(&mut self, index: usize, again: bool) {
        let node = &self.graph.nodes[index];
        let mut renamed = Vec::new();
        let primitive = node.primitive.map_inputs(|tensor| {
            let now = self.now.get(&tensor).copied();
            renamed.extend(now.map(|now| (tensor, now)));
            now.unwrap_or(tensor)
        });
        let mut output = node.output;
        if again {
            output = TensorId(self.result.tensors.len() as u32);
            self.result.tensors.push(self.graph.tensor(node.output).clone());
            self.now.insert(node.output, output);
        }
        self.result.nodes.push(Node { operator: node.operator.clone(), primitive, output });
        self.steps.push(Step { node: index, again, renamed });
    }
}
