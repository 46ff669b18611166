//! One adapter through wgpu: pipelines, pooled buffers, dispatches, read-back. Knows nothing of programs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use wgpu::{Backends, BufferUsages};

use crate::engine::EngineError;
use crate::shaders::{self, lint};

/// An adapter as people choose it.
#[derive(Clone, Debug)]
pub struct AdapterName {
    pub name: String,
    /// Why it is not used, if so.
    pub refused: Option<String>,
    /// Whether it runs on the CPU: a software driver.
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

/// The adapters of this machine. OpenGL is left out: its translation gets integer corner cases wrong (division by zero,
/// signed remainders), so its bits are not those of WGSL.
pub fn adapters() -> Vec<AdapterName> {
    let limits = wgpu::Limits::default();
    let refused = |adapter: &wgpu::Adapter| {
        (!limits.check_limits(&adapter.limits()))
            .then(|| "it does not offer WebGPU's default limits".to_string())
    };
    let named = |adapter: &wgpu::Adapter| AdapterName {
        name: name_of(adapter),
        refused: refused(adapter),
        software: adapter.get_info().device_type == wgpu::DeviceType::Cpu,
    };
    all().iter().map(named).collect()
}

/// The first fault that the device reported.
type Fault = Arc<Mutex<Option<EngineError>>>;

/// Free buffers by size in bytes.
#[derive(Default)]
struct Free {
    by_size: HashMap<u64, Vec<(u64, wgpu::Buffer)>>,
    /// How often the pool was trimmed; kept with each buffer from when it was last in use.
    age: u64,
}

/// Trims that a free buffer survives: a step runs a handful of graphs, each of which trims once.
const AGE_MAX: u64 = 16;

type Pool = Arc<Mutex<Free>>;

/// A buffer that goes back to its pool.
pub struct Buffer {
    buffer: Option<wgpu::Buffer>,
    pool: Weak<Mutex<Free>>,
}

impl Buffer {
    pub fn raw(&self) -> &wgpu::Buffer {
        self.buffer.as_ref().expect("a buffer is there until it is dropped")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let (Some(pool), Some(buffer)) = (self.pool.upgrade(), self.buffer.take()) {
            let mut pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
            let age = pool.age;
            pool.by_size.entry(buffer.size()).or_default().push((age, buffer));
        }
    }
}

/// A device with WebGPU's default limits but for the size of buffers.
pub struct Device {
    pub name: String,
    /// Whether it runs on the CPU.
    pub software: bool,
    device: wgpu::Device,
    queue: wgpu::Queue,
    pool: Pool,
    pipelines: HashMap<String, wgpu::ComputePipeline>,
    fault: Fault,
}

/// One dispatch: a pipeline, its uniform data (buffer and offset) and its buffers in binding order.
pub struct Dispatch<'a> {
    pub pipeline: &'a wgpu::ComputePipeline,
    pub uniform: (&'a wgpu::Buffer, u64, u64),
    pub buffers: Vec<(&'a wgpu::Buffer, u64)>,
    pub groups: [u32; 3],
}

impl Device {
    /// Opens the first adapter whose name contains `name` (any case), or the best one.
    pub fn open(name: Option<&str>) -> Result<Device, EngineError> {
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
            unsupported("wgpu", format!("no adapter matches; adapters here: {here}"))
        })?;
        let name = name_of(adapter);
        // WebGPU's default limits are enough for everything but large tensors, which may be as large as the adapter allows.
        let has = adapter.limits();
        let required_limits = wgpu::Limits {
            max_storage_buffer_binding_size: has.max_storage_buffer_binding_size,
            max_buffer_size: has.max_buffer_size,
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
                // Programs are checked before they run, so what wgpu rejects is our mistake.
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
        let software = adapter.get_info().device_type == Cpu;
        Ok(Device { name, software, device, queue, pool: Arc::default(), pipelines: HashMap::new(), fault })
    }

    /// The greatest buffer that a shader can see, in bytes.
    pub fn binding_max(&self) -> u64 {
        let limits = self.device.limits();
        limits.max_storage_buffer_binding_size.min(limits.max_buffer_size)
    }

    /// Reports what the device complained of since it was last asked.
    pub fn check(&self) -> Result<(), EngineError> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    /// A storage buffer of at least `bytes` with any contents.
    pub fn buffer(&self, bytes: u64) -> Buffer {
        let size = bytes.next_multiple_of(256).max(256);
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let pooled = pool.by_size.get_mut(&size).and_then(Vec::pop).map(|(_, buffer)| buffer);
        drop(pool);
        let buffer = pooled.unwrap_or_else(|| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size,
                usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        });
        Buffer { buffer: Some(buffer), pool: Arc::downgrade(&self.pool) }
    }

    /// Frees pooled buffers that nothing has used for a while.
    pub fn trim(&self) {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.age += 1;
        let age = pool.age;
        pool.by_size.values_mut().for_each(|free| free.retain(|(used, _)| age - used <= AGE_MAX));
        pool.by_size.retain(|_, free| !free.is_empty());
    }

    /// A buffer of uniform data.
    pub fn uniforms(&self, bytes: &[u8]) -> wgpu::Buffer {
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes.len().next_multiple_of(256).max(256) as u64,
            usage: BufferUsages::UNIFORM | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.queue.write_buffer(&buffer, 0, bytes);
        buffer
    }

    /// Copies words to a buffer, before everything that is submitted later.
    pub fn write(&self, buffer: &wgpu::Buffer, bytes: &[u8]) {
        self.queue.write_buffer(buffer, 0, bytes);
    }

    /// The pipeline of a shader's text, from the cache if it was made before. No text reaches the driver that the lint
    /// has not passed, but for the trainer's native kernels.
    pub fn pipeline(&mut self, text: &str) -> Result<wgpu::ComputePipeline, EngineError> {
        if let Some(pipeline) = self.pipelines.get(text) {
            return Ok(pipeline.clone());
        }
        if !shaders::is_native(text)
            && let Err(violations) = lint::check("pipeline", text)
        {
            let reason = format!("a shader does not pass the lint: {}", violations[0]);
            return Err(EngineError::Fault { device: self.name.clone(), reason });
        }
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(text.into()),
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        });
        self.pipelines.insert(text.to_string(), pipeline.clone());
        Ok(pipeline)
    }

    /// Runs dispatches in order.
    pub fn submit(&self, dispatches: &[Dispatch]) -> Result<(), EngineError> {
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
        self.check()
    }

    /// Shows the first `bytes` of a buffer.
    pub fn read(
        &self,
        buffer: &wgpu::Buffer,
        bytes: u64,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), EngineError> {
        if bytes == 0 {
            visit(&[]);
            return Ok(());
        }
        let size = bytes.next_multiple_of(4);
        let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, size);
        self.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |_| {});
        let lost = |reason: String| EngineError::DeviceLost { device: self.name.clone(), reason };
        self.device.poll(wgpu::PollType::wait_indefinitely()).map_err(|error| lost(error.to_string()))?;
        self.check()?;
        let view = staging.get_mapped_range(..).map_err(|error| lost(error.to_string()))?;
        visit(&view[..bytes as usize]);
        Ok(())
    }
}
