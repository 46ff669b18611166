//! BLAKE3 roots of tensors where they are: a state's digests cost its reading on the GPU, and 32 bytes a tensor to the host. Tiles'
//! values likewise, 32 bytes for 4096.

use super::device::{Device, Dispatch};
use super::kernels::{GROUPS_MAX, linear_groups};
use super::layout::{self, words_of_k};
use super::map::GRID_WIDTH;
use super::pool::Buffer;
use super::{Accelerated, Storage};
use crate::arith::DType;
use crate::engine::{Engine, EngineError, Tensor};
use crate::program::graph::TensorType;
use crate::shaders;
use crate::shaders::product::Variant;

/// Bytes of a BLAKE3 chunk, and of a chaining value.
const CHUNK: u64 = 1024;
const VALUE: u64 = 32;
/// Chunks or values that a workgroup merges.
const FAN: u64 = 64;
/// Levels of the tree that a workgroup merges, and those of a tile of four chunks.
const LEVELS: u64 = 6;
const TILE_LEVELS: u64 = 2;

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
        let take = |bytes| self.pool.take(bytes, false, |bytes| self.device.allocate(bytes));
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
                for word in [words, count, to, width, u64::from(last), LEVELS, 0, 0] {
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
        self.keep_uniforms(&data)?;
        let uniforms = &self.kept[&data];
        let dispatches: Vec<Dispatch<D>> = stages
            .iter()
            .map(|stage| {
                let input = match stage.input {
                    None => tensors[stage.tensor].storage::<Storage<D::Memory>>().whole(),
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

    /// Whether roots and tiles' values on the device are the host's, about the edges of blocks, chunks, tiles and workgroups.
    pub(super) fn hashes_well(&mut self) -> Result<bool, EngineError> {
        let lengths = [1, 15, 16, 17, 255, 256, 257, 1000, 64 * 256, 64 * 256 + 1, 65 * 256, 300_000u32];
        let (mut tensors, mut expected) = (Vec::new(), Vec::new());
        for len in lengths {
            let bytes: Vec<u8> =
                (0..len).flat_map(|i| (i ^ len).wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
            let tensor = self.upload(&TensorType { dtype: DType::F32, shape: vec![len] }, &bytes)?;
            // More than a few workgroups of tiles are like a few.
            if len <= 65 * 256 && self.tiles_there(&tensor)? != Some(tiles_of(&bytes)) {
                return Ok(false);
            }
            tensors.push(tensor);
            expected.push(*blake3::hash(&bytes).as_bytes());
        }
        for (digits, k) in [(1u8, 1u32), (1, 4099), (2, 2048), (2, 2049), (3, 1023), (3, 5001), (4, 17)] {
            let ty = TensorType { dtype: DType::Q(digits), shape: vec![1, 3, k] };
            let word = |i: u32| i.wrapping_mul(0x9e37_79b1) as i32 >> (34 - 8 * u32::from(digits));
            let bytes = |i: u32| word(i).to_le_bytes().into_iter().take(digits.into());
            let bytes: Vec<u8> = (0..3 * k).flat_map(bytes).collect();
            let tensor = Tensor::new(self.upload_any(&ty, &bytes)?);
            if self.tiles_there(&tensor)? != Some(tiles_of(&bytes)) {
                return Ok(false);
            }
        }
        Ok(self.roots_there(&tensors)? == Some(expected))
    }

    /// What BLAKE3's tree says of every tile of a tensor's canonical bytes (the root, if there is one tile); none if the bytes are not
    /// there as words, in one piece, or are too many to be counted in 32 bits.
    pub(super) fn tiles_there(&mut self, tensor: &Tensor) -> Result<Option<Vec<[u8; 32]>>, EngineError> {
        let storage = tensor.storage::<Storage<D::Memory>>();
        let bytes = storage.ty.bytes() as u64;
        let digits = match storage.ty.dtype {
            _ if bytes > u64::from(u32::MAX) || storage.pieces.len() > 1 => return Ok(None),
            DType::F32 | DType::U32 => None,
            DType::Q(digits) => Some(digits),
            DType::U8 | DType::Bf16 => return Ok(None),
        };
        let [hashing, packing] = ["blake3_chunks", "canonical"].map(|name| {
            self.device.pipeline(shaders::source(name).expect("the build script made this shader"))
        });
        let [hashing, packing] = [hashing?, packing?];
        let (chunks, words) = (bytes.div_ceil(CHUNK).max(1), bytes.div_ceil(4));
        let (tiles, groups) = (chunks.div_ceil(1 << TILE_LEVELS), chunks.div_ceil(FAN));
        let width = groups.min(u64::from(GROUPS_MAX));
        let (root, missing) = (u64::from(tiles == 1), 4 * words - bytes);
        let mut data = uniform_of([words, chunks, 0, width, root, TILE_LEVELS, missing, 0]);
        if let Some(digits) = digits {
            data.resize(256, 0);
            data.extend(uniform_of(canonical(&storage.ty, digits, self.variant)));
        }
        self.keep_uniforms(&data)?;
        let uniforms = &self.kept[&data];
        let take = |bytes| self.pool.take(bytes, false, |bytes| self.device.allocate(bytes));
        let (values, packed) = (take(tiles * VALUE)?, digits.map(|_| take(4 * words)).transpose()?);
        let mut dispatches: Vec<Dispatch<D>> = Vec::new();
        if let Some(packed) = packed.as_ref().filter(|_| words > 0) {
            dispatches.push(Dispatch {
                pipeline: &packing,
                uniform: (uniforms, 256, 32),
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
            uniform: (uniforms, 0, 32),
            // Memory is made of whole lines of 256 bytes, so the last vector is there.
            buffers: vec![
                (input, (4 * words).max(16).next_multiple_of(16)),
                (values.memory(), tiles * VALUE),
            ],
            groups: [width as u32, groups.div_ceil(width) as u32, 1],
        });
        self.device.submit(&dispatches)?;
        drop(dispatches);
        let mut found = Vec::new();
        self.device.read(values.memory(), tiles * VALUE, &mut |bytes| {
            found = bytes.as_chunks::<32>().0.to_vec();
        })?;
        Ok(Some(found))
    }
}

/// What the host's BLAKE3 says of every tile of some bytes.
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

fn uniform_of(words: [u64; 8]) -> Vec<u8> {
    words.iter().flat_map(|&word| (word as u32).to_le_bytes()).collect()
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
