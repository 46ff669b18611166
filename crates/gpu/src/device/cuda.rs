//! One NVIDIA GPU through its driver: the same shaders, translated to CUDA C++ and compiled for this GPU at run time. A trainer's
//! native products may be cuBLAS's.

use std::sync::Arc;

use cuda_bridge::columns::Columns;
use cuda_bridge::copies::{Copies, Copying};
use cuda_bridge::device::{self, Call, Description, DeviceError, Loaded, Memory, Slice};
use cuda_bridge::graphs::Graphs;
use cuda_bridge::native::Product;
use cuda_bridge::near;
use cuda_bridge::nvrtc::Nvrtc;
use cuda_bridge::quantise::{self, QuantiseOperand};
use cuda_bridge::tensor_core::Shape;
use cuda_bridge::timer::{Timed, Timer};
use cuda_bridge::translate;

use super::cublas::{Cublas, Library};
use super::error::{blas_error, engine_error};
use super::kernel::{Digitise, Kernel, Limits, Prepared, ProductSize, Shader};
use super::modules::{Key, Modules, OPTIONS};
use super::{Device, Dispatch};
use tiebreak_contract::program::graph::View;
use tiebreak_engine::EngineError;
use tiebreak_shaders::product::Variant;

/// A GPU with the kernels that were compiled for it.
pub struct CudaDevice {
    name: String,
    device: Arc<device::Device>,
    /// Dispatches that recur with the same memory are launched together as graphs.
    graphs: Graphs,
    /// The timer of every launch, if somebody asked for it; graphs have no single launches.
    timer: Option<Timer>,
    /// Copies beside kernels, where the driver supports them.
    copies: Option<Copies>,
    modules: Modules,
    /// The library of native products; without it, the shader computes them.
    library: Option<Library>,
}

/// The code that a dispatch runs.
#[derive(Clone)]
pub enum Pipeline {
    Kernel(Arc<Loaded>),
    /// A product of cuBLAS, which needs no uniform data and no workgroups.
    Library(Arc<Product>),
}

/// The least compute capability that has the instructions of the product on tensor cores.
const TENSOR_CORES: (i32, i32) = (8, 0);

/// The GPUs that NVIDIA's driver lists; empty where there is no driver.
///
/// # Errors
/// If the driver cannot be used.
pub fn devices() -> Result<Vec<Description>, EngineError> {
    match device::devices() {
        Err(DeviceError::NoDriver(_)) => Ok(Vec::new()),
        listed => listed.map_err(|error| engine_error("cuda", error)),
    }
}

/// The operand of digitising a view, in the bridge's form.
fn operand(view: &View, block: u32) -> QuantiseOperand {
    QuantiseOperand { dims: view.dims, strides: view.strides, offset: view.offset, block }
}

/// The function that scales exact sums back, for kernels that are written by hand.
fn scale_back() -> String {
    tiebreak_shaders::compose_text("scale_back", "//!include shared/scale_back.wgsl\n").expect("it is there")
}

impl CudaDevice {
    /// The tensor cores' kernel for a product, if this GPU has the instructions and the kernel serves these sizes.
    fn shape(&self, size: &ProductSize) -> Option<Shape> {
        let ProductSize { digits_a, digits_b, places, rows, columns, count } = *size;
        let Description { capability, processors, .. } = self.device.description;
        let shape = (capability >= TENSOR_CORES).then(|| Shape::new(digits_a, digits_b, places))??;
        Some(shape.for_output(rows, columns, count, processors))
    }

    /// Makes cuBLAS compute native products from now on.
    ///
    /// # Errors
    /// If cuBLAS cannot be used here; the message says what is missing.
    pub(crate) fn use_cublas(&mut self, kernels: Cublas) -> Result<(), EngineError> {
        let library = Library::open(&self.device, kernels).map_err(|error| blas_error(&self.name, error))?;
        self.name = format!("{}, {}", self.name, library.describe());
        self.library = Some(library);
        Ok(())
    }

    /// Launches kernels as graphs of the driver's where the same kernels recur with the same memory; or else one by one.
    pub(crate) fn use_graphs(&mut self, on: bool) {
        self.graphs.set(on);
    }

