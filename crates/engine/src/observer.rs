//! Who sees nodes' outputs while a graph runs, and how little of them will do.

use std::any::Any;
use std::sync::Arc;

use super::error::EngineError;
use tiebreak_contract::program::graph::{Node, TensorId};

/// What an observer wants to know of a node's output. What nobody wants to know stays on the device, and may be computed with others.
#[derive(Clone)]
pub enum Want {
    /// Nothing.
    No,
    /// What BLAKE3's tree says of each tile of 4096 canonical bytes: [`Observer::tiles`].
    Tiles,
    /// A summary of it: [`Observer::summary`]. Who asks for one replaces nothing at that node.
    Summary(Summary),
    /// Its canonical bytes: [`Observer::node`].
    Bytes,
}

impl Want {
    /// Whether it is anything.
    pub fn is_any(&self) -> bool {
        !matches!(self, Want::No)
    }
}

/// A summary of a node's output and of what the node reads. Its bytes tell it, and an engine that knows its type may compute it beside
/// the node, so that the bytes need not leave a device. Clones share it.
#[derive(Clone)]
pub struct Summary(Arc<dyn Any + Send + Sync>);

impl Summary {
    /// The summary that `what` describes.
    pub fn new(what: impl Any + Send + Sync) -> Summary {
        Summary(Arc::new(what))
    }

    /// What describes it, if that is a `T`.
    pub fn of<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

/// What a summary says of a node.
pub struct Value(Box<dyn Any + Send>);

impl Value {
    /// The value of a summary, of the type that belongs to what describes it.
    pub fn new(value: impl Any + Send) -> Value {
        Value(Box::new(value))
    }

    /// The value, for whoever asked for the summary.
    ///
    /// # Panics
    /// If it is no `T`: a fault of our own.
    pub fn into<T: Any>(self) -> T {
        *self.0.downcast().expect("an engine that knows a summary gives its value")
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
    /// there cannot change the answer. An engine that hashes no tiles, or does not know a summary, shows the bytes instead, and so does
    /// one that has no room for all that a summary says.
    fn want(&self, _index: usize, _node: &Node) -> Want {
        Want::Bytes
    }

    /// Takes the value of the summary that [`Want::Summary`] asked for, at any time before the run returns.
    ///
    /// # Errors
    /// The observer's own.
    fn summary(&mut self, _index: usize, _node: &Node, _value: Value) -> Result<(), EngineError> {
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
    /// so an auditor puts a trainer's choices in place, and so tests and the demo play a trainer that tampers with an operator.
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
