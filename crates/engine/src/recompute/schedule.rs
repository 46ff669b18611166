//! The choice of tensors that are computed again, and the graph that does it.

use std::collections::{HashMap, HashSet};

use tiebreak_contract::program::graph::{Graph, Node, TensorId};
use tiebreak_contract::program::step::port;

use crate::liveness::{live_bytes, peak_bytes};

/// A node of a graph with repetitions.
pub(super) struct Step {
    /// The node of the original graph that it computes.
    pub node: usize,
    /// True if the node was computed before.
    pub again: bool,
    /// Tensors that the node reads: those of the original graph, and those that stand for them. Others are the original ones.
    pub renamed: Vec<(TensorId, TensorId)>,
    /// The tensor that it makes: the node's own, or behind the original graph's tensors.
    output: TensorId,
}

impl Step {
    /// The tensor that stands for one of the original graph.
    pub fn now(&self, tensor: TensorId) -> TensorId {
        let renamed = self.renamed.iter().find(|(original, _)| *original == tensor);
        renamed.map_or(tensor, |&(_, now)| now)
    }
}

/// The nodes of a graph with repetitions, in its order.
pub(super) struct Schedule {
    pub steps: Vec<Step>,
    /// For each node of the original graph: true if it is computed again.
    pub repeated: Vec<bool>,
}

/// The most segments of a forward pass that are tried.
const SEGMENTS_MAX: usize = 512;
/// The most nodes of a graph that is divided: 20 times those of GPT-2. Foreign programs may have more.
const NODES_MAX: usize = 1 << 18;

/// The graph with repetitions that needs the least memory, among divisions of the forward pass into segments of about as many bytes
/// each. `None` if none needs less than the graph itself, if the graph has logged products, or too many nodes.
pub(super) fn schedule(graph: &Graph) -> Option<(Graph, Schedule)> {
    if !graph.logged.is_empty() || graph.nodes.len() > NODES_MAX {
        return None;
    }
    let pass = Pass { graph, inputs: graph.nodes.iter().map(|node| node.primitive.inputs()).collect() };
    let mut best = (peak_bytes(graph), None);
    for turn in turning_points(graph) {
        let across = pass.bytes_across(turn);
        let mut segments = 2;
        while segments <= SEGMENTS_MAX.min(turn) {
            let steps = pass.steps(&pass.segment_of(&across, segments));
            let peak = pass.peak(&steps);
            if peak < best.0 {
                best = (peak, Some(steps));
            }
            // Two numbers for each doubling: 2, 3, 4, 6, 8, ...
            segments += if segments.is_power_of_two() { segments / 2 } else { segments / 3 };
        }
    }
    let steps = best.1?;
    let repeated = with_repetitions(graph, &steps);
    let same = computes_the_same(graph, &repeated, &steps);
    debug_assert!(same, "a repetition computes something else");
    same.then(|| {
        let mut is_repeated = vec![false; graph.nodes.len()];
        steps.iter().filter(|step| step.again).for_each(|step| is_repeated[step.node] = true);
        (repeated, Schedule { steps, repeated: is_repeated })
    })
}

/// The nodes at which the backward pass may begin: the one behind the loss, and the one at which most bytes are alive.
fn turning_points(graph: &Graph) -> Vec<usize> {
    let makes = |tensor| graph.nodes.iter().position(|node| node.output == tensor);
    let loss = graph.output(port::LOSS).and_then(makes).map(|node| node + 1);
    let live = live_bytes(graph);
    let most = live.iter().max().copied().unwrap_or(0);
    let mut found: Vec<usize> =
        loss.into_iter().chain(live.iter().position(|&bytes| bytes == most)).collect();
    found.dedup();
    found
}

/// The nodes as a division needs them.
struct Pass<'g> {
    graph: &'g Graph,
    /// The tensors that each node reads.
    inputs: Vec<Vec<TensorId>>,
}

