//! From a node to its dispatch: which shader, which uniform data, how many workgroups.

use super::device::Device;
use super::layout::words_of_k;
use super::map::{GRID_WIDTH, GROUP, translate};
use super::row_kernel;
use crate::arith::{DType, digits};
use crate::engine::EngineError;
use crate::program::graph::{Graph, Node, Primitive, TensorId, View, block_count};
use crate::shaders;
use crate::shaders::product::{Choice, Variant};

/// A node made ready.
pub struct Step<P> {
    /// `None` for groupings, which run on the host.
    pub pipeline: Option<P>,
    /// Offset and size in the graph's uniform data, and workgroups: one dispatch, or several where WebGPU's limit on
    /// workgroups asks for it.
    pub dispatches: Vec<((u64, u64), [u32; 3])>,
}

/// WebGPU's limit on workgroups along a dimension.
pub const GROUPS_MAX: u32 = 65_535;

/// How a product of these operands is computed by a variant.
fn choice_of(graph: &Graph, a: TensorId, b: TensorId, block: u32, variant: Variant) -> Choice {
    let digits = |tensor| match graph.tensor(tensor).dtype {
        DType::Q(d) => u32::from(d),
        _ => unreachable!("products take quantised operands"),
    };
    let k = graph.tensor(a).shape[2];
    Choice::new(variant, digits(a), digits(b), if block == 0 { k } else { block })
}

/// What the best kernel of a product depends on.
#[derive(Clone, Copy, Debug)]
pub struct ProductSize {
    pub digits_a: u32,
    pub digits_b: u32,
    /// Places of a block of K.
    pub places: u32,
    pub rows: u32,
    pub columns: u32,
    /// Outputs of that many rows and columns: samples times blocks.
    pub count: u32,
}

impl ProductSize {
    /// That of a node, if it is a product.
    pub fn of(graph: &Graph, node: &Node) -> Option<ProductSize> {
        let Primitive::Product { a, b, block, .. } = &node.primitive else { return None };
        let choice = choice_of(graph, *a, *b, *block, Variant::Dot);
        let shape = &graph.tensor(*a).shape;
        Some(ProductSize {
            digits_a: choice.digits_a,
            digits_b: choice.digits_b,
            places: if *block == 0 { shape[2] } else { *block },
            rows: shape[1],
            columns: graph.tensor(*b).shape[1],
            count: shape[0] * block_count(shape[2], *block),
        })
    }
}

/// Workgroups for one invocation an element.
pub(super) fn linear_groups(elements: u32) -> [u32; 3] {
    if elements <= GRID_WIDTH {
        [elements.div_ceil(GROUP), 1, 1]
    } else {
        [GRID_WIDTH / GROUP, elements.div_ceil(GRID_WIDTH), 1]
    }
}

/// Workgroups along x, and the workgroups, for one workgroup an output.
pub(super) fn workgroup_each(outputs: u32) -> (u32, [u32; 3]) {
    let width = outputs.clamp(1, GROUPS_MAX);
    (width, [width, outputs.div_ceil(width), 1])
}

/// From this length on a workgroup shares the work of an output.
const LONG: u32 = 256;

/// Why a node cannot run where an invocation's loops may take so many rounds altogether, if so.
pub fn refusal(graph: &Graph, node: &Node, variant: Variant, rounds_max: u32) -> Option<String> {
    let (what, rounds) = match &node.primitive {
        Primitive::TreeSum { len, block, .. } => {
            ("terms of a sum", share(block_len(*len, *block)).max(1) * ROUNDS_OF_TERM)
        }
        Primitive::SegmentSum { order, .. } => {
            let positions = graph.tensor(*order).len() as u32;
            let each = if positions > POSITIONS_SHORT { segment_share(positions) } else { positions };
            ("positions of a micro-batch", each * ROUNDS_OF_TERM)
        }
        Primitive::Magnitude { input, .. } => ("places of K", input.dims[3].div_ceil(64)),
        Primitive::Product { a, b, block, .. } => {
            let k = graph.tensor(*a).shape[2];
            let k = if *block == 0 { k } else { *block };
            ("places of K", choice_of(graph, *a, *b, *block, variant).rounds(words_of_k(k)))
        }
        Primitive::Native { a, .. } => {
            if native_parts(graph, node) != 1 {
                return Some(format!("{}: WGSL has no binary64 for native products", node.operator));
            }
            ("places of K", a.dims[3])
        }
        _ => return None,
    };
    (rounds > rounds_max).then(|| format!("{}: too many {what} for one dispatch", node.operator))
}

