//! A step of the logged profile and the same step by its kernels alone, for the benchmarks that compare the two.

use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId, View};
use tiebreak_contract::program::logged::native_graph;
use tiebreak_contract::program::phase::Phase;
use tiebreak_engine::Observer;
use tiebreak_engine::session::StepObserver;
use tiebreak_run::observers::record::Rounder;

/// Lets a side of the logged profile observe a step.
pub struct Observed<'a>(pub &'a mut dyn Rounder);

impl StepObserver for Observed<'_> {
    fn phase(&mut self, phase: Phase, graph: &Graph) -> Option<&mut dyn Observer> {
        self.0.begin(phase, graph);
        Some(self.0)
    }
}

/// The native graph without roundings, to measure the trainer's kernels alone, with or without the casts to their input format.
pub fn plain_graph(graph: &Graph, casts: bool) -> Graph {
    let mut native = native_graph(graph);
    let mut instead: Vec<TensorId> = (0..native.tensors.len() as u32).map(TensorId).collect();
    for logged in &native.logged {
        if !logged.rule.is_wide() {
            instead[logged.output.0 as usize] = logged.product;
        }
    }
    for node in &native.nodes {
        if let Primitive::Map { body, inputs, .. } = &node.primitive
            && body.name == "to_bf16.v1"
            && !casts
        {
            instead[node.output.0 as usize] = inputs[0].tensor;
        }
    }
    let resolve = |mut id: TensorId| {
        while instead[id.0 as usize] != id {
            id = instead[id.0 as usize];
        }
        id
    };
    let view = |view: &View| View { tensor: resolve(view.tensor), ..view.clone() };
    let removed = |node: &Node| instead[node.output.0 as usize] != node.output;
    native.nodes.retain(|node| !removed(node) && !matches!(node.primitive, Primitive::Absmax { .. }));
    for node in &mut native.nodes {
        match &mut node.primitive {
            Primitive::Map { inputs, .. } => inputs.iter_mut().for_each(|input| *input = view(input)),
            Primitive::Native { a, b } => (*a, *b) = (view(a), view(b)),
            Primitive::Gather { table: input, .. }
            | Primitive::Im2col { input, .. }
            | Primitive::RowMax { input, .. }
            | Primitive::TreeSum { input, .. }
            | Primitive::SegmentSum { input, .. } => *input = resolve(*input),
            _ => {}
        }
    }
    for port in &mut native.outputs {
        port.tensor = resolve(port.tensor);
    }
    native
}
