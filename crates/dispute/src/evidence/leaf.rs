//! The leaf checker: the right elements of a node's output, computed by the scalar reference from verified slices of its inputs.
//! Contract: `docs/ARITHMETIC.md`, section 8.
//!
//! Verified means committed, not right: a trainer may have committed to inputs that no honest step has. So every
//! value that an operator restricts is checked before the operator sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::proven::wrong;
use tiebreak_contract::arith::float;
use tiebreak_contract::arith::words::{bytes_from_words, bytes_of, word_from_bytes};
use tiebreak_contract::program::element::{self, Source};
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId, TensorType, View};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::tensor::{SLICE_BYTES, tile_range};

/// The most single elements that a leaf may read, counted before anything is computed. Reading that many takes minutes of one
/// core.
pub const READS_MAX: u64 = 1 << 31;

/// The reason why a leaf cannot be decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeafError {
    /// The evidence lacks a slice that the element reads.
    #[error("slice {slice} of tensor {} is needed and not there", tensor.0)]
    Missing {
        /// The tensor of the node's graph.
        tensor: TensorId,
        /// The slice's number.
        slice: usize,
    },
    /// A committed index points outside of the tensor that it indexes.
    #[error("an index in the evidence points outside tensor {}", tensor.0)]
    Outside {
        /// The tensor of the node's graph.
        tensor: TensorId,
    },
    /// An input that no honest step has; the node that made the input is the one to dispute.
    #[error("{operator} is not defined for its committed inputs")]
    Domain {
        /// The operator that reads the input.
        operator: String,
    },
    /// The check would cost too much.
    #[error("the leaf may read {reads} elements, more than {READS_MAX}")]
    TooLarge {
        /// The elements that it could read.
        reads: u64,
    },
}

/// The reason why a leaf cannot be decided, as an error in its evidence.
pub(crate) fn undecided(error: LeafError) -> Malformed {
    wrong(error.to_string())
}

/// Verified slices of input tensors.
#[derive(Default)]
pub struct Slices(BTreeMap<(TensorId, usize), Vec<u8>>);

impl Slices {
    /// Adds a slice that was verified against its tensor's commitment.
    pub fn insert(&mut self, tensor: TensorId, slice: usize, bytes: Vec<u8>) {
        self.0.insert((tensor, slice), bytes);
    }

    /// Adds a whole tensor of a few words.
    pub fn insert_words(&mut self, tensor: TensorId, words: &[u32]) {
        debug_assert!(words.len() * 4 <= SLICE_BYTES, "scalars fit one slice");
        self.insert(tensor, 0, bytes_of(words));
    }

    /// The bytes of a slice, if it was added.
    pub fn get(&self, tensor: TensorId, slice: usize) -> Option<&[u8]> {
        self.0.get(&(tensor, slice)).map(Vec::as_slice)
    }
}

/// Serves elements from slices alone.
pub(crate) struct Verified<'a> {
    pub graph: &'a Graph,
    pub slices: &'a Slices,
}

impl Verified<'_> {
    /// The bytes of a tensor from byte `at` to the end of its slice.
    fn rest_of_slice(&self, tensor: TensorId, at: usize) -> Result<&[u8], LeafError> {
        let slice = at / SLICE_BYTES;
        let bytes = self.slices.get(tensor, slice).and_then(|bytes| bytes.get(at % SLICE_BYTES..));
        bytes.filter(|rest| !rest.is_empty()).ok_or(LeafError::Missing { tensor, slice })
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
        let first = self.rest_of_slice(tensor, at)?;
        if let Some(element) = first.get(..size) {
            return Ok(word_from_bytes(ty.dtype, element));
        }
        // An element of three bytes can span two slices.
        let second = self.rest_of_slice(tensor, at + first.len())?;
        let element: Vec<u8> = first.iter().chain(second).copied().take(size).collect();
        Ok(word_from_bytes(ty.dtype, &element))
    }
}

/// Serves elements from whole tensors.
pub(crate) struct Whole<'a> {
    pub graph: &'a Graph,
    pub tensors: &'a BTreeMap<TensorId, Vec<u8>>,
}

impl Source for Whole<'_> {
    type Error = LeafError;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, LeafError> {
        let ty = self.graph.tensor(tensor);
        let size = ty.dtype.size();
        let bytes = self.tensors.get(&tensor).ok_or(LeafError::Missing { tensor, slice: 0 })?;
        let element = bytes.get(index * size..(index + 1) * size).ok_or(LeafError::Outside { tensor })?;
        Ok(word_from_bytes(ty.dtype, element))
    }
}

