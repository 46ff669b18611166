//! Digitising operands by kernels of a device's own: which nodes they compute, and which nodes one launch computes together.

use super::Accelerated;
use super::attention;
use super::device::Device;
use super::kernels::{OwnKernel, ProductSize};
use super::launch::Shared;
use super::schedule::{Unit, Uses};
use super::windows::Cut;
use crate::arith::DType;
use crate::engine::EngineError;
use crate::program::graph::{Graph, Node, Primitive, TensorId, View, block_count};
use crate::shaders::product::Variant;

/// What a kernel computes of a view with scale groups of `block` places (0: all of K).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digitise {
    /// Magnitudes; buffers are the tensor and the magnitudes.
    Scale,
    /// Digit planes; buffers are the tensor, the magnitudes and the digits.
    Quantise { digits: u32 },
    /// Both at once; the buffers are those of [`Digitise::Quantise`], and the magnitudes are written too.
    ScaleAndQuantise { digits: u32 },
}

/// The device's own kernel for a node that digitises an operand, if it has one.
pub fn kernel<D: Device>(
    device: &mut D,
    graph: &Graph,
    node: &Node,
    variant: Variant,
) -> Result<Option<OwnKernel<D::Pipeline>>, EngineError> {
    let (input, block, what) = match &node.primitive {
        Primitive::Magnitude { input, block } => (input, *block, Digitise::Scale),
        Primitive::Quantise { input, digits, block, .. } if variant == Variant::Dot => {
            (input, *block, Digitise::Quantise { digits: u32::from(*digits) })
        }
        _ => return Ok(None),
    };
    own(device, graph, input, block, what)
}

impl<D: Device> Accelerated<D> {
    /// Every operand of a graph whose magnitudes and digits one kernel of the device's computes.
    pub(super) fn digitised(
        &mut self,
        graph: &Graph,
        uses: &Uses,
        shared: &mut Shared,
    ) -> Result<Vec<Unit<D::Pipeline>>, EngineError> {
        let mut found = Vec::new();
        if self.variant != Variant::Dot {
            return Ok(found);
        }
        for (at, node) in graph.nodes.iter().enumerate() {
            let Primitive::Quantise { input, magnitudes, digits, block } = &node.primitive else { continue };
            let Some(mut nodes) = uses.magnitudes_of(graph, at) else { continue };
            let what = Digitise::ScaleAndQuantise { digits: u32::from(*digits) };
            if !self.cuts(graph, node).iter().all(Cut::is_whole) {
                continue; // one launch sees whole tensors
            }
            if let Some(kernel) = own(&mut self.device, graph, input, *block, what)? {
                nodes.push(at);
                let (reads, writes) = (vec![input.tensor], vec![*magnitudes, node.output]);
                found.push(self.unit(graph, nodes, at, [reads, writes], kernel, shared));
            }
        }
        Ok(found)
    }
}

/// A product whose left operand is digitised on its way, by one kernel of the device's.
pub struct OnTheWay {
    /// Digits of both operands, and columns.
    pub digits: [u32; 2],
    pub columns: u32,
}

impl<D: Device> Accelerated<D> {
    /// Every product of a graph that the device computes with its left operand's magnitudes and digits, which nobody else reads.
    pub(super) fn digitised_on_the_way(
        &mut self,
        graph: &Graph,
        uses: &Uses,
        shared: &mut Shared,
    ) -> Result<Vec<Unit<D::Pipeline>>, EngineError> {
        let mut found = Vec::new();
        if self.variant != Variant::Dot {
            return Ok(found);
        }
        for (at, node) in graph.nodes.iter().enumerate() {
            let Some((input, nodes)) = on_the_way(graph, uses, at) else { continue };
            let words = matches!(graph.tensor(input.tensor).dtype, DType::F32 | DType::U32);
            let whole = |&node: &usize| self.cuts(graph, &graph.nodes[node]).iter().all(Cut::is_whole);
            if !words || !nodes.iter().all(whole) {
                continue;
            }
            let size = ProductSize::of(graph, node).expect("it is a product");
            let product = OnTheWay { digits: [size.digits_a, size.digits_b], columns: size.columns };
            if let Some(kernel) = self.device.digitise_on_the_way(input, product)? {
                let [_, _, b, magnitudes_b] = attention::operands(node).expect("it is a product");
                let (reads, writes) = (vec![input.tensor, b, magnitudes_b], vec![node.output]);
                found.push(self.unit(graph, nodes, at, [reads, writes], kernel, shared));
            }
        }
        Ok(found)
    }
}

