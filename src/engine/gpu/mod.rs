//! The GPU engines: programs in integer WGSL on whatever runs it. Through wgpu ([`Gpu`]) that is any GPU, or software adapter,
//! that has Vulkan, Metal or DX12; through NVIDIA's driver ([`Cuda`]) the same shaders are translated to CUDA C++.
//!
//! Every node is a dispatch of a linted shader, or a few; tensors stay on the GPU for the whole graph, in pooled buffers that
//! are reused as soon as their last reader is recorded. What touches a tensor larger than a shader can see runs over windows of it.

#[cfg(feature = "gpu")]
mod adapter;
mod attention;
#[cfg(feature = "cuda")]
mod attention_kernel;
#[cfg(feature = "cuda")]
mod cublas;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod digitise;
pub mod kernels;
mod launch;
mod layout;
mod map;
mod memory;
mod pool;
mod regions;
mod roots;
mod row_kernel;
mod row_layout;
mod scan;
mod scan_trial;
mod schedule;
#[cfg(feature = "cuda")]
mod shared;
mod split;
mod windows;

use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(feature = "gpu")]
pub use adapter::{AdapterName, adapters};
#[cfg(feature = "cuda")]
pub use attention_kernel::kernels as attention_kernels;
#[cfg(feature = "cuda")]
pub use cublas::Cublas;
#[cfg(feature = "cuda")]
pub use cuda::{devices as cuda_devices, engine_error};
use device::{Device, Dispatch};
use launch::{Part, Shared};
use memory::Storage;
use pool::{Buffer, Pool};
use regions::Region;
use scan::Searches;
use schedule::{Unit, Uses};

use super::{Compiled, Engine, EngineError, Inputs, Observer, Tensor};
use crate::arith::DType;
use crate::arith::grid::GridRule;
use crate::program::builder::Builder;
use crate::program::element::{self, Source};
use crate::program::graph::{Graph, Primitive, TensorId, TensorType};
use crate::program::logged::{Rounding, roundings};
use crate::program::products::{ProductClass, ProductTable};
pub use crate::shaders::product::Variant;

/// Dispatches of one submission.
const BATCH: usize = 128;

/// A graph made ready: launches, the uniform data of all of them, and the bytes of memory that they share.
struct Plan<D: Device> {
    /// Every node by itself.
    nodes: Vec<Unit<D::Pipeline>>,
    /// What takes the place of several nodes, where nobody looks at what is between.
    fused: Vec<Unit<D::Pipeline>>,
    /// What searches for near ties may compute beside them.
    roundings: HashMap<usize, Rounding>,
    uniforms: D::Uniforms,
    scratch: Vec<u64>,
}

/// The engine on one device.
pub struct Accelerated<D: Device> {
    device: D,
    /// How it computes products.
    variant: Variant,
    pool: Pool<D::Memory>,
    /// The most bytes of a buffer: a multiple of 256. Larger tensors lie in pieces.
    limit: u64,
    /// Whether tensors are hashed on the device: where that is no GPU, showing them to the host is faster.
    hashing: bool,
    /// Whether near ties are searched for on the device, where it can.
    scanning: bool,
    /// Whether nodes over the same rows are computed at once: where that is no GPU, node by node is a little faster (`benches/step.rs`).
    regions: bool,
    /// Roundings that such searches computed.
    rounded: u64,
    /// Grids on which they were compared with the shader.
    tried: HashSet<GridRule>,
    /// Uniform data of such searches and of roots, by what is in it.
    kept: HashMap<Vec<u8>, D::Uniforms>,
}

/// The engine through wgpu.
#[cfg(feature = "gpu")]
pub type Gpu = Accelerated<adapter::Adapter>;

/// The engine through NVIDIA's driver.
#[cfg(feature = "cuda")]
pub type Cuda = Accelerated<cuda::CudaDevice>;

/// The whole lines of 256 bytes of which memory is made.
fn lines(bytes: u64) -> u64 {
    (bytes / 256).max(1) * 256
}

