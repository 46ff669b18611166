//! From a node to its dispatch: which shader, which uniform data, how many workgroups.

use super::device::Device;
use super::map::{GRID_WIDTH, GROUP, translate};
use super::words_of_k;
use crate::arith::{DType, digits};
use crate::program::graph::{Graph, Node, Primitive, View, block_count};
use crate::shaders;

/// A node made ready.
pub struct Step {
    /// `None` for groupings, which run on the host.
    pub pipeline: Option<wgpu::ComputePipeline>,
    /// Offset and size in the graph's uniform data.
    pub uniform: (u64, u64),
    pub groups: [u32; 3],
}

/// Workgroups for one invocation an element.
fn linear_groups(elements: u32) -> [u32; 3] {
    if elements <= GRID_WIDTH {
        [elements.div_ceil(GROUP), 1, 1]
    } else {
        [GRID_WIDTH / GROUP, elements.div_ceil(GRID_WIDTH), 1]
    }
}

/// dims, strides, (offset, ...) as shared/view.wgsl takes them.
fn view_words(view: &View) -> Vec<u32> {
    [&view.dims[..], &view.strides[..]].concat()
}

/// The text of a shader file; the build put it there.
fn file(name: &str) -> String {
    shaders::source(name).expect("the build script made this shader").to_string()
}

/// A node's shader text, uniform words and workgroups.
fn shader(graph: &Graph, node: &Node) -> (String, Vec<u32>, [u32; 3]) {
    let ty = graph.tensor(node.output);
    let elements = ty.len() as u32;
    let last = *ty.shape.last().expect("tensors have rank 1 or more");
    match &node.primitive {
        Primitive::Map { body, dims, inputs } => {
            let map = translate(body, *dims, inputs);
            let text = shaders::compose_text(body.name, &map.text).expect("its includes are there");
            (text, map.uniform, linear_groups(elements))
        }
        Primitive::Gather { stride_index, stride_row, stride_column, .. } => {
            let uniform = vec![elements, last, 0, GRID_WIDTH, *stride_index, *stride_row, *stride_column, 0];
            (file("gather"), uniform, linear_groups(elements))
        }
        Primitive::RowMax { input } => {
            let len = *graph.tensor(*input).shape.last().expect("tensors have rank 1 or more");
            (file("row_max"), vec![elements, len, 0, GRID_WIDTH], linear_groups(elements))
        }
        Primitive::TreeSum { len, inner, .. } => {
            (file("tree_sum"), vec![elements, *len, *inner, GRID_WIDTH], linear_groups(elements))
        }
        Primitive::SegmentSum { .. } => {
            (file("segment_sum"), vec![elements, last, 0, GRID_WIDTH], linear_groups(elements))
        }
        Primitive::Magnitude { input, block } => {
            let blocks = block_count(input.dims[3], *block);
            let step = if *block == 0 { input.dims[3] } else { *block };
            let mut uniform = vec![elements, blocks, step, GRID_WIDTH];
            uniform.extend(view_words(input));
            uniform.extend([input.offset, 0, 0, 0]);
            (file("scale"), uniform, linear_groups(elements))
        }
        Primitive::Quantise { input, digits, block, .. } => {
            let words = words_of_k(input.dims[3]);
            let plane = ty.shape[0] * ty.shape[1] * words;
            let step = if *block == 0 { input.dims[3].next_multiple_of(16).max(1) } else { *block };
            let digits = u32::from(*digits);
            let mut uniform = vec![plane, words, digits, GRID_WIDTH];
            uniform.extend(view_words(input));
            let blocks = block_count(input.dims[3], *block);
            uniform.extend([input.offset, blocks, step, digits::magnitude_bits(digits)]);
            (file("quantise"), uniform, linear_groups(plane))
        }
        Primitive::Product { a, b, block, .. } => {
            let (a, b) = (graph.tensor(*a), graph.tensor(*b));
            let digits_of = |dtype| match dtype {
                DType::Q(d) => u32::from(d),
                _ => unreachable!("products take quantised operands"),
            };
            let (digits_a, digits_b) = (digits_of(a.dtype), digits_of(b.dtype));
            let [batch, m, k] = [a.shape[0], a.shape[1], a.shape[2]];
            let n = b.shape[1];
            let (words, blocks) = (words_of_k(k), block_count(k, *block));
            let step = if *block == 0 { words } else { *block / 4 };
            let bits = digits::magnitude_bits(digits_a) + digits::magnitude_bits(digits_b);
            let head = format!("const DIGITS_A: u32 = {digits_a}u;\nconst DIGITS_B: u32 = {digits_b}u;\n");
            let uniform = vec![batch, m, n, words, blocks, step, bits, 0];
            let groups = [n.div_ceil(32), m.div_ceil(32), blocks * batch];
            (format!("{head}{}", file("product")), uniform, groups)
        }
        Primitive::GroupOrder { .. } | Primitive::GroupOffsets { .. } => (String::new(), Vec::new(), [0; 3]),
    }
}

/// Makes a node ready; its uniform data goes to the end of `data`.
pub fn step_of(device: &mut Device, graph: &Graph, node: &Node, data: &mut Vec<u8>) -> Step {
    let (text, uniform, groups) = shader(graph, node);
    if text.is_empty() {
        return Step { pipeline: None, uniform: (0, 0), groups };
    }
    let offset = data.len().next_multiple_of(256);
    data.resize(offset, 0);
    data.extend(uniform.iter().flat_map(|w| w.to_le_bytes()));
    Step {
        pipeline: Some(device.pipeline(&text)),
        uniform: (offset as u64, uniform.len() as u64 * 4),
        groups,
    }
}

/// Every shader text of a graph with the name of a node that uses it, for dumps and the lint's tests.
pub fn texts(graph: &Graph) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for node in &graph.nodes {
        let (text, ..) = shader(graph, node);
        if !text.is_empty() && !found.iter().any(|(_, t)| *t == text) {
            found.push((node.primitive.name().to_string(), text));
        }
    }
    found
}
