//! The memory of an NVIDIA GPU's tensors, for who moves them between GPUs.

use std::ops::Range;
use std::sync::Arc;

use cuda_bridge::device::{self, Slice};

use super::device::Device;
use super::memory::Storage;
use super::{Cuda, EngineError, Tensor};
use crate::arith::DType;
use crate::program::graph::TensorType;

impl Cuda {
    /// The GPU, through NVIDIA's driver.
    pub fn gpu(&self) -> &Arc<device::Device> {
        self.device.gpu()
    }

    /// A tensor with any contents, which somebody else is to write.
    ///
    /// # Errors
    /// If memory is short.
    pub fn blank(&self, ty: &TensorType) -> Result<Tensor, EngineError> {
        self.check_size("a tensor", ty)?;
        Ok(Tensor::new(Storage { pieces: self.memory(ty, true)?, ty: ty.clone(), host: None }))
    }

    /// Where some canonical bytes of a tensor of this engine are.
    ///
    /// # Errors
    /// If they are not in one place: quantised tensors lie there otherwise, and those larger than a shader can see in pieces.
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
