//! The leaf checker: what a tile of a node's output must be, computed by the scalar reference from verified tiles of
//! its inputs. Contract: `docs/ARITHMETIC.md`, section 8.
//!
//! Verified means committed, not right: a trainer may have committed to inputs that no honest step has. So every
//! value that an operator restricts is checked before the operator sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::arith::float;
use crate::commit::tensor::{TILE_BYTES, tile_range};
use crate::engine::reference::{bytes_from_words, word_from_bytes};
use crate::program::element::{self, Source};
use crate::program::graph::{Graph, Node, Primitive, TensorId, View};

/// The most single elements that a leaf may read, counted before anything is computed: minutes of one core.
pub const READS_MAX: u64 = 1 << 31;

/// Why a leaf cannot be decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeafError {
    #[error("tile {tile} of tensor {} is needed and not there", tensor.0)]
    Missing { tensor: TensorId, tile: usize },
    #[error("an index in the evidence points outside tensor {}", tensor.0)]
    Outside { tensor: TensorId },
    /// An input that no honest step has; the node that made it is the one to dispute.
    #[error("{operator} is not defined for its committed inputs")]
    Domain { operator: String },
    #[error("the leaf may read {reads} elements, more than {READS_MAX}")]
    TooLarge { reads: u64 },
}

/// Verified tiles of input tensors.
#[derive(Default)]
pub struct Tiles(BTreeMap<(TensorId, usize), Vec<u8>>);

impl Tiles {
    /// Adds a tile that was verified against its tensor's commitment.
    pub fn insert(&mut self, tensor: TensorId, tile: usize, bytes: Vec<u8>) {
        self.0.insert((tensor, tile), bytes);
    }

    /// Adds a whole small tensor of words.
    pub fn insert_words(&mut self, tensor: TensorId, words: &[u32]) {
        self.insert(tensor, 0, words.iter().flat_map(|w| w.to_le_bytes()).collect());
    }
}

/// Serves elements from tiles, and nothing else.
struct Verified<'a> {
    graph: &'a Graph,
    tiles: &'a Tiles,
}

impl Verified<'_> {
    /// The bytes of a tensor from byte `at` to the end of its tile.
    fn rest_of_tile(&self, tensor: TensorId, at: usize) -> Result<&[u8], LeafError> {
        let tile = at / TILE_BYTES;
        let bytes = self.tiles.0.get(&(tensor, tile)).and_then(|bytes| bytes.get(at % TILE_BYTES..));
        bytes.filter(|rest| !rest.is_empty()).ok_or(LeafError::Missing { tensor, tile })
    }
}

impl Source for Verified<'_> {
    type Error = LeafError;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, LeafError> {
        let ty = self.graph.tensor(tensor);
        if index >= ty.len() {
            return Err(LeafError::Outside { tensor });
        }
        let (at, size) = (index * ty.dtype.size(), ty.dtype.size());
        let first = self.rest_of_tile(tensor, at)?;
        if let Some(element) = first.get(..size) {
            return Ok(word_from_bytes(ty.dtype, element));
        }
        // An element of three bytes can lie across two tiles.
        let second = self.rest_of_tile(tensor, at + first.len())?;
        let element: Vec<u8> = first.iter().chain(second).copied().take(size).collect();
        Ok(word_from_bytes(ty.dtype, &element))
    }
}

/// Holds inputs to what the node's operator is defined for.
struct Guarded<'a, S> {
    node: &'a Node,
    source: &'a mut S,
    /// Of the element that is being quantised: itself and its group's magnitude, as they are read.
    member: Option<u32>,
    magnitude: Option<u32>,
}

impl<S> Guarded<'_, S> {
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

impl<S: Source<Error = LeafError>> Source for Guarded<'_, S> {
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

/// The elements of an output that a tile's bytes touch.
fn elements(graph: &Graph, output: TensorId, tile: usize) -> Range<usize> {
    let ty = graph.tensor(output);
    let bytes = tile_range(ty.bytes(), tile);
    let size = ty.dtype.size();
    bytes.start / size..bytes.end.div_ceil(size)
}

/// A work bound that holds before anything is computed: elements of the tile times what each may read.
fn reads(graph: &Graph, node: &Node, tile: usize) -> u64 {
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
    each.saturating_mul(elements(graph, node.output, tile).len() as u64)
}

/// What tile `tile` of node `node`'s output must be, from verified tiles of its inputs.
pub fn expected_tile(graph: &Graph, node: usize, tile: usize, tiles: &Tiles) -> Result<Vec<u8>, LeafError> {
    compute(graph, node, tile, &mut Verified { graph, tiles })
}

fn compute<S: Source<Error = LeafError>>(
    graph: &Graph,
    node: usize,
    tile: usize,
    source: &mut S,
) -> Result<Vec<u8>, LeafError> {
    let node = &graph.nodes[node];
    let reads = reads(graph, node, tile);
    if reads > READS_MAX {
        return Err(LeafError::TooLarge { reads });
    }
    let ty = graph.tensor(node.output);
    let range = elements(graph, node.output, tile);
    let mut guarded = Guarded { node, source, member: None, magnitude: None };
    let words = element::range(graph, node, range.clone(), &mut guarded)?;
    let bytes = bytes_from_words(ty.dtype, &words);
    let tile = tile_range(ty.bytes(), tile);
    let first = range.start * ty.dtype.size();
    Ok(bytes[tile.start - first..tile.end - first].to_vec())
}

/// Serves elements from whole tensors and notes the tiles they lie in.
struct Recording<'a> {
    graph: &'a Graph,
    tensors: &'a BTreeMap<TensorId, Vec<u8>>,
    touched: BTreeSet<(TensorId, usize)>,
}

impl Source for Recording<'_> {
    type Error = LeafError;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, LeafError> {
        let ty = self.graph.tensor(tensor);
        let size = ty.dtype.size();
        let bytes = self.tensors.get(&tensor).ok_or(LeafError::Missing { tensor, tile: 0 })?;
        let range = index * size..(index + 1) * size;
        let element = bytes.get(range.clone()).ok_or(LeafError::Outside { tensor })?;
        self.touched.insert((tensor, range.start / TILE_BYTES));
        self.touched.insert((tensor, (range.end - 1) / TILE_BYTES));
        Ok(word_from_bytes(ty.dtype, element))
    }
}

/// A tile with what it was computed from.
pub struct RecordedTile {
    pub bytes: Vec<u8>,
    /// The input tiles that were read.
    pub touched: BTreeSet<(TensorId, usize)>,
}

/// The tile that the scalar reference computes from whole input tensors, and the input tiles that it read: what a
/// verdict on that tile must carry.
pub fn recorded_tile(
    graph: &Graph,
    node: usize,
    tile: usize,
    tensors: &BTreeMap<TensorId, Vec<u8>>,
) -> Result<RecordedTile, LeafError> {
    let mut source = Recording { graph, tensors, touched: BTreeSet::new() };
    let bytes = compute(graph, node, tile, &mut source)?;
    Ok(RecordedTile { bytes, touched: source.touched })
}
