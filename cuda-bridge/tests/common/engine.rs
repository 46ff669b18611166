//! Runs programs on translated kernels: the wgpu engine's dispatches, on the host.

use std::collections::HashMap;
use std::sync::Arc;

use cuda_bridge::host::{Buffer, Checks, HostKernel};
use cuda_bridge::tensor_core::Shape;
use cuda_bridge::translate::Options;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::{bytes_from_words, words_from_bytes};
use tiebreak_contract::program::element::{self, Source};
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId, TensorType};
use tiebreak_engine::{Compiled, Engine, EngineError, Inputs, Observer, Tensor};
use tiebreak_gpu::{Shader, Variant, shader};

/// A tensor as the kernels see it: words, quantised ones in the variant's own layout.
struct Storage {
    ty: TensorType,
    words: Vec<u32>,
}

/// An engine whose kernels are translated WGSL.
pub struct Shim {
    pub variant: Variant,
    pub options: Options,
    /// True if products of digit planes run on the tensor cores' kernel instead of the translated one.
    pub tensor_cores: bool,
    kernels: HashMap<String, Arc<HostKernel>>,
}

impl Shim {
    pub fn new(variant: Variant, options: Options) -> Shim {
        Shim { variant, options, tensor_cores: false, kernels: HashMap::new() }
    }

    pub fn with_tensor_cores(options: Options) -> Shim {
        Shim { tensor_cores: true, ..Shim::new(Variant::Dot, options) }
    }

    fn kernel(&mut self, text: &str) -> Arc<HostKernel> {
        let options = self.options;
        let make = || {
            let kernel = super::try_kernel(text, options).unwrap_or_else(|error| panic!("{error}\n{text}"));
            Arc::new(super::host(&kernel, Checks::default()))
        };
        self.kernels.entry(text.to_string()).or_insert_with(make).clone()
    }

    /// The tensor cores' kernel for a product, with its blocks.
    fn product(
        &mut self,
        graph: &Graph,
        node: &Node,
        groups: [u32; 3],
    ) -> Option<(Arc<HostKernel>, [u32; 3])> {
        let Primitive::Product { a, b, block, .. } = &node.primitive else { return None };
        if !self.tensor_cores {
            return None;
        }
        let (a, b) = (graph.tensor(*a), graph.tensor(*b));
        let digits = |ty: &TensorType| match ty.dtype {
            DType::Q(d) => u32::from(d),
            _ => unreachable!("products take quantised operands"),
        };
        let k = if *block == 0 { a.shape[2] } else { *block };
        let shape = Shape::new(digits(a), digits(b), k).unwrap();
        let options = self.options;
        let make = || Arc::new(super::host(&super::tensor_core(shape, options), Checks::default()));
        let kernel = self.kernels.entry(format!("{shape:?}")).or_insert_with(make).clone();
        let [rows, columns] = shape.tile();
        Some((kernel, [b.shape[1].div_ceil(columns), a.shape[1].div_ceil(rows), groups[2]]))
    }

    /// Words of a tensor in the kernels' layout: digit planes or whole q's, rows padded to 16 places.
    fn words(&self, ty: &TensorType) -> usize {
        match ty.dtype {
            DType::Q(d) => {
                let planes = if self.variant == Variant::Words { 4 } else { usize::from(d) };
                planes * (ty.shape[0] * ty.shape[1] * ty.shape[2].div_ceil(16) * 4) as usize
            }
            _ => ty.bytes().div_ceil(4),
        }
    }
}

/// Tensors that groupings read.
struct Words<'a>(&'a [Option<Tensor>]);

impl Source for Words<'_> {
    type Error = std::convert::Infallible;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, Self::Error> {
        let storage = self.0[tensor.0 as usize].as_ref().unwrap().storage::<Storage>();
        Ok(storage.words[index])
    }
}

/// The tensors that an observer may read.
struct Shown<'a>(&'a [Option<Tensor>], Variant);

impl Inputs for Shown<'_> {
    fn visit(&mut self, tensor: TensorId, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        visit(&canonical(self.0[tensor.0 as usize].as_ref().unwrap().storage(), self.1));
        Ok(())
    }
}

