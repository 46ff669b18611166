//! The trial that an engine must pass before its search for near ties rounds products: the values must be those of the contract's
//! shader. One wrong bit would give an honest trainer a run that no auditor can replay.

use std::sync::Arc;

use crate::device::kernel::Kernel;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::arith::rounding_grid::GridRule;
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::graph::{Graph, Node, Primitive};
use tiebreak_contract::program::logged::{logged_product, native_graph};
use tiebreak_contract::program::products::{ProductClass, ProductTable};
use tiebreak_engine::{Engine, EngineError, Inputs, Observer, Summary, Value, Want};
use tiebreak_record::rounding::near_tie::Tolerance;
use tiebreak_record::rounding::search::NearTieSearch;

const ROWS: u32 = 70;
const COLUMNS: u32 = 40;
const PLACES: u32 = 5;

/// A product on a grid, which is rounded in both ways.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Trial {
    rule: GridRule,
}

impl Trial {
    /// The message of an engine that fails.
    pub const FAILED: &str = "products rounded by the search for near ties differ from the shader's";

    /// The trial on a grid.
    pub fn of(rule: GridRule) -> Trial {
        Trial { rule }
    }

    /// The kernel under trial; a device says if it has the kernel.
    pub fn kernel(self) -> Kernel {
        Kernel::NearTies { uniform: Vec::new(), elements: 0, rounds: true }
    }

    /// True if an engine that searches for near ties rounds a product on the grid as its shader does.
    pub fn is_passed(self, engine: &mut dyn Engine) -> Result<bool, EngineError> {
        let (graph, inputs) = rounding(self.rule);
        let tolerance = Tolerance { norms: 2f32.powi(-22), ..Tolerance::default() };
        let search = NearTieSearch::of(&graph.logged[0], tolerance);
        let graph = Arc::new(graph);
        let compiled = engine.compile(graph.clone())?;
        let ports = graph.inputs.iter().zip(&inputs);
        let inputs = ports.map(|(port, bytes)| engine.upload(graph.tensor(port.tensor), bytes));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let (mut searching, mut rounded) = (Searching(Summary::new(search)), Vec::new());
        for observer in [None, Some(&mut searching as &mut dyn Observer)] {
            let outputs = engine.run(&compiled, &inputs, observer)?;
            rounded.push(engine.download(&outputs[0])?);
        }
        Ok(rounded[0] == rounded[1])
    }
}

/// A trainer's graph of one product on a grid, with inputs: rows and columns of different scales, results far below the scales,
/// and zeros.
fn rounding(rule: GridRule) -> (Graph, Vec<Vec<u8>>) {
    let mut b = Builder::new(ProductTable::uniform(2));
    let views = [("a", ROWS), ("b", COLUMNS)].map(|(name, rows)| {
        let tensor = b.input(name, DType::F32, &[rows, PLACES]);
        b.whole(tensor)
    });
    let output = logged_product(&mut b, ProductClass::Linear, rule, views, &[ROWS, COLUMNS]);
    b.output("rounded", output);
    let word = |side: u32, i: u32| {
        let (row, place) = (i / PLACES, i % PLACES);
        // In every other column, only the small elements of a row count.
        if (side == 1 && row.is_multiple_of(2) && place != 1) || (side == 0 && i % 29 == 11) {
            return 0;
        }
        let small = if side == 0 && place == 1 { row % 34 } else { 0 };
        let [bits, ..] = philox4x32_10([side, 7], [i, 0, 0, 0]);
        (bits & 0x807f_ffff) | (130 - row % 7 - small) << 23
    };
    let words = |side, rows| (0..rows * PLACES).map(|i| word(side, i)).collect::<Vec<u32>>();
    let bytes = |side, rows| bytes_from_words(DType::F32, &words(side, rows));
    (native_graph(&b.finish()), vec![bytes(0, ROWS), bytes(1, COLUMNS)])
}

/// Asks for a search in the one native product.
struct Searching(Summary);

impl Observer for Searching {
    fn want(&self, _index: usize, node: &Node) -> Want {
        match node.primitive {
            Primitive::Native { .. } => Want::Summary(self.0.clone()),
            _ => Want::No,
        }
    }

    fn summary(&mut self, _index: usize, _node: &Node, _value: Value) -> Result<(), EngineError> {
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