/// Parts of a native product's result: one in binary32, two that together have binary64's.
fn native_parts(graph: &Graph, node: &Node) -> u32 {
    let Primitive::Native { a, b } = &node.primitive else { return 0 };
    let elements = u64::from(a.dims[0] * a.dims[1]) * u64::from(a.dims[2]) * u64::from(b.dims[2]);
    if graph.tensor(node.output).len() as u64 == elements { 1 } else { 2 }
}

/// A kernel that is no node's shader, a device's own or that of a region, with the uniform words and workgroups of its one dispatch.
pub struct OwnKernel<P> {
    pub pipeline: P,
    pub uniform: Vec<u32>,
    pub groups: [u32; 3],
}

impl<P> OwnKernel<P> {
    /// The kernel made ready; its uniform data goes to the end of `data`.
    pub fn step(self, data: &mut Vec<u8>) -> Step<P> {
        let offset = data.len().next_multiple_of(256);
        data.resize(offset, 0);
        data.extend(self.uniform.iter().flat_map(|word| word.to_le_bytes()));
        let uniform = (offset as u64, 4 * self.uniform.len() as u64);
        Step { pipeline: Some(self.pipeline), dispatches: vec![(uniform, self.groups)] }
    }
}

/// A library of the device's in place of a native product's shader, if it has one.
pub fn library_kernel<D: Device>(
    device: &mut D,
    graph: &Graph,
    node: &Node,
) -> Result<Option<OwnKernel<D::Pipeline>>, EngineError> {
    let Primitive::Native { a, b } = &node.primitive else { return Ok(None) };
    if graph.tensor(node.output).is_empty() {
        return Ok(None);
    }
    let pipeline = device.native_product([a, b], native_parts(graph, node))?;
    Ok(pipeline.map(|pipeline| OwnKernel { pipeline, uniform: Vec::new(), groups: [1; 3] }))
}

/// Terms that each of 64 invocations takes when they share a sum: a power of two.
fn share(len: u32) -> u32 {
    len.div_ceil(64).next_power_of_two()
}

/// The same for the 32 invocations that share a long segment.
fn segment_share(len: u32) -> u32 {
    len.div_ceil(32).next_power_of_two()
}

/// Up to so many positions an invocation sums a segment alone.
const POSITIONS_SHORT: u32 = 1 << 14;

/// A term of a tree sum costs a round, on average one more for its carries, and one for the test that ends them.
const ROUNDS_OF_TERM: u32 = 3;

/// The most elements of a block.
fn block_len(len: u32, block: u32) -> u32 {
    if block == 0 { len } else { block.min(len) }
}

/// dims, strides, (offset, ...) as shared/view.wgsl takes them.
fn view_words(view: &View) -> Vec<u32> {
    [&view.dims[..], &view.strides[..]].concat()
}

/// The text of a shader file; the build put it there.
fn file(name: &str) -> String {
    shaders::source(name).expect("the build script made this shader").to_string()
}

/// A text, uniform words and workgroups.
pub type Shader = (String, Vec<u32>, [u32; 3]);

/// A node's shader text, uniform words and workgroups; the text is empty for groupings. Public for the CUDA translation's
/// tests, which run the same dispatches.
pub fn shader(graph: &Graph, node: &Node, variant: Variant) -> Shader {
    shader_from(graph, node, variant, [0; 4])
}

