//! An observer of a graph, while the graph with repetitions runs.

use std::collections::HashMap;
use std::ops::Range;

use tiebreak_contract::program::graph::{Graph, Node, TensorId};

use super::schedule::{Schedule, Step};
use crate::{EngineError, Inputs, Observer, QuantisedTensor, Value, Want};

/// Ranges of a tensor's bytes, and the bytes that stand there instead.
type Replacements = Vec<(Range<usize>, Vec<u8>)>;

/// Shows an observer each node of the original graph once. Bytes that it puts in place of a node's are those of the repetition too.
pub(super) struct Watching<'a> {
    observer: &'a mut dyn Observer,
    graph: &'a Graph,
    schedule: &'a Schedule,
    /// For nodes that are computed again, where the observer's bytes differ from the computed ones.
    replaced: HashMap<usize, Replacements>,
}

impl<'a> Watching<'a> {
    pub fn new(observer: &'a mut dyn Observer, graph: &'a Graph, schedule: &'a Schedule) -> Watching<'a> {
        Watching { observer, graph, schedule, replaced: HashMap::new() }
    }

    fn step(&self, index: usize) -> (&'a Step, &'a Node) {
        let step = &self.schedule.steps[index];
        (step, &self.graph.nodes[step.node])
    }
}

impl Observer for Watching<'_> {
    fn want(&self, index: usize, _: &Node) -> Want {
        let (step, node) = self.step(index);
        match self.observer.want(step.node, node) {
            // Only who sees bytes replaces them.
            wanted if step.again => {
                if matches!(wanted, Want::Bytes) {
                    wanted
                } else {
                    Want::No
                }
            }
            // A summary names tensors of the original graph, which may be gone: the observer makes it of the bytes.
            Want::Summary(_) if !step.renamed.is_empty() => Want::Bytes,
            wanted => wanted,
        }
    }

    fn summary(&mut self, index: usize, _: &Node, value: Value) -> Result<(), EngineError> {
        let (step, node) = self.step(index);
        self.observer.summary(step.node, node, value)
    }

    fn tiles(&mut self, index: usize, _: &Node, tiles: Vec<[u8; 32]>) -> Result<(), EngineError> {
        let (step, node) = self.step(index);
        if step.again { Ok(()) } else { self.observer.tiles(step.node, node, tiles) }
    }

    fn node(
        &mut self,
        index: usize,
        _: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let (step, node) = self.step(index);
        if step.again {
            let replaced = self.replaced.remove(&step.node);
            return Ok(replaced.map(|ranges| {
                let mut bytes = bytes.to_vec();
                ranges.into_iter().for_each(|(range, put)| bytes[range].copy_from_slice(&put));
                bytes
            }));
        }
        let replaced = self.observer.node(step.node, node, bytes, &mut Renamed { inputs, step })?;
        if let Some(put) = replaced.as_ref().filter(|_| self.schedule.repeated[step.node]) {
            self.replaced.insert(step.node, differences(bytes, put));
        }
        Ok(replaced)
    }
}

/// The ranges in which two tensors' bytes differ, with the bytes of the second one.
fn differences(a: &[u8], b: &[u8]) -> Replacements {
    let mut found = Replacements::new();
    for (at, (_, y)) in a.iter().zip(b).enumerate().filter(|(_, (x, y))| x != y) {
        match found.last_mut() {
            Some((range, put)) if range.end == at => {
                range.end += 1;
                put.push(*y);
            }
            _ => found.push((at..at + 1, vec![*y])),
        }
    }
    found
}

/// The tensors that a node reads, by their names in the original graph.
struct Renamed<'a> {
    inputs: &'a mut dyn Inputs,
    step: &'a Step,
}

impl Inputs for Renamed<'_> {
    fn visit(&mut self, tensor: TensorId, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        self.inputs.visit(self.step.now(tensor), visit)
    }

    fn visit_rows(
        &mut self,
        tensor: QuantisedTensor,
        rows: &[usize],
        visit: &(dyn Fn(usize, &[i32]) + Sync),
    ) -> Result<(), EngineError> {
        let id = self.step.now(tensor.id);
        self.inputs.visit_rows(QuantisedTensor { id, ..tensor }, rows, visit)
    }
}
