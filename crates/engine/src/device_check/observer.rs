//! The observer that draws results of a device, and checks them before anybody else sees them.

use std::time::Instant;

use super::elements::{self, Operands};
use super::product::{self, Shown};
use super::settings::{ExactSums, Random, Shares, Sums, Tally};
use crate::error::WrongPart;
use crate::{EngineError, Inputs, Observer, Summary, Value, Want};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::words_from_bytes;
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId};

/// Bytes of a tile of the trace.
const TILE_BYTES: usize = 4096;

/// The shares of results that are drawn, and the randomness that draws them.
pub(super) struct Draws {
    pub shares: Shares,
    pub random: Random,
}

impl Draws {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), EngineError> {
        let no_randomness =
            |why| EngineError::Stopped(format!("a check of the device needs the system's randomness: {why}"));
        (self.random)(bytes).map_err(no_randomness)
    }

    /// True with this probability.
    pub(super) fn is_drawn(&mut self, share: f64) -> Result<bool, EngineError> {
        Ok(self.many(1, share)?[0])
    }

    /// Independent draws, each true with this probability.
    fn many(&mut self, count: usize, share: f64) -> Result<Vec<bool>, EngineError> {
        if share >= 1.0 {
            return Ok(vec![true; count]);
        }
        let mut bytes = vec![0; 8 * count];
        self.fill(&mut bytes)?;
        let words =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        // 53 bits are an exact binary64 number below 1.
        Ok(words.map(|word| ((word >> 11) as f64) * (0.5f64).powi(53) < share).collect())
    }
}

/// The checks of one node.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Check {
    Nothing,
    /// The product as a whole, if the device gives this many words of its sums. Otherwise tiles are drawn with this probability.
    Product {
        words: u8,
        tiles: f64,
    },
    /// Tiles, each with this probability.
    Tiles(f64),
}

impl Check {
    /// The checks of a node, and the probability with which they are made.
    fn of(graph: &Graph, node: &Node, shares: Shares) -> (Check, f64) {
        // Few tensors are read as a whole, and then few of their tiles are compared.
        let nodes = shares.elements.sqrt();
        match &node.primitive {
            Primitive::Native { .. } => (Check::Nothing, 1.0),
            Primitive::Product { a, b, block, part, .. } => {
                let k = graph.tensor(*a).shape[2] as usize;
                let terms = if *block == 0 { k } else { k.min(*block as usize) };
                let words = product::words_needed(terms, [*a, *b].map(|id| digits(graph, id)), *part);
                let tiles = (shares.elements / shares.products).min(1.0);
                (Check::Product { words, tiles }, shares.products)
            }
            _ => (Check::Tiles(shares.elements / nodes), nodes),
        }
    }
}

/// Digits of a quantised tensor.
fn digits(graph: &Graph, tensor: TensorId) -> u32 {
    match graph.tensor(tensor).dtype {
        DType::Q(d) => u32::from(d),
        _ => unreachable!("products take quantised operands"),
    }
}

/// Checks what was drawn of one run of a graph, and passes everything on to another observer.
pub(super) struct Checking<'a, 'o> {
    graph: &'a Graph,
    inner: Option<&'a mut (dyn Observer + 'o)>,
    device: String,
    checks: Vec<Check>,
    draws: &'a mut Draws,
    tally: &'a Tally,
    /// The sums that the device gave of the next product that it shows.
    sums: Option<(usize, Vec<Vec<u32>>)>,
}

