//! Further functions of the engine on an NVIDIA GPU: the use of its driver, and the memory of tensors for moving them between
//! GPUs.

use std::ops::Range;
use std::sync::Arc;

use cuda_bridge::device::{self, Slice};
use cuda_bridge::timer::Timed;

use super::engine::Cuda;
use super::memory::Storage;
use crate::device::Device;
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_engine::{EngineError, Tensor};

#[doc(hidden)] // for measurements, and for ranks that exchange by NCCL
impl Cuda {
    /// The engine with kernels launched as graphs of the driver's where the same kernels recur with the same memory (the
    /// default), or one by one. The results are the same.
    pub fn graphs(mut self, on: bool) -> Self {
        self.device.use_graphs(on);
        self
    }

    /// Times every launch from now on, one by one.
    ///
    /// # Errors
    /// If the driver lacks the functions for it.
    pub fn time_launches(&mut self) -> Result<(), EngineError> {
        self.device.time_launches()
    }

    /// The launches since the last call with their times; turns the timing off.
    ///
    /// # Errors
    /// If the GPU was lost.
    pub fn timed_launches(&mut self) -> Result<Vec<Timed>, EngineError> {
        self.device.timed_launches()
    }

    /// Tells a profiler that watches this process to start or to stop.
    ///
    /// # Errors
    /// If the driver lacks the functions for it.
    pub fn profile(&mut self, on: bool) -> Result<(), EngineError> {
        self.device.profile(on)
    }

    /// The engine with copies beside kernels where the driver has them (the default), or with copies that wait for the whole
    /// device. The results are the same.
    ///
    /// # Errors
    /// If the GPU was lost.
    pub fn copies(mut self, on: bool) -> Result<Self, EngineError> {
        self.device.use_copies(on)?;
        Ok(self)
    }

    /// The GPU, through NVIDIA's driver.
    pub fn gpu(&self) -> &Arc<device::Device> {
        self.device.gpu()
    }

    /// A tensor with any contents, for the caller to write.
    ///
    /// # Errors
    /// If memory is short.
    pub fn blank(&self, ty: &TensorType) -> Result<Tensor, EngineError> {
        self.check_size("a tensor", ty)?;
        Ok(Tensor::new(Storage { pieces: self.memory(ty, true)?, ty: ty.clone(), host: None }))
    }

    /// The memory of some canonical bytes of a tensor of this engine.
    ///
    /// # Errors
    /// If the bytes are not together in memory: quantised tensors have another layout, and tensors that are larger than a shader
    /// can access are cut in pieces.
    pub fn place_of<'t>(&self, tensor: &'t Tensor, bytes: Range<usize>) -> Result<Slice<'t>, EngineError> {
        let storage = tensor.storage::<Storage<device::Memory>>();
        match (storage.ty.dtype, &storage.pieces[..]) {
            (DType::F32 | DType::U32, [whole]) => Ok(whole.memory().slice(bytes.start, bytes.len())),
            _ => Err(EngineError::Unsupported {
                device: self.device.name().into(),
                reason: format!("a tensor {:?} lies in memory in pieces", storage.ty.shape),
            }),
        }
    }
}
