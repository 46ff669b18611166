//! Who sees nodes' outputs while a graph runs, and how little of them will do.

use super::error::EngineError;
use super::near_tie_search::{NearTieSearch, NearTiesFound};
use tiebreak_contract::program::graph::{Node, TensorId};

/// What an observer wants to know of a node's output. What nobody wants to know stays on the device, and may be computed with others.
#[derive(Clone, Debug, PartialEq)]
pub enum Want {
    /// Nothing.
    No,
    /// What BLAKE3's tree says of each tile of 4096 canonical bytes: [`Observer::tiles`].
    Tiles,
    /// What a search for near ties finds in it: [`Observer::found`]. Who asks for this replaces nothing at that node.
    Search(NearTieSearch),
    /// Its canonical bytes: [`Observer::node`].
    Bytes,
}

impl Want {
    /// Whether it is anything.
    pub fn is_any(&self) -> bool {
        *self != Want::No
    }
}

/// What an observer may look at beside a node's output: the tensors that the node reads.
pub trait Inputs {
    /// Shows the canonical bytes of a tensor that the node reads.
    ///
    /// # Errors
    /// Those of the engine.
    fn visit(&mut self, tensor: TensorId, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError>;
}

/// Sees nodes' outputs in execution order, in the canonical layout. An error of any method ends the run.
pub trait Observer {
    /// What it wants to know of a node. An engine may ask before the graph runs and any number of times, so that what the observer sees
    /// there cannot change the answer. An engine that hashes no tiles, or does not search, shows the bytes instead, and so does
    /// one whose search finds more than it has room for.
    fn want(&self, _index: usize, _node: &Node) -> Want {
        Want::Bytes
    }

    /// Takes what the search found that [`Want::Search`] asked for, at any time before the run returns.
    ///
    /// # Errors
    /// The observer's own.
    fn found(&mut self, _index: usize, _node: &Node, _found: NearTiesFound) -> Result<(), EngineError> {
        Ok(())
    }

    /// Takes the chaining value of each tile of a node's output, or the root if there is only one, as soon as the output is there.
    ///
    /// # Errors
    /// The observer's own.
    fn tiles(&mut self, _index: usize, _node: &Node, _tiles: Vec<[u8; 32]>) -> Result<(), EngineError> {
        Ok(())
    }

    /// Sees a node's canonical bytes, in execution order. May return other bytes of the same length, which the rest of the run then uses:
    /// an auditor's rounding decisions are put in place like this, and so do tests and the demo play a trainer that tampers with
    /// an operator.
    ///
    /// # Errors
    /// The observer's own.
    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError>;
}
