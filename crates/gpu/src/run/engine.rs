//! The engine on one device: the data that it keeps between graphs, and its settings.

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
    /// The variant of products.
    pub(super) variant: Variant,
    pub(super) pool: Pool<D::Memory>,
    /// The most bytes of a buffer: a multiple of 256. Larger tensors are cut in pieces.
    buffer: u64,
    /// True if tensors are hashed on the device. On a device that is no GPU, showing tensors to the host is faster.
    pub(super) hashes: bool,
    /// True if summaries of nodes are computed on the device, where it can.
    pub(super) summarises: bool,
    /// True if nodes over the same rows are computed at once. On a device that is no GPU, node by node is a little faster
    /// (`benches/step.rs`).
    pub(super) fuses_rows: bool,
    /// The number of nodes that summaries computed.
    pub(super) computed_beside: u64,
    /// The trials in which summaries were compared with the nodes' own kernels.
    pub(super) tried: HashSet<Trial>,
    /// Uniform data of summaries and of roots, by its contents.
    kept: HashMap<Vec<u8>, D::Uniforms>,
}

/// The engine through wgpu.
#[cfg(feature = "wgpu")]
pub type Gpu = GpuEngine<Adapter>;

/// The engine through NVIDIA's driver.
#[cfg(feature = "cuda")]
pub type Cuda = GpuEngine<CudaDevice>;

/// A dispatch without its memory.
pub(crate) struct Ready<P> {
    pub pipeline: P,
    /// The first byte of its uniform data, and the number of bytes.
    pub uniform: (u64, u64),
    pub groups: [u32; 3],
}

/// A number of bytes, rounded down to whole lines of 256 bytes, of which memory is made.
fn lines(bytes: u64) -> u64 {
    (bytes / 256).max(1) * 256
}

impl<D: Device> GpuEngine<D> {
    /// The engine on a device with the best settings for that device, except for the variant of products.
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

    /// Limits buffers to `bytes` bytes, 256 or more, from now on, where the device allows larger ones. The results are the same.
    /// Earlier tensors and compiled graphs cannot be used any more.
    #[doc(hidden)] // for the layers above
    pub fn set_buffers(&mut self, bytes: u64) {
        self.buffer = lines(bytes.min(self.device.binding_max()));
    }

    /// The engine with hashing on its device, or not. The roots are the same.
    #[doc(hidden)] // for the layers above
    pub fn hashing(self, on: bool) -> Self {
        GpuEngine { hashes: on, ..self }
    }

    /// The engine with summaries of nodes computed on its device, where it can, or not. The values are the same.
    #[doc(hidden)] // for the layers above
    pub fn summarising(self, on: bool) -> Self {
        GpuEngine { summarises: on, ..self }
    }

    /// The number of nodes that summaries of other nodes computed in their place so far.
    #[doc(hidden)] // for the layers above
    pub fn computed_beside(&self) -> u64 {
        self.computed_beside
    }

    /// The engine with nodes over the same rows computed at once where nobody observes inner nodes, or one by one. The results
    /// are the same. Earlier compiled graphs stay as they are.
    #[doc(hidden)] // for the layers above
    pub fn fusing_rows(self, on: bool) -> Self {
        GpuEngine { fuses_rows: on, ..self }
    }

    /// The target that graphs are planned for.
    pub(super) fn target(&self) -> Target {
        let limits = self.device.limits();
        Target { limits, variant: self.variant, buffer: self.buffer, fuses_rows: self.fuses_rows }
    }

    /// The cut of a tensor in memory.
    pub(super) fn cut(&self, ty: &TensorType) -> Cut {
        Cut::of(ty, self.variant, self.buffer)
    }

    /// Has the device make a kernel, and appends its uniform data to `data`. The result is one dispatch, or several where
    /// WebGPU's limit on workgroups demands it, or an empty list if there is nothing to compute. The result is `None` if the
    /// device has no such kernel.
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
        // Among shaders, only products have a third dimension; their last uniform word is the begin of a dispatch in it.
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

    /// Keeps uniform data, and makes it if it is new: the same tensors are hashed and summarised in every step.
    pub(super) fn keep_uniforms(&mut self, data: &[u8]) -> Result<(), EngineError> {
        if !self.kept.contains_key(data) {
            self.kept.insert(data.to_vec(), self.device.uniforms(data)?);
        }
        Ok(())
    }

    /// The uniform data that [`GpuEngine::keep_uniforms`] made.
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
