//! What a device's search for near ties has to show before a trainer's graph runs with it: what it rounds is what the contract's shader
//! rounds. One wrong bit there would make an honest trainer's run one that no auditor can replay.

use std::sync::Arc;

use super::Accelerated;
use super::device::Device;
use crate::arith::DType;
use crate::arith::grid::GridRule;
use crate::arith::philox::philox4x32_10;
use crate::engine::scan::{Found, Scan};
use crate::engine::{Engine, EngineError, Inputs, Observer};
use crate::program::builder::Builder;
use crate::program::graph::{Graph, Node, Primitive};
use crate::program::logged::{logged_product, native_graph};
use crate::program::products::{ProductClass, ProductTable};

const ROWS: u32 = 70;
const COLUMNS: u32 = 40;
const PLACES: u32 = 5;

/// A trainer's graph of one product on a grid, with inputs: rows and columns of different scales, results far below these, and zeros.
fn trial(rule: GridRule) -> (Graph, Vec<Vec<u8>>) {
    let mut b = Builder::new(ProductTable::uniform(2));
    let views = [("a", ROWS), ("b", COLUMNS)].map(|(name, rows)| {
        let tensor = b.input(name, DType::F32, &[rows, PLACES]);
        b.whole(tensor)
    });
    let output = logged_product(&mut b, ProductClass::Linear, rule, views, &[ROWS, COLUMNS]);
    b.output("rounded", output);
    let word = |side: u32, i: u32| {
        let (row, place) = (i / PLACES, i % PLACES);
        // Of every other column only what is small in a row counts.
        if (side == 1 && row.is_multiple_of(2) && place != 1) || (side == 0 && i % 29 == 11) {
            return 0;
        }
        let small = if side == 0 && place == 1 { row % 34 } else { 0 };
        let [bits, ..] = philox4x32_10([side, 7], [i, 0, 0, 0]);
        (bits & 0x807f_ffff) | (130 - row % 7 - small) << 23
    };
    let words = |side, rows| (0..rows * PLACES).flat_map(|i| word(side, i).to_le_bytes()).collect();
    (native_graph(&b.finish()), vec![words(0, ROWS), words(1, COLUMNS)])
}

/// Asks for a search in the one native product.
struct Searching(Scan);

impl Observer for Searching {
    fn wants(&self, _index: usize, node: &Node) -> bool {
        matches!(node.primitive, Primitive::Native { .. })
    }

    fn scan(&self, _index: usize, _node: &Node) -> Option<Scan> {
        Some(self.0.clone())
    }

    fn found(&mut self, _index: usize, _node: &Node, _found: Found) -> Result<(), EngineError> {
        Ok(())
    }

    fn node(
        &mut self,
        _index: usize,
        _node: &Node,
        _bytes: &[u8],
        _inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(None)
    }
}

impl<D: Device> Accelerated<D> {
    /// Compares both ways to round a product on a grid, if the device has both and has not shown it before.
    ///
    /// # Errors
    /// If they differ.
    pub(super) fn check_rounding(&mut self, rule: GridRule) -> Result<(), EngineError> {
        if self.device.scan_kernels().is_none() || !self.tried.insert(rule) {
            return Ok(());
        }
        let scanning = std::mem::replace(&mut self.scanning, true);
        let same = self.rounds_well(rule);
        self.scanning = scanning;
        if same? {
            return Ok(());
        }
        let check = "products rounded by the search for near ties differ from the shader's".into();
        Err(EngineError::SelfTest { device: self.device.name().into(), check })
    }

    fn rounds_well(&mut self, rule: GridRule) -> Result<bool, EngineError> {
        let (graph, inputs) = trial(rule);
        let product = &graph.logged[0];
        let scan = Scan {
            a: product.a.clone(),
            b: product.b.clone(),
            magnitudes: (rule.floor != 0).then_some([product.magnitudes_a, product.magnitudes_b]),
            bits: rule.bits,
            floor_offset: rule.floor_offset(PLACES),
            floor_min: rule.floor_min(),
            norms: 2f32.powi(-22),
            relative: 0.0,
        };
        let graph = Arc::new(graph);
        let compiled = self.compile(graph.clone())?;
        let ports = graph.inputs.iter().zip(&inputs);
        let inputs = ports.map(|(port, bytes)| self.upload(graph.tensor(port.tensor), bytes));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let before = self.rounded;
        let (mut searching, mut rounded) = (Searching(scan), Vec::new());
        for observer in [None, Some(&mut searching as &mut dyn Observer)] {
            let outputs = self.run(&compiled, &inputs, observer)?;
            rounded.push(self.download(&outputs[0])?);
        }
        self.rounded = before;
        Ok(rounded[0] == rounded[1])
    }
}
