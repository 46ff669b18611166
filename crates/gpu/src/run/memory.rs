//! Tensors in GPU memory, in one buffer or in pieces that a shader can access; uploads and reads.

use std::borrow::Cow;

use super::engine::GpuEngine;
use super::pool::Buffer;
use crate::device::{Device, layout};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::words_from_bytes;
use tiebreak_contract::program::graph::{Graph, TensorId, TensorType};
use tiebreak_engine::{EngineError, Inputs, Tensor};

/// A tensor in GPU memory.
pub(crate) struct Storage<M> {
    /// One buffer, or several pieces of a tensor that is larger than a shader can access.
    pub pieces: Vec<Buffer<M>>,
    pub ty: TensorType,
    /// Small integers that came from the host, for groupings, which run on the host.
    pub host: Option<Vec<u32>>,
}

impl<M> Storage<M> {
    /// The memory of a tensor that is in one piece.
    pub(crate) fn whole(&self) -> &M {
        debug_assert_eq!(self.pieces.len(), 1);
        self.pieces[0].memory()
    }
}

/// A tensor that is computed.
pub(crate) fn computed(values: &[Option<Tensor>], id: TensorId) -> &Tensor {
    values[id.0 as usize].as_ref().expect("a tensor is computed before it is read")
}

/// The tensors of a run, for its observer.
pub(crate) struct Shown<'a, D: Device> {
    pub engine: &'a GpuEngine<D>,
    pub values: &'a [Option<Tensor>],
}

impl<D: Device> Inputs for Shown<'_, D> {
    fn visit(&mut self, tensor: TensorId, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        self.engine.show(computed(self.values, tensor).storage(), visit)
    }
}

impl<D: Device> GpuEngine<D> {
    /// Refuses a tensor whose words shaders cannot count.
    pub(super) fn check_size(&self, what: &str, ty: &TensorType) -> Result<(), EngineError> {
        let reason = layout::uncountable(what, ty, self.variant);
        reason.map_or(Ok(()), |reason| Err(self.unsupported(reason)))
    }

    /// Memory for a tensor, with any contents; `lasts` says that it outlives the graph that computes it.
    pub(super) fn memory(&self, ty: &TensorType, lasts: bool) -> Result<Vec<Buffer<D::Memory>>, EngineError> {
        let allocate = |bytes| self.device.allocate(bytes);
        let take = |(_, words): (u64, u64)| self.pool.take(words * 4, lasts, allocate);
        self.cut(ty).pieces().map(take).collect()
    }

    /// A tensor of a graph with any contents.
    pub(super) fn blank_of(&self, graph: &Graph, id: TensorId) -> Result<Storage<D::Memory>, EngineError> {
        let ty = graph.tensor(id);
        let lasts = graph.outputs.iter().any(|port| port.tensor == id);
        Ok(Storage { pieces: self.memory(ty, lasts)?, ty: ty.clone(), host: None })
    }

    /// Memory with a tensor's bytes, in the layout of the device.
    fn filled(
        &self,
        ty: &TensorType,
        bytes: &[u8],
        lasts: bool,
    ) -> Result<Vec<Buffer<D::Memory>>, EngineError> {
        let pieces = self.memory(ty, lasts)?;
        for (piece, (start, words)) in pieces.iter().zip(self.cut(ty).pieces()) {
            let end = bytes.len().min(4 * (start + words) as usize);
            let mut there = Cow::Borrowed(&bytes[4 * start as usize..end]);
            if !there.len().is_multiple_of(4) {
                let whole = there.len().next_multiple_of(4);
                there.to_mut().resize(whole, 0);
            }
            self.device.write(piece.memory(), &there)?;
        }
        Ok(pieces)
    }

    pub(super) fn upload_any(
        &self,
        ty: &TensorType,
        bytes: &[u8],
    ) -> Result<Storage<D::Memory>, EngineError> {
        let DType::Q(d) = ty.dtype else { return self.upload_words(ty, bytes, false) };
        let pieces = self.filled(ty, &layout::from_canonical(ty, d, self.variant, bytes), false)?;
        Ok(Storage { pieces, ty: ty.clone(), host: None })
    }

    /// A tensor of four-byte elements from the host. One that lasts may be a graph's input, which groupings read on the host.
    pub(super) fn upload_words(
        &self,
        ty: &TensorType,
        bytes: &[u8],
        lasts: bool,
    ) -> Result<Storage<D::Memory>, EngineError> {
        let pieces = self.filled(ty, bytes, lasts)?;
        let host = (lasts && ty.dtype == DType::U32).then(|| words_from_bytes(ty.dtype, bytes));
        Ok(Storage { pieces, ty: ty.clone(), host })
    }

    /// Passes a tensor to `visit` in its layout in memory, piece by piece.
    pub(super) fn show_pieces(
        &self,
        storage: &Storage<D::Memory>,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), EngineError> {
        let mut left = layout::bytes(&storage.ty, self.variant);
        for (piece, (_, words)) in storage.pieces.iter().zip(self.cut(&storage.ty).pieces()) {
            let bytes = left.min(words * 4);
            self.device.read(piece.memory(), bytes, visit)?;
            left -= bytes;
        }
        Ok(())
    }

    /// Passes a tensor to `visit` in the canonical layout, at once.
    pub(super) fn show(
        &self,
        storage: &Storage<D::Memory>,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), EngineError> {
        let mut visit = |stored: &[u8]| match storage.ty.dtype {
            DType::Q(d) => visit(&layout::to_canonical(&storage.ty, d, self.variant, stored)),
            _ => visit(stored),
        };
        if storage.pieces.len() == 1 {
            return self.show_pieces(storage, &mut visit);
        }
        let mut stored = Vec::with_capacity(layout::bytes(&storage.ty, self.variant) as usize);
        self.show_pieces(storage, &mut |bytes| stored.extend_from_slice(bytes))?;
        visit(&stored);
        Ok(())
    }
    /// Passes tensors of words to `visit` at once; tensors in pieces and quantised ones one by one.
    pub(super) fn show_each(
        &self,
        tensors: &[Tensor],
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), EngineError> {
        let storages: Vec<&Storage<D::Memory>> = tensors.iter().map(Tensor::storage).collect();
        let is_plain = |storage: &&Storage<D::Memory>| {
            storage.pieces.len() == 1 && matches!(storage.ty.dtype, DType::F32 | DType::U32)
        };
        if !storages.iter().all(is_plain) {
            let mut each = storages.into_iter().enumerate();
            return each.try_for_each(|(i, storage)| self.show(storage, &mut |bytes| visit(i, bytes)));
        }
        let parts: Vec<(&D::Memory, u64)> =
            storages.iter().map(|storage| (storage.whole(), storage.ty.bytes() as u64)).collect();
        self.device.read_each(&parts, visit)
    }
}
