//! What the engine asks of a way to reach GPUs: memory, pipelines, dispatches in order. Knows nothing of programs.

use super::attention::Attention;
use super::digitise::{Digitise, OnTheWay};
use super::kernels::{OwnKernel, ProductSize};
use super::regions::Limits;
use super::scan;
use crate::engine::EngineError;
use crate::program::graph::{Graph, View};
use crate::shaders::product::Variant;

/// A GPU through wgpu or through NVIDIA's driver.
pub trait Device: Sized + 'static {
    /// Memory that shaders see; freed when it is dropped.
    type Memory: Send + Sync + 'static;
    /// Data that dispatches take as their first binding.
    type Uniforms: Send + Sync + 'static;
    /// A shader made ready.
    type Pipeline: Clone + Send + Sync + 'static;
    /// A copy to the host that is under way; dropping it waits for it.
    type Copying;

    /// How it is reached, for people.
    const API: &'static str;

    /// Opens the first device whose name contains `name` (any case), or the best one.
    fn open(name: Option<&str>) -> Result<Self, EngineError>;

    /// The GPU, for people.
    fn name(&self) -> &str;

    /// Whether it runs on the host's processor.
    fn software(&self) -> bool;

    /// How this device computes products, if that need not be measured.
    fn variant(&self) -> Option<Variant>;

    /// The most bytes of a buffer that a shader can see. Larger tensors lie in several.
    fn binding_max(&self) -> u64;

    /// Rounds of all loops of an invocation that this device is trusted with.
    fn loop_rounds_max(&self) -> u32;

    /// What a kernel of a region may take.
    fn row_limits(&self) -> Limits;

    /// Memory of at least `bytes`, with any contents.
    fn allocate(&self, bytes: u64) -> Result<Self::Memory, EngineError>;

    fn uniforms(&self, bytes: &[u8]) -> Result<Self::Uniforms, EngineError>;

    /// Copies whole words to memory, after everything that was submitted before and before everything that is submitted later.
    fn write(&self, memory: &Self::Memory, bytes: &[u8]) -> Result<(), EngineError>;

    /// The pipeline of a shader's text. No text reaches a driver that the lint has not passed, but for the trainer's native
    /// kernels.
    fn pipeline(&mut self, text: &str) -> Result<Self::Pipeline, EngineError>;

    /// A kernel of the device's own for a product on digit planes of this size, whose shader is `text`, with the rows and columns that a
    /// workgroup computes; none where the shader does.
    fn product(&mut self, _text: &str, _size: &ProductSize) -> Result<Own<Self::Pipeline>, EngineError> {
        Ok(None)
    }

    /// A kernel of the device's own that digitises a view with scale groups of `block` places; none where shaders do.
    fn digitise(
        &mut self,
        _view: &View,
        _block: u32,
        _what: Digitise,
    ) -> Result<Option<OwnKernel<Self::Pipeline>>, EngineError> {
        Ok(None)
    }

    /// A kernel of the device's own for a product whose left operand, a view in one scale group a row, is digitised on its way; none where it
    /// is digitised first. It takes the view's tensor, digits and magnitudes of the right operand, and the product.
    fn digitise_on_the_way(
        &mut self,
        _view: &View,
        _product: OnTheWay,
    ) -> Result<Option<OwnKernel<Self::Pipeline>>, EngineError> {
        Ok(None)
    }

    /// A kernel of the device's own for rows between two products; none where they are computed one after another. It takes digits and
    /// magnitudes of the first product's operands and of the second's right one, what the region reads beside, what others read of its
    /// outputs, and the second product.
    fn attention(
        &mut self,
        _graph: &Graph,
        _found: &Attention,
    ) -> Result<Option<OwnKernel<Self::Pipeline>>, EngineError> {
        Ok(None)
    }

    /// A pipeline of a library of the device's for a trainer's native product of these operands, whose result has so many parts; none
    /// where a shader computes it. It is dispatched once, with left operand, right operand and result.
    fn native_product(
        &mut self,
        _operands: [&View; 2],
        _parts: u32,
    ) -> Result<Option<Self::Pipeline>, EngineError> {
        Ok(None)
    }

    /// The device's own kernels for the search for near ties; none where the host searches. They take their uniform data and buffers
    /// as `cuda-bridge/kernels/near.cuh` has them.
    fn scan_kernels(&mut self) -> Option<Result<scan::Kernels<Self::Pipeline>, EngineError>> {
        None
    }

    /// Makes the pipelines of all these texts, which products of this size use, at once where a device can.
    fn prepare(&mut self, _texts: &[(&str, Option<ProductSize>)]) -> Result<(), EngineError> {
        Ok(())
    }

    /// Says what the dispatches of the next submissions are for, in order, to a device that times them.
    fn announce(&self, _names: &mut dyn Iterator<Item = String>) {}

    /// Runs dispatches in order.
    fn submit(&self, dispatches: &[Dispatch<Self>]) -> Result<(), EngineError>;

    /// Shows the first `bytes` of memory.
    fn read(
        &self,
        memory: &Self::Memory,
        bytes: u64,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), EngineError>;

    /// Begins to copy the first bytes of memories to the host, after everything that was submitted before and beside everything that is
    /// submitted later; none where that cannot be. Nothing may write these memories until the copy is dropped.
    fn begin_read(&self, _from: &[(&Self::Memory, u64)]) -> Result<Option<Self::Copying>, EngineError> {
        Ok(None)
    }

    /// Waits for a copy, and for nothing that was submitted after it was begun, and shows the bytes of all memories, one after the other.
    fn end_read(&self, copying: Self::Copying, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError>;

    /// [`Device::read`], of memory that nothing has written since a copy was begun that has ended: what was submitted since need not be
    /// waited for.
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

    /// Reports what the device complained of since it was last asked.
    fn check(&self) -> Result<(), EngineError>;
}

/// A kernel of a device's own and its tile, if there is one.
pub type Own<P> = Option<(P, [u32; 2])>;

/// One dispatch: a pipeline, its uniform data (offset and size in bytes) and its memory in binding order, each with
/// the bytes that the shader sees.
pub struct Dispatch<'a, D: Device> {
    pub pipeline: &'a D::Pipeline,
    pub uniform: (&'a D::Uniforms, u64, u64),
    pub buffers: Vec<(&'a D::Memory, u64)>,
    pub groups: [u32; 3],
}

/// Refuses a text that the lint does not pass.
pub fn linted(device: &str, text: &str) -> Result<(), EngineError> {
    use crate::shaders::{is_native, lint};
    if is_native(text) {
        return Ok(());
    }
    lint::check("pipeline", text).map_err(|violations| {
        let reason = format!("a shader does not pass the lint: {}", violations[0]);
        EngineError::Fault { device: device.into(), reason }
    })
}