impl Pass<'_> {
    fn made(&self, node: usize) -> u64 {
        self.graph.tensor(self.graph.nodes[node].output).bytes() as u64
    }

    /// For each node of the forward pass, the bytes that nodes before it make for it and for later ones of the forward pass.
    fn bytes_across(&self, turn: usize) -> Vec<u64> {
        let mut last_read: HashMap<TensorId, usize> = HashMap::new();
        for (index, inputs) in self.inputs[..turn].iter().enumerate() {
            last_read.extend(inputs.iter().map(|&tensor| (tensor, index)));
        }
        let mut change = vec![0i64; turn + 1];
        for index in 0..turn {
            if let Some(&last) = last_read.get(&self.graph.nodes[index].output) {
                let bytes = self.made(index) as i64;
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

    /// The segment of each node of the forward pass. Segments begin where the fewest bytes are read across their border, near the
    /// borders of equal parts of all bytes that the forward pass makes.
    fn segment_of(&self, across: &[u64], segments: usize) -> Vec<usize> {
        let turn = across.len();
        let mut made = 0;
        let mut end = |node| {
            made += self.made(node);
            made
        };
        let ends: Vec<u64> = (0..turn).map(&mut end).collect();
        let part = ends.last().map_or(1, |all| all.div_ceil(segments as u64).max(1));
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
        let mut numbered = |begins: bool| {
            segment += usize::from(begins);
            segment
        };
        begins.into_iter().map(&mut numbered).collect()
    }

    /// For each tensor, its node if the backward pass computes it again: nodes of its own segment read it, and nodes of no other one.
    /// The last segment is not repeated, since its tensors are read at once.
    fn made_again(&self, segment_of: &[usize]) -> Vec<Option<usize>> {
        let last = segment_of.last().copied().unwrap_or(0);
        let mut made: Vec<Option<usize>> = vec![None; self.graph.tensors.len()];
        for node in (0..segment_of.len()).filter(|&node| segment_of[node] < last) {
            made[self.graph.nodes[node].output.0 as usize] = Some(node);
        }
        let (mut read, mut kept) = (vec![false; made.len()], vec![false; made.len()]);
        for (node, inputs) in self.inputs[..segment_of.len()].iter().enumerate() {
            for input in inputs.iter().map(|input| input.0 as usize) {
                let Some(made) = made[input] else { continue };
                let own = segment_of[made] == segment_of[node];
                if own {
                    read[input] = true
                } else {
                    kept[input] = true
                };
            }
        }
        self.graph.outputs.iter().for_each(|port| kept[port.tensor.0 as usize] = true);
        made.into_iter()
            .zip(read.into_iter().zip(kept))
            .map(|(node, (read, kept))| node.filter(|_| read && !kept))
            .collect()
    }

    /// The nodes with repetitions: a node behind the forward pass reads repetitions of what is made again.
    fn steps(&self, segment_of: &[usize]) -> Vec<Step> {
        let mut repeating = Repeating {
            pass: self,
            made_again: self.made_again(segment_of),
            steps: Vec::with_capacity(self.inputs.len()),
            now: vec![None; self.graph.tensors.len()],
            tensors: self.graph.tensors.len(),
        };
        for node in 0..self.inputs.len() {
            if node >= segment_of.len() {
                repeating.repeat_inputs_of(node);
            }
            repeating.add(node, false);
        }
        repeating.steps
    }

    /// The most bytes of tensors that are alive at once, as [`peak_bytes`] has them of a graph.
    fn peak(&self, steps: &[Step]) -> u64 {
        let graph = self.graph;
        let tensors = graph.tensors.len() + steps.iter().filter(|step| step.again).count();
        let touched = |step: &Step| -> Vec<usize> {
            let inputs = self.inputs[step.node].iter().map(|&id| step.now(id));
            inputs.chain([step.output]).map(|id| id.0 as usize).collect()
        };
        let mut last = vec![0; tensors];
        for (index, step) in steps.iter().enumerate() {
            touched(step).into_iter().for_each(|tensor| last[tensor] = index);
        }
        let ports = graph.inputs.iter().chain(&graph.outputs);
        ports.for_each(|port| last[port.tensor.0 as usize] = usize::MAX);
        let mut bytes = vec![0; tensors];
        let mut live: u64 = graph.inputs.iter().map(|port| graph.tensor(port.tensor).bytes() as u64).sum();
        let mut peak = live;
        for (index, step) in steps.iter().enumerate() {
            bytes[step.output.0 as usize] = self.made(step.node);
            live += self.made(step.node);
            peak = peak.max(live);
            for tensor in touched(step).into_iter().filter(|&tensor| last[tensor] == index) {
                // A tensor that is read twice dies once.
                live -= std::mem::take(&mut bytes[tensor]);
            }
        }
        peak
    }
}

/// A list of nodes with repetitions in the making.
struct Repeating<'p> {
    pass: &'p Pass<'p>,
    made_again: Vec<Option<usize>>,
    steps: Vec<Step>,
    /// The repetition of each tensor that has one.
    now: Vec<Option<TensorId>>,
    /// The number of tensors, repetitions included.
    tensors: usize,
}

impl Repeating<'_> {
    /// Repeats the nodes that a node needs, in their order.
    fn repeat_inputs_of(&mut self, node: usize) {
        let (mut needed, mut asked) = (HashSet::new(), self.pass.inputs[node].clone());
        while let Some(TensorId(tensor)) = asked.pop() {
            let Some(made) = self.made_again[tensor as usize] else { continue };
            if self.now[tensor as usize].is_none() && needed.insert(made) {
                asked.extend(&self.pass.inputs[made]);
            }
        }
        let mut needed: Vec<usize> = needed.into_iter().collect();
        needed.sort_unstable();
        needed.into_iter().for_each(|made| self.add(made, true));
    }

    /// Adds a node that reads the repetition of each input that has one. The forward pass itself runs before any repetition.
    fn add(&mut self, node: usize, again: bool) {
        let now = |&tensor: &TensorId| Some((tensor, self.now[tensor.0 as usize]?));
        let renamed = self.pass.inputs[node].iter().filter_map(now).collect();
        let mut output = self.pass.graph.nodes[node].output;
        if again {
            let repetition = TensorId(self.tensors as u32);
            self.now[output.0 as usize] = Some(repetition);
            self.tensors += 1;
            output = repetition;
        }
        self.steps.push(Step { node, again, renamed, output });
    }
}

