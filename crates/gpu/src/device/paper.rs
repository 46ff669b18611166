//! A device that is not there. It computes nothing and counts the requests that it gets; what is read are zeros.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::kernel::{BUFFERS_MAX, Kernel, Limits, Prepared};
use super::{Device, Dispatch};
use tiebreak_engine::EngineError;
use tiebreak_shaders::product::Variant;

/// The most bytes of a buffer that usual GPUs let a shader access, through Vulkan, Metal and DX12.
const BINDING_USUAL: u64 = (2 << 30) - 256;
/// The same by WebGPU's default limits.
const BINDING_WEBGPU: u64 = 128 << 20;

/// The requests that a device got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Submissions of dispatches.
    pub submissions: u64,
    /// Dispatches.
    pub dispatches: u64,
    /// Pipelines that were made: each text counts once.
    pub pipelines: u64,
    /// Pipelines of which there was a dispatch.
    pub pipelines_used: u64,
    /// Bytes that the host wrote, uniform data included.
    pub written: u64,
    /// Bytes that the host read.
    pub read: u64,
    /// Times that the host waited for the device.
    pub waits: u64,
    /// Bytes of memory that there are now.
    pub memory: u64,
    /// The most bytes of memory that there were.
    pub memory_most: u64,
}

impl Requests {
    /// The requests since an earlier count. Memory is not counted from then on: its figures stay.
    pub fn since(self, earlier: Requests) -> Requests {
        Requests {
            submissions: self.submissions - earlier.submissions,
            dispatches: self.dispatches - earlier.dispatches,
            pipelines: self.pipelines - earlier.pipelines,
            pipelines_used: self.pipelines_used - earlier.pipelines_used,
            written: self.written - earlier.written,
            read: self.read - earlier.read,
            waits: self.waits - earlier.waits,
            ..self
        }
    }
}

/// The counts of a device, for somebody else than its engine.
#[derive(Clone, Default)]
pub struct Counter(Arc<Mutex<Requests>>);

impl Counter {
    fn held(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests so far.
    pub fn requests(&self) -> Requests {
        *self.held()
    }

    /// Counts the most memory from now on.
    pub fn forget_most(&self) {
        let mut held = self.held();
        held.memory_most = held.memory;
    }

    fn memory(&self, bytes: u64) -> Counted {
        let mut held = self.held();
        held.memory += bytes;
        held.memory_most = held.memory_most.max(held.memory);
        Counted { bytes, counter: self.clone() }
    }
}

/// Memory that is not there.
pub struct Counted {
    bytes: u64,
    counter: Counter,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counter.held().memory -= self.bytes;
    }
}

/// The device, with the limits of usual GPUs or WebGPU's default ones.
pub struct Paper {
    limits: Limits,
    binding_max: u64,
    pub(crate) counter: Counter,
    /// By text: the pipeline's number.
    pipelines: HashMap<String, usize>,
    /// By number: true if there was a dispatch of the pipeline.
    used: Mutex<Vec<bool>>,
}

impl Paper {
    /// A device with the limits of usual GPUs; with `webgpu`, with WebGPU's default limits.
    pub(crate) fn within(webgpu: bool) -> Paper {
        let usual = Limits { buffers: BUFFERS_MAX, ..Limits::WEBGPU };
        let (limits, binding_max) =
            if webgpu { (Limits::WEBGPU, BINDING_WEBGPU) } else { (usual, BINDING_USUAL) };
        let (counter, pipelines) = (Counter::default(), HashMap::new());
        Paper { limits, binding_max, counter, pipelines, used: Mutex::default() }
    }
}

impl Device for Paper {
    type Memory = Counted;
    type Uniforms = Counted;
    type Pipeline = usize;
    type Copying = std::convert::Infallible;

    const API: &'static str = "no device";

    fn open(_name: Option<&str>) -> Result<Paper, EngineError> {
        Ok(Paper::within(false))
    }

    fn name(&self) -> &str {
        "a GPU that is not there"
    }

    fn software(&self) -> bool {
        false
    }

    fn variant(&self) -> Option<Variant> {
        Some(Variant::Dot)
    }

    fn binding_max(&self) -> u64 {
        self.binding_max
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn allocate(&self, bytes: u64) -> Result<Counted, EngineError> {
        Ok(self.counter.memory(bytes))
    }

    fn uniforms(&self, bytes: &[u8]) -> Result<Counted, EngineError> {
        self.counter.held().written += bytes.len() as u64;
        Ok(self.counter.memory(bytes.len().next_multiple_of(256).max(256) as u64))
    }

    fn write(&self, _memory: &Counted, bytes: &[u8]) -> Result<(), EngineError> {
        self.counter.held().written += bytes.len() as u64;
        Ok(())
    }

    fn make(&mut self, kernel: &Kernel) -> Result<Option<Prepared<usize>>, EngineError> {
        let Some(shader) = kernel.shader() else { return Ok(None) };
        let next = self.pipelines.len();
        let pipeline = match self.pipelines.get(&shader.text[..]) {
            Some(&known) => known,
            None => {
                self.pipelines.insert(shader.text.to_string(), next);
                self.used.get_mut().unwrap_or_else(PoisonError::into_inner).push(false);
                self.counter.held().pipelines += 1;
                next
            }
        };
        Ok(Some(Prepared { pipeline, uniform: shader.uniform.clone(), groups: shader.groups }))
    }

    fn submit(&self, dispatches: &[Dispatch<Self>]) -> Result<(), EngineError> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let mut requests = self.counter.held();
        requests.submissions += 1;
        requests.dispatches += dispatches.len() as u64;
        for dispatch in dispatches {
            requests.pipelines_used += u64::from(!std::mem::replace(&mut used[*dispatch.pipeline], true));
        }
        Ok(())
    }

    fn read(&self, memory: &Counted, bytes: u64, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        self.read_each(&[(memory, bytes)], &mut |_, bytes| visit(bytes))
    }

    fn read_each(
        &self,
        from: &[(&Counted, u64)],
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), EngineError> {
        let mut requests = self.counter.held();
        requests.read += from.iter().map(|(_, bytes)| bytes).sum::<u64>();
        requests.waits += 1;
        drop(requests);
        from.iter().enumerate().for_each(|(i, (_, bytes))| visit(i, &vec![0; *bytes as usize]));
        Ok(())
    }

    fn end_read(&self, copying: Self::Copying, _visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        match copying {}
    }

    fn finish(&self) -> Result<(), EngineError> {
        self.counter.held().waits += 1;
        Ok(())
    }

    fn check(&self) -> Result<(), EngineError> {
        Ok(())
    }
}
