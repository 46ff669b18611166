//! The way from a node to its kernels: the shader, its uniform data and workgroups; and the kernels that a device may have in
//! their place.

use super::copies::NodePart;
use crate::device::kernel::{
    Digitise, GRID_WIDTH, Kernel, ProductSize, Shader, linear_groups, workgroup_each,
};
use crate::device::layout::words_of_k;
use crate::rows::access::Index;
use crate::wgsl::map;
use tiebreak_contract::arith::{DType, digits};
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId, TensorType, View, block_count};
use tiebreak_contract::program::im2col::{ConvGeometry, DigitPatches};
use tiebreak_shaders::product::{self, Choice, Variant};

/// A node's shader; `None` for groupings, which run on the host. The function is public for the CUDA translation's tests, which
/// run the same dispatches.
pub fn shader(graph: &Graph, node: &Node, variant: Variant) -> Option<Shader> {
    shader_from(graph, node, variant, [0; 4])
}

/// The kernel by which shaders compute a part of a node; `None` for groupings.
pub(crate) fn shader_kernel(part: &NodePart, variant: Variant) -> Option<Kernel> {
    let shader = shader_from(part.graph, part.node, variant, part.origin)?;
    // Only digit planes can be multiplied in more than one way.
    let size = product_size(part.graph, part.node).filter(|_| variant == Variant::Dot);
    Some(match size {
        Some(size) => Kernel::Product { shader, size },
        None => Kernel::Wgsl(shader),
    })
}

/// The kernel that computes a word of a product's exact sums in place of their rounded values; `None` if the node is no product.
pub(crate) fn sums_kernel(part: &NodePart, variant: Variant, word: u8) -> Option<Kernel> {
    product_size(part.graph, part.node)?;
    let Shader { text, mut uniform, groups } = shader_from(part.graph, part.node, variant, part.origin)?;
    uniform[PRODUCT_BITS] = uniform[PRODUCT_BITS] & 0xffff | u32::from(word) << 16;
    Some(Kernel::Wgsl(Shader { text: product::giving_sums(&text).into(), uniform, groups }))
}

/// The own kernel that a device may have in place of a node's shader.
pub(crate) fn own_kernel(graph: &Graph, node: &Node, variant: Variant) -> Option<Kernel> {
    match &node.primitive {
        Primitive::Native { a, b } if !graph.tensor(node.output).is_empty() => {
            Some(Kernel::Native { operands: [a.clone(), b.clone()], parts: native_parts(graph, node) })
        }
        Primitive::Absmax { input, block } => digitising(graph, input, *block, Digitise::Scale),
        Primitive::Quantise { input, digits, block, .. } if variant == Variant::Dot => {
            digitising(graph, input, *block, Digitise::Quantise { digits: u32::from(*digits) })
        }
        _ => None,
    }
}

/// The kernel that digitises a view of words. The view may hold absmaxes, which are words whose sign bit is never set.
pub(crate) fn digitising(graph: &Graph, view: &View, block: u32, what: Digitise) -> Option<Kernel> {
    let words = matches!(graph.tensor(view.tensor).dtype, DType::F32 | DType::U32);
    words.then(|| Kernel::Digitise { view: view.clone(), block, what })
}

/// The completion of the product's template for these operands and a variant.
fn choice_of(graph: &Graph, a: TensorId, b: TensorId, block: u32, variant: Variant) -> Choice {
    let digits = |tensor| match graph.tensor(tensor).dtype {
        DType::Q(d) => u32::from(d),
        _ => unreachable!("products take quantised operands"),
    };
    let k = graph.tensor(a).shape[2];
    Choice::new(variant, digits(a), digits(b), if block == 0 { k } else { block })
}

