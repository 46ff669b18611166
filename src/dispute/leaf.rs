//! The leaf checker: what a tile of a node's output must be, computed by the scalar reference from verified tiles of
//! its inputs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::arith::DType;
use crate::commit::tensor::{TILE_BYTES, tile_range};
use crate::engine::reference::bytes_from_words;
use crate::program::element::{self, Source};
use crate::program::graph::{Graph, Primitive, TensorId};

/// The most single elements that a leaf may read: a bound on a referee's work.
pub const READS_MAX: u64 = 1 << 32;

/// Why a leaf cannot be decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeafError {
    #[error("tile {tile} of tensor {} is needed and not there", tensor.0)]
    Missing { tensor: TensorId, tile: usize },
    #[error("an index in the evidence points outside tensor {}", tensor.0)]
    Outside { tensor: TensorId },
    #[error("the leaf reads more than {READS_MAX} elements")]
    TooLarge,
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

/// One element out of canonical bytes.
fn word(dtype: DType, bytes: &[u8]) -> u32 {
    let mut le = [0; 4];
    le[..bytes.len()].copy_from_slice(bytes);
    let word = u32::from_le_bytes(le);
    match dtype {
        DType::Q(d) => (((word << (32 - 8 * u32::from(d))) as i32) >> (32 - 8 * u32::from(d))) as u32,
        _ => word,
    }
}

/// Serves elements from tiles, and nothing else.
struct Verified<'a> {
    graph: &'a Graph,
    tiles: &'a Tiles,
    reads: u64,
}

impl Source for Verified<'_> {
    type Error = LeafError;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, LeafError> {
        self.reads += 1;
        if self.reads > READS_MAX {
            return Err(LeafError::TooLarge);
        }
        let ty = self.graph.tensor(tensor);
        if index >= ty.len() {
            return Err(LeafError::Outside { tensor });
        }
        let size = ty.dtype.size();
        // Elements of three bytes can lie across two tiles.
        let mut bytes = [0; 4];
        for (i, byte) in bytes[..size].iter_mut().enumerate() {
            let at = index * size + i;
            let tile = at / TILE_BYTES;
            let have = self.tiles.0.get(&(tensor, tile)).ok_or(LeafError::Missing { tensor, tile })?;
            *byte = *have.get(at % TILE_BYTES).ok_or(LeafError::Missing { tensor, tile })?;
        }
        Ok(word(ty.dtype, &bytes[..size]))
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
fn reads(graph: &Graph, node: usize, tile: usize) -> u64 {
    let node = &graph.nodes[node];
    let count = elements(graph, node.output, tile).len() as u64;
    let each = match &node.primitive {
        Primitive::Map { inputs, .. } => inputs.len() as u64,
        Primitive::TreeSum { len, .. } => u64::from(*len),
        Primitive::RowMax { input } | Primitive::SegmentSum { input, .. } => {
            graph.tensor(*input).len() as u64
        }
        Primitive::Magnitude { input, .. } => u64::from(input.dims[3]),
        Primitive::Product { a, .. } => 2 * u64::from(graph.tensor(*a).shape[2]),
        _ => 4,
    };
    count.saturating_mul(each)
}

/// What tile `tile` of node `node`'s output must be, from verified tiles of its inputs.
pub fn expected_tile(graph: &Graph, node: usize, tile: usize, tiles: &Tiles) -> Result<Vec<u8>, LeafError> {
    if reads(graph, node, tile) > READS_MAX {
        return Err(LeafError::TooLarge);
    }
    let mut source = Verified { graph, tiles, reads: 0 };
    compute(graph, node, tile, &mut source)
}

fn compute<S: Source>(graph: &Graph, node: usize, tile: usize, source: &mut S) -> Result<Vec<u8>, S::Error> {
    let node = &graph.nodes[node];
    let ty = graph.tensor(node.output);
    let range = elements(graph, node.output, tile);
    let words = element::range(graph, node, range.clone(), source)?;
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
        Ok(word(ty.dtype, element))
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
