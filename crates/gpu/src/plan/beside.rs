//! Computations beside a node, as data: a summary that an observer asks for, computed from the node's inputs and
//! output.

use crate::device::kernel::Kernel;
use tiebreak_contract::program::graph::TensorId;
use tiebreak_engine::Value;

/// The kernels that compute a summary of a node's output.
pub struct Beside {
    /// The tensors that the kernels read: the node's output, then tensors that the node reads too.
    pub reads: Vec<TensorId>,
    /// Bytes of the kernels' own memory, by number.
    pub memory: Vec<u64>,
    /// The node whose output the kernels compute in its place, if they do.
    pub computes: Option<usize>,
    /// The launches, in order.
    pub launches: Vec<Launch>,
    /// The memory that the host reads first, in order.
    pub first: Vec<Part>,
    /// The reader that derives the value.
    pub reading: Box<dyn Reading>,
}

/// A kernel with the memory that it takes, in binding order.
pub struct Launch {
    pub kernel: Kernel,
    pub parts: Vec<Part>,
}

/// Memory of a summary, which is always used as a whole.
#[derive(Clone, Copy)]
pub enum Part {
    /// A tensor that is read, by number.
    Read(usize),
    /// The kernels' own memory, by number.
    Own(usize),
    /// The output of the node that is computed.
    Computed,
}

/// Bytes at the beginning of the kernels' own memory.
#[derive(Clone, Copy)]
pub struct Rest {
    /// The memory's number.
    pub memory: usize,
    /// The number of bytes.
    pub bytes: u64,
}

/// The host's reader of a summary.
pub trait Reading {
    /// The memory that the host reads after the first words; `None` if there was no room for the whole result.
    fn rest(&self, first: &[u32]) -> Option<Rest>;

    /// The summary's value.
    fn value(&self, first: Vec<u32>, rest: Vec<u32>) -> Value;
}
