//! The wgpu engine: programs in integer WGSL on any GPU, or software adapter, that has Vulkan, Metal or DX12.
//!
//! Every node is one dispatch of a linted shader; tensors stay on the GPU for the whole graph, in pooled buffers that
//! are reused as soon as their last reader is recorded.

mod device;
pub mod kernels;
mod layout;
mod map;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use device::{AdapterName, adapters};
use device::{Buffer, Device, Dispatch};
use kernels::{Step, step_of};

use super::plan::last_uses;
use super::{Compiled, Engine, EngineError, Inputs, Observer, Tensor};
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::element::{self, Source};
use crate::program::graph::{Graph, Node, Primitive, TensorId, TensorType};
use crate::program::products::{ProductClass, ProductTable};
pub use crate::shaders::product::Variant;

/// Dispatches of one submission.
const BATCH: usize = 128;

/// What a tensor is in GPU memory.
struct Storage {
    buffer: Buffer,
    ty: TensorType,
    /// Small integers that came from the host, for groupings, which run there.
    host: Option<Vec<u32>>,
}

/// A graph made ready: a step for each node and the uniform data of all of them.
struct Plan {
    steps: Vec<Step>,
    uniforms: wgpu::Buffer,
    dying: Vec<Vec<TensorId>>,
}

/// The engine on one adapter.
pub struct Gpu {
    device: Device,
    /// How it computes products.
    variant: Variant,
}

impl Gpu {
    /// Opens an adapter by a part of its name, or the best one, and tests it: every operator of small programs with
    /// ordinary and extreme inputs must equal the scalar reference.
    ///
    /// # Errors
    /// If there is none, it cannot be opened, or it fails the test.
    pub fn open(name: Option<&str>) -> Result<Gpu, EngineError> {
        let device = Device::open(name)?;
        // On software adapters the others are slower by far (benches/gpu_product.rs), and slow to try.
        let variant = if device.software { Some(Variant::Words) } else { None };
        Gpu { device, variant: Variant::Dot }.chosen(variant)?.tested()
    }

    /// [`Gpu::open`], with products by a given variant instead of the fastest.
    pub fn open_with(name: Option<&str>, variant: Variant) -> Result<Gpu, EngineError> {
        Gpu { device: Device::open(name)?, variant }.tested()
    }

    /// Sets the variant given, or the one that is fastest on this adapter for a product of two digits.
    fn chosen(mut self, variant: Option<Variant>) -> Result<Gpu, EngineError> {
        if let Some(variant) = variant {
            return Ok(Gpu { variant, ..self });
        }
        const SIDE: u32 = 512;
        let mut builder = Builder::new(ProductTable::uniform(2));
        let a = builder.input("a", DType::F32, &[SIDE, SIDE]);
        let b = builder.input("b", DType::F32, &[SIDE, SIDE]);
        let (view_a, view_b) = (builder.whole(a), builder.whole(b));
        let output = builder.product(ProductClass::Linear, view_a, view_b, &[SIDE, SIDE]);
        builder.output("product", output);
        let graph = Arc::new(builder.finish());
        let bytes: Vec<u8> =
            (0..SIDE * SIDE).flat_map(|i| ((i * i % 1009) as f32 - 504.0).to_le_bytes()).collect();
        let ty = graph.tensor(graph.inputs[0].tensor).clone();
        let mut fastest: Option<(Duration, Variant)> = None;
        for variant in Variant::ALL {
            self.variant = variant;
            let compiled = self.compile(graph.clone())?;
            let inputs = [self.upload(&ty, &bytes)?, self.upload(&ty, &bytes)?];
            // The first run also compiles and allocates.
            for _ in 0..3 {
                let begin = Instant::now();
                let outputs = self.run(&compiled, &inputs, None)?;
                self.read(&outputs[0], &mut |_| {})?;
                let time = begin.elapsed();
                if fastest.is_none_or(|(least, _)| time < least) {
                    fastest = Some((time, variant));
                }
            }
        }
        self.variant = fastest.map_or(Variant::Dot, |(_, variant)| variant);
        Ok(self)
    }

