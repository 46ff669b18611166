//! The wgpu engine: programs in integer WGSL on any GPU, or software adapter, that has Vulkan, Metal or DX12.
//!
//! Every node is one dispatch of a linted shader; tensors stay on the GPU for the whole graph, in pooled buffers that
//! are reused as soon as their last reader is recorded.

mod device;
pub mod kernels;
mod map;

use std::sync::Arc;

pub use device::{AdapterName, adapters};
use device::{Buffer, Device, Dispatch};
use kernels::{Step, step_of};

use super::plan::last_uses;
use super::{Compiled, Engine, EngineError, Observer, Tensor};
use crate::arith::{DType, digits};
use crate::program::element::{self, Source};
use crate::program::graph::{Graph, Node, Primitive, TensorId, TensorType};

/// Dispatches of one submission.
const BATCH: usize = 128;

/// The words of K in a row of digit planes: K padded to whole tiles of the product.
fn words_of_k(k: u32) -> u32 {
    k.div_ceil(16) * 4
}

/// What a tensor is in GPU memory.
struct Storage {
    buffer: Buffer,
    ty: TensorType,
    /// Small integers that came from the host, for groupings, which run there.
    host: Option<Vec<u32>>,
}

/// Bytes of a tensor in GPU memory: words, or digit planes.
fn physical_bytes(ty: &TensorType) -> u64 {
    match ty.dtype {
        DType::Q(d) => {
            let rows = u64::from(ty.shape[0]) * u64::from(ty.shape[1]);
            u64::from(d) * rows * u64::from(words_of_k(ty.shape[2])) * 4
        }
        DType::U8 | DType::Bf16 => ty.bytes() as u64,
        DType::F32 | DType::U32 => ty.len() as u64 * 4,
    }
}

/// The canonical bytes of digit planes.
fn canonical_from_planes(ty: &TensorType, d: u8, planes: &[u8]) -> Vec<u8> {
    let [rows, k] = [ty.shape[0] as usize * ty.shape[1] as usize, ty.shape[2] as usize];
    let width = words_of_k(ty.shape[2]) as usize * 4;
    let mut bytes = Vec::with_capacity(ty.bytes());
    for row in 0..rows {
        for j in 0..k {
            let digit = |p: usize| i64::from(planes[(p * rows + row) * width + j] as i8);
            let q: i64 = (0..d as usize).map(|p| digit(p) << (8 * p)).sum();
            bytes.extend(&q.to_le_bytes()[..d as usize]);
        }
    }
    bytes
}

/// The digit planes of canonical bytes.
fn planes_from_canonical(ty: &TensorType, d: u8, bytes: &[u8]) -> Vec<u8> {
    let [rows, k] = [ty.shape[0] as usize * ty.shape[1] as usize, ty.shape[2] as usize];
    let width = words_of_k(ty.shape[2]) as usize * 4;
    let mut planes = vec![0; d as usize * rows * width];
    let words = super::reference::words_from_bytes(ty.dtype, bytes);
    for (i, word) in words.into_iter().enumerate() {
        let split = digits::balanced_digits(word as i32, u32::from(d));
        for (p, digit) in split.iter().take(d as usize).enumerate() {
            planes[(p * rows + i / k) * width + i % k] = *digit as u8;
        }
    }
    planes
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
}

impl Gpu {
    /// Opens an adapter by a part of its name, or the best one, and tests it: every operator of small programs with
    /// ordinary and extreme inputs must equal the scalar reference.
    ///
    /// # Errors
    /// If there is none, it cannot be opened, or it fails the test.
    pub fn open(name: Option<&str>) -> Result<Gpu, EngineError> {
        let mut gpu = Gpu { device: Device::open(name)? };
        let expected = super::fingerprint::fingerprint(&mut super::reference::Reference)?;
        if super::fingerprint::fingerprint(&mut gpu)? != expected {
            let check = "an operator's bits differ from the scalar reference".into();
            return Err(EngineError::SelfTest { device: gpu.device.name, check });
        }
        Ok(gpu)
    }