/// The sizes of a node, if it is a product.
pub(crate) fn product_size(graph: &Graph, node: &Node) -> Option<ProductSize> {
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

/// From this length on, a workgroup shares the work of an output.
const LONG: u32 = 256;

/// The reason why a node cannot run where an invocation's loops may take `rounds_max` rounds altogether, if there is one.
pub(crate) fn refusal(graph: &Graph, node: &Node, variant: Variant, rounds_max: u32) -> Option<String> {
    let (what, rounds) = match &node.primitive {
        Primitive::TreeSum { len, block, .. } => {
            ("terms of a sum", share(block_len(*len, *block)).max(1) * ROUNDS_OF_TERM)
        }
        Primitive::SegmentSum { order, .. } => {
            let positions = graph.tensor(*order).len() as u32;
            let each = if positions > POSITIONS_SHORT { segment_share(positions) } else { positions };
            ("positions of a micro-batch", each * ROUNDS_OF_TERM)
        }
        Primitive::Absmax { input, .. } => ("places of K", input.dims[3].div_ceil(64)),
        Primitive::Product { a, b, block, .. } => {
            let k = graph.tensor(*a).shape[2];
            let k = if *block == 0 { k } else { *block };
            let choice = choice_of(graph, *a, *b, *block, variant);
            if variant != Variant::Words && k > Choice::PLACES_MAX {
                return Some(format!("{}: too many places of K for its sums", node.operator));
            }
            ("places of K", choice.rounds(words_of_k(k)))
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

/// The number of parts of a native product's result: one in binary32, or two that together have binary64's precision.
fn native_parts(graph: &Graph, node: &Node) -> u32 {
    let Primitive::Native { a, b } = &node.primitive else { return 0 };
    let elements = u64::from(a.dims[0] * a.dims[1]) * u64::from(a.dims[2]) * u64::from(b.dims[2]);
    if graph.tensor(node.output).len() as u64 == elements { 1 } else { 2 }
}

/// Terms of each of 64 invocations that share a sum: a power of two.
fn share(len: u32) -> u32 {
    len.div_ceil(64).next_power_of_two()
}

/// Terms of each of the 32 invocations that share a long segment: a power of two.
fn segment_share(len: u32) -> u32 {
    len.div_ceil(32).next_power_of_two()
}

/// Up to this many positions, an invocation sums a segment alone.
const POSITIONS_SHORT: u32 = 1 << 14;

/// Rounds of a term of a tree sum: one for itself, on average one for its carries, and one for the test that ends them.
const ROUNDS_OF_TERM: u32 = 3;

/// The most elements of a block.
fn block_len(len: u32, block: u32) -> u32 {
    if block == 0 { len } else { block.min(len) }
}

/// The dims and strides of a view, in the order of shared/view.wgsl; an offset follows.
fn view_words(view: &View) -> Vec<u32> {
    [&view.dims[..], &view.strides[..]].concat()
}

/// The text of a shader file; the build put it there.
fn file(name: &str) -> &'static str {
    tiebreak_shaders::source(name).expect("the build script made this shader")
}

/// The width that a shader gets, and its workgroups. Each output has a workgroup if outputs are `shared`, otherwise one
/// invocation.
fn spread(elements: u32, shared: bool) -> (u32, [u32; 3]) {
    if shared { workgroup_each(elements) } else { (GRID_WIDTH, linear_groups(elements)) }
}

fn of_file(name: &str, uniform: Vec<u32>, groups: [u32; 3]) -> Shader {
    Shader { text: file(name).into(), uniform, groups }
}

fn last(ty: &TensorType) -> u32 {
    *ty.shape.last().expect("tensors have rank 1 or more")
}

/// The shader of a node. The indices of maps and patches count from `origin`.
fn shader_from(graph: &Graph, node: &Node, variant: Variant, origin: Index) -> Option<Shader> {
    let ty = graph.tensor(node.output);
    let elements = ty.len() as u32;
    Some(match &node.primitive {
        Primitive::Map { body, dims, inputs } => map::shader(body, *dims, origin, inputs),
        Primitive::Gather { stride_index, stride_row, stride_column, .. } => {
            let strides = [*stride_index, *stride_row, *stride_column, 0];
            let uniform = [[elements, last(ty), 0, GRID_WIDTH], strides].concat();
            of_file("gather", uniform, linear_groups(elements))
        }
        Primitive::Im2col { input, geometry } => im2col(graph.tensor(*input), geometry, elements, origin[1]),
        Primitive::DigitPatches { input, patches } => {
            digit_patches([graph.tensor(*input), ty], patches, variant, [origin[1], origin[2]])
        }
        Primitive::RowMax { input, block } => row_max(last(graph.tensor(*input)), *block, elements),
        Primitive::TreeSum { len, inner, block, .. } => tree_sum(*len, *inner, *block, elements),
        Primitive::SegmentSum { order, .. } => segment_sum(graph.tensor(*order), ty),
        Primitive::Absmax { input, block } => absmax(input, *block, elements),
        Primitive::Quantise { input, digits, block, .. } => {
            quantise(ty, input, u32::from(*digits), *block, variant)
        }
        Primitive::Product { a, b, block, part, .. } => {
            let choice = choice_of(graph, *a, *b, *block, variant);
            product([graph.tensor(*a), graph.tensor(*b)], *block, *part, choice)
        }
        Primitive::Native { a, b } => native(a, b),
        Primitive::GroupOrder { .. } | Primitive::GroupOffsets { .. } => return None,
    })
}

fn im2col(input: &TensorType, geometry: &ConvGeometry, elements: u32, first_row: u32) -> Shader {
    let shape = &input.shape;
    let mut uniform = vec![elements, GRID_WIDTH, shape[3], first_row];
    uniform.extend(geometry.size.iter().chain(&geometry.kernel));
    uniform.extend([shape[1], shape[2], geometry.stride, geometry.padding]);
    uniform.extend([u32::from(geometry.transposed), 0, 0, 0]);
    of_file("patches", uniform, linear_groups(elements))
}

/// The shader of patches of digits. `first` is the first row of patches, and the first element of a patch.
fn digit_patches(
    [input, output]: [&TensorType; 2],
    patches: &DigitPatches,
    variant: Variant,
    first: [u32; 2],
) -> Shader {
    let DType::Q(digits) = output.dtype else { unreachable!("patches of digits are digits") };
    let plane = |ty: &TensorType| ty.shape[1] * words_of_k(ty.shape[2]);
    let [_, rows, k] = input.shape[..] else { unreachable!("integers are [1, rows, K]") };
    let [_, channels] = patches.images(rows, k).expect("rows are whole images");
    let planes = if variant == Variant::Words { 0 } else { u32::from(digits) };
    let mut uniform = vec![plane(output), words_of_k(output.shape[2]), planes, GRID_WIDTH];
    uniform.extend([plane(input), words_of_k(k), output.shape[2], channels]);
    let ConvGeometry { size, kernel, stride, padding, transposed } = patches.geometry;
    uniform.extend(size.iter().chain(&kernel));
    uniform.extend(patches.image.into_iter().chain([stride, padding]));
    uniform.extend([u32::from(transposed), u32::from(patches.by_channel)].into_iter().chain(first));
    of_file("digit_patches", uniform, linear_groups(plane(output)))
}

fn row_max(len: u32, block: u32, elements: u32) -> Shader {
    let (step, blocks) = (block_len(len, block), block_count(len, block));
    let long = step >= LONG;
    let (width, groups) = spread(elements, long);
    let uniform = vec![elements, len, 1, width, step, blocks, 0, 0];
    of_file(if long { "row_max_long" } else { "row_max" }, uniform, groups)
}

fn tree_sum(len: u32, inner: u32, block: u32, elements: u32) -> Shader {
    let (step, blocks) = (block_len(len, block), block_count(len, block));
    // Neighbouring invocations read columns together, so only rows and very long sums are shared.
    let long = (inner == 1 && step >= LONG) || step >= 1 << 14;
    let (width, groups) = spread(elements, long);
    let uniform = vec![elements, len, inner, width, step, blocks, share(step), 0];
    of_file(if long { "tree_sum_long" } else { "tree_sum" }, uniform, groups)
}

fn segment_sum(order: &TensorType, ty: &TensorType) -> Shader {
    let (elements, width) = (ty.len() as u32, last(ty));
    if order.len() as u32 <= POSITIONS_SHORT {
        return of_file("segment_sum", vec![elements, width, 0, GRID_WIDTH], linear_groups(elements));
    }
    let (segments, columns) = (elements / width.max(1), width.div_ceil(8));
    let (along, groups) = workgroup_each(segments * columns);
    of_file("segment_sum_long", vec![segments, width, columns, along], groups)
}

fn absmax(input: &View, block: u32, elements: u32) -> Shader {
    let blocks = block_count(input.dims[3], block);
    let step = if block == 0 { input.dims[3] } else { block };
    let long = (input.strides[3] == 1 && step >= LONG) || step >= 1 << 15;
    let (width, groups) = spread(elements, long);
    let mut uniform = vec![elements, blocks, step, width];
    uniform.extend(view_words(input));
    uniform.extend([input.offset, 0, 0, 0]);
    of_file(if long { "scale_long" } else { "scale" }, uniform, groups)
}

fn quantise(ty: &TensorType, input: &View, digits: u32, block: u32, variant: Variant) -> Shader {
    let words = words_of_k(input.dims[3]);
    let plane = ty.shape[0] * ty.shape[1] * words;
    let step = if block == 0 { input.dims[3].next_multiple_of(16).max(1) } else { block };
    let planes = if variant == Variant::Words { 0 } else { digits };
    let mut uniform = vec![plane, words, planes, GRID_WIDTH];
    uniform.extend(view_words(input));
    let blocks = block_count(input.dims[3], block);
    uniform.extend([input.offset, blocks, step, digits::magnitude_bits(digits)]);
    of_file("quantise", uniform, linear_groups(plane))
}

/// The uniform word of a product with the absmax bits of both operands.
const PRODUCT_BITS: usize = 6;

fn product([a, b]: [&TensorType; 2], block: u32, part: digits::ProductPart, choice: Choice) -> Shader {
    let [batch, m, k] = [a.shape[0], a.shape[1], a.shape[2]];
    let n = b.shape[1];
    let (words, blocks) = (words_of_k(k), block_count(k, block));
    let step = if block == 0 { words } else { block / 4 };
    let rest = u32::from(part == digits::ProductPart::RoundingError) << 16;
    let bits = digits::magnitude_bits(choice.digits_a) + digits::magnitude_bits(choice.digits_b) + rest;
    // The last word is the begin of a dispatch in the third dimension.
    let uniform = vec![batch, m, n, words, blocks, step, bits, 0];
    let [rows, columns] = choice.tile();
    let groups = [n.div_ceil(columns), m.div_ceil(rows), blocks * batch];
    Shader { text: choice.complete(file(choice.variant.file())).into(), uniform, groups }
}

fn native(a: &View, b: &View) -> Shader {
    let (batch, m, n, k) = (a.dims[0] * a.dims[1], a.dims[2], b.dims[2], a.dims[3]);
    let mut uniform = vec![batch, m, n, k];
    uniform.extend(a.strides.iter().chain(&b.strides));
    // The last word is the begin of a dispatch in the third dimension.
    uniform.extend([a.dims[1].max(1), a.offset, b.offset, 0]);
    let text = tiebreak_shaders::native_source("native_product").expect("the build script put it there");
    Shader { text: text.into(), uniform, groups: [n.div_ceil(32), m.div_ceil(8), batch] }
}
