//! One adapter through wgpu: pipelines, buffers, dispatches, read-back.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;
use wgpu::{Backends, BufferUsages};

use super::kernel::{BUFFERS_MAX, Kernel, Limits, Prepared, Shader};
use super::{Device, Dispatch, STAGING, linted};
use tiebreak_engine::EngineError;
use tiebreak_shaders::product::Variant;

/// An adapter in the form in which people choose it.
#[derive(Clone, Debug)]
pub struct AdapterName {
    /// The driver's name for the adapter.
    pub name: String,
    /// The driver's name and version.
    pub driver: String,
    /// Discrete, integrated, virtual, software or other.
    pub kind: &'static str,
    /// The reason why it is not used, if it is refused.
    pub refused: Option<String>,
    /// True if it runs on the CPU: a software driver.
    pub software: bool,
}

fn instance() -> wgpu::Instance {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = Backends::VULKAN | Backends::METAL | Backends::DX12;
    wgpu::Instance::new(descriptor)
}

fn name_of(adapter: &wgpu::Adapter) -> String {
    let info = adapter.get_info();
    format!("{} ({:?})", info.name, info.backend)
}

fn all() -> Vec<wgpu::Adapter> {
    pollster::block_on(instance().enumerate_adapters(Backends::VULKAN | Backends::METAL | Backends::DX12))
}

/// The adapters of this machine. OpenGL is left out: its translation gets integer corner cases wrong (division by zero, signed
/// remainders), so its bits differ from WGSL's.
pub fn adapters() -> Vec<AdapterName> {
    let limits = wgpu::Limits::default();
    let refused = |adapter: &wgpu::Adapter| {
        (!limits.check_limits(&adapter.limits()))
            .then(|| "it does not offer WebGPU's default limits".to_string())
    };
    let named = |adapter: &wgpu::Adapter| {
        let info = adapter.get_info();
        let kind = match info.device_type {
            wgpu::DeviceType::DiscreteGpu => "discrete",
            wgpu::DeviceType::IntegratedGpu => "integrated",
            wgpu::DeviceType::VirtualGpu => "virtual",
            wgpu::DeviceType::Cpu => "software",
            wgpu::DeviceType::Other => "other",
        };
        AdapterName {
            name: name_of(adapter),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
            kind,
            refused: refused(adapter),
            software: info.device_type == wgpu::DeviceType::Cpu,
        }
    };
    all().iter().map(named).collect()
}

/// The first fault that the device reported.
type Fault = Arc<Mutex<Option<EngineError>>>;

/// The pipelines that were compiled for a device, by their text.
type Pipelines = Arc<Mutex<HashMap<String, wgpu::ComputePipeline>>>;

/// A device with WebGPU's default limits, except for the size and number of buffers. A clone is the same device.
#[derive(Clone)]
pub struct Adapter {
    name: String,
    /// True if it runs on the CPU.
    software: bool,
    device: wgpu::Device,
    queue: wgpu::Queue,
    pipelines: Pipelines,
    fault: Fault,
    /// Bytes that were written and not submitted.
    written: Arc<AtomicU64>,
}

impl Adapter {
    fn lost(&self, error: impl ToString) -> EngineError {
        EngineError::DeviceLost { device: self.name.clone(), reason: error.to_string() }
    }

    fn pipeline(&self, text: &str) -> Result<wgpu::ComputePipeline, EngineError> {
        if let Some(pipeline) = self.known().get(text) {
            return Ok(pipeline.clone());
        }
        let pipeline = self.compiled(text)?;
        self.known().insert(text.to_string(), pipeline.clone());
        Ok(pipeline)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, wgpu::ComputePipeline>> {
        self.pipelines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compiled(&self, text: &str) -> Result<wgpu::ComputePipeline, EngineError> {
        linted(&self.name, text)?;
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(text.into()),
        });
        Ok(self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        }))
    }
}

impl Device for Adapter {
    type Memory = wgpu::Buffer;
    type Uniforms = wgpu::Buffer;
    type Pipeline = wgpu::ComputePipeline;
    type Copying = std::convert::Infallible;

    const API: &'static str = "wgpu";

