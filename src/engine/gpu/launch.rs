//! What runs for a node: its dispatch, or those of its windows with the copies before and after them.

use super::device::Device;
use super::digitise;
use super::kernels::{self, OwnKernel, ProductSize, Shader, Step, library_kernel, step_of};
use super::map::GRID_WIDTH;
use super::schedule::Unit;
use super::split::windows_of;
use super::windows::{Cut, Index, Place, Window, overlap, part_of, volume, window};
use super::{Accelerated, Storage};
use crate::engine::{EngineError, Tensor};
use crate::program::graph::{Graph, Node, TensorId, row_major};
use crate::shaders;
use crate::shaders::product::Variant;

/// Memory that a launch takes.
#[derive(Clone, Copy)]
enum Slot {
    /// A piece of a tensor, which is numbered as the node reads it; the output is the last.
    Tensor { number: usize, piece: usize },
    /// Memory beside the tensors, which nodes share.
    Scratch(usize),
}

/// Dispatches of one pipeline with the memory that they take, each with the bytes that the shader sees.
pub struct Launch<P> {
    pub step: Step<P>,
    buffers: Vec<(Slot, u64)>,
}

impl<P> Launch<P> {
    /// The memory that it takes, of the tensors of its node and of the graph's scratch memory.
    pub fn memory<'a, M: Send + Sync + 'static>(
        &self,
        tensors: &'a [Tensor],
        scratch: &'a [super::Buffer<M>],
    ) -> Vec<(&'a M, u64)> {
        let memory = |slot: Slot| match slot {
            Slot::Tensor { number, piece } => tensors[number].storage::<Storage<M>>().pieces[piece].memory(),
            Slot::Scratch(number) => scratch[number].memory(),
        };
        self.buffers.iter().map(|(slot, bytes)| (memory(*slot), *bytes)).collect()
    }
}

/// A node, or a window of one, whose shader is known.
pub struct Part<P> {
    node: Node,
    places: Vec<Place>,
    shader: Shader,
    /// Only digit planes have more than one way to be multiplied.
    size: Option<ProductSize>,
    /// What the device has in place of the shader.
    own: Option<OwnKernel<P>>,
}

impl<P> Part<P> {
    /// The shader's text, if it runs one, with the product's size.
    pub fn text(&self) -> Option<(&str, Option<ProductSize>)> {
        let text = &self.shader.0[..];
        (self.own.is_none() && !text.is_empty()).then_some((text, self.size))
    }
}

/// What the launches of a graph share.
#[derive(Default)]
pub struct Shared {
    /// Uniform data.
    pub data: Vec<u8>,
    /// Bytes of scratch memory, by number.
    pub scratch: Vec<u64>,
}

/// What a shader sees of tensor `number` in a window's place: the memory and the bytes.
fn bound(number: usize, place: &Place, cut: Cut, shared: &mut Shared) -> (Slot, u64) {
    match place {
        Place::Piece(piece) => {
            let words = cut.piece.min(cut.words - *piece as u64 * cut.piece);
            (Slot::Tensor { number, piece: *piece }, words * 4)
        }
        Place::Copied(view) => {
            let bytes = volume(&view.dims).max(1) * 4;
            if shared.scratch.len() <= number {
                shared.scratch.resize(number + 1, 0);
            }
            shared.scratch[number] = shared.scratch[number].max(bytes);
            (Slot::Scratch(number), bytes)
        }
    }
}

/// One side of a copy.
struct Side {
    buffer: (Slot, u64),
    strides: Index,
    /// Where the copy begins, in words; before a buffer's beginning it wraps around.
    first: u32,
    words: u32,
}

/// Which way a window is copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToScratch,
    ToTensor,
}

impl<D: Device> Accelerated<D> {
    /// The parts that a node runs as: itself, or its windows.
    ///
    /// # Errors
    /// If the device cannot run it.
    pub(super) fn parts(
        &mut self,
        graph: &Graph,
        node: &Node,
    ) -> Result<Vec<Part<D::Pipeline>>, EngineError> {
        self.check_size(&node.operator, graph.tensor(node.output))?;
        let windows = windows_of(graph, node, self.variant, self.limit).map_err(|large| {
            let (shape, limit) = (&graph.tensor(large.tensor).shape, self.limit);
            self.unsupported(format!(
                "{}: the least part of {shape:?} that it takes at once has {} bytes, a shader can see {limit}",
                node.operator, large.bytes
            ))
        })?;
        if windows.is_empty() {
            let places = vec![Place::Piece(0); node.primitive.inputs().len() + 1];
            return Ok(vec![self.part(graph, node, [0; 4], places)?]);
        }
        let part = |w: Window| self.part(&w.graph, &w.graph.nodes[0], w.origin, w.places);
        windows.into_iter().map(part).collect()
    }

