//! An adapter that records its requests: any program that repeats them ([`Launches`]) must read the same bytes. The types here
//! have the JSON form of docs/PORTABILITY.md (section "A launch list").

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::kernel::{Kernel, Limits, Prepared};
use super::wgpu::Adapter;
use super::{Device, Dispatch};
use tiebreak_engine::EngineError;
use tiebreak_shaders::product::Variant;

/// Bytes of data: the first byte in [`Launches::data`], and their number.
pub(crate) type Span = (u64, u64);

/// One dispatch.
#[derive(Clone, Debug, Serialize)]
pub struct RecordedDispatch {
    /// The shader's index in [`Launches::shaders`].
    pub shader: usize,
    /// Buffer, offset and bytes of the uniform data: binding 0.
    pub uniform: (u32, u64, u64),
    /// Buffer and bytes of each storage binding, from 1 on.
    pub buffers: Vec<(u32, u64)>,
    /// The number of workgroups along x, y and z.
    pub groups: [u32; 3],
}

/// The purpose of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Usage {
    /// Tensors, which shaders read and write.
    Storage,
    /// Uniform data, which shaders read.
    Uniform,
}

/// A request to a device. Buffers are numbered from 0, each number once.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Creates a buffer, which is zeros except for its initial data.
    Create {
        /// The buffer's number.
        buffer: u32,
        /// The buffer's purpose.
        usage: Usage,
        /// The buffer's size.
        bytes: u64,
        /// The buffer's initial data.
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<Span>,
    },
    /// Replaces the first bytes of a buffer.
    Write {
        /// The buffer's number.
        buffer: u32,
        /// The new bytes.
        data: Span,
    },
    /// Dispatches, in order.
    Submit(Vec<RecordedDispatch>),
    /// Reads the first bytes of a buffer.
    Read {
        /// The buffer's number.
        buffer: u32,
        /// The number of bytes.
        bytes: u64,
        /// The bytes' digest, in hexadecimal.
        sha256: String,
    },
    /// Frees a buffer, which is not used again.
    Free {
        /// The buffer's number.
        buffer: u32,
    },
}

/// All requests to a device.
#[derive(Clone, Debug, Default)]
pub struct Launches {
    /// The name of the adapter that got the requests.
    pub adapter: String,
    /// WGSL texts with the entry point `main`.
    pub shaders: Vec<String>,
    /// The requests, in order.
    pub commands: Vec<Command>,
    /// The bytes that are written to buffers.
    pub data: Vec<u8>,
    spans: HashMap<[u8; 32], Span>,
    buffers: u32,
}

impl Launches {
    /// Moves all spans of data by `by` bytes, so that their data can follow other data.
    pub fn shift(&mut self, by: u64) {
        for command in &mut self.commands {
            if let Command::Create { data: Some(data), .. } | Command::Write { data, .. } = command {
                data.0 += by;
            }
        }
    }

    fn span(&mut self, bytes: &[u8]) -> Span {
        let data = &mut self.data;
        *self.spans.entry(Sha256::digest(bytes).into()).or_insert_with(|| {
            let first = data.len() as u64;
            data.extend(bytes);
            (first, bytes.len() as u64)
        })
    }

    fn shader(&mut self, text: &str) -> usize {
        self.shaders.iter().position(|known| known == text).unwrap_or_else(|| {
            self.shaders.push(text.to_string());
            self.shaders.len() - 1
        })
    }
}

/// The recorded requests, shared by the device and its buffers.
pub(crate) type Log = Arc<Mutex<Launches>>;

fn held(log: &Log) -> MutexGuard<'_, Launches> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer with its number.
pub(crate) struct Recorded {
    buffer: wgpu::Buffer,
    number: u32,
    log: Log,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        held(&self.log).commands.push(Command::Free { buffer: self.number });
    }
}

/// An adapter, with its own limits or WebGPU's default ones, which every browser has.
pub(crate) struct Recorder {
    adapter: Adapter,
    webgpu: bool,
    /// The requests so far.
    pub log: Log,
}

impl Recorder {
    /// Opens an adapter by a part of its name, or the best one; with `webgpu`, within WebGPU's default limits.
    ///
    /// # Errors
    /// If there is no such adapter, or it cannot be opened.
    pub(crate) fn within(name: Option<&str>, webgpu: bool) -> Result<Recorder, EngineError> {
        let adapter = Adapter::open(name)?;
        let launches = Launches { adapter: adapter.name().into(), ..Launches::default() };
        Ok(Recorder { adapter, webgpu, log: Arc::new(Mutex::new(launches)) })
    }

