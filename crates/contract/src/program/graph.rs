//! The operator graph: tensors, and nodes that are primitives of the leaf grammar.
//!
//! A composite operator (softmax, layer norm, attention, AdamW) *is* its sequence of primitives, each with an output of its own.
//! Nodes carry the operator's name as a label. So the graph that an engine runs, the trace that a trainer commits to and the
//! leaves that a referee checks are one thing. An engine may fuse any nodes. Contract: `docs/ARITHMETIC.md`, section 8.

use std::collections::HashMap;

use super::expr::Body;
use super::im2col::{ConvGeometry, DigitPatches};
use super::products::ProductClass;
use crate::arith::DType;
use crate::arith::digits::ProductPart;
use crate::arith::rounding_grid::GridRule;

/// A tensor of the graph, by its index in [`Graph::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

/// Shape (row-major, rank 1..=4) and element type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The elements' type.
    pub dtype: DType,
    /// The dimensions, outermost first.
    pub shape: Vec<u32>,
}

impl TensorType {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().map(|&d| d as usize).product()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes in the canonical layout.
    pub fn bytes(&self) -> usize {
        self.len() * self.dtype.size()
    }
}

/// A four-dimensional strided window on a tensor: element (i, j, k, l) is `tensor[offset + i*s0 + j*s1 + k*s2 + l*s3]`.
/// Strides may be 0 (broadcast).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The tensor that the view reads.
    pub tensor: TensorId,
    /// The index of element (0, 0, 0, 0).
    pub offset: u32,
    /// Elements along each dimension.
    pub dims: [u32; 4],
    /// Elements of the tensor from one index to the next, for each dimension.
    pub strides: [u32; 4],
}

impl View {
    /// The index in the tensor of the view's element (i, j, k, l).
    pub fn at(&self, index: [u32; 4]) -> usize {
        let mut place = self.offset as usize;
        for (i, stride) in index.iter().zip(self.strides) {
            place += *i as usize * stride as usize;
        }
        place
    }

    /// True if the view's elements follow one another in memory.
    #[doc(hidden)] // for the layers above
    pub fn is_contiguous(&self) -> bool {
        let follows = row_major(self.dims);
        (0..4).all(|d| self.dims[d] == 1 || self.strides[d] == follows[d])
    }

    /// The greatest element the view reaches plus one; 0 for an empty view.
    pub fn reach(&self) -> usize {
        if self.dims.contains(&0) { 0 } else { self.at(self.dims.map(|d| d - 1)) + 1 }
    }
}

