//! BLAKE3 roots of tensors where they are: a state's digests cost its reading on the GPU, and 32 bytes a tensor to the host.

use super::device::{Device, Dispatch};
use super::kernels::GROUPS_MAX;
use super::pool::Buffer;
use super::{Accelerated, Storage};
use crate::arith::DType;
use crate::engine::{EngineError, Tensor};
use crate::shaders;

/// Bytes of a BLAKE3 chunk, and of a chaining value.
const CHUNK: u64 = 1024;
const VALUE: u64 = 32;
/// Chunks or values that a workgroup merges.
const FAN: u64 = 64;

/// A dispatch that is planned: its shader, the bytes of its input that it sees, where its uniform data begins, its workgroups, and whether
/// its output is the digests' buffer.
struct Stage {
    chunks: bool,
    tensor: usize,
    input: Option<usize>,
    bytes: u64,
    uniform: u64,
    groups: [u32; 3],
    output: Option<usize>,
    /// Values that it writes.
    written: u64,
}

impl<D: Device> Accelerated<D> {
    /// The roots of tensors of four-byte elements, or `None` if there are others.
    pub(super) fn roots_there(&mut self, tensors: &[Tensor]) -> Result<Option<Vec<[u8; 32]>>, EngineError> {
        let of = |tensor: &Tensor| tensor.storage::<Storage<D::Memory>>().ty.clone();
        let types: Vec<_> = tensors.iter().map(of).collect();
        if !types.iter().all(|ty| matches!(ty.dtype, DType::F32 | DType::U32)) {
            return Ok(None);
        }
        let [chunks, parents] = ["blake3_chunks", "blake3_parents"].map(|name| {
            self.device.pipeline(shaders::source(name).expect("the build script made this shader"))
        });
        let [chunks, parents] = [chunks?, parents?];
        let take = |bytes| self.pool.take(bytes, |bytes| self.device.allocate(bytes));
        let digests = take(tensors.len() as u64 * VALUE)?;
        let mut scratch: Vec<Buffer<D::Memory>> = Vec::new();
        let (mut stages, mut data) = (Vec::new(), Vec::new());
        for (place, ty) in types.iter().enumerate() {
            let words = ty.bytes() as u64 / 4;
            let mut count = (ty.bytes() as u64).div_ceil(CHUNK).max(1);
            let mut input = None;
            loop {
                let out = count.div_ceil(FAN);
                let last = out == 1;
                let width = out.min(u64::from(GROUPS_MAX));
                let uniform = (data.len() as u64).next_multiple_of(256);
                data.resize(uniform as usize, 0);
                let to = if last { place as u64 } else { 0 };
                for word in [words, count, to, width, u64::from(last), 0, 0, 0] {
                    data.extend((word as u32).to_le_bytes());
                }
                let output = if last {
                    None
                } else {
                    scratch.push(take(out * VALUE)?);
                    Some(scratch.len() - 1)
                };
                stages.push(Stage {
                    chunks: input.is_none(),
                    tensor: place,
                    input,
                    bytes: if input.is_none() { (words * 4).max(16) } else { count * VALUE },
                    uniform,
                    groups: [width as u32, out.div_ceil(width) as u32, 1],
                    output,
                    written: out,
                });
                if last {
                    break;
                }
                (input, count) = (output, out);
            }
        }
        // The same tensors are hashed every step.
        if !self.scans.contains_key(&data) {
            let uniforms = self.device.uniforms(&data)?;
            self.scans.insert(data.clone(), uniforms);
        }
        let uniforms = &self.scans[&data];
        let dispatches: Vec<Dispatch<D>> = stages
            .iter()
            .map(|stage| {
                let input = match stage.input {
                    None => tensors[stage.tensor].storage::<Storage<D::Memory>>().buffer.memory(),
                    Some(at) => scratch[at].memory(),
                };
                let (output, bytes) = match stage.output {
                    None => (digests.memory(), tensors.len() as u64 * VALUE),
                    Some(at) => (scratch[at].memory(), stage.written * VALUE),
                };
                Dispatch {
                    pipeline: if stage.chunks { &chunks } else { &parents },
                    uniform: (uniforms, stage.uniform, 32),
                    // Memory is made of whole lines of 256 bytes, so the last vector is there.
                    buffers: vec![(input, stage.bytes.next_multiple_of(16)), (output, bytes)],
                    groups: stage.groups,
                }
            })
            .collect();
        self.device.submit(&dispatches)?;
        let mut roots = Vec::new();
        self.device.read(digests.memory(), tensors.len() as u64 * VALUE, &mut |bytes| {
            roots = bytes.as_chunks::<32>().0.to_vec();
        })?;
        Ok(Some(roots))
    }
}