    fn recorded(
        &self,
        buffer: wgpu::Buffer,
        command: impl FnOnce(&mut Launches, u32) -> Command,
    ) -> Recorded {
        let mut log = held(&self.log);
        let number = log.buffers;
        log.buffers += 1;
        let command = command(&mut log, number);
        log.commands.push(command);
        Recorded { buffer, number, log: self.log.clone() }
    }
}

impl Device for Recorder {
    type Memory = Recorded;
    type Uniforms = Recorded;
    type Pipeline = (wgpu::ComputePipeline, usize);
    type Copying = std::convert::Infallible;

    const API: &'static str = "wgpu, recorded";

    fn open(name: Option<&str>) -> Result<Recorder, EngineError> {
        Recorder::within(name, true)
    }

    fn name(&self) -> &str {
        self.adapter.name()
    }

    fn software(&self) -> bool {
        self.adapter.software()
    }

    fn variant(&self) -> Option<Variant> {
        None
    }

    fn limits(&self) -> Limits {
        if self.webgpu { Limits::WEBGPU } else { self.adapter.limits() }
    }

    fn binding_max(&self) -> u64 {
        let all = self.adapter.binding_max();
        if self.webgpu { all.min(128 << 20) } else { all }
    }

    fn check(&self) -> Result<(), EngineError> {
        self.adapter.check()
    }

    fn allocate(&self, bytes: u64) -> Result<Recorded, EngineError> {
        let buffer = self.adapter.allocate(bytes)?;
        Ok(self.recorded(buffer, |_, number| Command::Create {
            buffer: number,
            usage: Usage::Storage,
            bytes,
            data: None,
        }))
    }

    fn uniforms(&self, bytes: &[u8]) -> Result<Recorded, EngineError> {
        let buffer = self.adapter.uniforms(bytes)?;
        let size = buffer.size();
        Ok(self.recorded(buffer, |log, number| {
            let data = Some(log.span(bytes));
            Command::Create { buffer: number, usage: Usage::Uniform, bytes: size, data }
        }))
    }

    fn write(&self, memory: &Recorded, bytes: &[u8]) -> Result<(), EngineError> {
        let mut log = held(&self.log);
        let data = log.span(bytes);
        log.commands.push(Command::Write { buffer: memory.number, data });
        self.adapter.write(&memory.buffer, bytes)
    }

    fn make(&mut self, kernel: &Kernel) -> Result<Option<Prepared<Self::Pipeline>>, EngineError> {
        let Some(shader) = kernel.shader() else { return Ok(None) };
        let number = held(&self.log).shader(&shader.text);
        let made = self.adapter.make(kernel)?;
        Ok(made.map(|Prepared { pipeline, uniform, groups }| Prepared {
            pipeline: (pipeline, number),
            uniform,
            groups,
        }))
    }

    fn make_all(&mut self, kernels: &[&Kernel]) -> Result<(), EngineError> {
        self.adapter.make_all(kernels)
    }

    fn submit(&self, dispatches: &[Dispatch<Self>]) -> Result<(), EngineError> {
        let run = |dispatch: &Dispatch<Self>| {
            let (uniform, offset, bytes) = dispatch.uniform;
            let buffers = dispatch.buffers.iter().map(|(memory, bytes)| (memory.number, *bytes));
            RecordedDispatch {
                shader: dispatch.pipeline.1,
                uniform: (uniform.number, offset, bytes),
                buffers: buffers.collect(),
                groups: dispatch.groups,
            }
        };
        held(&self.log).commands.push(Command::Submit(dispatches.iter().map(run).collect()));
        let plain: Vec<Dispatch<Adapter>> = dispatches
            .iter()
            .map(|dispatch| Dispatch {
                pipeline: &dispatch.pipeline.0,
                uniform: (&dispatch.uniform.0.buffer, dispatch.uniform.1, dispatch.uniform.2),
                buffers: dispatch.buffers.iter().map(|&(memory, bytes)| (&memory.buffer, bytes)).collect(),
                groups: dispatch.groups,
            })
            .collect();
        self.adapter.submit(&plain)
    }

    fn read(&self, memory: &Recorded, bytes: u64, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        let mut digest = Sha256::new();
        self.adapter.read(&memory.buffer, bytes, &mut |part| {
            digest.update(part);
            visit(part);
        })?;
        if bytes > 0 {
            let sha256: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            held(&self.log).commands.push(Command::Read { buffer: memory.number, bytes, sha256 });
        }
        Ok(())
    }

    fn end_read(&self, copying: Self::Copying, _visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        match copying {}
    }

    fn finish(&self) -> Result<(), EngineError> {
        self.adapter.finish()
    }
}
