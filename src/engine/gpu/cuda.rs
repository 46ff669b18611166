//! One NVIDIA GPU through its driver: the same shaders, translated to CUDA C++ and compiled for this GPU at run time. A trainer's
//! native products may be cuBLAS's.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cuda_bridge::cache::{self, Cache};
use cuda_bridge::columns::Columns;
use cuda_bridge::copies::{Copies, Copying};
use cuda_bridge::device::{self, Call, Description, DeviceError, Loaded, Memory, Slice};
use cuda_bridge::graphs::Graphs;
use cuda_bridge::native::Product;
use cuda_bridge::near;
use cuda_bridge::nvrtc::{self, Nvrtc};
use cuda_bridge::quantise::{Launch, Operand};
use cuda_bridge::tensor_core::{Shape, product};
use cuda_bridge::timer::{Timed, Timer};
use cuda_bridge::translate::{Kernel, Options, translate};
use naga::Module;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use rayon::prelude::*;

use super::Accelerated;
use super::attention::Attention;
use super::attention_kernel::describe;
use super::cublas::{self, Cublas, Library};
use super::device::{Device, Dispatch, Own, linted};
use super::digitise::{Digitise, OnTheWay};
use super::kernels::{OwnKernel, ProductSize};
use super::regions::Limits;
use super::scan::Kernels;
use crate::engine::EngineError;
use crate::program::graph::{Graph, View};
use crate::shaders;
use crate::shaders::product::Variant;

/// A GPU with the kernels that were compiled for it.
pub struct CudaDevice {
    name: String,
    device: Arc<device::Device>,
    /// Dispatches that come back with the same memory are launched at once.
    graphs: Graphs,
    /// What times every launch, if somebody asked for it; graphs have no launches.
    timer: Option<Timer>,
    /// Copies that nobody waits for needlessly, where the driver has what they take.
    copies: Option<Copies>,
    nvrtc: Nvrtc,
    /// NVRTC's version.
    compiler: (i32, i32),
    cache: Cache,
    kernels: HashMap<Key, Arc<Loaded>>,
    /// What computes native products, if the shader does not.
    library: Option<Library>,
    /// Kernels that no shader alone is the source of, by their text: those that digitise, rows between products, those about the library's
    /// products, and the search for near ties.
    by_text: HashMap<String, Arc<Loaded>>,
}

/// What a dispatch runs.
#[derive(Clone)]
pub enum Pipeline {
    Kernel(Arc<Loaded>),
    /// A product of cuBLAS, which needs no uniform data and no workgroups.
    Library(Arc<Product>),
}

/// A shader's text, and how the tensor cores take its place if they do.
type Key = (String, Option<Shape>);

/// The compute capability from which on there are the instructions of the product on tensor cores.
const TENSOR_CORES: (i32, i32) = (8, 0);

/// The GPUs that NVIDIA's driver shows; none where there is no driver.
///
/// # Errors
/// If the driver cannot be used.
pub fn devices() -> Result<Vec<Description>, EngineError> {
    match device::devices() {
        Err(DeviceError::NoDriver(_)) => Ok(Vec::new()),
        listed => listed.map_err(|error| engine_error("cuda", error)),
    }
}

/// What an error of the bridge means for who runs a program.
pub fn engine_error(device: &str, error: DeviceError) -> EngineError {
    let (device, reason) = (device.to_string(), error.to_string());
    match error {
        DeviceError::OutOfMemory { .. } => EngineError::OutOfMemory { device, reason },
        DeviceError::Lost { .. } => EngineError::DeviceLost { device, reason },
        DeviceError::Arguments { .. } => EngineError::Fault { device, reason },
        DeviceError::NoDriver(_)
        | DeviceError::TooOld { .. }
        | DeviceError::OldVersion(..)
        | DeviceError::NoDevice { .. }
        | DeviceError::Code { .. }
        | DeviceError::Failed { .. } => EngineError::Unsupported { device, reason },
    }
}

/// The way back from exact sums, for kernels that are written by hand.
fn scale_back() -> String {
    shaders::compose_text("scale_back", "//!include shared/scale_back.wgsl\n").expect("it is there")
}

