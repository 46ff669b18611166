//! The leaf checker: one tile of one node's output, recomputed by the scalar reference from verified bytes alone.
//! Contract: `docs/ARITHMETIC.md`, section 8.
//!
//! The node is taken from a program that was derived again from the job. Its inputs may be lies of the trainer that
//! are nevertheless committed (a magnitude below a member of its group, a label above its bound), so every value
//! that an operator restricts is checked before the operator sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::arith::float;
use crate::engine::reference::{bytes_from_words, word_from_bytes};
use crate::program::element::{self, Source};
use crate::program::graph::{Graph, Node, Primitive, TensorId, TensorType, View};

/// Bytes of a tile, the unit of verified reading: four BLAKE3 chunks. The last tile of a tensor may be shorter.
pub const TILE_BYTES: usize = 4096;

/// The most elements that one leaf may read, counted before anything is computed: seconds of one core.
pub const READS_MAX: u64 = 1 << 28;

/// Why a leaf could not be recomputed. None of these says that the claim is right or wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeafError {
    #[error("tensor {} has no tile {tile}", tensor.0)]
    NoTile { tensor: TensorId, tile: u32 },
    #[error("tile {tile} of tensor {} has {bytes} bytes, not {expected}", tensor.0)]
    TileLength { tensor: TensorId, tile: u32, bytes: usize, expected: usize },
    #[error("tile {tile} of tensor {} is needed and was not given", tensor.0)]
    Missing { tensor: TensorId, tile: u32 },
    #[error("element {index} of tensor {} is past its end", tensor.0)]
    OutOfRange { tensor: TensorId, index: usize },
    /// A committed input that no honest run holds; the node that made it is the one to dispute.
    #[error("{operator} is not defined for its committed inputs: dispute the node that made them")]
    Domain { operator: String },
    #[error("the tile needs up to {reads} element reads; at most {READS_MAX} are allowed")]
    TooCostly { reads: u64 },
}

/// The tiles of a tensor.
pub fn tile_count(ty: &TensorType) -> u32 {
    // Tensors have at most 2^34 bytes: four-byte elements in a u32 index space.
    ty.bytes().div_ceil(TILE_BYTES) as u32
}

/// The bytes of a tensor that are tile `tile`; `None` if the tensor ends before.
pub fn tile_bytes(ty: &TensorType, tile: u32) -> Option<Range<usize>> {
    let start = tile as usize * TILE_BYTES;
    (start < ty.bytes()).then(|| start..ty.bytes().min(start + TILE_BYTES))
}

/// Input elements as the checker gets them.
pub trait Input: Source<Error = LeafError> {}
impl<S: Source<Error = LeafError>> Input for S {}

/// Serves the elements of tiles whose bytes were verified, and nothing else.
#[derive(Default)]
pub struct VerifiedTiles {
    tensors: BTreeMap<TensorId, (TensorType, BTreeMap<u32, Vec<u8>>)>,
}

impl VerifiedTiles {
    /// Adds a tile. Only bytes that were proved against the tensor's commitment may come here.
    pub fn insert(
        &mut self,
        tensor: TensorId,
        ty: &TensorType,
        tile: u32,
        bytes: Vec<u8>,
    ) -> Result<(), LeafError> {
        let range = tile_bytes(ty, tile).ok_or(LeafError::NoTile { tensor, tile })?;
        if range.len() != bytes.len() {
            return Err(LeafError::TileLength { tensor, tile, bytes: bytes.len(), expected: range.len() });
        }
        let (_, tiles) = self.tensors.entry(tensor).or_insert_with(|| (ty.clone(), BTreeMap::new()));
        tiles.insert(tile, bytes);
        Ok(())
    }
}

impl Source for VerifiedTiles {
    type Error = LeafError;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, LeafError> {
        let Some((ty, tiles)) = self.tensors.get(&tensor) else {
            return Err(LeafError::Missing { tensor, tile: 0 });
        };
        if index >= ty.len() {
            return Err(LeafError::OutOfRange { tensor, index });
        }
        // An element of three bytes may lie in two tiles.
        let size = ty.dtype.size();
        let mut element = [0; 4];
        for (i, byte) in element[..size].iter_mut().enumerate() {
            let place = index * size + i;
            let tile = (place / TILE_BYTES) as u32;
            let bytes = tiles.get(&tile).ok_or(LeafError::Missing { tensor, tile })?;
            *byte = bytes[place % TILE_BYTES];
        }
        Ok(word_from_bytes(ty.dtype, &element[..size]))
    }
}

/// Serves whole tensors and remembers which tiles were read: what a verdict must carry.
pub struct Recorder<'a> {
    graph: &'a Graph,
    tensors: &'a BTreeMap<TensorId, Vec<u8>>,
    read: BTreeSet<(TensorId, u32)>,
}

