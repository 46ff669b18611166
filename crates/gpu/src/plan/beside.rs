//! What is computed beside a node, as data: a summary that an observer asks for, from what the node reads and writes.

use crate::device::kernel::Kernel;
use tiebreak_contract::program::graph::TensorId;
use tiebreak_engine::Value;

/// A summary of a node's output as kernels compute it.
pub struct Beside {
    /// The tensors that the kernels read: the node's output, then tensors that the node reads too.
    pub reads: Vec<TensorId>,
    /// Bytes of the kernels' own memory, by number.
    pub memory: Vec<u64>,
    /// The node whose output the kernels compute in its place, if they do.
    pub computes: Option<usize>,
    /// In order.
    pub launches: Vec<Launch>,
    /// What the host takes first, in order.
    pub first: Vec<Part>,
    /// How the value follows.
    pub reading: Box<dyn Reading>,
}

/// A kernel with the memory that it takes, in binding order.
pub struct Launch {
    pub kernel: Kernel,
    pub parts: Vec<Part>,
}

/// Memory of a summary; each part is taken whole.
#[derive(Clone, Copy)]
pub enum Part {
    /// A tensor that is read, by number.
    Read(usize),
    /// The kernels' own, by number.
    Own(usize),
    /// The output of the node that is computed.
    Computed,
}

/// Bytes at the beginning of the kernels' own memory.
#[derive(Clone, Copy)]
pub struct Rest {
    /// The memory's number.
    pub memory: usize,
    /// How many.
    pub bytes: u64,
}

/// How the host reads a summary.
pub trait Reading {
    /// What the host takes after the first words; none if there was no room for all of it.
    fn rest(&self, first: &[u32]) -> Option<Rest>;

    /// The summary's value.
    fn value(&self, first: Vec<u32>, rest: Vec<u32>) -> Value;
}