/// Slices of tensors: (tensor, slice).
pub type Touched = BTreeSet<(TensorId, usize)>;

/// A source that notes the slices of the elements that it serves.
pub(crate) struct Recording<'a, S> {
    graph: &'a Graph,
    source: S,
    pub touched: Touched,
    last: Option<(TensorId, usize)>,
}

impl<'a, S> Recording<'a, S> {
    pub fn new(graph: &'a Graph, source: S) -> Recording<'a, S> {
        Recording { graph, source, touched: Touched::new(), last: None }
    }
}

impl<S: Source<Error = LeafError>> Source for Recording<'_, S> {
    type Error = LeafError;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, LeafError> {
        let word = self.source.get(tensor, index)?;
        let size = self.graph.tensor(tensor).dtype.size();
        for byte in [index * size, (index + 1) * size - 1] {
            let place = (tensor, byte / SLICE_BYTES);
            // Neighbours are in one slice, so most reads need no look-up in the set.
            if self.last.replace(place) != Some(place) {
                self.touched.insert(place);
            }
        }
        Ok(word)
    }
}

/// Restricts inputs to the values that the node's operator is defined for.
pub(crate) struct Guarded<'a, S> {
    node: &'a Node,
    source: &'a mut S,
    /// The element that is being quantised, and its group's absmax, as they are read.
    member: Option<u32>,
    absmax: Option<u32>,
}