impl<D: Device> Accelerated<D> {
    /// Opens a device by a part of its name (NVIDIA's also by its number), or the best one, and tests it: every operator of small
    /// programs with ordinary and extreme inputs must equal the scalar reference.
    ///
    /// # Errors
    /// If there is none, it cannot be opened, or it fails the test; for NVIDIA's also if there is no driver or no NVRTC.
    pub fn open(name: Option<&str>) -> Result<Self, EngineError> {
        let device = D::open(name)?;
        let variant = device.variant();
        Self::on(device).chosen(variant)?.tested()
    }

    /// [`Accelerated::open`], with products by a given variant instead of the fastest.
    pub fn open_with(name: Option<&str>, variant: Variant) -> Result<Self, EngineError> {
        Self::on(D::open(name)?).chosen(Some(variant))?.tested()
    }

    fn on(device: D) -> Self {
        let (hashing, regions, limit) = (!device.software(), !device.software(), lines(device.binding_max()));
        let (pool, kept) = (Pool::default(), HashMap::new());
        let (variant, scanning, rounded, tried) = (Variant::Dot, true, 0, HashSet::new());
        Accelerated { device, variant, pool, limit, hashing, scanning, regions, rounded, tried, kept }
    }

    /// Takes buffers of at most so many bytes, 256 or more, from now on, where the device allows larger ones: what is computed is the
    /// same. Tensors and compiled graphs of before are of no use then.
    pub fn set_buffers(&mut self, bytes: u64) {
        self.limit = lines(bytes.min(self.device.binding_max()));
    }

    /// The engine with hashing on its device, or not: the roots are the same.
    pub fn hashing(self, hashing: bool) -> Self {
        Accelerated { hashing, ..self }
    }

    /// The engine with the search for near ties on its device, where that can, or not: what is found is the same.
    pub fn scanning(self, scanning: bool) -> Self {
        Accelerated { scanning, ..self }
    }

    /// How many nodes that round native products the searches for near ties computed so far, in their place.
    pub fn rounded_in_searches(&self) -> u64 {
        self.rounded
    }

    /// The engine with nodes over the same rows computed at once where nobody looks at what is between, or one by one: the results are
    /// the same. Compiled graphs of before stay as they are.
    pub fn regions(self, regions: bool) -> Self {
        Accelerated { regions, ..self }
    }

