//! Observers of nodes' outputs while a graph runs, and the least information that they need.

use std::any::Any;
use std::sync::Arc;

use rayon::prelude::*;

use super::error::EngineError;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::words_from_bytes;
use tiebreak_contract::program::graph::{Node, TensorId};

/// The information that an observer wants about a node's output. An output that nobody wants stays on the device, and may be
/// computed together with others.
#[derive(Clone)]
pub enum Want {
    /// Nothing.
    No,
    /// The value of each tile of 4096 canonical bytes in BLAKE3's tree: [`Observer::tiles`].
    Tiles,
    /// A summary of the output: [`Observer::summary`]. An observer that asks for a summary replaces nothing at that node.
    Summary(Summary),
    /// The output's canonical bytes: [`Observer::node`].
    Bytes,
}

impl Want {
    /// True if the observer wants anything.
    #[doc(hidden)] // for the layers above
    pub fn is_any(&self) -> bool {
        !matches!(self, Want::No)
    }
}

/// A summary of a node's output and of the node's inputs. The summary can be computed from their bytes. An engine that knows the
/// summary's type may compute it beside the node, so that the bytes need not leave a device. Clones share the description.
#[derive(Clone)]
pub struct Summary(Arc<dyn Any + Send + Sync>);

impl Summary {
    /// The summary that `what` describes.
    pub fn new(what: impl Any + Send + Sync) -> Summary {
        Summary(Arc::new(what))
    }

    /// The description, if it is a `T`.
    pub fn of<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

/// The value of a summary for a node.
pub struct Value(Box<dyn Any + Send>);

impl Value {
    /// The value of a summary, of the type that belongs to the summary's description.
    pub fn new(value: impl Any + Send) -> Value {
        Value(Box::new(value))
    }

    /// The value, for the observer that asked for the summary.
    ///
    /// # Panics
    /// If the value is no `T`: a fault of this program.
    pub fn into<T: Any>(self) -> T {
        *self.0.downcast().expect("an engine that knows a summary gives its value")
    }
}

/// The tensors that a node reads, which an observer may see beside the node's output.
pub trait Inputs {
    /// Passes the canonical bytes of a tensor that the node reads to `visit`.
    ///
    /// # Errors
    /// If the engine fails.
    fn visit(&mut self, tensor: TensorId, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError>;

    /// Passes rows of a quantised tensor that the node reads to `visit`, each with its index, in any order and from any thread.
    ///
    /// # Errors
    /// If the engine fails.
    fn visit_rows(
        &mut self,
        tensor: QuantisedTensor,
        rows: &[usize],
        visit: &(dyn Fn(usize, &[i32]) + Sync),
    ) -> Result<(), EngineError> {
        let (dtype, len) = (DType::Q(tensor.digits), tensor.k * usize::from(tensor.digits));
        self.visit(tensor.id, &mut |bytes| {
            rows.par_iter().for_each(|&row| {
                let words = words_from_bytes(dtype, &bytes[row * len..][..len]);
                let integers: Vec<i32> = words.into_iter().map(|word| word as i32).collect();
                visit(row, &integers);
            });
        })
    }
}

/// A quantised tensor [batch, rows, K], whose rows are counted over all batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantisedTensor {
    /// The tensor.
    pub id: TensorId,
    /// Base-256 digits of its integers.
    pub digits: u8,
    /// Integers of a row.
    pub k: usize,
}

/// Sees nodes' outputs in execution order, in the canonical layout. An error of any method ends the run. The CPU engine calls the
/// methods in a thread of its pool, one call at a time.
pub trait Observer: Send {
    /// The information that the observer wants about a node. An engine may ask before the graph runs and any number of times, so
    /// nothing that the observer sees there may change the answer. An engine shows the bytes instead if it hashes no tiles, does
    /// not know a summary, or has no room for the summary's result.
    fn want(&self, _index: usize, _node: &Node) -> Want {
        Want::Bytes
    }

    /// Takes the value of the summary that [`Want::Summary`] asked for, at any time before the run returns.
    ///
    /// # Errors
    /// If the observer stops the run.
    fn summary(&mut self, _index: usize, _node: &Node, _value: Value) -> Result<(), EngineError> {
        Ok(())
    }

    /// Takes the chaining value of each tile of a node's output, or the root if there is only one tile, as soon as the output is
    /// computed.
    ///
    /// # Errors
    /// If the observer stops the run.
    fn tiles(&mut self, _index: usize, _node: &Node, _tiles: Vec<[u8; 32]>) -> Result<(), EngineError> {
        Ok(())
    }

    /// Sees a node's canonical bytes, in execution order. The observer may return other bytes of the same length, which later
    /// nodes then use. An auditor inserts a trainer's choices in this way; tests and the demo play a trainer that tampers with an
    /// operator.
    ///
    /// # Errors
    /// If the observer stops the run.
    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError>;
}