    fn upload_planes(&self, ty: &TensorType, bytes: &[u8]) -> Storage {
        let DType::Q(d) = ty.dtype else { return self.upload_words(ty, bytes, false) };
        let buffer = self.device.buffer(physical_bytes(ty));
        self.device.write(buffer.raw(), &planes_from_canonical(ty, d, bytes));
        Storage { buffer, ty: ty.clone(), host: None }
    }

    fn upload_words(&self, ty: &TensorType, bytes: &[u8], keep: bool) -> Storage {
        let buffer = self.device.buffer(physical_bytes(ty));
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(4), 0);
        self.device.write(buffer.raw(), &padded);
        let host =
            (keep && ty.dtype == DType::U32).then(|| super::reference::words_from_bytes(ty.dtype, bytes));
        Storage { buffer, ty: ty.clone(), host }
    }

    /// Shows a tensor in the canonical layout.
    fn show(&self, storage: &Storage, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        let bytes = physical_bytes(&storage.ty);
        match storage.ty.dtype {
            DType::Q(d) => self.device.read(storage.buffer.raw(), bytes, &mut |planes| {
                visit(&canonical_from_planes(&storage.ty, d, planes));
            }),
            _ => self.device.read(storage.buffer.raw(), bytes, visit),
        }
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
        format!("wgpu: {}", self.device.name)
    }

    fn upload(&mut self, ty: &TensorType, bytes: &[u8]) -> Result<Tensor, EngineError> {
        if physical_bytes(ty) > self.device.binding_max() {
            return Err(too_large(&self.device, "an input", ty));
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
            if physical_bytes(ty) > self.device.binding_max() {
                return Err(too_large(&self.device, &node.operator, ty));
            }
            if let Some(reason) = kernels::refusal(&graph, node) {
                return Err(EngineError::Unsupported { device: self.device.name.clone(), reason });
            }
            steps.push(step_of(&mut self.device, &graph, node, &mut data)?);
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
        let every = if observer.is_some() { 1 } else { BATCH };
        for (index, node) in graph.nodes.iter().enumerate() {
            let output = self.record(graph, index, node, &values, &plan.steps[index], &mut recorded)?;
            values[node.output.0 as usize] = Some(output.clone());
            if recorded.len() >= every || index + 1 == graph.nodes.len() {
                self.submit(plan, &mut recorded)?;
            }
            if let Some(observer) = observer.as_deref_mut() {
                let mut shown = Ok(None);
                self.show(output.storage(), &mut |bytes| shown = observer.node(index, node, bytes))?;
                if let Some(bytes) = shown? {
                    let storage = self.upload_planes(graph.tensor(node.output), &bytes);
                    values[node.output.0 as usize] = Some(Tensor::new(storage));
                }
            }
            for id in &plan.dying[index] {
                values[id.0 as usize] = None;
            }
        }
        let output = |id: TensorId| values[id.0 as usize].clone().expect("outputs are computed");
        Ok(graph.outputs.iter().map(|port| output(port.tensor)).collect())
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
        let buffer = self.device.buffer(physical_bytes(ty));
        let output = Tensor::new(Storage { buffer, ty: ty.clone(), host: None });
        if step.groups.contains(&0) {
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
            .map(|(index, tensors)| {
                let step = &plan.steps[*index];
                Dispatch {
                    pipeline: step.pipeline.as_ref().expect("recorded nodes have a pipeline"),
                    uniform: (&plan.uniforms, step.uniform.0, step.uniform.1),
                    buffers: tensors
                        .iter()
                        .map(|t| {
                            let storage = t.storage::<Storage>();
                            (storage.buffer.raw(), physical_bytes(&storage.ty).next_multiple_of(4).max(4))
                        })
                        .collect(),
                    groups: step.groups,
                }
            })
            .collect();
        self.device.submit(&dispatches)?;
        drop(dispatches);
        recorded.clear();
        Ok(())
    }
}

fn too_large(device: &Device, what: &str, ty: &TensorType) -> EngineError {
    let reason = format!(
        "{what} {:?} takes {} bytes, a shader can see {}; use smaller micro-batches",
        ty.shape,
        physical_bytes(ty),
        device.binding_max()
    );
    EngineError::Unsupported { device: device.name.clone(), reason }
}