    /// Copies beside kernels where the driver can; or else waits for the whole device.
    ///
    /// # Errors
    /// If the GPU was lost.
    pub(crate) fn use_copies(&mut self, on: bool) -> Result<(), EngineError> {
        let copies = if on { Copies::new(&self.device) } else { Ok(None) };
        self.copies = copies.map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Times every launch from now on, one by one.
    ///
    /// # Errors
    /// If the driver lacks the functions for it.
    pub(crate) fn time_launches(&mut self) -> Result<(), EngineError> {
        self.timer = Some(Timer::new(&self.device).map_err(|error| self.error(error))?);
        Ok(())
    }

    /// The launches since the last call with their times; turns the timing off.
    ///
    /// # Errors
    /// If the GPU was lost.
    pub(crate) fn timed_launches(&mut self) -> Result<Vec<Timed>, EngineError> {
        let Some(timer) = self.timer.take() else { return Ok(Vec::new()) };
        timer.take().map_err(|error| self.error(error))
    }

    /// Tells a profiler that watches this process to start or to stop.
    ///
    /// # Errors
    /// If the driver lacks the functions for it.
    pub(crate) fn profile(&self, on: bool) -> Result<(), EngineError> {
        self.finish()?;
        self.device.profile(on).map_err(|error| self.error(error))
    }

    /// The GPU.
    pub(crate) fn gpu(&self) -> &Arc<device::Device> {
        &self.device
    }

    fn error(&self, error: DeviceError) -> EngineError {
        engine_error(&self.name, error)
    }

    fn fault(&self, reason: impl ToString) -> EngineError {
        EngineError::Fault { device: self.name.clone(), reason: reason.to_string() }
    }

    /// A shader's kernel or, with a shape, the tensor cores' kernel in its place.
    fn shader(&mut self, shader: &Shader, shape: Option<Shape>) -> Result<Prepared<Pipeline>, EngineError> {
        let kernel = self.modules.shader((shader.text.to_string(), shape))?;
        let (uniform, groups) = (shader.uniform.clone(), shader.groups);
        Ok(Prepared { pipeline: Pipeline::Kernel(kernel), uniform, groups })
    }

    fn by_hand(
        &mut self,
        kernel: translate::Kernel,
        uniform: Vec<u32>,
        groups: [u32; 3],
    ) -> Result<Option<Prepared<Pipeline>>, EngineError> {
        let pipeline = Pipeline::Kernel(self.modules.by_hand(kernel)?);
        Ok(Some(Prepared { pipeline, uniform, groups }))
    }

    fn launch(
        &mut self,
        launch: Option<quantise::Launch>,
    ) -> Result<Option<Prepared<Pipeline>>, EngineError> {
        let Some(quantise::Launch { kernel, words, groups }) = launch else { return Ok(None) };
        self.by_hand(kernel, words, groups)
    }

    fn attention(
        &mut self,
        attention: &cuda_bridge::attention::Attention,
        text: &str,
    ) -> Result<Option<Prepared<Pipeline>>, EngineError> {
        let Description { capability, shared, .. } = self.device.description;
        if capability < TENSOR_CORES {
            return Ok(None);
        }
        let (module, info) = self.modules.parse(text)?;
        let kernel = attention.kernel(&module, &info, OPTIONS, shared).map_err(|e| self.fault(e))?;
        let Some(kernel) = kernel else { return Ok(None) };
        self.by_hand(kernel, attention.words(), attention.groups())
    }

    fn columns(&mut self, columns: Columns) -> Result<Option<Prepared<Pipeline>>, EngineError> {
        let Description { capability, shared, .. } = self.device.description;
        if capability < TENSOR_CORES {
            return Ok(None);
        }
        let (module, info) = self.modules.parse(&scale_back())?;
        let launch = columns.launch(&module, &info, OPTIONS, shared).map_err(|e| self.fault(e))?;
        self.launch(launch)
    }

    fn native(
        &mut self,
        operands: [&View; 2],
        parts: u32,
    ) -> Result<Option<Prepared<Pipeline>>, EngineError> {
        let Some(library) = &mut self.library else { return Ok(None) };
        let load = |kernel: translate::Kernel| self.modules.by_hand(kernel);
        let pipeline = Pipeline::Library(library.product(&self.name, operands, parts, load)?);
        Ok(Some(Prepared { pipeline, uniform: Vec::new(), groups: [1; 3] }))
    }
}

impl Device for CudaDevice {
    type Memory = Memory;
    type Uniforms = Memory;
    type Pipeline = Pipeline;
    type Copying = Copying;