    /// The engine, if it passes its self-test.
    fn tested(mut self) -> Result<Gpu, EngineError> {
        let gpu = &mut self;
        let expected = super::fingerprint::fingerprint(&mut super::reference::Reference)?;
        if super::fingerprint::fingerprint(gpu)? != expected {
            let check = "an operator's bits differ from the scalar reference".into();
            return Err(EngineError::SelfTest { device: self.device.name, check });
        }
        Ok(self)
    }

    fn upload_any(&self, ty: &TensorType, bytes: &[u8]) -> Storage {
        let DType::Q(d) = ty.dtype else { return self.upload_words(ty, bytes, false) };
        let buffer = self.device.buffer(self.bytes(ty));
        self.device.write(buffer.raw(), &layout::from_canonical(ty, d, self.variant, bytes));
        Storage { buffer, ty: ty.clone(), host: None }
    }

    fn upload_words(&self, ty: &TensorType, bytes: &[u8], keep: bool) -> Storage {
        let buffer = self.device.buffer(self.bytes(ty));
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(4), 0);
        self.device.write(buffer.raw(), &padded);
        let host =
            (keep && ty.dtype == DType::U32).then(|| super::reference::words_from_bytes(ty.dtype, bytes));
        Storage { buffer, ty: ty.clone(), host }
    }

    /// Shows a tensor in the canonical layout.
    fn show(&self, storage: &Storage, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        let bytes = self.bytes(&storage.ty);
        match storage.ty.dtype {
            DType::Q(d) => self.device.read(storage.buffer.raw(), bytes, &mut |stored| {
                visit(&layout::to_canonical(&storage.ty, d, self.variant, stored));
            }),
            _ => self.device.read(storage.buffer.raw(), bytes, visit),
        }
    }
}

/// The tensors of a run, for its observer.
struct Shown<'a> {
    gpu: &'a Gpu,
    values: &'a [Option<Tensor>],
}

impl Inputs for Shown<'_> {
    fn visit(&mut self, tensor: TensorId, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        let tensor = self.values[tensor.0 as usize].as_ref().expect("nodes run in order");
        self.gpu.show(tensor.storage(), visit)
    }
}

/// Batch tensors on the host.
struct HostWords<'a>(&'a [Option<Tensor>]);

impl Source for HostWords<'_> {
    type Error = std::convert::Infallible;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, Self::Error> {
        let storage = self.0[tensor.0 as usize].as_ref().expect("nodes run in order").storage::<Storage>();
        Ok(storage.host.as_ref().expect("groupings read batch tensors only")[index])
    }
}

impl Engine for Gpu {
    fn describe(&self) -> String {
        format!("wgpu: {}, {:?} products", self.device.name, self.variant)
    }

    fn upload(&mut self, ty: &TensorType, bytes: &[u8]) -> Result<Tensor, EngineError> {
        if self.bytes(ty) > self.device.binding_max() {
            return Err(self.too_large("an input", ty));
        }
        let storage = self.upload_words(ty, bytes, true);
        self.device.check()?;
        Ok(Tensor::new(storage))
    }

    fn read(&mut self, tensor: &Tensor, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        self.show(tensor.storage(), visit)
    }