/// A node's computation. Each has one output.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Primitive {
    /// *map*: computes every output element from the elements of the input views at its index. The index space `dims` has as many
    /// elements as the output, in row-major order; every view has the same dims.
    Map {
        /// The computation of each element.
        body: Body,
        /// The index space.
        dims: [u32; 4],
        /// One view for each input of the body, with dims `dims`.
        inputs: Vec<View>,
    },
    /// *map*: out[i, c] = table[offset + i*stride_row + c*stride_column + indices[i]*stride_index]; an index is below `bound`.
    /// Embedding look-ups use it, and so does picking a label's logit.
    Gather {
        /// The table, of any shape: it is read by element index.
        table: TensorId,
        /// u32: one index for each row of the output.
        indices: TensorId,
        /// Every index is below it.
        bound: u32,
        /// Elements of the table from one index to the next.
        stride_index: u32,
        /// Elements of the table from one output row to the next.
        stride_row: u32,
        /// Elements of the table from one output column to the next.
        stride_column: u32,
    },
    /// *map*: every pixel of every patch of images [N, H, W, C], +0 outside of the image. out[(n, y, x), (ky, kx, c)] = input[n,
    /// row, column, c], with row and column by [`ConvGeometry::source`]. A convolution multiplies these patches with its kernel.
    Im2col {
        /// The images [N, H, W, C].
        input: TensorId,
        /// The geometry: the pixels that a patch takes.
        geometry: ConvGeometry,
    },
    /// *max*: over the blocks of the last dimension, by [`crate::arith::float::order_key`]; [.., len] -> [.., blocks].
    /// `block` = 0 (whole rows) or a power of two.
    RowMax {
        /// f32 [.., len].
        input: TensorId,
        /// Elements of a block; 0 = the whole row.
        block: u32,
    },
    /// *tree sum* over the blocks of the middle dimension: [outer, len, inner] -> [outer, blocks, inner]. `block` = 0
    /// (all terms) or a power of two: then the block's sum is a node of the whole tree.
    TreeSum {
        /// f32 [outer, len, inner].
        input: TensorId,
        /// The first dimension.
        outer: u32,
        /// Terms of a whole sum.
        len: u32,
        /// The last dimension.
        inner: u32,
        /// Terms of a block; 0 = all.
        block: u32,
    },
    /// *tree sum* over rows grouped by [`Primitive::GroupOrder`]: out[s, w] = sum of input[order[i], w] for i in
    /// offsets[s]..offsets[s+1].
    SegmentSum {
        /// f32 [rows, width].
        input: TensorId,
        /// u32 [rows]: the permutation that groups the rows.
        order: TensorId,
        /// u32 [segments + 1]: where each segment begins in `order`, and its end.
        offsets: TensorId,
    },
    /// *stable grouping*: the permutation that sorts positions by class, equal classes in their order.
    GroupOrder {
        /// u32: the class of each position.
        classes: TensorId,
        /// Every class is below it.
        bound: u32,
    },
    /// *stable grouping*: where each class begins in the permutation of [`Primitive::GroupOrder`]; `bound + 1` entries.
    GroupOffsets {
        /// u32: the class of each position.
        classes: TensorId,
        /// Every class is below it.
        bound: u32,
    },
    /// *max*: `scale`: the absmax of every scale group; view dims = [batch0, batch1, rows, K], output
    /// [batch0*batch1, rows, blocks]. `block` = 0 (whole K) or a power of two.
    Absmax {
        /// f32 [batch0, batch1, rows, K].
        input: View,
        /// Elements of a scale group; 0 = the whole of K.
        block: u32,
    },
    /// *map*: `quantise`: the view's elements as integers of `digits` digits; output [batch0*batch1, rows, K], K contiguous.
    Quantise {
        /// f32 [batch0, batch1, rows, K].
        input: View,
        /// The output of [`Primitive::Absmax`] for the same view and block.
        absmaxes: TensorId,
        /// Digits of an integer, 1..=4.
        digits: u8,
        /// Elements of a scale group; 0 = the whole of K.
        block: u32,
    },
    /// *map*: the integers of every pixel of every patch of quantised images, 0 outside of the image: an operand of a product.
    DigitPatches {
        /// The images' integers, by [`Primitive::Quantise`]: [1, B, H W C], or by channel [1, C, B H W].
        input: TensorId,
        /// The integers that a patch takes, and their order.
        patches: DigitPatches,
    },
    /// *integer product*: out[block, batch, m, n] = the exact dot product of a's row m and b's row n over the block, scaled
    /// back and rounded once; or the error of that rounding. A separate tree sum adds the blocks' results.
    Product {
        /// Integers [batch, M, K] of [`Primitive::Quantise`] or [`Primitive::DigitPatches`].
        a: TensorId,
        /// The absmaxes [batch, M, blocks] of a's scale groups.
        absmaxes_a: TensorId,
        /// Integers [batch, N, K] of [`Primitive::Quantise`] or [`Primitive::DigitPatches`].
        b: TensorId,
        /// The absmaxes [batch, N, blocks] of b's scale groups.
        absmaxes_b: TensorId,
        /// Terms of a block; 0 = the whole of K.
        block: u32,
        /// The result of rounding the exact sum that is the output.
        part: ProductPart,
    },
    /// The matrix product of two views [batch0, batch1, rows, K] in floating point, by whatever kernel the engine calls native.
    /// Native is no primitive of the contract, and no program has it. [`super::logged::native_graph`] puts it into a graph.
    Native {
        /// The left operand [batch0, batch1, M, K].
        a: View,
        /// The right operand [batch0, batch1, N, K].
        b: View,
    },
}