    fn open(name: Option<&str>) -> Result<Adapter, EngineError> {
        let unsupported =
            |device: &str, reason: String| EngineError::Unsupported { device: device.into(), reason };
        let wanted = name.map(str::to_lowercase);
        let mut adapters = all();
        use wgpu::DeviceType::*;
        adapters.sort_by_key(|a| match a.get_info().device_type {
            DiscreteGpu => 0,
            IntegratedGpu => 1,
            VirtualGpu | Other => 2,
            Cpu => 3,
        });
        let fits = |a: &wgpu::Adapter| wanted.as_ref().is_none_or(|w| name_of(a).to_lowercase().contains(w));
        let adapter = adapters.iter().find(|a| fits(a)).ok_or_else(|| {
            let names: Vec<String> = adapters.iter().map(name_of).collect();
            let here = if names.is_empty() { "none".into() } else { names.join(", ") };
            let wanted = name.map_or("at all".into(), |name| format!("{name:?}"));
            EngineError::NoAdapter { api: "wgpu", wanted, here }
        })?;
        let name = name_of(adapter);
        // WebGPU's default limits are enough for all programs. With larger buffers, fewer tensors are cut in pieces; with more
        // buffers, more nodes are computed at once.
        let has = adapter.limits();
        let required_limits = wgpu::Limits {
            max_storage_buffer_binding_size: has.max_storage_buffer_binding_size,
            max_buffer_size: has.max_buffer_size,
            max_storage_buffers_per_shader_stage: has.max_storage_buffers_per_shader_stage,
            ..Default::default()
        };
        let descriptor =
            wgpu::DeviceDescriptor { label: Some("tiebreak"), required_limits, ..Default::default() };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
            .map_err(|error| unsupported(&name, error.to_string()))?;
        let fault: Fault = Arc::default();
        let (seen, device_name) = (fault.clone(), name.clone());
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            let device = device_name.clone();
            let error = match error {
                wgpu::Error::OutOfMemory { source } => {
                    EngineError::OutOfMemory { device, reason: source.to_string() }
                }
                // Programs are checked before they run, so an error from wgpu is a fault of this program.
                other => EngineError::Fault { device, reason: other.to_string() },
            };
            seen.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }));
        let (seen, device_name) = (fault.clone(), name.clone());
        device.set_device_lost_callback(move |reason, message| {
            if reason != wgpu::DeviceLostReason::Destroyed {
                let error = EngineError::DeviceLost { device: device_name.clone(), reason: message };
                seen.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        });
        let (software, written) = (adapter.get_info().device_type == Cpu, Arc::default());
        Ok(Adapter { name, software, device, queue, pipelines: Pipelines::default(), fault, written })
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn software(&self) -> bool {
        self.software
    }

    /// On software adapters the other variants are slower by far (benches/gpu_product.rs), and slow to try.
    fn variant(&self) -> Option<Variant> {
        self.software.then_some(Variant::Words)
    }

    fn limits(&self) -> Limits {
        let buffers = self.device.limits().max_storage_buffers_per_shader_stage.min(BUFFERS_MAX);
        Limits { buffers, ..Limits::WEBGPU }
    }

    fn binding_max(&self) -> u64 {
        let limits = self.device.limits();
        limits.max_storage_buffer_binding_size.min(limits.max_buffer_size)
    }

    fn check(&self) -> Result<(), EngineError> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    fn allocate(&self, bytes: u64) -> Result<wgpu::Buffer, EngineError> {
        Ok(self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        }))
    }

    fn uniforms(&self, bytes: &[u8]) -> Result<wgpu::Buffer, EngineError> {
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes.len().next_multiple_of(256).max(256) as u64,
            usage: BufferUsages::UNIFORM | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.queue.write_buffer(&buffer, 0, bytes);
        Ok(buffer)
    }

    /// wgpu copies bytes to memory of its own, which it keeps until they are submitted and the device has them. A state would
    /// be there twice.
    fn write(&self, buffer: &wgpu::Buffer, bytes: &[u8]) -> Result<(), EngineError> {
        self.queue.write_buffer(buffer, 0, bytes);
        let bytes = bytes.len() as u64;
        if self.written.fetch_add(bytes, Ordering::Relaxed) + bytes >= STAGING {
            self.written.store(0, Ordering::Relaxed);
            self.queue.submit([]);
            return self.finish();
        }
        self.check()
    }

    fn make(&mut self, kernel: &Kernel) -> Result<Option<Prepared<wgpu::ComputePipeline>>, EngineError> {
        let Some(Shader { text, uniform, groups }) = kernel.shader() else { return Ok(None) };
        Ok(Some(Prepared { pipeline: self.pipeline(text)?, uniform: uniform.clone(), groups: *groups }))
    }

    /// Compiles the shaders on all cores: compiling is most of the time that opening an adapter takes.
    fn make_all(&mut self, kernels: &[&Kernel]) -> Result<(), EngineError> {
        let texts = kernels.iter().filter_map(|kernel| kernel.shader()).map(|shader| &shader.text[..]);
        let mut missing: HashSet<&str> = texts.collect();
        missing.retain(|text| !self.known().contains_key(*text));
        let compiled = |text: &str| Ok((text.to_string(), self.compiled(text)?));
        let made = missing.into_par_iter().map(compiled).collect::<Result<Vec<_>, EngineError>>()?;
        self.known().extend(made);
        Ok(())
    }

    fn submit(&self, dispatches: &[Dispatch<Self>]) -> Result<(), EngineError> {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for dispatch in dispatches {
            let (uniform, offset, size) = dispatch.uniform;
            let binding = |buffer, offset, size| {
                wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer,
                    offset,
                    size: std::num::NonZeroU64::new(size),
                })
            };
            let mut entries =
                vec![wgpu::BindGroupEntry { binding: 0, resource: binding(uniform, offset, size) }];
            for (number, (buffer, bytes)) in (1..).zip(&dispatch.buffers) {
                entries.push(wgpu::BindGroupEntry { binding: number, resource: binding(buffer, 0, *bytes) });
            }
            let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &dispatch.pipeline.get_bind_group_layout(0),
                entries: &entries,
            });
            pass.set_pipeline(dispatch.pipeline);
            pass.set_bind_group(0, &group, &[]);
            let [x, y, z] = dispatch.groups;
            pass.dispatch_workgroups(x, y, z);
        }
        drop(pass);
        self.queue.submit([encoder.finish()]);
        self.written.store(0, Ordering::Relaxed);
        self.check()
    }

    fn read(
        &self,
        buffer: &wgpu::Buffer,
        bytes: u64,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), EngineError> {
        self.read_each(&[(buffer, bytes)], &mut |_, bytes| visit(bytes))
    }

    /// All buffers are copied to one buffer of the host, for which the host waits once.
    fn read_each(
        &self,
        from: &[(&wgpu::Buffer, u64)],
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), EngineError> {
        let mut end = 0;
        let add = |(_, bytes): &(&wgpu::Buffer, u64)| {
            end += bytes.next_multiple_of(4);
            end
        };
        let ends: Vec<u64> = from.iter().map(add).collect();
        let all = ends.last().copied().unwrap_or(0);
        if all == 0 {
            (0..from.len()).for_each(|i| visit(i, &[]));
            return Ok(());
        }
        let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: all,
            usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let begins = || std::iter::once(0).chain(ends.iter().copied());
        let mut encoder = self.device.create_command_encoder(&Default::default());
        for ((buffer, bytes), begin) in from.iter().zip(begins()).filter(|((_, bytes), _)| *bytes > 0) {
            encoder.copy_buffer_to_buffer(buffer, 0, &staging, begin, bytes.next_multiple_of(4));
        }
        self.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |_| {});
        self.finish()?;
        let view = staging.get_mapped_range(..).map_err(|error| self.lost(error))?;
        for (i, ((_, bytes), begin)) in from.iter().zip(begins()).enumerate() {
            visit(i, &view[begin as usize..(begin + bytes) as usize]);
        }
        Ok(())
    }

    fn end_read(&self, copying: Self::Copying, _visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        match copying {}
    }

    fn finish(&self) -> Result<(), EngineError> {
        self.device.poll(wgpu::PollType::wait_indefinitely()).map_err(|error| self.lost(error))?;
        self.check()
    }
}
