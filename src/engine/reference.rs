//! The reference engine: every node element by element through the scalar reference, nothing clever. It confirms a
//! difference before anybody is accused, and the tests hold the other engines to it.

use std::convert::Infallible;
use std::sync::Arc;

use super::{Compiled, Engine, EngineError, Inputs, Observer, Tensor};
use crate::arith::DType;
use crate::arith::words::{bytes_from_words, words_from_bytes};
use crate::program::element::{self, Source};
use crate::program::graph::{Graph, Primitive, TensorId, TensorType};

/// Elements as words; integers of quantised tensors are sign-extended.
struct Words {
    dtype: DType,
    words: Vec<u32>,
}

/// The engine without state.
#[derive(Default)]
pub struct Reference;

struct Values<'a>(&'a [Option<Arc<Words>>]);

impl Inputs for Values<'_> {
    fn visit(&mut self, tensor: TensorId, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        let value = self.0[tensor.0 as usize].as_ref().expect("nodes run in order");
        visit(&bytes_from_words(value.dtype, &value.words));
        Ok(())
    }
}

impl Source for Values<'_> {
    type Error = Infallible;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, Infallible> {
        Ok(self.0[tensor.0 as usize].as_ref().expect("nodes run in order").words[index])
    }
}

impl Engine for Reference {
    fn describe(&self) -> String {
        "scalar reference".into()
    }

    fn upload(&mut self, ty: &TensorType, bytes: &[u8]) -> Result<Tensor, EngineError> {
        Ok(Tensor::new(Arc::new(Words { dtype: ty.dtype, words: words_from_bytes(ty.dtype, bytes) })))
    }

    fn read(&mut self, tensor: &Tensor, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        let value = tensor.storage::<Arc<Words>>();
        visit(&bytes_from_words(value.dtype, &value.words));
        Ok(())
    }

    fn compile(&mut self, graph: Arc<Graph>) -> Result<Compiled, EngineError> {
        if graph.nodes.iter().any(|node| matches!(node.primitive, Primitive::Native { .. })) {
            let reason =
                "the scalar reference has no native products; train with --engine cpu or wgpu".into();
            return Err(EngineError::Unsupported { device: self.describe(), reason });
        }
        Ok(Compiled::new(graph, ()))
    }

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let graph: &Graph = &compiled.graph;
        let mut values: Vec<Option<Arc<Words>>> = vec![None; graph.tensors.len()];
        for (port, tensor) in graph.inputs.iter().zip(inputs) {
            values[port.tensor.0 as usize] = Some(tensor.storage::<Arc<Words>>().clone());
        }
        for (index, node) in graph.nodes.iter().enumerate() {
            let ty = graph.tensor(node.output);
            let Ok(mut words) = element::range(graph, node, 0..ty.len(), &mut Values(&values));
            if let Some(observer) = observer.as_deref_mut()
                && observer.want(index, node).is_any()
                && let bytes = bytes_from_words(ty.dtype, &words)
                && let Some(bytes) = observer.node(index, node, &bytes, &mut Values(&values))?
            {
                words = words_from_bytes(ty.dtype, &bytes);
            }
            values[node.output.0 as usize] = Some(Arc::new(Words { dtype: ty.dtype, words }));
        }
        let output = |id: TensorId| Tensor::new(values[id.0 as usize].clone().expect("outputs are computed"));
        Ok(graph.outputs.iter().map(|port| output(port.tensor)).collect())
    }
}