impl Primitive {
    /// The tensors this node reads, in a fixed order, with repetitions.
    pub fn inputs(&self) -> Vec<TensorId> {
        match self {
            Primitive::Map { inputs, .. } => inputs.iter().map(|v| v.tensor).collect(),
            Primitive::Gather { table, indices, .. } => vec![*table, *indices],
            Primitive::Im2col { input, .. }
            | Primitive::DigitPatches { input, .. }
            | Primitive::RowMax { input, .. }
            | Primitive::TreeSum { input, .. } => vec![*input],
            Primitive::SegmentSum { input, order, offsets } => vec![*input, *order, *offsets],
            Primitive::GroupOrder { classes, .. } | Primitive::GroupOffsets { classes, .. } => vec![*classes],
            Primitive::Absmax { input, .. } => vec![input.tensor],
            Primitive::Quantise { input, absmaxes, .. } => vec![input.tensor, *absmaxes],
            Primitive::Product { a, absmaxes_a, b, absmaxes_b, .. } => {
                vec![*a, *absmaxes_a, *b, *absmaxes_b]
            }
            Primitive::Native { a, b } => vec![a.tensor, b.tensor],
        }
    }

    /// The same computation with other tensors: `f` gives the replacement of each input, in the order of [`Primitive::inputs`].
    #[doc(hidden)] // for the layers above
    pub fn map_inputs(&self, mut f: impl FnMut(TensorId) -> TensorId) -> Primitive {
        let mut mapped = self.clone();
        match &mut mapped {
            Primitive::Map { inputs, .. } => inputs.iter_mut().for_each(|v| v.tensor = f(v.tensor)),
            Primitive::Gather { table, indices, .. } => {
                [table, indices].into_iter().for_each(|t| *t = f(*t));
            }
            Primitive::Im2col { input, .. }
            | Primitive::DigitPatches { input, .. }
            | Primitive::RowMax { input, .. }
            | Primitive::TreeSum { input, .. } => *input = f(*input),
            Primitive::SegmentSum { input, order, offsets } => {
                [input, order, offsets].into_iter().for_each(|t| *t = f(*t));
            }
            Primitive::GroupOrder { classes, .. } | Primitive::GroupOffsets { classes, .. } => {
                *classes = f(*classes);
            }
            Primitive::Absmax { input, .. } => input.tensor = f(input.tensor),
            Primitive::Quantise { input, absmaxes, .. } => {
                [&mut input.tensor, absmaxes].into_iter().for_each(|t| *t = f(*t));
            }
            Primitive::Product { a, absmaxes_a, b, absmaxes_b, .. } => {
                [a, absmaxes_a, b, absmaxes_b].into_iter().for_each(|t| *t = f(*t));
            }
            Primitive::Native { a, b } => [a, b].into_iter().for_each(|v| v.tensor = f(v.tensor)),
        }
        mapped
    }

    /// The kind's number in encodings (`docs/ARITHMETIC.md`, section 9).
    ///
    /// # Panics
    /// For a native product, which no program has.
    pub fn kind(&self) -> u8 {
        match self {
            Primitive::Map { .. } => 0,
            Primitive::Gather { .. } => 1,
            Primitive::RowMax { .. } => 2,
            Primitive::TreeSum { .. } => 3,
            Primitive::SegmentSum { .. } => 4,
            Primitive::GroupOrder { .. } => 5,
            Primitive::GroupOffsets { .. } => 6,
            Primitive::Absmax { .. } => 7,
            Primitive::Quantise { .. } => 8,
            Primitive::Product { part: ProductPart::Rounded, .. } => 9,
            Primitive::Product { part: ProductPart::RoundingError, .. } => 10,
            Primitive::Im2col { .. } => 11,
            Primitive::DigitPatches { .. } => 12,
            Primitive::Native { .. } => unreachable!("programs have no native products"),
        }
    }