impl<'a, S> Guarded<'a, S> {
    pub fn new(node: &'a Node, source: &'a mut S) -> Guarded<'a, S> {
        Guarded { node, source, member: None, absmax: None }
    }

    fn allows(&mut self, tensor: TensorId, word: u32) -> bool {
        match &self.node.primitive {
            Primitive::Gather { indices: bounded, bound, .. }
            | Primitive::GroupOrder { classes: bounded, bound }
            | Primitive::GroupOffsets { classes: bounded, bound } => tensor != *bounded || word < *bound,
            Primitive::Quantise { absmaxes, .. } => {
                let slot = if tensor == *absmaxes { &mut self.absmax } else { &mut self.member };
                *slot = Some(word);
                let (Some(member), Some(absmax)) = (self.member, self.absmax) else { return true };
                (self.member, self.absmax) = (None, None);
                member & !float::SIGN <= absmax
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
pub fn tile_elements(ty: &TensorType, tile: usize) -> Range<usize> {
    let bytes = tile_range(ty.bytes(), tile);
    let size = ty.dtype.size();
    bytes.start / size..bytes.end.div_ceil(size)
}

/// A bound on the work before anything is computed: the number of elements times the reads of each.
fn reads(graph: &Graph, node: &Node, elements: usize) -> u64 {
    let len = |tensor: TensorId| graph.tensor(tensor).len() as u64;
    let last = |tensor: TensorId| u64::from(graph.tensor(tensor).shape.last().copied().unwrap_or(1));
    let k = |view: &View| u64::from(view.dims[3]);
    let within = |len: u64, block: u32| if block == 0 { len } else { len.min(u64::from(block)) };
    let each = match &node.primitive {
        // Groupings read every class, for any range of elements.
        Primitive::GroupOrder { classes, .. } => return len(*classes),
        Primitive::GroupOffsets { classes, bound } => return len(*classes) + u64::from(*bound),
        Primitive::Map { inputs, .. } => inputs.len() as u64,
        Primitive::Im2col { .. } | Primitive::DigitPatches { .. } => 1,
        Primitive::Gather { .. } | Primitive::Quantise { .. } => 2,
        Primitive::RowMax { input, block } => within(last(*input), *block),
        Primitive::TreeSum { len, block, .. } => within(u64::from(*len), *block),
        Primitive::SegmentSum { order, .. } => 2 + 2 * len(*order),
        Primitive::Absmax { input, block } => within(k(input), *block),
        Primitive::Product { a, .. } => 2 + 2 * last(*a),
        Primitive::Native { .. } => unreachable!("programs have no native products"),
    };
    each.saturating_mul(elements as u64)
}

pub(crate) fn compute<S: Source<Error = LeafError>>(
    graph: &Graph,
    node: usize,
    elements: Range<usize>,
    source: &mut S,
) -> Result<Vec<u32>, LeafError> {
    let node = &graph.nodes[node];
    let reads = reads(graph, node, elements.len());
    if reads > READS_MAX {
        return Err(LeafError::TooLarge { reads });
    }
    element::range(graph, node, elements, &mut Guarded::new(node, source))
}

/// The right elements `elements` of node `node`'s output, from verified slices of its inputs.
///
/// # Errors
/// If a slice that the elements read is missing, a committed index points outside of its tensor, or no honest step has a
/// committed value. Also if the elements read more than [`READS_MAX`] elements.
///
/// ```
/// use tiebreak_contract::arith::DType;
/// use tiebreak_contract::program::builder::Builder;
/// use tiebreak_contract::program::operators::relu;
/// use tiebreak_contract::program::products::ProductTable;
/// use tiebreak_dispute::evidence::leaf::{LeafError, Slices, expected};
///
/// let mut b = Builder::new(ProductTable::preset());
/// let x = b.input("x", DType::F32, &[4]);
/// let y = relu(&mut b, x);
/// b.output("y", y);
/// let graph = b.finish();
///
/// let mut slices = Slices::default();
/// slices.insert_words(x, &[1.0f32, -1.0, 2.0, -2.0].map(f32::to_bits));
/// // Elements 1 and 2 of the only node's output: what a referee holds a committed tile to.
/// assert_eq!(expected(&graph, 0, 1..3, &slices)?, [0, 2.0f32.to_bits()]);
/// // Nothing is guessed.
/// assert!(matches!(expected(&graph, 0, 1..3, &Slices::default()), Err(LeafError::Missing { .. })));
/// # Ok::<(), LeafError>(())
/// ```
pub fn expected(
    graph: &Graph,
    node: usize,
    elements: Range<usize>,
    slices: &Slices,
) -> Result<Vec<u32>, LeafError> {
    compute(graph, node, elements, &mut Verified { graph, slices })
}

/// The bytes of tile `tile` of a tensor, from the words of its [`tile_elements`].
pub fn tile_bytes(ty: &TensorType, tile: usize, words: &[u32]) -> Vec<u8> {
    let bytes = bytes_from_words(ty.dtype, words);
    let first = tile_elements(ty, tile).start * ty.dtype.size();
    let range = tile_range(ty.bytes(), tile);
    bytes[range.start - first..range.end - first].to_vec()
}

/// Elements from a source, and the slices that the scalar reference reads for them.
pub(crate) fn recorded<S: Source<Error = LeafError>>(
    graph: &Graph,
    node: usize,
    elements: Range<usize>,
    source: S,
) -> Result<(Vec<u32>, Touched), LeafError> {
    let mut source = Recording::new(graph, source);
    let words = compute(graph, node, elements, &mut source)?;
    Ok((words, source.touched))
}

/// Elements that the scalar reference computes from whole input tensors, and the input slices that it reads. A verdict on these
/// elements must carry the slices.
///
/// # Errors
/// As [`expected`].
pub fn recorded_from_tensors(
    graph: &Graph,
    node: usize,
    elements: Range<usize>,
    tensors: &BTreeMap<TensorId, Vec<u8>>,
) -> Result<(Vec<u32>, Touched), LeafError> {
    recorded(graph, node, elements, Whole { graph, tensors })
}

/// The same elements and slices, from the slices that a verdict already carries.
///
/// # Errors
/// As [`expected`].
pub fn recorded_from_slices(
    graph: &Graph,
    node: usize,
    elements: Range<usize>,
    slices: &Slices,
) -> Result<(Vec<u32>, Touched), LeafError> {
    recorded(graph, node, elements, Verified { graph, slices })
}

/// The input slices that one element reads at worst. In the worst case indices are 0, and the element's segment holds every row.
///
/// # Errors
/// If the element can read more than [`READS_MAX`] elements.
pub(crate) fn worst_touched(graph: &Graph, node: usize, element: usize) -> Result<Touched, LeafError> {
    let shape = &graph.tensor(graph.nodes[node].output).shape;
    let segment = element / shape.last().map_or(1, |&width| width.max(1) as usize);
    let source = Worst { node: &graph.nodes[node], graph, segment };
    Ok(recorded(graph, node, element..element + 1, source)?.1)
}

/// A source without data, which serves the values that make an element of segment `segment` read the most.
struct Worst<'a> {
    graph: &'a Graph,
    node: &'a Node,
    segment: usize,
}

impl Source for Worst<'_> {
    type Error = LeafError;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, LeafError> {
        let Primitive::SegmentSum { order, offsets, .. } = &self.node.primitive else { return Ok(0) };
        Ok(match tensor {
            t if t == *offsets && index > self.segment => self.graph.tensor(*order).len() as u32,
            t if t == *order => index as u32,
            _ => 0,
        })
    }
}
