//! Tensors that this engine keeps outside of memory, and when it moves them.

use std::collections::{BTreeMap, HashMap};

use crate::Tensor;
use crate::liveness::{last_uses_of_outputs, last_uses_with_inputs};
use tiebreak_contract::program::graph::{Graph, TensorId};

/// When a graph's tensors are read for the last time.
pub(super) struct Lifetimes {
    /// For each node, the inputs and inner tensors whose last reader it is.
    pub dying: Vec<Vec<TensorId>>,
    /// Outputs that have the name of an input, with that input and the last node that makes or reads the output: they replace it.
    pub replaced: Vec<Replaced>,
}

pub(super) struct Replaced {
    input: TensorId,
    output: TensorId,
    last: usize,
}

impl Lifetimes {
    pub fn of(graph: &Graph) -> Lifetimes {
        let last: HashMap<TensorId, usize> = last_uses_of_outputs(graph).into_iter().collect();
        let inputs: HashMap<&str, TensorId> =
            graph.inputs.iter().map(|port| (port.name.as_str(), port.tensor)).collect();
        let replaced = graph.outputs.iter().filter_map(|port| {
            let (input, last) = (*inputs.get(port.name.as_str())?, *last.get(&port.tensor)?);
            Some(Replaced { input, output: port.tensor, last })
        });
        Lifetimes { replaced: replaced.collect(), dying: last_uses_with_inputs(graph) }
    }
}

/// The outputs that go outside of memory behind each node: those that replace an input which is there.
pub(super) fn are_outside(
    replaced: &[Replaced],
    values: &[Option<Tensor>],
    is_outside: impl Fn(&Tensor) -> bool,
) -> BTreeMap<usize, Vec<TensorId>> {
    let mut moves: BTreeMap<usize, Vec<TensorId>> = BTreeMap::new();
    for Replaced { input, output, last } in replaced {
        let value = values[input.0 as usize].as_ref().expect("every input is given");
        if is_outside(value) {
            moves.entry(*last).or_default().push(*output);
        }
    }
    moves
}