    /// The versioned name of the primitive, as traces and verdicts print it.
    pub fn name(&self) -> &str {
        match self {
            Primitive::Map { body, .. } => &body.name,
            Primitive::Gather { .. } => "gather.v1",
            Primitive::Im2col { .. } => "patches.v1",
            Primitive::RowMax { .. } => "row_max.v1",
            Primitive::TreeSum { .. } => "tree_sum.v1",
            Primitive::SegmentSum { .. } => "segment_sum.v1",
            Primitive::GroupOrder { .. } => "group_order.v1",
            Primitive::GroupOffsets { .. } => "group_offsets.v1",
            Primitive::DigitPatches { .. } => "digit_patches.v1",
            Primitive::Absmax { .. } => "scale.v1",
            Primitive::Quantise { .. } => "quantise.v1",
            Primitive::Product { part: ProductPart::Rounded, .. } => "product.v1",
            Primitive::Product { part: ProductPart::RoundingError, .. } => "product_rest.v1",
            Primitive::Native { .. } => "native_product",
        }
    }
}

/// One primitive with its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The operator the primitive belongs to, such as `block0.attention.scores` or `block0.ln1.backward`.
    pub operator: String,
    /// The node's computation.
    pub primitive: Primitive,
    /// The tensor that the node makes.
    pub output: TensorId,
}

/// A tensor that enters or leaves a graph under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The name, such as those of [`super::step::port`].
    pub name: String,
    /// The tensor.
    pub tensor: TensorId,
}

/// A product of a graph that native kernels may compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedProduct {
    /// The product's position in the model, as a class.
    pub class: ProductClass,
    /// The left operand in the kernels' input format, [batch0, batch1, M, K].
    pub a: View,
    /// The right operand, [batch0, batch1, N, K].
    pub b: View,
    /// u32 [batch, M, 1]: the absmaxes of a's rows.
    pub absmaxes_a: TensorId,
    /// u32 [batch, N, 1]: the absmaxes of b's rows.
    pub absmaxes_b: TensorId,
    /// The rule by which an element's grid follows from the absmaxes.
    pub rule: GridRule,
    /// The product before it is rounded to the grid: binary32. For grids finer than bfloat16 it has two parts [2, batch, M, N],
    /// the nearest binary32 and the rest.
    pub product: TensorId,
    /// The product after it is rounded to the grid.
    pub output: TensorId,
    /// The outputs of the digitised products that hold the operands' integers. There is one such output, or two: of the high
    /// parts, and of the rests after them.
    pub exact: Vec<TensorId>,
}

impl LoggedProduct {
    /// [batch, M, N, K].
    #[doc(hidden)] // for the layers above
    pub fn dims(&self) -> [usize; 4] {
        let (a, b) = (&self.a.dims, &self.b.dims);
        [a[0] * a[1], a[2], b[2], a[3]].map(|d| d as usize)
    }

    /// Elements of the output.
    #[doc(hidden)] // for the layers above
    pub fn elements(&self) -> usize {
        let [batch, m, n, _] = self.dims();
        batch * m * n
    }
}

/// A graph in execution order: every node reads inputs and outputs of earlier nodes only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// The types of all tensors, indexed by [`TensorId`].
    pub tensors: Vec<TensorType>,
    /// The input tensors, in the order in which engines take them.
    pub inputs: Vec<Port>,
    /// The nodes, in execution order.
    pub nodes: Vec<Node>,
    /// The output tensors, in the order in which engines return them.
    pub outputs: Vec<Port>,
    /// Products that native kernels may compute, in the order of their nodes; there are none in the exact profile. The product
    /// table decides which nodes they are.
    pub logged: Vec<LoggedProduct>,
}

impl Graph {
    /// A tensor's type.
    pub fn tensor(&self, id: TensorId) -> &TensorType {
        &self.tensors[id.0 as usize]
    }

    /// The input or output port with this name.
    pub fn input(&self, name: &str) -> Option<TensorId> {
        self.inputs.iter().find(|p| p.name == name).map(|p| p.tensor)
    }

    /// The output port with this name.
    pub fn output(&self, name: &str) -> Option<TensorId> {
        self.outputs.iter().find(|p| p.name == name).map(|p| p.tensor)
    }