/// The same for a window of a node, whose indices count from `origin` if it is a map or patches.
pub fn shader_from(graph: &Graph, node: &Node, variant: Variant, origin: [u32; 4]) -> Shader {
    let ty = graph.tensor(node.output);
    let elements = ty.len() as u32;
    let last = *ty.shape.last().expect("tensors have rank 1 or more");
    match &node.primitive {
        Primitive::Map { body, dims, inputs } => {
            let map = translate(body, *dims, origin, inputs);
            let text = shaders::compose_text(body.name, &map.text).expect("its includes are there");
            (text, map.uniform, linear_groups(elements))
        }
        Primitive::Gather { stride_index, stride_row, stride_column, .. } => {
            let uniform = vec![elements, last, 0, GRID_WIDTH, *stride_index, *stride_row, *stride_column, 0];
            (file("gather"), uniform, linear_groups(elements))
        }
        Primitive::Patches { input, grid } => {
            let shape = &graph.tensor(*input).shape;
            let mut uniform = vec![elements, GRID_WIDTH, shape[3], origin[1]];
            uniform.extend(grid.size.iter().chain(&grid.kernel));
            uniform.extend([shape[1], shape[2], grid.stride, grid.padding]);
            uniform.extend([u32::from(grid.transposed), 0, 0, 0]);
            (file("patches"), uniform, linear_groups(elements))
        }
        Primitive::RowMax { input, block } => {
            let len = *graph.tensor(*input).shape.last().expect("tensors have rank 1 or more");
            let (step, blocks) = (block_len(len, *block), block_count(len, *block));
            let long = step >= LONG;
            let (width, groups) =
                if long { workgroup_each(elements) } else { (GRID_WIDTH, linear_groups(elements)) };
            let uniform = vec![elements, len, 1, width, step, blocks, 0, 0];
            (file(if long { "row_max_long" } else { "row_max" }), uniform, groups)
        }
        Primitive::TreeSum { len, inner, block, .. } => {
            let (step, blocks) = (block_len(*len, *block), block_count(*len, *block));
            // Columns are read together by neighbours, so only rows and very long sums are shared.
            let long = (*inner == 1 && step >= LONG) || step >= 1 << 14;
            let (width, groups) =
                if long { workgroup_each(elements) } else { (GRID_WIDTH, linear_groups(elements)) };
            let uniform = vec![elements, *len, *inner, width, step, blocks, share(step), 0];
            (file(if long { "tree_sum_long" } else { "tree_sum" }), uniform, groups)
        }
        Primitive::SegmentSum { order, .. } if graph.tensor(*order).len() as u32 > POSITIONS_SHORT => {
            let (segments, columns) = (elements / last.max(1), last.div_ceil(8));
            let (width, groups) = workgroup_each(segments * columns);
            (file("segment_sum_long"), vec![segments, last, columns, width], groups)
        }
        Primitive::SegmentSum { .. } => {
            (file("segment_sum"), vec![elements, last, 0, GRID_WIDTH], linear_groups(elements))
        }
        Primitive::Magnitude { input, block } => {
            let blocks = block_count(input.dims[3], *block);
            let step = if *block == 0 { input.dims[3] } else { *block };
            let long = (input.strides[3] == 1 && step >= LONG) || step >= 1 << 15;
            let (width, groups) =
                if long { workgroup_each(elements) } else { (GRID_WIDTH, linear_groups(elements)) };
            let mut uniform = vec![elements, blocks, step, width];
            uniform.extend(view_words(input));
            uniform.extend([input.offset, 0, 0, 0]);
            (file(if long { "scale_long" } else { "scale" }), uniform, groups)
        }
        Primitive::Quantise { input, digits, block, .. } => {
            let words = words_of_k(input.dims[3]);
            let plane = ty.shape[0] * ty.shape[1] * words;
            let step = if *block == 0 { input.dims[3].next_multiple_of(16).max(1) } else { *block };
            let digits = u32::from(*digits);
            let planes = if variant == Variant::Words { 0 } else { digits };
            let mut uniform = vec![plane, words, planes, GRID_WIDTH];
            uniform.extend(view_words(input));
            let blocks = block_count(input.dims[3], *block);
            uniform.extend([input.offset, blocks, step, digits::magnitude_bits(digits)]);
            (file("quantise"), uniform, linear_groups(plane))
        }
        Primitive::Product { a, b, block, part, .. } => {
            let choice = choice_of(graph, *a, *b, *block, variant);
            let (a, b) = (graph.tensor(*a), graph.tensor(*b));
            let [batch, m, k] = [a.shape[0], a.shape[1], a.shape[2]];
            let n = b.shape[1];
            let (words, blocks) = (words_of_k(k), block_count(k, *block));
            let step = if *block == 0 { words } else { *block / 4 };
            let rest = u32::from(*part == digits::Part::Rest) << 16;
            let bits =
                digits::magnitude_bits(choice.digits_a) + digits::magnitude_bits(choice.digits_b) + rest;
            let uniform = vec![batch, m, n, words, blocks, step, bits, 0];
            let [rows, columns] = variant.tile();
            let groups = [n.div_ceil(columns), m.div_ceil(rows), blocks * batch];
            (choice.complete(&file(variant.file())), uniform, groups)
        }
        Primitive::Native { a, b } => {
            let (batch, m, n, k) = (a.dims[0] * a.dims[1], a.dims[2], b.dims[2], a.dims[3]);
            let mut uniform = vec![batch, m, n, k];
            uniform.extend(a.strides.iter().chain(&b.strides));
            uniform.extend([a.dims[1].max(1), a.offset, b.offset, 0]);
            let text = shaders::native_source("native_product").expect("the build script put it there");
            (text.to_string(), uniform, [n.div_ceil(32), m.div_ceil(8), batch])
        }
        Primitive::GroupOrder { .. } | Primitive::GroupOffsets { .. } => (String::new(), Vec::new(), [0; 3]),
    }
}