    /// Sets the variant given, or the one that is fastest on this adapter for a product of two digits.
    fn chosen(mut self, variant: Option<Variant>) -> Result<Self, EngineError> {
        if let Some(variant) = variant {
            self.variant = variant;
            return Ok(self);
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

    /// Makes uniform data, if it is not there yet: the same tensors are hashed and searched every step.
    fn keep_uniforms(&mut self, data: &[u8]) -> Result<(), EngineError> {
        if !self.kept.contains_key(data) {
            self.kept.insert(data.to_vec(), self.device.uniforms(data)?);
        }
        Ok(())
    }

    fn unsupported(&self, reason: String) -> EngineError {
        EngineError::Unsupported { device: self.device.name().into(), reason }
    }

    fn fault(&self, reason: String) -> EngineError {
        EngineError::Fault { device: self.device.name().into(), reason }
    }

    /// The engine, if it passes its self-test.
    fn tested(mut self) -> Result<Self, EngineError> {
        let expected = super::fingerprint::fingerprint(&mut super::reference::Reference)?;
        if self.hashing && !self.hashes_well()? {
            let check = "BLAKE3 roots differ from the host's".into();
            return Err(EngineError::SelfTest { device: self.device.name().into(), check });
        }
        if self.regions && !self.computes_rows_well()? {
            let check = "rows computed at once differ from the scalar reference".into();
            return Err(EngineError::SelfTest { device: self.device.name().into(), check });
        }
        if super::fingerprint::fingerprint(&mut self)? != expected {
            let check = "an operator's bits differ from the scalar reference".into();
            return Err(EngineError::SelfTest { device: self.device.name().into(), check });
        }
        Ok(self)
    }
}

#[cfg(feature = "cuda")]
impl Cuda {
    /// [`Accelerated::open`], with cuBLAS's kernels for a trainer's native products, which are tested with integers.
    ///
    /// # Errors
    /// Also if the library cannot be used here (the message says what is missing), or computes other products.
    pub fn open_with_cublas(name: Option<&str>, kernels: Cublas) -> Result<Self, EngineError> {
        let mut device = cuda::CudaDevice::open(name)?;
        device.use_cublas(kernels)?;
        let variant = device.variant();
        let mut engine = Self::on(device).chosen(variant)?;
        for parts in kernels.parts() {
            let (graph, inputs) = cublas::trial(parts);
            let graph = Arc::new(graph);
            let expected = super::outputs_of(&mut super::cpu::Cpu::new(1)?, &graph, &inputs)?;
            if super::outputs_of(&mut engine, &graph, &inputs)? != expected {
                let check = "cuBLAS gives wrong products of small integers".into();
                return Err(EngineError::SelfTest { device: engine.device.name().into(), check });
            }
        }
        engine.tested()
    }
}

/// A tensor that is there.
fn computed(values: &[Option<Tensor>], id: TensorId) -> &Tensor {
    values[id.0 as usize].as_ref().expect("a tensor is computed before it is read")
}

/// The tensors of a run, for its observer.
struct Shown<'a, D: Device> {
    gpu: &'a Accelerated<D>,
    values: &'a [Option<Tensor>],
}

impl<D: Device> Inputs for Shown<'_, D> {
    fn visit(&mut self, tensor: TensorId, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        self.gpu.show(computed(self.values, tensor).storage(), visit)
    }
}

/// Batch tensors on the host.
struct HostWords<'a, M>(&'a [Option<Tensor>], PhantomData<M>);

impl<M: Send + Sync + 'static> Source for HostWords<'_, M> {
    type Error = std::convert::Infallible;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, Self::Error> {
        let storage = computed(self.0, tensor).storage::<Storage<M>>();
        Ok(storage.host.as_ref().expect("groupings read batch tensors only")[index])
    }
}

impl<D: Device> Engine for Accelerated<D> {
    fn describe(&self) -> String {
        format!("{}: {}, {:?} products", D::API, self.device.name(), self.variant)
    }

    fn upload(&mut self, ty: &TensorType, bytes: &[u8]) -> Result<Tensor, EngineError> {
        self.check_size("an input", ty)?;
        Ok(Tensor::new(self.upload_words(ty, bytes, true)?))
    }

    fn roots(&mut self, tensors: &[Tensor]) -> Result<Option<Vec<[u8; 32]>>, EngineError> {
        if self.hashing { self.roots_of(tensors) } else { Ok(None) }
    }

    fn read(&mut self, tensor: &Tensor, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        self.show(tensor.storage(), visit)
    }

    fn finish(&mut self) -> Result<(), EngineError> {
        self.device.finish()
    }

    #[cfg(feature = "cuda")]
    fn cuda(&mut self) -> Option<&mut Cuda> {
        (self as &mut dyn std::any::Any).downcast_mut()
    }