    fn compile(&mut self, graph: Arc<Graph>) -> Result<Compiled, EngineError> {
        let mut data = Vec::new();
        let mut steps = Vec::new();
        for node in &graph.nodes {
            let ty = graph.tensor(node.output);
            if self.bytes(ty) > self.device.binding_max() {
                return Err(self.too_large(&node.operator, ty));
            }
            if let Some(reason) = kernels::refusal(&graph, node, self.variant) {
                return Err(EngineError::Unsupported { device: self.device.name.clone(), reason });
            }
            steps.push(step_of(&mut self.device, self.variant, &graph, node, &mut data)?);
        }
        self.device.check()?;
        let uniforms = self.device.uniforms(&data);
        let dying = last_uses(&graph);
        Ok(Compiled::new(graph, Plan { steps, uniforms, dying }))
    }

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let graph: &Graph = &compiled.graph;
        let plan = compiled.of::<Plan>();
        let mut values: Vec<Option<Tensor>> = vec![None; graph.tensors.len()];
        for (port, tensor) in graph.inputs.iter().zip(inputs) {
            values[port.tensor.0 as usize] = Some(tensor.clone());
        }
        // Recorded dispatches keep the tensors they touch until they are submitted.
        let mut recorded: Vec<(usize, Vec<Tensor>)> = Vec::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            let output = self.record(graph, index, node, &values, &plan.steps[index], &mut recorded)?;
            values[node.output.0 as usize] = Some(output.clone());
            let wanted = observer.as_deref().is_some_and(|observer| observer.wants(index, node));
            if wanted || recorded.len() >= BATCH || index + 1 == graph.nodes.len() {
                self.submit(plan, &mut recorded)?;
            }
            if let Some(observer) = observer.as_deref_mut()
                && wanted
            {
                let mut shown = Ok(None);
                let mut inputs = Shown { gpu: self, values: &values };
                self.show(output.storage(), &mut |bytes| {
                    shown = observer.node(index, node, bytes, &mut inputs);
                })?;
                if let Some(bytes) = shown? {
                    let storage = self.upload_any(graph.tensor(node.output), &bytes);
                    values[node.output.0 as usize] = Some(Tensor::new(storage));
                }
            }
            for id in &plan.dying[index] {
                values[id.0 as usize] = None;
            }
        }
        let output = |id: TensorId| values[id.0 as usize].clone().expect("outputs are computed");
        let outputs = graph.outputs.iter().map(|port| output(port.tensor)).collect();
        self.device.trim();
        Ok(outputs)
    }
}

impl Gpu {
    /// Allocates a node's output and records its dispatch, or computes a grouping on the host.
    fn record(
        &self,
        graph: &Graph,
        index: usize,
        node: &Node,
        values: &[Option<Tensor>],
        step: &Step,
        recorded: &mut Vec<(usize, Vec<Tensor>)>,
    ) -> Result<Tensor, EngineError> {
        let ty = graph.tensor(node.output);
        if matches!(node.primitive, Primitive::GroupOrder { .. } | Primitive::GroupOffsets { .. }) {
            let Ok(words) = element::range(graph, node, 0..ty.len(), &mut HostWords(values));
            let bytes = super::reference::bytes_from_words(ty.dtype, &words);
            // Written before the submission that reads it: the recorded dispatches do not touch this buffer.
            return Ok(Tensor::new(self.upload_words(ty, &bytes, true)));
        }
        let buffer = self.device.buffer(self.bytes(ty));
        let output = Tensor::new(Storage { buffer, ty: ty.clone(), host: None });
        if step.dispatches.is_empty() {
            return Ok(output); // nothing to compute
        }
        let mut tensors: Vec<Tensor> = node
            .primitive
            .inputs()
            .into_iter()
            .map(|id| values[id.0 as usize].clone().expect("nodes run in order"))
            .collect();
        tensors.push(output.clone());
        recorded.push((index, tensors));
        Ok(output)
    }

    fn submit(&self, plan: &Plan, recorded: &mut Vec<(usize, Vec<Tensor>)>) -> Result<(), EngineError> {
        let dispatches: Vec<Dispatch> = recorded
            .iter()
            .flat_map(|(index, tensors)| {
                plan.steps[*index].dispatches.iter().map(move |d| (index, tensors, d))
            })
            .map(|(index, tensors, ((offset, size), groups))| {
                let step = &plan.steps[*index];
                Dispatch {
                    pipeline: step.pipeline.as_ref().expect("recorded nodes have a pipeline"),
                    uniform: (&plan.uniforms, *offset, *size),
                    buffers: tensors
                        .iter()
                        .map(|t| {
                            let storage = t.storage::<Storage>();
                            (storage.buffer.raw(), self.bytes(&storage.ty).next_multiple_of(4).max(4))
                        })
                        .collect(),
                    groups: *groups,
                }
            })
            .collect();
        self.device.submit(&dispatches)?;
        drop(dispatches);
        recorded.clear();
        Ok(())
    }

    fn bytes(&self, ty: &TensorType) -> u64 {
        layout::bytes(ty, self.variant)
    }

    fn too_large(&self, what: &str, ty: &TensorType) -> EngineError {
        let (bytes, most) = (self.bytes(ty), self.device.binding_max());
        let reason = format!(
            "{what} {:?} takes {bytes} bytes, a shader can see {most}; use smaller micro-batches",
            ty.shape
        );
        EngineError::Unsupported { device: self.device.name.clone(), reason }
    }
}