    const API: &'static str = "cuda";

    /// Opens a device by a part of its name, or by its number.
    fn open(name: Option<&str>) -> Result<CudaDevice, EngineError> {
        let unsupported = |reason: String| EngineError::Unsupported { device: "cuda".into(), reason };
        let here = device::devices().map_err(|error| engine_error("cuda", error))?;
        // A number is tried first: "1" is a part of many GPUs' names.
        let numbered = here.iter().find(|d| name.is_some_and(|name| name == d.index.to_string()));
        let named =
            |d: &&Description| name.is_none_or(|name| d.name.to_lowercase().contains(&name.to_lowercase()));
        let Some(chosen) = numbered.or_else(|| here.iter().find(named)) else {
            let names: Vec<String> = here.iter().map(|d| format!("{}: {}", d.index, d.name)).collect();
            let here = if names.is_empty() { "none".into() } else { names.join(", ") };
            let wanted = name.map_or("at all".into(), |name| format!("{name:?}"));
            return Err(EngineError::NoAdapter { api: "cuda", wanted, here });
        };
        let opened = device::Device::open(chosen.index);
        let opened = opened.and_then(|d| Ok((d.driver_version()?, d.driver_major()?, d)));
        let (driver, newest, device) = opened.map_err(|error| engine_error("cuda", error))?;
        let nvrtc = Nvrtc::load_for(newest).map_err(|error| unsupported(error.to_string()))?;
        let version = nvrtc.version().map_err(|error| unsupported(error.to_string()))?;
        let name = format!("{} (driver {driver}, NVRTC {version})", chosen.name);
        let copies = Copies::new(&device).map_err(|error| engine_error("cuda", error))?;
        let (graphs, modules) = (Graphs::new(&device), Modules::new(&name, &device, nvrtc, version));
        Ok(CudaDevice { name, graphs, timer: None, copies, device, modules, library: None })
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

    /// Kernels count elements in 32 bits, so this many bytes can be bound.
    fn binding_max(&self) -> u64 {
        u64::from(u32::MAX) * 4
    }

    fn limits(&self) -> Limits {
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

    fn make(&mut self, kernel: &Kernel) -> Result<Option<Prepared<Pipeline>>, EngineError> {
        match kernel {
            Kernel::Wgsl(shader) => self.shader(shader, None).map(Some),
            Kernel::Product { shader, size } => {
                let shape = self.shape(size);
                let mut prepared = self.shader(shader, shape)?;
                if let Some([rows, columns]) = shape.map(Shape::tile) {
                    prepared.groups[..2]
                        .copy_from_slice(&[size.columns.div_ceil(columns), size.rows.div_ceil(rows)]);
                }
                Ok(Some(prepared))
            }
            Kernel::Digitise { view, block, what } => self.launch(match *what {
                Digitise::Scale => operand(view, *block).scale(),
                Digitise::Quantise { digits } => operand(view, *block).quantise(digits),
                Digitise::ScaleAndQuantise { digits } => operand(view, *block).scale_and_quantise(digits),
            }),
            Kernel::Columns { view, digits, columns } => {
                self.columns(Columns { operand: operand(view, 0), columns: *columns, digits: *digits })
            }
            Kernel::Attention { kernel, text } => self.attention(kernel, text),
            Kernel::Native { operands: [a, b], parts } => self.native([a, b], *parts),
            Kernel::RowNorms { uniform, rows } => {
                self.by_hand(near::row_norms(), uniform.clone(), [rows.div_ceil(near::ROWS), 1, 1])
            }
            Kernel::NearTies { uniform, elements, rounds } => {
                let kernel = if *rounds { near::round_near_ties() } else { near::near_ties() };
                self.by_hand(kernel, uniform.clone(), [elements.div_ceil(near::ELEMENTS), 1, 1])
            }
        }
    }

    fn make_all(&mut self, kernels: &[&Kernel]) -> Result<(), EngineError> {
        let key = |kernel: &&Kernel| -> Option<Key> {
            let shape = if let Kernel::Product { size, .. } = kernel { self.shape(size) } else { None };
            Some((kernel.shader()?.text.to_string(), shape))
        };
        let keys: Vec<Key> = kernels.iter().filter_map(key).collect();
        self.modules.compile_all(keys.into_iter())
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
        Ok(()) // every call has returned its own errors
    }
}