impl CudaDevice {
    /// The tensor cores' kernel for a product, if this GPU has the instructions and the kernel is for such sizes.
    fn shape(&self, size: &ProductSize) -> Option<Shape> {
        let ProductSize { digits_a, digits_b, places, rows, columns, count } = *size;
        let Description { capability, processors, .. } = self.device.description;
        let shape = (capability >= TENSOR_CORES).then(|| Shape::new(digits_a, digits_b, places))??;
        Some(shape.for_output(rows, columns, count, processors))
    }

    /// A kernel made ready to be launched: a shader's text translated, or the product that stands in for it.
    fn load(&self, (text, shape): &Key) -> Result<Arc<Loaded>, EngineError> {
        let (module, info) = self.parse(text)?;
        let options = Options { native: true };
        let kernel = match shape {
            None => translate(&module, &info, "main", options).map_err(|e| self.fault(e))?,
            Some(shape) => product(&module, &info, *shape, options).map_err(|e| self.fault(e))?,
        };
        self.compile(&kernel)
    }

    /// A text that the lint passes, as a module.
    fn parse(&self, text: &str) -> Result<(Module, ModuleInfo), EngineError> {
        linted(&self.name, text)?;
        let module = naga::front::wgsl::parse_str(text).map_err(|e| self.fault(e))?;
        let info = Validator::new(ValidationFlags::all(), Capabilities::empty()).validate(&module);
        let info = info.map_err(|e| self.fault(e))?;
        Ok((module, info))
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<Loaded>, EngineError> {
        let architecture = self.device.architecture();
        let key = cache::Key::new(&kernel.source, self.compiler, &architecture, &nvrtc::OPTIONS);
        let compile = || self.nvrtc.compile(&kernel.name, &kernel.source, &architecture);
        let (cubin, _) = self.cache.get(key, compile).map_err(|e| self.fault(e))?;
        Ok(Arc::new(self.device.load(kernel, &cubin).map_err(|error| self.error(error))?))
    }

    /// A kernel that no shader is the source of, from those that are loaded or compiled now.
    fn load_own(
        &self,
        loaded: &mut HashMap<String, Arc<Loaded>>,
        kernel: Kernel,
    ) -> Result<Arc<Loaded>, EngineError> {
        if let Some(there) = loaded.get(&kernel.source) {
            return Ok(there.clone());
        }
        let new = self.compile(&kernel)?;
        loaded.insert(kernel.source, new.clone());
        Ok(new)
    }

    /// Such a kernel, to be dispatched.
    fn own(&mut self, kernel: Kernel) -> Result<Pipeline, EngineError> {
        let mut loaded = std::mem::take(&mut self.by_text);
        let kernel = self.load_own(&mut loaded, kernel);
        self.by_text = loaded;
        Ok(Pipeline::Kernel(kernel?))
    }

    /// Has cuBLAS compute native products from now on.
    ///
    /// # Errors
    /// If it cannot be used here; the message says what is missing.
    pub fn use_cublas(&mut self, kernels: Cublas) -> Result<(), EngineError> {
        let library =
            Library::open(&self.device, kernels).map_err(|error| cublas::engine_error(&self.name, error))?;
        self.name = format!("{}, {}", self.name, library.describe());
        self.library = Some(library);
        Ok(())
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<device::Device> {
        &self.device
    }

    fn kernel(&mut self, key: Key) -> Result<Arc<Loaded>, EngineError> {
        if let Some(loaded) = self.kernels.get(&key) {
            return Ok(loaded.clone());
        }
        let loaded = self.load(&key)?;
        self.kernels.insert(key, loaded.clone());
        Ok(loaded)
    }

    fn error(&self, error: DeviceError) -> EngineError {
        engine_error(&self.name, error)
    }

    /// A fault of our own: every text that comes here passed the lint.
    fn fault(&self, reason: impl ToString) -> EngineError {
        EngineError::Fault { device: self.name.clone(), reason: reason.to_string() }
    }
}

impl Accelerated<CudaDevice> {
    /// The engine with kernels launched as graphs of the driver's where the same ones come back with the same memory, as it is when
    /// it is opened, or one by one: the results are the same.
    pub fn graphs(self, on: bool) -> Self {
        self.device.graphs.set(on);
        self
    }

    /// Times every launch from now on, one by one.
    ///
    /// # Errors
    /// If the driver lacks what that takes.
    pub fn time_launches(&mut self) -> Result<(), EngineError> {
        let timer = Timer::new(&self.device.device);
        self.device.timer = Some(timer.map_err(|error| self.device.error(error))?);
        Ok(())
    }

    /// The launches since this was asked last with their times, and none more of them.
    ///
    /// # Errors
    /// If the GPU was lost.
    pub fn timed_launches(&mut self) -> Result<Vec<Timed>, EngineError> {
        let Some(timer) = self.device.timer.take() else { return Ok(Vec::new()) };
        timer.take().map_err(|error| self.device.error(error))
    }

    /// Tells a profiler that watches this process to look from here on, or no more.
    ///
    /// # Errors
    /// If the driver lacks what that takes.
    pub fn profile(&mut self, on: bool) -> Result<(), EngineError> {
        self.device.finish()?;
        self.device.device.profile(on).map_err(|error| self.device.error(error))
    }

    /// The engine with copies beside kernels where the driver has them, as it is when it is opened, or with those that wait for the whole
    /// device: the results are the same.
    ///
    /// # Errors
    /// If the GPU was lost.
    pub fn copies(mut self, on: bool) -> Result<Self, EngineError> {
        let device = &mut self.device;
        let copies = if on { Copies::new(&device.device) } else { Ok(None) };
        device.copies = copies.map_err(|error| device.error(error))?;
        Ok(self)
    }
}

impl Device for CudaDevice {
    type Memory = Memory;
    type Uniforms = Memory;
    type Pipeline = Pipeline;
    type Copying = Copying;

    const API: &'static str = "cuda";

    /// Also by its number.
    fn open(name: Option<&str>) -> Result<CudaDevice, EngineError> {
        let unsupported = |reason: String| EngineError::Unsupported { device: "cuda".into(), reason };
        let here = device::devices().map_err(|error| engine_error("cuda", error))?;
        // A number first: "1" is a part of many GPUs' names.
        let numbered = here.iter().find(|d| name.is_some_and(|name| name == d.index.to_string()));
        let named =
            |d: &&Description| name.is_none_or(|name| d.name.to_lowercase().contains(&name.to_lowercase()));
        let Some(chosen) = numbered.or_else(|| here.iter().find(named)) else {
            let names: Vec<String> = here.iter().map(|d| format!("{}: {}", d.index, d.name)).collect();
            let here = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(unsupported(format!("no GPU matches; GPUs here: {here}")));
        };
        let opened = device::Device::open(chosen.index);
        let opened = opened.and_then(|d| Ok((d.driver_version()?, d.driver_major()?, d)));
        let (driver, newest, device) = opened.map_err(|error| engine_error("cuda", error))?;
        let nvrtc = Nvrtc::load_for(newest).map_err(|error| unsupported(error.to_string()))?;
        let (major, minor) = nvrtc.version().map_err(|error| unsupported(error.to_string()))?;
        let name = format!("{} (driver {driver}, NVRTC {major}.{minor})", chosen.name);
        let (compiler, cache) = ((major, minor), Cache::of_this_user());
        let copies = Copies::new(&device).map_err(|error| engine_error("cuda", error))?;
        Ok(CudaDevice {
            name,
            graphs: Graphs::new(&device),
            timer: None,
            copies,
            device,
            nvrtc,
            compiler,
            cache,
            kernels: HashMap::new(),
            library: None,
            by_text: HashMap::new(),
        })
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn software(&self) -> bool {
        false
    }

    fn variant(&self) -> Option<Variant> {
        Some(Variant::Dot)
    }

    /// Kernels count elements in 32 bits.
    fn binding_max(&self) -> u64 {
        u64::from(u32::MAX) * 4
    }

    fn loop_rounds_max(&self) -> u32 {
        u32::MAX
    }

    fn row_limits(&self) -> Limits {
        Limits::CUDA
    }

    fn allocate(&self, bytes: u64) -> Result<Memory, EngineError> {
        let bytes = usize::try_from(bytes).map_err(|e| self.fault(e))?;
        self.device.allocate(bytes).map_err(|error| self.error(error))
    }

    fn uniforms(&self, bytes: &[u8]) -> Result<Memory, EngineError> {
        self.device.upload(bytes).map_err(|error| self.error(error))
    }

    fn write(&self, memory: &Memory, bytes: &[u8]) -> Result<(), EngineError> {
        let begun = self.copies.as_ref().map_or(Ok(false), |copies| copies.write(memory, bytes));
        match begun {
            Ok(false) => memory.write(bytes),
            begun => begun.map(|_| ()),
        }
        .map_err(|error| self.error(error))
    }

    fn pipeline(&mut self, text: &str) -> Result<Pipeline, EngineError> {
        Ok(Pipeline::Kernel(self.kernel((text.to_string(), None))?))
    }

    fn product(&mut self, text: &str, size: &ProductSize) -> Result<Own<Pipeline>, EngineError> {
        let Some(shape) = self.shape(size) else { return Ok(None) };
        let kernel = self.kernel((text.to_string(), Some(shape)))?;
        Ok(Some((Pipeline::Kernel(kernel), shape.tile())))
    }

    fn digitise(
        &mut self,
        view: &View,
        block: u32,
        what: Digitise,
    ) -> Result<Option<OwnKernel<Pipeline>>, EngineError> {
        let operand = Operand { dims: view.dims, strides: view.strides, offset: view.offset, block };
        let launch = match what {
            Digitise::Scale => operand.scale(),
            Digitise::Quantise { digits } => operand.quantise(digits),
            Digitise::ScaleAndQuantise { digits } => operand.scale_and_quantise(digits),
        };
        let Some(Launch { kernel, words: uniform, groups }) = launch else { return Ok(None) };
        let pipeline = self.own(kernel)?;
        Ok(Some(OwnKernel { pipeline, uniform, groups }))
    }

    fn digitise_on_the_way(
        &mut self,
        view: &View,
        product: OnTheWay,
    ) -> Result<Option<OwnKernel<Pipeline>>, EngineError> {
        if self.device.description.capability < TENSOR_CORES {
            return Ok(None);
        }
        let operand = Operand { dims: view.dims, strides: view.strides, offset: view.offset, block: 0 };
        let OnTheWay { digits, columns } = product;
        let (module, info) = self.parse(&scale_back())?;
        let launch = Columns { operand, columns, digits }.launch(&module, &info, Options { native: true });
        let Some(launch) = launch.map_err(|e| self.fault(e))? else { return Ok(None) };
        let pipeline = self.own(launch.kernel)?;
        Ok(Some(OwnKernel { pipeline, uniform: launch.words, groups: launch.groups }))
    }

    fn attention(
        &mut self,
        graph: &Graph,
        found: &Attention,
    ) -> Result<Option<OwnKernel<Pipeline>>, EngineError> {
        let Description { capability, shared, .. } = self.device.description;
        let described = (capability >= TENSOR_CORES).then(|| describe(graph, found, &self.row_limits()));
        let Some((attention, text)) = described.flatten() else { return Ok(None) };
        let (module, info) = self.parse(&text)?;
        let kernel = attention.kernel(&module, &info, Options { native: true }, shared);
        let Some(kernel) = kernel.map_err(|e| self.fault(e))? else { return Ok(None) };
        let pipeline = self.own(kernel)?;
        let (uniform, groups) = (attention.words(), attention.groups());
        Ok(Some(OwnKernel { pipeline, uniform, groups }))
    }

    fn native_product(&mut self, operands: [&View; 2], parts: u32) -> Result<Option<Pipeline>, EngineError> {
        let Some(mut library) = self.library.take() else { return Ok(None) };
        let mut loaded = std::mem::take(&mut self.by_text);
        let load = |kernel: Kernel| self.load_own(&mut loaded, kernel);
        let product = library.product(&self.name, operands, parts, load);
        (self.library, self.by_text) = (Some(library), loaded);
        Ok(Some(Pipeline::Library(product?)))
    }

    fn scan_kernels(&mut self) -> Option<Result<Kernels<Pipeline>, EngineError>> {
        let mut loaded = std::mem::take(&mut self.by_text);
        let mut load = |kernel| self.load_own(&mut loaded, kernel).map(Pipeline::Kernel);
        let (norms, near, round) =
            (load(near::row_norms()), load(near::near_ties()), load(near::round_near_ties()));
        self.by_text = loaded;
        let of_results = |loaded: Result<_, EngineError>| Ok((loaded?, near::ELEMENTS));
        let norms = norms.map(|norms| (norms, near::ROWS));
        Some(
            norms.and_then(|norms| Ok(Kernels { norms, near: of_results(near)?, round: of_results(round)? })),
        )
    }

    /// On all cores: compiling takes longer than everything else that is done before the first step.
    fn prepare(&mut self, texts: &[(&str, Option<ProductSize>)]) -> Result<(), EngineError> {
        let keys = texts
            .iter()
            .map(|(text, size)| (text.to_string(), size.as_ref().and_then(|size| self.shape(size))));
        let missing: HashSet<Key> = keys.filter(|key| !self.kernels.contains_key(key)).collect();
        let loaded: Vec<(Key, Arc<Loaded>)> = missing
            .into_par_iter()
            .map(|key| {
                let loaded = self.load(&key)?;
                Ok((key, loaded))
            })
            .collect::<Result<_, EngineError>>()?;
        self.kernels.extend(loaded);
        Ok(())
    }

    fn announce(&self, names: &mut dyn Iterator<Item = String>) {
        self.timer.iter().for_each(|timer| timer.announce(names));
    }

    fn submit(&self, dispatches: &[Dispatch<Self>]) -> Result<(), EngineError> {
        let run = |calls: Vec<Call>| {
            let run = self.timer.as_ref().map(|timer| timer.run(&calls));
            run.unwrap_or_else(|| self.graphs.run(calls)).map_err(|error| self.error(error))
        };
        let mut calls = Vec::with_capacity(dispatches.len());
        for dispatch in dispatches {
            // No memory has more bytes than a usize counts.
            let buffers = dispatch.buffers.iter().map(|(memory, bytes)| memory.slice(0, *bytes as usize));
            match dispatch.pipeline {
                Pipeline::Kernel(kernel) => {
                    let (uniform, offset, bytes) = dispatch.uniform;
                    let uniform = uniform.slice(offset as usize, bytes as usize);
                    let buffers: Vec<Slice> = std::iter::once(uniform).chain(buffers).collect();
                    let call = Call::new(kernel, dispatch.groups, &buffers);
                    calls.push(call.map_err(|error| self.error(error))?);
                }
                Pipeline::Library(product) => {
                    run(std::mem::take(&mut calls))?;
                    self.timer.iter().for_each(Timer::skip);
                    let (library, buffers) = (self.library.as_ref(), buffers.collect::<Vec<_>>());
                    let buffers = buffers.try_into().ok().zip(library);
                    let (buffers, library) =
                        buffers.ok_or_else(|| self.fault("a product without its library"))?;
                    library.run(&self.name, product, buffers)?;
                }
            }
        }
        run(calls)
    }

    fn read(&self, memory: &Memory, bytes: u64, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        visit(&memory.read(bytes as usize).map_err(|error| self.error(error))?);
        Ok(())
    }

    fn begin_read(&self, from: &[(&Memory, u64)]) -> Result<Option<Copying>, EngineError> {
        let slices: Vec<Slice> =
            from.iter().map(|(memory, bytes)| memory.slice(0, *bytes as usize)).collect();
        let begun = self.copies.as_ref().map_or(Ok(None), |copies| copies.begin(&slices));
        begun.map_err(|error| self.error(error))
    }

    fn end_read(&self, copying: Copying, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        copying.end(visit).map_err(|error| self.error(error))
    }

    fn read_beside(
        &self,
        memory: &Memory,
        bytes: u64,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), EngineError> {
        let slice = memory.slice(0, bytes as usize);
        let read = self.copies.as_ref().map_or(Ok(false), |copies| copies.read(slice, visit));
        if read.map_err(|error| self.error(error))? { Ok(()) } else { self.read(memory, bytes, visit) }
    }

    fn finish(&self) -> Result<(), EngineError> {
        self.device.finish().map_err(|error| self.error(error))
    }

    fn check(&self) -> Result<(), EngineError> {
        Ok(()) // every call says how it went
    }
}
