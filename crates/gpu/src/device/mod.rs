//! The interface of the engine to a way of reaching GPUs: memory, kernels, and dispatches in order.
//!
//! This folder knows nothing of programs.

#[cfg(feature = "cuda")]
pub mod cublas;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "cuda")]
pub mod error;
pub(crate) mod kernel;
pub(crate) mod layout;
#[cfg(feature = "cuda")]
mod modules;
pub mod paper;
#[cfg(feature = "wgpu")]
pub mod recorder;
#[cfg(feature = "wgpu")]
pub mod wgpu;

use self::kernel::{Kernel, Limits, Prepared};
use tiebreak_engine::EngineError;
use tiebreak_shaders::product::Variant;

/// The most bytes that the host writes before the device has them.
pub(crate) const STAGING: u64 = 64 << 20;

/// A GPU through wgpu or through NVIDIA's driver.
pub trait Device: Sized + Send + 'static {
    /// Memory that shaders access, freed when it is dropped.
    type Memory: Send + Sync + 'static;
    /// Data that dispatches take as their first binding.
    type Uniforms: Send + Sync + 'static;
    /// The code that a dispatch runs.
    type Pipeline: Clone + Send + Sync + 'static;
    /// A copy to the host that is in progress; dropping it waits for it.
    type Copying;

    /// The name of the interface to the GPU, for people.
    const API: &'static str;

    /// Opens the first device whose name contains `name` (any case), or the best one.
    fn open(name: Option<&str>) -> Result<Self, EngineError>;

    /// The GPU, for people.
    fn name(&self) -> &str;

    /// True if the device runs on the host's processor.
    fn software(&self) -> bool;

    /// The variant in which this device computes products, if it need not be measured.
    fn variant(&self) -> Option<Variant>;

    /// The most bytes of a buffer that a shader can access. Larger tensors are in several buffers.
    fn binding_max(&self) -> u64;

    /// The limits of a kernel.
    fn limits(&self) -> Limits;

    /// Memory of at least `bytes`, with any contents.
    fn allocate(&self, bytes: u64) -> Result<Self::Memory, EngineError>;

    fn uniforms(&self, bytes: &[u8]) -> Result<Self::Uniforms, EngineError>;

    /// Copies whole words to memory, after everything that was submitted before and before everything that is submitted later.
    fn write(&self, memory: &Self::Memory, bytes: &[u8]) -> Result<(), EngineError>;

    /// A prepared kernel; `None` if the device has no kernel of this kind or for these sizes, which never happens for a shader.
    /// No text reaches a driver that the lint has not passed, except for the trainer's native kernels.
    fn make(&mut self, kernel: &Kernel) -> Result<Option<Prepared<Self::Pipeline>>, EngineError>;

    /// Prepares the shaders among these kernels to be made, in parallel where a device can.
    fn make_all(&mut self, _kernels: &[&Kernel]) -> Result<(), EngineError> {
        Ok(())
    }

    /// Gives the purposes of the dispatches of the next submissions, in order, to a device that times them.
    fn announce(&self, _names: &mut dyn Iterator<Item = String>) {}

    /// Runs dispatches in order.
    fn submit(&self, dispatches: &[Dispatch<Self>]) -> Result<(), EngineError>;

    /// Passes the first `bytes` of memory to `visit`.
    fn read(
        &self,
        memory: &Self::Memory,
        bytes: u64,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), EngineError>;

    /// [`Device::read`] of several memories, which are passed to `visit` in order with their places in the list. A device that can
    /// waits once.
    fn read_each(
        &self,
        from: &[(&Self::Memory, u64)],
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), EngineError> {
        let mut each = from.iter().enumerate();
        each.try_for_each(|(i, (memory, bytes))| self.read(memory, *bytes, &mut |bytes| visit(i, bytes)))
    }

    /// Begins to copy the first bytes of memories to the host, after everything that was submitted before and beside everything
    /// that is submitted later. `None` where the device cannot. Nothing may write these memories until the copy is dropped.
    fn begin_read(&self, _from: &[(&Self::Memory, u64)]) -> Result<Option<Self::Copying>, EngineError> {
        Ok(None)
    }

    /// Waits for a copy, but for nothing that was submitted after it was begun, and passes the bytes of all memories to `visit`,
    /// one after another.
    fn end_read(&self, copying: Self::Copying, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError>;

    /// [`Device::read`] for memory that nothing has written since the begin of a copy that has ended. Later submissions need not
    /// be waited for.
    fn read_beside(
        &self,
        memory: &Self::Memory,
        bytes: u64,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), EngineError> {
        self.read(memory, bytes, visit)
    }

    /// Waits for everything that was submitted.
    fn finish(&self) -> Result<(), EngineError>;

    /// Reports the errors of the device since the last call.
    fn check(&self) -> Result<(), EngineError>;
}

/// One dispatch: a pipeline, its uniform data (offset and size in bytes) and its memory in binding order, each with the bytes
/// that the shader accesses.
pub struct Dispatch<'a, D: Device> {
    pub pipeline: &'a D::Pipeline,
    pub uniform: (&'a D::Uniforms, u64, u64),
    pub buffers: Vec<(&'a D::Memory, u64)>,
    pub groups: [u32; 3],
}

/// Refuses a text that the lint does not pass.
pub fn linted(device: &str, text: &str) -> Result<(), EngineError> {
    use tiebreak_shaders::{is_native, lint};
    if is_native(text) {
        return Ok(());
    }
    lint::check("pipeline", text).map_err(|violations| {
        let reason = format!("a shader does not pass the lint: {}", violations[0]);
        EngineError::Fault { device: device.into(), reason }
    })
}