impl<'a, 'o> Checking<'a, 'o> {
    pub(super) fn begin(
        graph: &'a Graph,
        inner: Option<&'a mut (dyn Observer + 'o)>,
        device: String,
        draws: &'a mut Draws,
        tally: &'a Tally,
    ) -> Result<Checking<'a, 'o>, EngineError> {
        let mut checks = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let (check, share) = Check::of(graph, node, draws.shares);
            checks.push(if draws.is_drawn(share)? { check } else { Check::Nothing });
            let is_product = matches!(node.primitive, Primitive::Product { .. });
            let elements = graph.tensor(node.output).len() as u64;
            tally.add(|tally| {
                tally.products += u64::from(is_product);
                tally.elements += elements;
            });
        }
        Ok(Checking { graph, inner, device, checks, draws, tally, sums: None })
    }

    fn inner_wants(&self, index: usize, node: &Node) -> Want {
        self.inner.as_ref().map_or(Want::No, |inner| inner.want(index, node))
    }

    fn wrong(
        &self,
        node: &Node,
        part: WrongPart,
        element: usize,
        [found, expected]: [u32; 2],
    ) -> EngineError {
        let tile = element * self.graph.tensor(node.output).dtype.size() / TILE_BYTES;
        let (device, operator) = (self.device.clone(), node.operator.clone());
        EngineError::WrongResult { device, operator, part, element, tile, found, expected }
    }

    fn read(&self, tensor: TensorId, inputs: &mut dyn Inputs) -> Result<Vec<u32>, EngineError> {
        let dtype = self.graph.tensor(tensor).dtype;
        let mut words = Vec::new();
        inputs.visit(tensor, &mut |bytes| words.extend(words_from_bytes(dtype, bytes)))?;
        Ok(words)
    }

    /// Tests a product by its sums.
    fn test_product(
        &mut self,
        node: &Node,
        output: &[u8],
        sums: Vec<Vec<u32>>,
        inputs: &mut dyn Inputs,
    ) -> Result<(), EngineError> {
        let Primitive::Product { a, absmaxes_a, b, absmaxes_b, block, part } = &node.primitive else {
            unreachable!("only products are asked for sums")
        };
        let [left, right] = [*a, *b].map(|id| &self.graph.tensor(id).shape);
        let dims = [left[0], left[1], right[1], left[2]].map(|d| d as usize);
        let integers = |words: Vec<u32>| words.into_iter().map(|q| q as i32).collect();
        let shown = Shown {
            dims,
            block: if *block == 0 { dims[3].max(1) } else { *block as usize },
            digits: [*a, *b].map(|id| digits(self.graph, id)),
            part: *part,
            operands: [integers(self.read(*a, inputs)?), integers(self.read(*b, inputs)?)],
            absmaxes: [self.read(*absmaxes_a, inputs)?, self.read(*absmaxes_b, inputs)?],
            output: words_from_bytes(DType::F32, output),
            words: sums,
        };
        let (wrong, work) = shown.test(|bytes| self.draws.fill(bytes))?;
        self.tally.add(|tally| {
            tally.tested += 1;
            tally.elements -= shown.output.len() as u64;
            tally.multiply_adds += work.multiply_adds;
            tally.of_products += work.of_product;
        });
        let Some(wrong) = wrong else { return Ok(()) };
        let part = if wrong.in_output { WrongPart::Product } else { WrongPart::Sum };
        Err(self.wrong(node, part, wrong.element, [wrong.found, wrong.expected]))
    }

    /// Compares tiles of a node's output, each drawn with this probability.
    fn compare_tiles(
        &mut self,
        node: &Node,
        share: f64,
        output: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<(), EngineError> {
        let tiles = elements::tiles(self.graph, node);
        let drawn = self.draws.many(tiles.len(), share)?;
        let tiles: Vec<_> =
            tiles.into_iter().zip(drawn).filter_map(|(tile, drawn)| drawn.then_some(tile)).collect();
        if tiles.is_empty() {
            return Ok(());
        }
        let mut operands = Operands(Vec::new());
        for id in node.primitive.inputs() {
            if !operands.0.iter().any(|(read, ..)| *read == id) {
                let mut all = Vec::new();
                inputs.visit(id, &mut |bytes| all.extend_from_slice(bytes))?;
                operands.0.push((id, self.graph.tensor(id).dtype, all));
            }
        }
        let wrong = elements::first_wrong(self.graph, node, &tiles, output, &operands);
        self.tally.add(|tally| tally.compared += tiles.iter().map(|tile| tile.len() as u64).sum::<u64>());
        let Some(wrong) = wrong else { return Ok(()) };
        Err(self.wrong(node, WrongPart::Element, wrong.element, [wrong.found, wrong.expected]))
    }
}

impl Observer for Checking<'_, '_> {
    fn want(&self, index: usize, node: &Node) -> Want {
        match self.checks[index] {
            Check::Nothing => self.inner_wants(index, node),
            Check::Product { words, .. } => Want::Summary(Summary::new(ExactSums { words })),
            Check::Tiles(_) => Want::Bytes,
        }
    }

    fn summary(&mut self, index: usize, node: &Node, value: Value) -> Result<(), EngineError> {
        if self.checks[index] != Check::Nothing {
            let Sums(sums) = value.into();
            self.sums = Some((index, sums));
            return Ok(());
        }
        self.inner.as_mut().map_or(Ok(()), |inner| inner.summary(index, node, value))
    }

    fn tiles(&mut self, index: usize, node: &Node, tiles: Vec<[u8; 32]>) -> Result<(), EngineError> {
        self.inner.as_mut().map_or(Ok(()), |inner| inner.tiles(index, node, tiles))
    }

    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let sums = self.sums.take().filter(|(of, _)| *of == index);
        let start = Instant::now();
        match (self.checks[index], sums) {
            (Check::Nothing, _) => {}
            (_, Some((_, sums))) => self.test_product(node, bytes, sums, inputs)?,
            (Check::Product { tiles, .. }, None) => {
                self.tally.add(|tally| tally.by_elements += 1);
                self.compare_tiles(node, tiles, bytes, inputs)?;
            }
            (Check::Tiles(share), None) => self.compare_tiles(node, share, bytes, inputs)?,
        }
        self.tally.add(|tally| tally.seconds += start.elapsed().as_secs_f64());
        if !self.inner_wants(index, node).is_any() {
            return Ok(None);
        }
        self.inner.as_mut().map_or(Ok(None), |inner| inner.node(index, node, bytes, inputs))
    }
}