    fn compile(&mut self, graph: Arc<Graph>) -> Result<Compiled, EngineError> {
        let parts = graph.nodes.iter().map(|node| self.parts(&graph, node));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let (mut shared, uses) = (Shared::default(), Uses::of(&graph));
        let mut fused = self.digitised(&graph, &uses, &mut shared)?;
        let regions = self.regions_of(&graph, &uses, &fused);
        let bare: Vec<Region> = regions.iter().map(|(region, _)| region.clone()).collect();
        let on_the_way = self.digitised_on_the_way(&graph, &uses, &mut shared)?;
        let attention = self.attention(&graph, &uses, &fused, &bare, &mut shared)?;
        let mut texts: Vec<_> = parts.iter().flatten().filter_map(Part::text).collect();
        texts.extend(regions.iter().map(|(_, (text, ..))| (&text[..], None)));
        self.device.prepare(&texts)?;
        let mut nodes = Vec::new();
        for (index, parts) in parts.into_iter().enumerate() {
            let launches = self.launches(&graph, &graph.nodes[index], parts, &mut shared)?;
            nodes.push(Unit::node(&graph, index, launches));
        }
        for (region, shader) in regions {
            fused.push(self.region(&graph, region, shader, &mut shared)?);
        }
        // They take the places of regions and of what digitises.
        fused.extend(attention);
        fused.extend(on_the_way);
        self.device.check()?;
        let uniforms = self.device.uniforms(&shared.data)?;
        let (roundings, scratch) = (roundings(&graph), shared.scratch);
        if let Some(rounding) = roundings.values().next() {
            // One of a program's products is on the grid of all.
            self.check_rounding(graph.logged[rounding.number].rule)?;
        }
        Ok(Compiled::new(graph, Plan::<D> { nodes, fused, roundings, uniforms, scratch }))
    }

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let graph: &Graph = &compiled.graph;
        let plan = compiled.of::<Plan<D>>();
        let schedule = plan.schedule(graph, observer.as_deref());
        let mut values: Vec<Option<Tensor>> = vec![None; graph.tensors.len()];
        for (port, tensor) in graph.inputs.iter().zip(inputs) {
            values[port.tensor.0 as usize] = Some(tensor.clone());
        }
        // Launches run one after another, so that all may use the same memory beside the tensors.
        let take = |&bytes| self.pool.take(bytes, false, |bytes| self.device.allocate(bytes));
        let scratch = plan.scratch.iter().map(take).collect::<Result<Vec<_>, _>>()?;
        // Recorded dispatches keep the tensors they touch until they are submitted.
        let mut recorded: Vec<(&Unit<D::Pipeline>, Vec<Tensor>)> = Vec::new();
        let mut searches = Searches::default();
        let end = schedule.len();
        let alone: HashSet<usize> = match plan.roundings.is_empty() {
            true => HashSet::new(),
            false => schedule.iter().filter(|(unit, _)| !unit.is_fused()).map(|(unit, _)| unit.at).collect(),
        };
        for (number, (unit, dying)) in (1..).zip(schedule) {
            self.record(graph, unit, &mut values, &mut recorded)?;
            let (index, node) = (unit.at, &graph.nodes[unit.at]);
            let wants = |index: usize| {
                observer.as_deref().is_some_and(|observer| observer.wants(index, &graph.nodes[index]))
            };
            if unit.is_fused() && unit.nodes.iter().any(|&index| wants(index)) {
                return Err(self.fault(format!("{}: an observer changed its mind", node.operator)));
            }
            let wanted = wants(index);
            if wanted || recorded.len() >= BATCH || number == end {
                self.submit(graph, plan, &scratch, &mut recorded)?;
            }
            let scan = observer.as_deref().filter(|_| wanted).and_then(|observer| observer.scan(index, node));
            let mut answered = match scan {
                Some(scan) => {
                    // What is computed with other nodes stays with them.
                    let alone = |rounding: &&Rounding| alone.contains(&rounding.node);
                    let rounding = plan.roundings.get(&index).filter(alone);
                    self.start_search(graph, index, scan, rounding, &mut values, &mut searches)?
                }
                None => false,
            };
            if let Some(observer) = observer.as_deref_mut()
                && wanted
                && !answered
                && self.hashing
                && observer.tiles(index, node)
                && let Some(tiles) = self.tiles_there(computed(&values, node.output))?
            {
                observer.tiled(index, node, tiles)?;
                answered = true;
            }
            if let Some(observer) = observer.as_deref_mut()
                && wanted
                && !answered
            {
                let mut shown = Ok(None);
                let mut inputs = Shown { gpu: self, values: &values };
                self.show(computed(&values, node.output).storage(), &mut |bytes| {
                    shown = observer.node(index, node, bytes, &mut inputs);
                })?;
                if let Some(bytes) = shown? {
                    let storage = self.upload_any(graph.tensor(node.output), &bytes)?;
                    values[node.output.0 as usize] = Some(Tensor::new(storage));
                }
            }
            if let Some(observer) = observer.as_deref_mut() {
                self.finish_searches(graph, &mut searches, number == end, observer)?;
            }
            for id in dying {
                values[id.0 as usize] = None;
            }
        }
        let outputs = graph.outputs.iter().map(|port| computed(&values, port.tensor).clone()).collect();
        self.pool.trim();
        Ok(outputs)
    }
}

