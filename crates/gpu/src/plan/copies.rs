//! The launches of a node: its kernel, or those of its windows with the copies before and after them.

use super::unit::{Launch, Slot, Target, bound};
use super::windows::{Binding, Cut, Window, overlap, part_of, volume, window};
use crate::device::kernel::{GRID_WIDTH, Kernel, Shader, linear_groups};
use crate::rows::access::Index;
use tiebreak_contract::program::graph::{Graph, Node, row_major};

/// A node, or a window of a node, which is a node of the same primitive.
pub(crate) struct NodePart<'a> {
    pub graph: &'a Graph,
    pub node: &'a Node,
    /// The begin of its indices, if it is a map or patches.
    pub origin: Index,
    /// The bindings of its inputs, and then of its output.
    bindings: Vec<Binding>,
}

impl<'a> NodePart<'a> {
    /// The parts that a node with these windows runs as; without windows, the whole node.
    pub(crate) fn of(graph: &'a Graph, node: &'a Node, windows: &'a [Window]) -> Vec<NodePart<'a>> {
        if windows.is_empty() {
            let bindings = vec![Binding::Piece(0); node.primitive.inputs().len() + 1];
            return vec![NodePart { graph, node, origin: [0; 4], bindings }];
        }
        let part = |window: &'a Window| {
            let Window { graph, origin, bindings } = window;
            NodePart { graph, node: &graph.nodes[0], origin: *origin, bindings: bindings.clone() }
        };
        windows.iter().map(part).collect()
    }
}

/// The launches of a node whose parts these kernels compute.
pub(crate) fn launches(
    graph: &Graph,
    target: &Target,
    node: &Node,
    parts: &[NodePart],
    kernels: Vec<Kernel>,
) -> Vec<Launch> {
    let cuts = target.cuts(graph, node);
    let inputs = cuts.len() - 1;
    let mut launches = Vec::new();
    let mut held: Vec<Option<&Binding>> = vec![None; inputs];
    for (part, kernel) in parts.iter().zip(kernels) {
        let bindings = || part.bindings.iter().zip(&cuts).enumerate();
        let buffers = bindings().map(|(number, (binding, cut))| bound(number, binding, *cut)).collect();
        for (number, (binding, cut)) in bindings().take(inputs) {
            // Windows side by side read the same rows of the left operand, so a copy may still be in scratch
            // memory.
            if held[number] != Some(binding) {
                copy(number, binding, *cut, Way::ToScratch, &mut launches);
                held[number] = Some(binding);
            }
        }
        launches.push(Launch { kernel, buffers });
        for (number, (binding, cut)) in bindings().skip(inputs) {
            copy(number, binding, *cut, Way::ToTensor, &mut launches);
        }
    }
    launches
}

/// One side of a copy.
struct Side {
    buffer: (Slot, u64),
    strides: Index,
    /// The first word of the copy; for a window that begins before the buffer, the number wraps around.
    first: u32,
    words: u32,
}

/// The direction in which a window is copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToScratch,
    ToTensor,
}

/// Copies a window, if its binding needs a copy, between the pieces of tensor `number` and scratch memory.
fn copy(number: usize, binding: &Binding, cut: Cut, way: Way, launches: &mut Vec<Launch>) {
    let Binding::Copied(view) = binding else { return };
    let text = tiebreak_shaders::source("window_copy").expect("the build script made this shader");
    let dense = row_major(view.dims);
    let words = volume(&view.dims);
    for (piece, (start, piece_words)) in cut.pieces().enumerate() {
        let Some((first, len)) = overlap(view, start, piece_words) else { continue };
        // Every number of words fits 32 bits; the engine checks this for all tensors.
        let in_tensor = Side {
            buffer: (Slot::Tensor { number, piece }, piece_words * 4),
            strides: view.strides,
            first: part_of(view, first, len).offset.wrapping_sub(start as u32),
            words: piece_words as u32,
        };
        let in_scratch = Side {
            buffer: (Slot::Scratch(number), words * 4),
            strides: dense,
            first: window(dense, first, len).offset,
            words: words as u32,
        };
        let (from, to) =
            if way == Way::ToScratch { (in_tensor, in_scratch) } else { (in_scratch, in_tensor) };
        let elements = volume(&len) as u32;
        let mut uniform = vec![elements, GRID_WIDTH, from.words, to.words];
        for vector in [len, from.strides, to.strides, [from.first, to.first, 0, 0]] {
            uniform.extend(vector);
        }
        let kernel = Kernel::Wgsl(Shader { text: text.into(), uniform, groups: linear_groups(elements) });
        launches.push(Launch { kernel, buffers: vec![from.buffer, to.buffer] });
    }
}
