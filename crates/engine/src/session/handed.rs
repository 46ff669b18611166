//! A graph whose outputs are handed out as soon as they are finished, while the engine computes the others.

use std::collections::HashMap;

use crate::{Compiled, Engine, EngineError, Inputs, Observer, Tensor, Value, Want};
use tiebreak_contract::arith::tree::Operation;
use tiebreak_contract::program::graph::{Graph, Node, TensorId};

/// Takes the canonical bytes of a finished tensor: the number of its sum, and its place in [`Program::gradients`].
///
/// [`Program::gradients`]: tiebreak_contract::program::step::Program::gradients
#[doc(hidden)] // for the layers above
pub type Give<'a> = dyn FnMut(usize, usize, &[u8]) -> Result<(), EngineError> + Send + 'a;

/// A sum to hand out: its number, and whoever takes it.
pub(super) struct Hand<'a, 'g> {
    sum: usize,
    give: &'a mut Give<'g>,
}

/// For each operation, the place of its result in the final stack, if it stays there.
pub(super) fn final_places(operations: &[Operation]) -> Vec<Option<usize>> {
    let mut stack = Vec::new();
    for (index, operation) in operations.iter().enumerate() {
        if matches!(operation, Operation::Add(_)) {
            stack.truncate(stack.len().saturating_sub(2));
        }
        stack.push(index);
    }
    let mut places = vec![None; operations.len()];
    stack.into_iter().enumerate().for_each(|(place, index)| places[index] = Some(place));
    places
}

/// `give`, for the operation whose result has this place, if that is one.
pub(super) fn hand<'a, 'g>(
    give: &'a mut Option<&mut Give<'g>>,
    place: Option<usize>,
) -> Option<Hand<'a, 'g>> {
    let give = give.as_deref_mut()?;
    place.map(|sum| Hand { sum, give })
}

/// Runs a graph whose outputs are gradients, and hands them out.
pub(super) fn run(
    engine: &mut dyn Engine,
    compiled: &Compiled,
    start: impl FnOnce(&mut dyn Engine, Option<&mut dyn Observer>) -> Result<Vec<Tensor>, EngineError>,
    observer: Option<&mut dyn Observer>,
    hand: Option<Hand>,
) -> Result<Vec<Tensor>, EngineError> {
    let Some(Hand { sum, give }) = hand else { return start(engine, observer) };
    let mut places: HashMap<TensorId, Vec<usize>> = HashMap::new();
    for (place, port) in compiled.graph.outputs.iter().enumerate() {
        places.entry(port.tensor).or_default().push(place);
    }
    let (outputs, given) = match engine.is_on_host() {
        false => (start(engine, observer)?, HashMap::new()),
        true => {
            let made = made(&compiled.graph, &places);
            let mut handing = Handing { observer, sum, give: &mut *give, made };
            (start(engine, Some(&mut handing))?, handing.made)
        }
    };
    let left = (0..outputs.len()).filter(|place| !given.values().flatten().any(|given| given == place));
    for place in left {
        let mut taken = Ok(());
        engine.read(&outputs[place], &mut |bytes| taken = give(sum, place, bytes))?;
        taken?;
    }
    Ok(outputs)
}

/// For each node that makes outputs of a graph, their places.
fn made(graph: &Graph, places: &HashMap<TensorId, Vec<usize>>) -> HashMap<usize, Vec<usize>> {
    let nodes = graph.nodes.iter().enumerate();
    nodes.filter_map(|(index, node)| Some((index, places.get(&node.output)?.clone()))).collect()
}

/// An observer of a graph that also hands out the graph's outputs.
struct Handing<'o, 'a, 'g> {
    observer: Option<&'o mut dyn Observer>,
    sum: usize,
    give: &'a mut Give<'g>,
    /// The places of the outputs that a node makes.
    made: HashMap<usize, Vec<usize>>,
}

impl Handing<'_, '_, '_> {
    fn wanted(&self, index: usize, node: &Node) -> Want {
        self.observer.as_ref().map_or(Want::No, |observer| observer.want(index, node))
    }
}

impl Observer for Handing<'_, '_, '_> {
    fn want(&self, index: usize, node: &Node) -> Want {
        if self.made.contains_key(&index) { Want::Bytes } else { self.wanted(index, node) }
    }

    fn summary(&mut self, index: usize, node: &Node, value: Value) -> Result<(), EngineError> {
        self.observer.as_mut().map_or(Ok(()), |observer| observer.summary(index, node, value))
    }

    fn tiles(&mut self, index: usize, node: &Node, tiles: Vec<[u8; 32]>) -> Result<(), EngineError> {
        self.observer.as_mut().map_or(Ok(()), |observer| observer.tiles(index, node, tiles))
    }

    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        // An observer that wants tiles or a summary makes them of the bytes, as it does on engines that only show bytes.
        let is_wanted = self.wanted(index, node).is_any();
        let replaced = match self.observer.as_mut().filter(|_| is_wanted) {
            Some(observer) => observer.node(index, node, bytes, inputs)?,
            None => None,
        };
        let bytes = replaced.as_deref().unwrap_or(bytes);
        for &place in self.made.get(&index).into_iter().flatten() {
            (self.give)(self.sum, place, bytes)?;
        }
        Ok(replaced)
    }
}
