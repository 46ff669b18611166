//! The engine on one device: what it keeps between graphs, and how it is set.

use std::collections::{HashMap, HashSet};

use super::pool::Pool;
use crate::device::Device;
#[cfg(feature = "cuda")]
use crate::device::cuda::CudaDevice;
use crate::device::kernel::{GROUPS_MAX, Kernel, Prepared, append_uniform};
#[cfg(feature = "wgpu")]
use crate::device::wgpu::Adapter;
use crate::logged::Trial;
use crate::plan::unit::Target;
use crate::plan::windows::Cut;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_engine::EngineError;
use tiebreak_shaders::product::Variant;

/// The engine on one device.
pub struct GpuEngine<D: Device> {
    pub(super) device: D,
    /// How it computes products.
    pub(super) variant: Variant,
    pub(super) pool: Pool<D::Memory>,
    /// The most bytes of a buffer: a multiple of 256. Larger tensors lie in pieces.
    buffer: u64,
    /// Whether tensors are hashed on the device: where that is no GPU, showing them to the host is faster.
    pub(super) hashes: bool,
    /// Whether summaries of nodes are computed on the device, where it can.
    pub(super) summarises: bool,
    /// Whether nodes over the same rows are computed at once: where that is no GPU, node by node is a little faster (`benches/step.rs`).
    pub(super) fuses_rows: bool,
    /// Nodes that such summaries computed.
    pub(super) computed_beside: u64,
    /// Where they were compared with the nodes' own kernels.
    pub(super) tried: HashSet<Trial>,
    /// Uniform data of such summaries and of roots, by what is in it.
    kept: HashMap<Vec<u8>, D::Uniforms>,
}

/// The engine through wgpu.
#[cfg(feature = "wgpu")]
pub type Gpu = GpuEngine<Adapter>;

/// The engine through NVIDIA's driver.
#[cfg(feature = "cuda")]
pub type Cuda = GpuEngine<CudaDevice>;

/// A dispatch but for its memory.
pub(crate) struct Ready<P> {
    pub pipeline: P,
    /// Where its uniform data begins, and its bytes.
    pub uniform: (u64, u64),
    pub groups: [u32; 3],
}

/// The whole lines of 256 bytes of which memory is made.
fn lines(bytes: u64) -> u64 {
    (bytes / 256).max(1) * 256
}

impl<D: Device> GpuEngine<D> {
    /// The engine on a device, as that likes it best, but for how products are computed.
    pub(super) fn on(device: D) -> Self {
        let (gpu, buffer) = (!device.software(), lines(device.binding_max()));
        GpuEngine {
            device,
            variant: Variant::Dot,
            pool: Pool::default(),
            buffer,
            hashes: gpu,
            summarises: true,
            fuses_rows: gpu,
            computed_beside: 0,
            tried: HashSet::new(),
            kept: HashMap::new(),
        }
    }

    /// Takes buffers of at most so many bytes, 256 or more, from now on, where the device allows larger ones: what is computed is the
    /// same. Tensors and compiled graphs of before are of no use then.
    pub fn set_buffers(&mut self, bytes: u64) {
        self.buffer = lines(bytes.min(self.device.binding_max()));
    }

    /// The engine with hashing on its device, or not: the roots are the same.
    pub fn hashing(self, on: bool) -> Self {
        GpuEngine { hashes: on, ..self }
    }

    /// The engine with summaries of nodes computed on its device, where that can, or not: what they say is the same.
    pub fn summarising(self, on: bool) -> Self {
        GpuEngine { summarises: on, ..self }
    }

    /// How many nodes summaries of others computed so far, in their place.
    pub fn computed_beside(&self) -> u64 {
        self.computed_beside
    }

    /// The engine with nodes over the same rows computed at once where nobody looks at what is between, or one by one: the results are
    /// the same. Compiled graphs of before stay as they are.
    pub fn fusing_rows(self, on: bool) -> Self {
        GpuEngine { fuses_rows: on, ..self }
    }

    /// What graphs are planned for.
    pub(super) fn target(&self) -> Target {
        let limits = self.device.limits();
        Target { limits, variant: self.variant, buffer: self.buffer, fuses_rows: self.fuses_rows }
    }

    /// How a tensor lies in memory.
    pub(super) fn cut(&self, ty: &TensorType) -> Cut {
        Cut::of(ty, self.variant, self.buffer)
    }

    /// Has the device make a kernel; its uniform data goes to the end of `data`. What is made is one dispatch, or several where WebGPU's
    /// limit on workgroups asks for it, or none for nothing to compute. None at all if the device has no such kernel.
    pub(super) fn ready(
        &mut self,
        kernel: &Kernel,
        data: &mut Vec<u8>,
    ) -> Result<Option<Vec<Ready<D::Pipeline>>>, EngineError> {
        let Some(Prepared { pipeline, mut uniform, groups }) = self.device.make(kernel)? else {
            return Ok(None);
        };
        if groups.contains(&0) {
            return Ok(Some(Vec::new()));
        }
        // Of shaders, only products have a third dimension; their last uniform word says where a dispatch begins in it.
        let most = if kernel.shader().is_some() { GROUPS_MAX } else { u32::MAX };
        let mut dispatches = Vec::new();
        for first in (0..groups[2]).step_by(most as usize) {
            if let (1.., Some(last)) = (first, uniform.last_mut()) {
                *last = first;
            }
            let groups = [groups[0], groups[1], most.min(groups[2] - first)];
            let uniform = append_uniform(data, &uniform);
            dispatches.push(Ready { pipeline: pipeline.clone(), uniform, groups });
        }
        Ok(Some(dispatches))
    }

    /// Uniform data, which is made if it is not there yet: the same tensors are hashed and summarised every step.
    pub(super) fn keep_uniforms(&mut self, data: &[u8]) -> Result<(), EngineError> {
        if !self.kept.contains_key(data) {
            self.kept.insert(data.to_vec(), self.device.uniforms(data)?);
        }
        Ok(())
    }

    /// What [`GpuEngine::keep_uniforms`] made.
    pub(super) fn kept(&self, data: &[u8]) -> &D::Uniforms {
        &self.kept[data]
    }

    pub(super) fn unsupported(&self, reason: String) -> EngineError {
        EngineError::Unsupported { device: self.device.name().into(), reason }
    }

    pub(super) fn fault(&self, reason: String) -> EngineError {
        EngineError::Fault { device: self.device.name().into(), reason }
    }

    pub(super) fn untrusted(&self, check: &str) -> EngineError {
        EngineError::SelfTest { device: self.device.name().into(), check: check.into(), fingerprint: None }
    }
}
