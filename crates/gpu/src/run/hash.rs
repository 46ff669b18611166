//! BLAKE3 roots of tensors, computed on the device. A state's digests cost reading the state on the GPU, and 32 bytes to the host
//! for each tensor. Tiles' values cost 32 bytes to the host for 4096.

use super::engine::GpuEngine;
use super::memory::Storage;
use super::pool::Buffer;
use crate::device::kernel::{GRID_WIDTH, GROUPS_MAX, Kernel, Shader, append_uniform, linear_groups};
use crate::device::layout::{self, words_of_k};
use crate::device::{Device, Dispatch};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_engine::{Engine, EngineError, Tensor};
use tiebreak_shaders::product::Variant;

/// Bytes of a BLAKE3 chunk, and of a chaining value.
const CHUNK: u64 = 1024;
const VALUE: u64 = 32;
/// Chunks or values that a workgroup merges.
const FAN: u64 = 64;
/// Levels of the tree that a workgroup merges, and levels of a tile of four chunks.
const LEVELS: u64 = 6;
const TILE_LEVELS: u64 = 2;

/// A dispatch for a tensor's tree, from the chunks up: six levels of the tree.
struct Stage {
    tensor: usize,
    /// The scratch memory that it reads, by number; `None` for the tensor.
    input: Option<usize>,
    /// Bytes of its input that it accesses.
    bytes: u64,
    uniform: (u64, u64),
    groups: [u32; 3],
    /// The scratch memory that it writes, by number; `None` for the roots.
    output: Option<usize>,
    /// The number of values that it writes.
    written: u64,
}

/// The stages of tensors of four-byte elements. Their uniform data is appended to `data`, and the bytes of the scratch memory
/// that they need to `scratch`.
fn stages(types: &[TensorType], data: &mut Vec<u8>, scratch: &mut Vec<u64>) -> Vec<Stage> {
    let mut stages = Vec::new();
    for (tensor, ty) in types.iter().enumerate() {
        let words = ty.bytes() as u64 / 4;
        let mut count = (ty.bytes() as u64).div_ceil(CHUNK).max(1);
        let mut input = None;
        loop {
            let written = count.div_ceil(FAN);
            let last = written == 1;
            let width = written.min(u64::from(GROUPS_MAX));
            let to = if last { tensor as u64 } else { 0 };
            let uniform =
                append_uniform(data, &uniform([words, count, to, width, u64::from(last), LEVELS, 0, 0]));
            let output = (!last).then_some(scratch.len());
            scratch.extend(output.map(|_| written * VALUE));
            stages.push(Stage {
                tensor,
                input,
                bytes: if input.is_none() { (words * 4).max(16) } else { count * VALUE },
                uniform,
                groups: [width as u32, written.div_ceil(width) as u32, 1],
                output,
                written,
            });
            if last {
                break;
            }
            (input, count) = (output, written);
        }
    }
    stages
}

impl<D: Device> GpuEngine<D> {
    /// The roots of tensors of four-byte elements; `None` if a tensor has other elements. The shader takes whole tensors, so
    /// tensors in pieces are hashed on the host.
    pub(super) fn roots_of(&mut self, tensors: &[Tensor]) -> Result<Option<Vec<[u8; 32]>>, EngineError> {
        let is_whole = |tensor: &&Tensor| tensor.storage::<Storage<D::Memory>>().pieces.len() == 1;
        let whole: Vec<Tensor> = tensors.iter().filter(is_whole).cloned().collect();
        let Some(mut roots) = self.roots_there(&whole)? else { return Ok(None) };
        for (place, tensor) in tensors.iter().enumerate().filter(|(_, tensor)| !is_whole(tensor)) {
            let storage = tensor.storage::<Storage<D::Memory>>();
            if !matches!(storage.ty.dtype, DType::F32 | DType::U32) {
                return Ok(None);
            }
            let mut hasher = blake3::Hasher::new();
            self.show_pieces(storage, &mut |bytes| {
                hasher.update(bytes);
            })?;
            roots.insert(place, *hasher.finalize().as_bytes());
        }
        Ok(Some(roots))
    }

    /// The pipeline of the shader `shaders/NAME.wgsl`.
    fn pipeline(&mut self, name: &str) -> Result<D::Pipeline, EngineError> {
        let text = tiebreak_shaders::source(name).expect("the build script made this shader");
        let shader = Shader { text: text.into(), uniform: Vec::new(), groups: [0; 3] };
        let prepared = self.device.make(&Kernel::Wgsl(shader))?;
        prepared.map(|prepared| prepared.pipeline).ok_or_else(|| self.fault(format!("{name} is not made")))
    }

    fn take(&self, bytes: u64) -> Result<Buffer<D::Memory>, EngineError> {
        self.pool.take(bytes, false, |bytes| self.device.allocate(bytes))
    }