/// The graph of these steps.
fn with_repetitions(graph: &Graph, steps: &[Step]) -> Graph {
    let repetitions = steps.iter().filter(|step| step.again);
    let types = repetitions.map(|step| graph.tensor(graph.nodes[step.node].output).clone());
    let node = |step: &Step| {
        let node = &graph.nodes[step.node];
        let primitive = node.primitive.map_inputs(|tensor| step.now(tensor));
        Node { operator: node.operator.clone(), primitive, output: step.output }
    };
    Graph {
        tensors: graph.tensors.iter().cloned().chain(types).collect(),
        inputs: graph.inputs.clone(),
        nodes: steps.iter().map(node).collect(),
        outputs: graph.outputs.clone(),
        logged: Vec::new(),
    }
}

/// True if each tensor of `repeated` has the value of one of `graph`, by induction over the nodes: each node is a node of the graph
/// that reads tensors of the same values, all made before. This check knows nothing of how the repetitions were chosen. The scalar
/// reference that confirms a difference may run such a graph too.
fn computes_the_same(graph: &Graph, repeated: &Graph, steps: &[Step]) -> bool {
    // The tensor of the graph whose value a tensor has, once it has one.
    let mut stands_for: Vec<Option<TensorId>> = vec![None; repeated.tensors.len()];
    for port in &graph.inputs {
        stands_for[port.tensor.0 as usize] = Some(port.tensor);
    }
    let mut first = 0;
    for (found, step) in repeated.nodes.iter().zip(steps) {
        let node = &graph.nodes[step.node];
        let mut all_made = true;
        let read = found.primitive.map_inputs(|tensor| {
            let value = stands_for[tensor.0 as usize];
            all_made &= value.is_some();
            value.unwrap_or(tensor)
        });
        let place = found.output.0 as usize;
        let type_is_same = repeated.tensors[place] == *graph.tensor(node.output);
        if !all_made || read != node.primitive || !type_is_same || stands_for[place].is_some() {
            return false;
        }
        stands_for[place] = Some(node.output);
        if !step.again {
            if step.node != first || found.output != node.output {
                return false;
            }
            first += 1;
        }
    }
    let ports = repeated.inputs == graph.inputs && repeated.outputs == graph.outputs;
    ports && first == graph.nodes.len() && repeated.nodes.len() == steps.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::program::graph::Primitive;
    use tiebreak_contract::program::models::{Gpt, Model};
    use tiebreak_contract::program::optimizer::Optimizer;
    use tiebreak_contract::program::products::ProductTable;
    use tiebreak_contract::program::step::{Program, StepSpec};

    fn graph() -> Graph {
        let gpt = Gpt { vocabulary: 11, context: 4, layers: 3, heads: 2, width: 8, ..Gpt::default() };
        let spec = StepSpec {
            model: Model::Gpt(gpt),
            optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 },
            clip_norm: None,
            loss: Default::default(),
            micro_batch: 4,
            micro_batches: 1,
            products: ProductTable::preset(),
        };
        Program::new(spec).micro
    }

    /// Every wrong input, order, type, output and number of nodes is found in a graph with repetitions.
    #[test]
    fn a_graph_that_computes_something_else_is_found() {
        let graph = graph();
        let (right, Schedule { steps, repeated }) = schedule(&graph).unwrap();
        assert!(computes_the_same(&graph, &right, &steps) && repeated.contains(&true));
        let again = steps.iter().position(|step| step.again).unwrap();
        let found = |what: &str, change: &dyn Fn(&mut Graph)| {
            let mut other = right.clone();
            change(&mut other);
            assert!(!computes_the_same(&graph, &other, &steps), "{what}");
        };
        let inputs = |node: &Node| node.primitive.inputs();
        // Each input of each node, as another tensor of the same type that was made before.
        let mut changed = 0;
        for (index, node) in right.nodes.iter().enumerate() {
            for (number, input) in inputs(node).into_iter().enumerate() {
                let ty = right.tensor(input);
                let standing =
                    |id: TensorId| steps.iter().find(|step| step.output == id).map(|step| step.node);
                let earlier = right.nodes[..index].iter().map(|node| node.output);
                let mut others = earlier.filter(|&id| id != input && right.tensor(id) == ty);
                let Some(other) = others.find(|&id| standing(id) != standing(input)) else { continue };
                changed += 1;
                found("another input", &|graph| {
                    let mut at = 0;
                    graph.nodes[index].primitive = graph.nodes[index].primitive.map_inputs(|id| {
                        at += 1;
                        if at - 1 == number { other } else { id }
                    });
                });
            }
        }
        assert!(changed > 100, "{changed}");
        // A repetition that reads kept tensors, before any node has made them.
        let (mut early, Schedule { steps: mut moved, .. }) = schedule(&graph).unwrap();
        let is_input = |id: &TensorId| graph.inputs.iter().any(|port| port.tensor == *id);
        let kept = |index: usize| moved[index].again && moved[index].renamed.is_empty();
        let kept =
            (0..moved.len()).find(|&index| kept(index) && !inputs(&early.nodes[index]).iter().any(is_input));
        let kept = kept.unwrap();
        let (node, step) = (early.nodes.remove(kept), moved.remove(kept));
        early.nodes.insert(0, node);
        moved.insert(0, step);
        assert!(!computes_the_same(&graph, &early, &moved), "a repetition before its inputs");
        found("a node twice in one tensor", &|graph| {
            graph.nodes[again].output = graph.nodes[again - 1].output
        });
        found("another type", &|graph| graph.tensors[steps[again].output.0 as usize].shape.push(1));
        found("another computation", &|graph| {
            let other =
                graph.nodes.iter().position(|node| matches!(node.primitive, Primitive::RowMax { .. }));
            graph.nodes[again].primitive = graph.nodes[other.unwrap()].primitive.clone();
        });
        found("too few nodes", &|graph| drop(graph.nodes.pop()));
        found("another output", &|graph| graph.outputs.swap(0, 1));
        found("another input port", &|graph| graph.inputs.swap(0, 1));
    }

    /// A program of very many nodes takes no time to divide.
    #[test]
    fn very_many_nodes_are_run_as_they_are() {
        let mut many = graph();
        while many.nodes.len() <= NODES_MAX {
            many.nodes.extend_from_within(..);
        }
        assert!(schedule(&many).is_none());
    }
}