    /// The arithmetic operations of a node: two for each term of a product, one for each instruction of a body and each term of a
    /// sum or maximum.
    #[doc(hidden)] // for the layers above
    pub fn flops(&self, node: &Node) -> u64 {
        let elements = |shape: &[u32]| shape.iter().fold(1, |n: u64, &d| n.saturating_mul(u64::from(d)));
        let len = |id| elements(&self.tensor(id).shape);
        match &node.primitive {
            Primitive::Map { body, .. } => (body.code.len() as u64).saturating_mul(len(node.output)),
            Primitive::Product { a, b, .. } => {
                len(*a).saturating_mul(u64::from(self.tensor(*b).shape[1])).saturating_mul(2)
            }
            Primitive::RowMax { input, .. }
            | Primitive::TreeSum { input, .. }
            | Primitive::SegmentSum { input, .. } => len(*input),
            Primitive::Absmax { input, .. } | Primitive::Quantise { input, .. } => elements(&input.dims),
            _ => 0,
        }
    }

    /// The nodes that make the tensors, for callers with many questions: a search for one node takes as long as there are nodes.
    #[doc(hidden)] // for the layers above
    pub fn makers(&self) -> Makers {
        let mut of = vec![None; self.tensors.len()];
        for (number, node) in self.nodes.iter().enumerate() {
            of[node.output.0 as usize] = Some(number);
        }
        let outputs = self.outputs.iter().map(|port| (port.name.clone(), port.tensor)).collect();
        Makers { of, outputs }
    }

    /// Removes the nodes that no output needs, and the logged products of removed nodes.
    pub(crate) fn remove_dead_nodes(&mut self) {
        let mut needed = vec![false; self.tensors.len()];
        for port in &self.outputs {
            needed[port.tensor.0 as usize] = true;
        }
        for node in self.nodes.iter().rev() {
            if needed[node.output.0 as usize] {
                for input in node.primitive.inputs() {
                    needed[input.0 as usize] = true;
                }
            }
        }
        self.nodes.retain(|node| needed[node.output.0 as usize]);
        self.logged.retain(|logged| needed[logged.output.0 as usize]);
    }
}

/// The nodes that make a graph's tensors, by tensor and by output port.
pub struct Makers {
    of: Vec<Option<usize>>,
    outputs: HashMap<String, TensorId>,
}

impl Makers {
    /// The node that makes a tensor, if one does.
    pub fn of(&self, tensor: TensorId) -> Option<usize> {
        *self.of.get(tensor.0 as usize)?
    }

    /// The node that makes the output port with this name.
    pub fn output(&self, name: &str) -> Option<usize> {
        self.of(*self.outputs.get(name)?)
    }
}

/// The strides of a row-major tensor of these dimensions.
pub fn row_major(dims: [u32; 4]) -> [u32; 4] {
    let [_, d1, d2, d3] = dims;
    [d1.wrapping_mul(d2).wrapping_mul(d3), d2.wrapping_mul(d3), d3, 1]
}

/// A shape of rank <= 4 padded with leading ones.
pub(crate) fn pad_shape(shape: &[u32]) -> [u32; 4] {
    let mut padded = [1; 4];
    padded[4 - shape.len()..].copy_from_slice(shape);
    padded
}

/// The most contiguous elements, and the most rows, that one sum or maximum reads; they bound a verdict on it. Longer reductions
/// are made of partial results, each an output of the trace.
const LEAF_ELEMENTS: u32 = 4096;
const LEAF_ROWS: u32 = 32;

/// The terms, `stride` elements apart, that one sum or maximum may take: a power of two.
pub(crate) fn leaf_block(stride: u32) -> u32 {
    1 << (LEAF_ELEMENTS / stride.max(1)).max(LEAF_ROWS).ilog2()
}

/// The number of blocks of a K that is cut in pieces of `block` (0 = one piece, also for K = 0).
pub fn block_count(k: u32, block: u32) -> u32 {
    if block == 0 { 1 } else { k.div_ceil(block).max(1) }
}