/// The view that is digitised, in one scale group a row, for this node alone, if that is a product's left operand; with all nodes in order.
pub fn on_the_way<'a>(graph: &'a Graph, uses: &Uses, at: usize) -> Option<(&'a View, Vec<usize>)> {
    let [a, magnitudes_a, b, magnitudes_b] = attention::operands(&graph.nodes[at])?;
    let readers = |tensor: TensorId| &uses.readers[tensor.0 as usize][..];
    let is_output = |tensor: TensorId| graph.outputs.iter().any(|port| port.tensor == tensor);
    let quantise = uses.writer[a.0 as usize]?;
    let Primitive::Quantise { input, block: 0, .. } = &graph.nodes[quantise].primitive else { return None };
    let alone = readers(a) == [at] && readers(magnitudes_a) == [quantise, at];
    if !alone || a == b || magnitudes_a == magnitudes_b || is_output(a) || is_output(magnitudes_a) {
        return None;
    }
    let mut nodes = uses.magnitudes_of(graph, quantise)?;
    nodes.extend([quantise, at]);
    Some((input, nodes))
}

fn own<D: Device>(
    device: &mut D,
    graph: &Graph,
    input: &View,
    block: u32,
    what: Digitise,
) -> Result<Option<OwnKernel<D::Pipeline>>, EngineError> {
    // Magnitudes of magnitudes are words too: their sign bit is never set.
    if !matches!(graph.tensor(input.tensor).dtype, DType::F32 | DType::U32) {
        return Ok(None);
    }
    device.digitise(input, block, what)
}

impl Uses {
    /// The nodes that make the magnitudes of a node which quantises, if these are of its own view and it is the first to read
    /// them: one, or two where scale groups are long and the first finds those of shorter groups for the second alone.
    pub fn magnitudes_of(&self, graph: &Graph, quantise: usize) -> Option<Vec<usize>> {
        let Primitive::Quantise { input: operand, magnitudes, block: of_operand, .. } =
            &graph.nodes[quantise].primitive
        else {
            return None;
        };
        if self.readers[magnitudes.0 as usize].first() != Some(&quantise) {
            return None;
        }
        let magnitude = |tensor: TensorId| {
            let at = self.writer[tensor.0 as usize]?;
            match &graph.nodes[at].primitive {
                Primitive::Magnitude { input, block } => Some((at, input, *block)),
                _ => None,
            }
        };
        let (whole, input, block) = magnitude(*magnitudes)?;
        if (input, block) == (operand, *of_operand) {
            return Some(vec![whole]);
        }
        let (part, partial, leaf) = magnitude(input.tensor)?;
        let [first, second, rows, k] = operand.dims;
        let blocks = block_count(k, leaf);
        let strides = [second * rows * blocks, rows * blocks, blocks, 1];
        let all = View { tensor: input.tensor, offset: 0, dims: [first, second, rows, blocks], strides };
        let output = graph.outputs.iter().any(|port| port.tensor == input.tensor);
        let alone = self.readers[input.tensor.0 as usize] == [whole] && !output;
        let together = partial == operand
            && leaf != 0
            && *input == all
            && u64::from(block) * u64::from(leaf) == u64::from(*of_operand);
        (alone && together).then(|| vec![part, whole])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::builder::Builder;
    use crate::program::products::{ProductClass, ProductDigits, ProductTable};

    /// The fusions of a product of rows of `k` places with themselves, by operator name.
    fn of(k: u32, block: u32, more: impl FnOnce(&mut Builder, TensorId)) -> Vec<Option<Vec<usize>>> {
        let mut table = ProductTable::uniform(2);
        table.set(ProductClass::Linear, ProductDigits { digits_a: 2, digits_b: 3, block });
        let mut b = Builder::new(table);
        let x = b.input("x", DType::F32, &[3, k]);
        let views = [b.whole(x), b.whole(x)];
        let [left, right] = views;
        let output = b.product(ProductClass::Linear, left, right, &[3, 3]);
        b.output("product", output);
        more(&mut b, x);
        let graph = b.finish();
        let uses = Uses::of(&graph);
        let quantise = |node: &(usize, &Node)| matches!(node.1.primitive, Primitive::Quantise { .. });
        let found = graph.nodes.iter().enumerate().filter(quantise);
        found.map(|(i, _)| uses.magnitudes_of(&graph, i)).collect()
    }

    #[test]
    fn the_first_reader_of_magnitudes_computes_them() {
        // Both operands are the same view: one magnitude, of which the second is a later reader.
        assert_eq!(of(100, 0, |_, _| ()), [Some(vec![0]), None]);
        assert_eq!(of(256, 64, |_, _| ()), [Some(vec![0]), None]);
        // In two levels.
        assert_eq!(of(10_000, 0, |_, _| ()), [Some(vec![0, 1]), None]);
        assert_eq!(of(20_000, 8192, |_, _| ()), [Some(vec![0, 1]), None]);
    }

    #[test]
    fn magnitudes_that_others_see_are_not_left_out() {
        let partial = |b: &mut Builder, x: TensorId| {
            let input = b.whole(x);
            // An equal node is the same one.
            let node = b.node(Primitive::Magnitude { input, block: 4096 }, DType::U32, &[1, 3, 3]);
            b.output("partial", node);
        };
        assert_eq!(of(10_000, 0, partial), [None, None]);
    }
}
