//! Tiles of a node's output, compared with the scalar reference.

use std::convert::Infallible;
use std::ops::Range;

use rayon::prelude::*;

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::{word_from_bytes, words_from_bytes};
use tiebreak_contract::program::element::{self, Source};
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId};

/// Elements of a tile: four-byte elements fill a tile of the trace.
const TILE: usize = 1024;

/// The tensors that a node reads, in canonical bytes.
pub(super) struct Operands(pub Vec<(TensorId, DType, Vec<u8>)>);

struct Reader<'a>(&'a Operands);

impl Source for Reader<'_> {
    type Error = Infallible;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, Infallible> {
        let found = self.0.0.iter().find(|(id, ..)| *id == tensor);
        let (_, dtype, bytes) = found.expect("every input of the node was read");
        let size = dtype.size();
        Ok(word_from_bytes(*dtype, &bytes[index * size..(index + 1) * size]))
    }
}

/// A wrong element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub element: usize,
    pub found: u32,
    pub expected: u32,
}

/// The tiles of a node's output. Groupings are computed as a whole.
pub(super) fn tiles(graph: &Graph, node: &Node) -> Vec<Range<usize>> {
    let len = graph.tensor(node.output).len();
    let whole = matches!(node.primitive, Primitive::GroupOrder { .. } | Primitive::GroupOffsets { .. });
    let step = if whole { len.max(1) } else { TILE };
    (0..len).step_by(step).map(|first| first..len.min(first + step)).collect()
}

/// The first element of these tiles that differs from the reference.
pub(super) fn first_wrong(
    graph: &Graph,
    node: &Node,
    tiles: &[Range<usize>],
    output: &[u8],
    operands: &Operands,
) -> Option<Wrong> {
    let dtype = graph.tensor(node.output).dtype;
    tiles.par_iter().find_map_first(|tile| {
        let Ok(right) = element::range(graph, node, tile.clone(), &mut Reader(operands));
        let given = words_from_bytes(dtype, &output[tile.start * dtype.size()..tile.end * dtype.size()]);
        let differs = given.iter().zip(&right).position(|(given, right)| given != right)?;
        Some(Wrong { element: tile.start + differs, found: given[differs], expected: right[differs] })
    })
}