impl<'a> Recorder<'a> {
    /// `tensors`: canonical bytes of the node's inputs.
    pub fn new(graph: &'a Graph, tensors: &'a BTreeMap<TensorId, Vec<u8>>) -> Recorder<'a> {
        Recorder { graph, tensors, read: BTreeSet::new() }
    }

    /// The tiles read so far, in order.
    pub fn into_tiles(self) -> Vec<(TensorId, u32)> {
        self.read.into_iter().collect()
    }
}

impl Source for Recorder<'_> {
    type Error = LeafError;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, LeafError> {
        let dtype = self.graph.tensor(tensor).dtype;
        let place = index * dtype.size()..(index + 1) * dtype.size();
        let bytes = self.tensors.get(&tensor).ok_or(LeafError::Missing { tensor, tile: 0 })?;
        let element = bytes.get(place.clone()).ok_or(LeafError::OutOfRange { tensor, index })?;
        for tile in place.start / TILE_BYTES..=(place.end - 1) / TILE_BYTES {
            self.read.insert((tensor, tile as u32));
        }
        Ok(word_from_bytes(dtype, element))
    }
}

/// The right bytes of tile `tile` of the node's output.
pub fn recompute(
    graph: &Graph,
    node: &Node,
    tile: u32,
    source: &mut impl Input,
) -> Result<Vec<u8>, LeafError> {
    let ty = graph.tensor(node.output);
    let bytes = tile_bytes(ty, tile).ok_or(LeafError::NoTile { tensor: node.output, tile })?;
    let size = ty.dtype.size();
    let elements = bytes.start / size..bytes.end.div_ceil(size);
    let reads = cost(graph, node, elements.len());
    if reads > READS_MAX {
        return Err(LeafError::TooCostly { reads });
    }
    let first = elements.start * size;
    let words = element::range(graph, node, elements, &mut Guarded::new(node, source))?;
    let right = bytes_from_words(ty.dtype, &words);
    Ok(right[bytes.start - first..bytes.end - first].to_vec())
}

/// The most elements that are read for `elements` elements of the node's output.
fn cost(graph: &Graph, node: &Node, elements: usize) -> u64 {
    let len = |tensor: TensorId| graph.tensor(tensor).len() as u64;
    let last = |tensor: TensorId| u64::from(graph.tensor(tensor).shape.last().copied().unwrap_or(1));
    let k = |view: &View| u64::from(view.dims[3]);
    let each = match &node.primitive {
        // Groupings look at every class, whatever part is asked for.
        Primitive::GroupOrder { classes, .. } => return len(*classes),
        Primitive::GroupOffsets { classes, bound } => return len(*classes) + u64::from(*bound),
        Primitive::Map { inputs, .. } => inputs.len() as u64,
        Primitive::Gather { .. } | Primitive::Quantise { .. } => 2,
        Primitive::RowMax { input } => last(*input),
        Primitive::TreeSum { len, .. } => u64::from(*len),
        Primitive::SegmentSum { order, .. } => 2 + 2 * len(*order),
        Primitive::Magnitude { input, .. } => k(input),
        Primitive::Product { a, .. } => 2 + 2 * last(*a),
    };
    each.saturating_mul(elements as u64)
}

/// Holds committed inputs to what the node's operator is defined for.
struct Guarded<'a, S> {
    node: &'a Node,
    source: &'a mut S,
    /// Of the element that is being quantised, whichever was read first.
    member: Option<u32>,
    magnitude: Option<u32>,
}

impl<'a, S> Guarded<'a, S> {
    fn new(node: &'a Node, source: &'a mut S) -> Guarded<'a, S> {
        Guarded { node, source, member: None, magnitude: None }
    }

    fn allows(&mut self, tensor: TensorId, word: u32) -> bool {
        match &self.node.primitive {
            Primitive::Gather { indices: bounded, bound, .. }
            | Primitive::GroupOrder { classes: bounded, bound }
            | Primitive::GroupOffsets { classes: bounded, bound } => tensor != *bounded || word < *bound,
            Primitive::Quantise { magnitudes, .. } => {
                let slot = if tensor == *magnitudes { &mut self.magnitude } else { &mut self.member };
                *slot = Some(word);
                let (Some(member), Some(magnitude)) = (self.member, self.magnitude) else { return true };
                (self.member, self.magnitude) = (None, None);
                member & !float::SIGN <= magnitude
            }
            _ => true,
        }
    }
}

impl<S: Input> Source for Guarded<'_, S> {
    type Error = LeafError;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, LeafError> {
        let word = self.source.get(tensor, index)?;
        if self.allows(tensor, word) {
            Ok(word)
        } else {
            Err(LeafError::Domain { operator: self.node.operator.clone() })
        }
    }
}
