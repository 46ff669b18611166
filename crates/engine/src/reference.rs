//! The reference engine: every node element by element through the scalar reference, without optimisation. The engine confirms a
//! difference before anybody is accused, and the tests compare the other engines with it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use super::liveness::last_uses_with_inputs;
use super::{Compiled, Engine, EngineError, Inputs, Observer, Tensor};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::{bytes_from_words, word_from_bytes};
use tiebreak_contract::program::element::{self, Source};
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId, TensorType};

/// A tensor's canonical bytes, so that the tensor takes no more memory than a plan counts.
struct Elements {
    dtype: DType,
    bytes: Vec<u8>,
}

/// The engine without state.
#[derive(Default)]
pub struct Reference;

/// Receives the arithmetic operations that were done since its last call, as [`operations`] counts them.
pub type Watch<'a> = &'a mut (dyn FnMut(u64) + Send);

/// The reference engine for long steps.
#[derive(Default)]
pub struct ReferenceUntil<'a> {
    /// The time at which it stops, even inside of a node, with [`EngineError::OutOfTime`].
    pub end: Option<Instant>,
    /// The observer of its progress.
    pub watch: Option<Watch<'a>>,
}

/// The arithmetic operations of a graph, with one more for each element, by which the engine's time is foreseen.
pub fn operations(graph: &Graph) -> u64 {
    graph.nodes.iter().map(|node| operations_of(graph, node)).fold(0, u64::saturating_add)
}

fn operations_of(graph: &Graph, node: &Node) -> u64 {
    graph.flops(node).saturating_add(graph.tensor(node.output).len() as u64)
}

/// Elements that are computed between two checks of the clock.
const CHUNK: usize = 1024;

struct Values<'a>(&'a [Option<Arc<Elements>>]);

impl Inputs for Values<'_> {
    fn visit(&mut self, tensor: TensorId, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        visit(&self.0[tensor.0 as usize].as_ref().expect("nodes run in order").bytes);
        Ok(())
    }
}

impl Source for Values<'_> {
    type Error = Infallible;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, Infallible> {
        let Elements { dtype, bytes } = &**self.0[tensor.0 as usize].as_ref().expect("nodes run in order");
        let size = dtype.size();
        Ok(word_from_bytes(*dtype, &bytes[index * size..(index + 1) * size]))
    }
}

/// A node's output, in canonical bytes.
fn output(
    graph: &Graph,
    node: &Node,
    values: &mut Values,
    limits: &mut ReferenceUntil,
) -> Result<Vec<u8>, EngineError> {
    let ty = graph.tensor(node.output);
    let whole = matches!(node.primitive, Primitive::GroupOrder { .. } | Primitive::GroupOffsets { .. });
    let step = if whole { ty.len().max(1) } else { CHUNK };
    let mut bytes = Vec::with_capacity(ty.bytes());
    let mut left = operations_of(graph, node);
    let each = left / ty.len().max(1) as u64;
    for first in (0..ty.len()).step_by(step) {
        if limits.end.is_some_and(|end| Instant::now() > end) {
            return Err(EngineError::OutOfTime);
        }
        let Ok(words) = element::range(graph, node, first..ty.len().min(first + step), values);
        bytes.extend(bytes_from_words(ty.dtype, &words));
        if let Some(watch) = &mut limits.watch {
            // The last elements have what the division left over.
            let done = if first + step < ty.len() { each * words.len() as u64 } else { left };
            left -= done;
            watch(done);
        }
    }
    Ok(bytes)
}

/// Runs a graph. A tensor is freed after the last node that reads it, if the caller holds no other reference to it.
fn run(
    compiled: &Compiled,
    inputs: Vec<Tensor>,
    mut observer: Option<&mut dyn Observer>,
    limits: &mut ReferenceUntil,
) -> Result<Vec<Tensor>, EngineError> {
    let graph: &Graph = &compiled.graph;
    let dying = compiled.of::<Vec<Vec<TensorId>>>();
    let mut values: Vec<Option<Arc<Elements>>> = vec![None; graph.tensors.len()];
    for (port, tensor) in graph.inputs.iter().zip(inputs) {
        values[port.tensor.0 as usize] = Some(tensor.storage::<Arc<Elements>>().clone());
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let mut bytes = output(graph, node, &mut Values(&values), limits)?;
        if let Some(observer) = observer.as_deref_mut()
            && observer.want(index, node).is_any()
            && let Some(changed) = observer.node(index, node, &bytes, &mut Values(&values))?
        {
            bytes = changed;
        }
        let dtype = graph.tensor(node.output).dtype;
        values[node.output.0 as usize] = Some(Arc::new(Elements { dtype, bytes }));
        dying[index].iter().for_each(|id| values[id.0 as usize] = None);
    }
    let output = |id: TensorId| Tensor::new(values[id.0 as usize].clone().expect("outputs are computed"));
    Ok(graph.outputs.iter().map(|port| output(port.tensor)).collect())
}

impl Engine for Reference {
    fn describe(&self) -> String {
        "scalar reference".into()
    }

    fn upload(&mut self, ty: &TensorType, bytes: &[u8]) -> Result<Tensor, EngineError> {
        Ok(Tensor::new(Arc::new(Elements { dtype: ty.dtype, bytes: bytes.to_vec() })))
    }

    fn read(&mut self, tensor: &Tensor, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        visit(&tensor.storage::<Arc<Elements>>().bytes);
        Ok(())
    }

    fn is_on_host(&self) -> bool {
        true
    }

    fn compile(&mut self, graph: Arc<Graph>) -> Result<Compiled, EngineError> {
        if graph.nodes.iter().any(|node| matches!(node.primitive, Primitive::Native { .. })) {
            let reason =
                "the scalar reference has no native products; train with --engine cpu or wgpu".into();
            return Err(EngineError::Unsupported { device: self.describe(), reason });
        }
        let dying = last_uses_with_inputs(&graph);
        Ok(Compiled::new(graph, dying))
    }

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        self.run_owning(compiled, inputs.to_vec(), observer)
    }

    fn run_owning(
        &mut self,
        compiled: &Compiled,
        inputs: Vec<Tensor>,
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        run(compiled, inputs, observer, &mut ReferenceUntil::default())
    }
}

impl Engine for ReferenceUntil<'_> {
    fn describe(&self) -> String {
        Reference.describe()
    }

    fn upload(&mut self, ty: &TensorType, bytes: &[u8]) -> Result<Tensor, EngineError> {
        Reference.upload(ty, bytes)
    }

    fn read(&mut self, tensor: &Tensor, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        Reference.read(tensor, visit)
    }

    fn is_on_host(&self) -> bool {
        true
    }

    fn compile(&mut self, graph: Arc<Graph>) -> Result<Compiled, EngineError> {
        Reference.compile(graph)
    }

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        self.run_owning(compiled, inputs.to_vec(), observer)
    }

    fn run_owning(
        &mut self,
        compiled: &Compiled,
        inputs: Vec<Tensor>,
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        run(compiled, inputs, observer, self)
    }
}