impl<D: Device> Accelerated<D> {
    /// A tensor of a graph with any contents.
    fn blank_of(&self, graph: &Graph, id: TensorId) -> Result<Storage<D::Memory>, EngineError> {
        let ty = graph.tensor(id);
        let lasts = graph.outputs.iter().any(|port| port.tensor == id);
        Ok(Storage { pieces: self.memory(ty, lasts)?, ty: ty.clone(), host: None })
    }

    /// Allocates what a unit writes and records its dispatches, or computes a grouping on the host.
    fn record<'u>(
        &self,
        graph: &Graph,
        unit: &'u Unit<D::Pipeline>,
        values: &mut [Option<Tensor>],
        recorded: &mut Vec<(&'u Unit<D::Pipeline>, Vec<Tensor>)>,
    ) -> Result<(), EngineError> {
        let node = &graph.nodes[unit.at];
        if values[node.output.0 as usize].is_some() {
            return Ok(()); // a rounding that was computed with a search
        }
        if matches!(node.primitive, Primitive::GroupOrder { .. } | Primitive::GroupOffsets { .. }) {
            let ty = graph.tensor(node.output);
            let Ok(words) =
                element::range(graph, node, 0..ty.len(), &mut HostWords::<D::Memory>(values, PhantomData));
            let bytes = crate::arith::words::bytes_from_words(ty.dtype, &words);
            // Written before the submission that reads it: the recorded dispatches do not touch this buffer.
            values[node.output.0 as usize] = Some(Tensor::new(self.upload_words(ty, &bytes, false)?));
            return Ok(());
        }
        for id in &unit.writes {
            values[id.0 as usize] = Some(Tensor::new(self.blank_of(graph, *id)?));
        }
        if unit.launches.iter().any(|launch| !launch.step.dispatches.is_empty()) {
            let touched = unit.reads.iter().chain(&unit.writes);
            recorded.push((unit, touched.map(|id| computed(values, *id).clone()).collect()));
        }
        Ok(())
    }

    fn submit(
        &self,
        graph: &Graph,
        plan: &Plan<D>,
        scratch: &[Buffer<D::Memory>],
        recorded: &mut Vec<(&Unit<D::Pipeline>, Vec<Tensor>)>,
    ) -> Result<(), EngineError> {
        let mut dispatches: Vec<Dispatch<D>> = Vec::new();
        for (unit, tensors) in recorded.iter() {
            for launch in &unit.launches {
                dispatches.extend(launch.step.dispatches.iter().map(|((offset, size), groups)| Dispatch {
                    pipeline: launch.step.pipeline.as_ref().expect("recorded nodes have a pipeline"),
                    uniform: (&plan.uniforms, *offset, *size),
                    buffers: launch.memory(tensors, scratch),
                    groups: *groups,
                }));
            }
        }
        self.device.announce(&mut recorded.iter().flat_map(|(unit, _)| unit.names(graph)));
        // A node of many windows is more than one submission.
        dispatches.chunks(BATCH).try_for_each(|batch| self.device.submit(batch))?;
        drop(dispatches);
        recorded.clear();
        Ok(())
    }
}