/// Makes a node with this shader ready; its uniform data goes to the end of `data`.
pub fn step_of<D: Device>(
    device: &mut D,
    node: &Node,
    (text, uniform, mut groups): Shader,
    size: Option<ProductSize>,
    data: &mut Vec<u8>,
) -> Result<Step<D::Pipeline>, EngineError> {
    if text.is_empty() {
        return Ok(Step { pipeline: None, dispatches: Vec::new() });
    }
    let own = size.map_or(Ok(None), |size| device.product(&text, &size).map(|own| own.zip(Some(size))))?;
    let pipeline = match own {
        None => Some(device.pipeline(&text)?),
        Some(((pipeline, [rows, columns]), size)) => {
            groups = [size.columns.div_ceil(columns), size.rows.div_ceil(rows), groups[2]];
            Some(pipeline)
        }
    };
    let mut dispatches = Vec::new();
    // Only products have a third dimension; their last uniform word says where a dispatch begins in it.
    for first in (0..groups[2]).step_by(GROUPS_MAX as usize) {
        let offset = data.len().next_multiple_of(256);
        data.resize(offset, 0);
        let mut words = uniform.clone();
        if let (Primitive::Product { .. } | Primitive::Native { .. }, Some(last)) =
            (&node.primitive, words.last_mut())
        {
            *last = first;
        }
        data.extend(words.iter().flat_map(|w| w.to_le_bytes()));
        let groups = [groups[0], groups[1], GROUPS_MAX.min(groups[2] - first)];
        dispatches.push(((offset as u64, words.len() as u64 * 4), groups));
    }
    dispatches.retain(|(_, groups)| !groups.contains(&0));
    Ok(Step { pipeline, dispatches })
}

/// Every shader text of a graph with the name of a node that uses it, or of rows computed at once, for dumps and the lint's tests.
pub fn texts(graph: &Graph) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let nodes = graph.nodes.iter().flat_map(|node| Variant::ALL.map(|variant| (node, variant)));
    let of_nodes =
        nodes.map(|(node, variant)| (node.primitive.name().to_string(), shader(graph, node, variant).0));
    for (name, text) in of_nodes.chain(row_kernel::texts(graph)) {
        if !text.is_empty() && !found.iter().any(|(_, t)| *t == text) {
            found.push((name, text));
        }
    }
    found
}