    /// Reads the values in memory.
    fn values(&self, memory: &D::Memory, count: u64) -> Result<Vec<[u8; 32]>, EngineError> {
        let mut found = Vec::new();
        self.device.read(memory, count * VALUE, &mut |bytes| found = bytes.as_chunks::<32>().0.to_vec())?;
        Ok(found)
    }

    /// The roots of tensors of four-byte elements, each in one piece; `None` if a tensor has other elements.
    fn roots_there(&mut self, tensors: &[Tensor]) -> Result<Option<Vec<[u8; 32]>>, EngineError> {
        let Some(roots) = self.roots_begun(tensors)? else { return Ok(None) };
        self.values(roots.memory(), tensors.len() as u64).map(Some)
    }

    /// The roots that [`GpuEngine::roots_there`] reads, as a tensor of words; `None` also if a tensor is not in one piece.
    pub(super) fn roots_unread(&mut self, tensors: &[Tensor]) -> Result<Option<Tensor>, EngineError> {
        let is_whole = |tensor: &Tensor| tensor.storage::<Storage<D::Memory>>().pieces.len() == 1;
        if !tensors.iter().all(is_whole) {
            return Ok(None);
        }
        let Some(roots) = self.roots_begun(tensors)? else { return Ok(None) };
        let ty = TensorType { dtype: DType::U32, shape: vec![tensors.len() as u32, VALUE as u32 / 4] };
        Ok(Some(Tensor::new(Storage { pieces: vec![roots], ty, host: None })))
    }

    /// Memory for the roots of tensors that are in one piece; the work is submitted.
    fn roots_begun(&mut self, tensors: &[Tensor]) -> Result<Option<Buffer<D::Memory>>, EngineError> {
        let of = |tensor: &Tensor| tensor.storage::<Storage<D::Memory>>().ty.clone();
        let types: Vec<_> = tensors.iter().map(of).collect();
        if !types.iter().all(|ty| matches!(ty.dtype, DType::F32 | DType::U32)) {
            return Ok(None);
        }
        let [chunks, parents] = [self.pipeline("blake3_chunks")?, self.pipeline("blake3_parents")?];
        let count = tensors.len() as u64;
        // Somebody may read it after later graphs have run, whose own memory stays the same.
        let digests = self.pool.take(count * VALUE, true, |bytes| self.device.allocate(bytes))?;
        let (mut data, mut scratch) = (Vec::new(), Vec::new());
        let stages = stages(&types, &mut data, &mut scratch);
        let scratch = scratch.into_iter().map(|bytes| self.take(bytes)).collect::<Result<Vec<_>, _>>()?;
        self.keep_uniforms(&data)?;
        let dispatch = |stage: &Stage| {
            let (pipeline, input) = match stage.input {
                None => (&chunks, tensors[stage.tensor].storage::<Storage<D::Memory>>().whole()),
                Some(at) => (&parents, scratch[at].memory()),
            };
            let output = match stage.output {
                None => (digests.memory(), count * VALUE),
                Some(at) => (scratch[at].memory(), stage.written * VALUE),
            };
            let (offset, bytes) = stage.uniform;
            Dispatch {
                pipeline,
                uniform: (self.kept(&data), offset, bytes),
                // Memory is made of whole lines of 256 bytes, so the last vector exists.
                buffers: vec![(input, stage.bytes.next_multiple_of(16)), output],
                groups: stage.groups,
            }
        };
        let dispatches: Vec<Dispatch<D>> = stages.iter().map(dispatch).collect();
        self.device.submit(&dispatches)?;
        Ok(Some(digests))
    }