    fn part(
        &mut self,
        graph: &Graph,
        node: &Node,
        origin: Index,
        places: Vec<Place>,
    ) -> Result<Part<D::Pipeline>, EngineError> {
        let own = match library_kernel(&mut self.device, graph, node)? {
            None => digitise::kernel(&mut self.device, graph, node, self.variant)?,
            library => library,
        };
        let refusal = kernels::refusal(graph, node, self.variant, self.device.loop_rounds_max());
        if let Some(reason) = refusal.filter(|_| own.is_none()) {
            return Err(self.unsupported(reason));
        }
        let shader = kernels::shader_from(graph, node, self.variant, origin);
        let size = ProductSize::of(graph, node).filter(|_| self.variant == Variant::Dot);
        Ok(Part { node: node.clone(), places, shader, size, own })
    }

    /// Makes a node's parts ready.
    pub(super) fn launches(
        &mut self,
        graph: &Graph,
        node: &Node,
        parts: Vec<Part<D::Pipeline>>,
        shared: &mut Shared,
    ) -> Result<Vec<Launch<D::Pipeline>>, EngineError> {
        let cuts = self.cuts(graph, node);
        let inputs = cuts.len() - 1;
        let mut launches = Vec::new();
        let mut held: Vec<Option<Place>> = vec![None; inputs];
        for Part { node, places, shader, size, own } in parts {
            let step = match own {
                Some(kernel) => kernel.step(&mut shared.data),
                None => step_of(&mut self.device, &node, shader, size, &mut shared.data)?,
            };
            let places = || places.iter().zip(&cuts).enumerate();
            let buffers = places().map(|(number, (place, cut))| bound(number, place, *cut, shared)).collect();
            for (number, (place, cut)) in places().take(inputs) {
                // Windows side by side read the same rows of the left operand.
                if held[number].as_ref() != Some(place) {
                    self.copy(number, place, *cut, Way::ToScratch, shared, &mut launches)?;
                    held[number] = Some(place.clone());
                }
            }
            launches.push(Launch { step, buffers });
            for (number, (place, cut)) in places().skip(inputs) {
                self.copy(number, place, *cut, Way::ToTensor, shared, &mut launches)?;
            }
        }
        Ok(launches)
    }

    /// How what a node reads lies in memory, and then its output.
    pub(super) fn cuts(&self, graph: &Graph, node: &Node) -> Vec<Cut> {
        let mut tensors = node.primitive.inputs();
        tensors.push(node.output);
        tensors.into_iter().map(|id| self.cut(graph.tensor(id))).collect()
    }

    /// Nodes that one kernel computes, which takes whole tensors: those that it reads, then those that it writes.
    pub(super) fn unit(
        &self,
        graph: &Graph,
        nodes: Vec<usize>,
        at: usize,
        [reads, writes]: [Vec<TensorId>; 2],
        kernel: OwnKernel<D::Pipeline>,
        shared: &mut Shared,
    ) -> Unit<D::Pipeline> {
        let step = kernel.step(&mut shared.data);
        let cuts = reads.iter().chain(&writes).map(|id| self.cut(graph.tensor(*id))).enumerate();
        let buffers = cuts.map(|(number, cut)| bound(number, &Place::Piece(0), cut, shared)).collect();
        Unit { nodes, at, reads, writes, launches: vec![Launch { step, buffers }] }
    }

    /// Copies a window, if it has to be, between the pieces of tensor `number` and scratch memory.
    fn copy(
        &mut self,
        number: usize,
        place: &Place,
        cut: Cut,
        way: Way,
        shared: &mut Shared,
        launches: &mut Vec<Launch<D::Pipeline>>,
    ) -> Result<(), EngineError> {
        let Place::Copied(view) = place else { return Ok(()) };
        let text = shaders::source("window_copy").expect("the build script made this shader");
        let pipeline = self.device.pipeline(text)?;
        let dense = row_major(view.dims);
        let words = volume(&view.dims);
        for (piece, (start, piece_words)) in cut.pieces().enumerate() {
            let Some((first, len)) = overlap(view, start, piece_words) else { continue };
            // Every number of words fits 32 bits, which the engine checks of all tensors.
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
            let offset = shared.data.len().next_multiple_of(256);
            shared.data.resize(offset, 0);
            shared.data.extend(uniform.iter().flat_map(|word| word.to_le_bytes()));
            let dispatch = ((offset as u64, uniform.len() as u64 * 4), kernels::linear_groups(elements));
            let step = Step { pipeline: Some(pipeline.clone()), dispatches: vec![dispatch] };
            launches.push(Launch { step, buffers: vec![from.buffer, to.buffer] });
        }
        Ok(())
    }
}