/// A quantised tensor's canonical bytes, from its layout here.
fn canonical(storage: &Storage, variant: Variant) -> Vec<u8> {
    let ty = &storage.ty;
    let DType::Q(d) = ty.dtype else {
        let bytes: Vec<u8> = storage.words.iter().flat_map(|w| w.to_le_bytes()).collect();
        return bytes[..ty.bytes()].to_vec();
    };
    let (rows, k) = ((ty.shape[0] * ty.shape[1]) as usize, ty.shape[2] as usize);
    let width = k.div_ceil(16) * 16;
    let bytes: Vec<u8> = storage.words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut out = Vec::new();
    for at in (0..rows).flat_map(|row| (0..k).map(move |j| row * width + j)) {
        let q = match variant {
            Variant::Words => i64::from(storage.words[at] as i32),
            _ => (0..d as usize).map(|p| i64::from(bytes[p * rows * width + at] as i8) << (8 * p)).sum(),
        };
        out.extend(&q.to_le_bytes()[..d as usize]);
    }
    out
}

impl Engine for Shim {
    fn describe(&self) -> String {
        let tensor_cores = if self.tensor_cores { " on tensor cores" } else { "" };
        format!(
            "translated kernels on the host, {:?} products{tensor_cores}, {:?}",
            self.variant, self.options
        )
    }

    fn upload(&mut self, ty: &TensorType, bytes: &[u8]) -> Result<Tensor, EngineError> {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(4), 0);
        let words = words_from_bytes(DType::U32, &padded);
        Ok(Tensor::new(Storage { ty: ty.clone(), words }))
    }

    fn read(&mut self, tensor: &Tensor, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        visit(&canonical(tensor.storage(), self.variant));
        Ok(())
    }

    fn compile(&mut self, graph: Arc<Graph>) -> Result<Compiled, EngineError> {
        Ok(Compiled::new(graph, ()))
    }

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let graph = compiled.graph.clone();
        let mut values: Vec<Option<Tensor>> = vec![None; graph.tensors.len()];
        for (port, tensor) in graph.inputs.iter().zip(inputs) {
            values[port.tensor.0 as usize] = Some(tensor.clone());
        }
        for (index, node) in graph.nodes.iter().enumerate() {
            let ty = graph.tensor(node.output);
            let words = if let Some(Shader { text, uniform, groups }) = shader(&graph, node, self.variant) {
                // A pattern that no kernel writes everywhere: words that a kernel leaves out show.
                let mut words = vec![0x5a5a_5a5a; self.words(ty)];
                if !groups.contains(&0) {
                    let (kernel, groups) = match self.product(&graph, node, groups) {
                        Some(product) => product,
                        None => (self.kernel(&text), groups),
                    };
                    let ids = node.primitive.inputs();
                    let read = |id: &TensorId| values[id.0 as usize].as_ref().unwrap().storage::<Storage>();
                    let mut buffers = vec![Buffer::Read(&uniform)];
                    buffers.extend(ids.iter().map(|id| Buffer::Read(&read(id).words)));
                    buffers.push(Buffer::Write(&mut words));
                    kernel.run(groups, &mut buffers).unwrap_or_else(|e| panic!("{}: {e}", node.operator));
                }
                words
            } else {
                // A grouping, which runs on the host.
                let Ok(words) = element::range(&graph, node, 0..ty.len(), &mut Words(&values));
                words_from_bytes(DType::U32, &bytes_from_words(ty.dtype, &words))
            };
            let storage = Storage { ty: ty.clone(), words };
            if let Some(observer) = observer.as_deref_mut().filter(|o| o.want(index, node).is_any()) {
                let bytes = canonical(&storage, self.variant);
                let changed = observer.node(index, node, &bytes, &mut Shown(&values, self.variant))?;
                assert!(changed.is_none(), "no observer here changes what it sees");
            }
            values[node.output.0 as usize] = Some(Tensor::new(storage));
        }
        Ok(graph.outputs.iter().map(|port| values[port.tensor.0 as usize].clone().unwrap()).collect())
    }
}