    /// The value of every tile of a tensor's canonical bytes in BLAKE3's tree (the root, if there is one tile). `None` if the
    /// tensor is not of words, is not in one piece, or has more bytes than 32 bits count.
    pub(super) fn tiles_there(&mut self, tensor: &Tensor) -> Result<Option<Vec<[u8; 32]>>, EngineError> {
        let storage = tensor.storage::<Storage<D::Memory>>();
        let bytes = storage.ty.bytes() as u64;
        let digits = match storage.ty.dtype {
            _ if bytes > u64::from(u32::MAX) || storage.pieces.len() > 1 => return Ok(None),
            DType::F32 | DType::U32 => None,
            DType::Q(digits) => Some(digits),
            DType::U8 | DType::Bf16 => return Ok(None),
        };
        let [hashing, packing] = [self.pipeline("blake3_chunks")?, self.pipeline("canonical")?];
        let (chunks, words) = (bytes.div_ceil(CHUNK).max(1), bytes.div_ceil(4));
        let (tiles, groups) = (chunks.div_ceil(1 << TILE_LEVELS), chunks.div_ceil(FAN));
        let width = groups.min(u64::from(GROUPS_MAX));
        let (root, missing) = (u64::from(tiles == 1), 4 * words - bytes);
        let mut data = Vec::new();
        let to_hash = uniform([words, chunks, 0, width, root, TILE_LEVELS, missing, 0]);
        let to_hash = append_uniform(&mut data, &to_hash);
        let to_pack = digits
            .map(|digits| append_uniform(&mut data, &uniform(canonical(&storage.ty, digits, self.variant))));
        self.keep_uniforms(&data)?;
        let (values, packed) = (self.take(tiles * VALUE)?, digits.map(|_| self.take(4 * words)).transpose()?);
        let of_uniform = |(offset, bytes): (u64, u64)| (self.kept(&data), offset, bytes);
        let mut dispatches: Vec<Dispatch<D>> = Vec::new();
        if let (Some(packed), Some(uniform), 1..) = (&packed, to_pack, words) {
            dispatches.push(Dispatch {
                pipeline: &packing,
                uniform: of_uniform(uniform),
                buffers: vec![
                    (storage.whole(), layout::bytes(&storage.ty, self.variant)),
                    (packed.memory(), 4 * words),
                ],
                groups: linear_groups(words as u32),
            });
        }
        let input = packed.as_ref().map_or(storage.whole(), Buffer::memory);
        dispatches.push(Dispatch {
            pipeline: &hashing,
            uniform: of_uniform(to_hash),
            // Memory is made of whole lines of 256 bytes, so the last vector exists.
            buffers: vec![
                (input, (4 * words).max(16).next_multiple_of(16)),
                (values.memory(), tiles * VALUE),
            ],
            groups: [width as u32, groups.div_ceil(width) as u32, 1],
        });
        self.device.submit(&dispatches)?;
        self.values(values.memory(), tiles).map(Some)
    }

    /// True if roots and tiles' values on the device equal the host's, for lengths around the edges of blocks, chunks, tiles and
    /// workgroups.
    pub(super) fn hashes_well(&mut self) -> Result<bool, EngineError> {
        let lengths = [1, 15, 16, 17, 255, 256, 257, 1000, 64 * 256, 64 * 256 + 1, 65 * 256, 300_000u32];
        let (mut tensors, mut expected) = (Vec::new(), Vec::new());
        for len in lengths {
            let words: Vec<u32> = (0..len).map(|i| (i ^ len).wrapping_mul(0x9e37_79b1)).collect();
            let bytes = bytes_from_words(DType::F32, &words);
            let tensor = self.upload(&TensorType { dtype: DType::F32, shape: vec![len] }, &bytes)?;
            // Tiles of many workgroups are like tiles of a few, so long tensors are left out.
            if len <= 65 * 256 && self.tiles_there(&tensor)? != Some(tiles_of(&bytes)) {
                return Ok(false);
            }
            tensors.push(tensor);
            expected.push(*blake3::hash(&bytes).as_bytes());
        }
        for (digits, k) in [(1u8, 1u32), (1, 4099), (2, 2048), (2, 2049), (3, 1023), (3, 5001), (4, 17)] {
            let ty = TensorType { dtype: DType::Q(digits), shape: vec![1, 3, k] };
            let word = |i: u32| i.wrapping_mul(0x9e37_79b1) as i32 >> (34 - 8 * u32::from(digits));
            let bytes = bytes_from_words(ty.dtype, &(0..3 * k).map(|i| word(i) as u32).collect::<Vec<_>>());
            let tensor = Tensor::new(self.upload_any(&ty, &bytes)?);
            if self.tiles_there(&tensor)? != Some(tiles_of(&bytes)) {
                return Ok(false);
            }
        }
        Ok(self.roots_there(&tensors)? == Some(expected))
    }
}

/// The value of every tile of some bytes, by the host's BLAKE3.
fn tiles_of(bytes: &[u8]) -> Vec<[u8; 32]> {
    use blake3::hazmat::HasherExt;
    let tile = (CHUNK << TILE_LEVELS) as usize;
    if bytes.len() <= tile {
        return vec![*blake3::hash(bytes).as_bytes()];
    }
    let value = |(i, piece): (usize, &[u8])| {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset((i * tile) as u64).update(piece).finalize_non_root()
    };
    bytes.chunks(tile).enumerate().map(value).collect()
}

/// Uniform words; each number fits one.
fn uniform(words: [u64; 8]) -> [u32; 8] {
    words.map(|word| word as u32)
}

/// The uniform words of the dispatch that makes canonical bytes of a quantised tensor.
fn canonical(ty: &TensorType, digits: u8, variant: Variant) -> [u64; 8] {
    let (rows, row) = (u64::from(ty.shape[0]) * u64::from(ty.shape[1]), u64::from(words_of_k(ty.shape[2])));
    let digits = u64::from(digits);
    let planes = if variant == Variant::Words { 0 } else { digits };
    let words = (ty.bytes() as u64).div_ceil(4);
    let (k, width) = (u64::from(ty.shape[2]), u64::from(GRID_WIDTH));
    [words, k, row, width, rows * row, digits, planes, ty.len() as u64]
}
