//! How a program is executed. An engine knows nothing of logs, commitments or disputes: observers do.

pub mod cpu;
pub mod fingerprint;
#[cfg(any(feature = "gpu", feature = "cuda"))]
#[expect(missing_docs, reason = "its variants and fields are still to be documented")]
pub mod gpu;
pub mod plan;
pub mod reference;
pub mod scan;
pub mod session;

use std::any::Any;
use std::sync::Arc;

use crate::program::graph::{Graph, Node, TensorId, TensorType};
use scan::{Found, Scan};

/// What went wrong on this side: never the fault of the run that is trained or audited.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The device lacks what the program needs.
    #[error("{device} cannot run this program: {reason}")]
    Unsupported {
        /// The device's name.
        device: String,
        /// What is missing, in words.
        reason: String,
    },
    /// A tensor could not be allocated.
    #[error("{device} ran out of memory: {reason}")]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// The size or the device's message.
        reason: String,
    },
    /// The device stopped working.
    #[error("{device} was lost: {reason}; the run can be resumed from its last checkpoint")]
    DeviceLost {
        /// The device's name.
        device: String,
        /// The device's message.
        reason: String,
    },
    /// The device computed a known result wrongly.
    #[error("{device} failed its self-test ({check}) and is not used; try another adapter or --engine cpu")]
    SelfTest {
        /// The device's name.
        device: String,
        /// The check that failed.
        check: String,
    },
    /// A fault of this crate's code.
    #[error("a fault of tiebreak itself on {device}: {reason}; please report it")]
    Fault {
        /// The device's name.
        device: String,
        /// The fault, in words.
        reason: String,
    },
    /// An observer stopped the run.
    #[error("{0}")]
    Stopped(String),
}

/// A tensor in an engine's memory. Clones share it; the last one frees it.
#[derive(Clone)]
pub struct Tensor(Arc<dyn Any + Send + Sync>);

impl Tensor {
    /// A tensor of the engine that keeps `storage` for it.
    pub fn new(storage: impl Any + Send + Sync) -> Tensor {
        Tensor(Arc::new(storage))
    }

    /// The storage, as the engine that made the tensor knows it.
    ///
    /// # Panics
    /// If another engine made it: a fault of our own.
    pub fn storage<T: Any>(&self) -> &T {
        self.0.downcast_ref().expect("a tensor is used with the engine that made it")
    }
}

/// A graph made ready for one engine.
pub struct Compiled {
    /// The graph that was compiled.
    pub graph: Arc<Graph>,
    engine: Box<dyn Any + Send + Sync>,
}

impl Compiled {
    /// A graph with what its engine keeps for it.
    pub fn new(graph: Arc<Graph>, engine: impl Any + Send + Sync) -> Compiled {
        Compiled { graph, engine: Box::new(engine) }
    }

    /// What the engine that compiled the graph keeps for it.
    ///
    /// # Panics
    /// If another engine compiled it: a fault of our own.
    pub fn of<T: Any>(&self) -> &T {
        self.engine.downcast_ref().expect("a graph is run by the engine that compiled it")
    }
}

/// What an observer may look at beside a node's output: the tensors that the node reads.
pub trait Inputs {
    /// Shows the canonical bytes of a tensor that the node reads.
    ///
    /// # Errors
    /// If the engine cannot read it.
    fn visit(&mut self, tensor: TensorId, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError>;
}

/// Sees nodes' outputs in execution order, in the canonical layout.
pub trait Observer {
    /// Whether it wants to see a node; what nobody wants to see stays on the device, and may be computed with others. Engines may ask before
    /// the graph runs, so that what it sees there cannot change the answer.
    fn wants(&self, _index: usize, _node: &Node) -> bool {
        true
    }

    /// The search that would do in place of a node's output, if one would. An engine that has it calls [`Observer::found`] instead of
    /// [`Observer::node`]; others show the output, and so does one that finds more than it has room for. Either may come at any time
    /// before the run returns. Who asks for a search replaces nothing at that node.
    fn scan(&self, _index: usize, _node: &Node) -> Option<Scan> {
        None
    }

    /// Takes what the search found that [`Observer::scan`] asked for.
    ///
    /// # Errors
    /// Any ends the run.
    fn found(&mut self, _index: usize, _node: &Node, _found: Found) -> Result<(), EngineError> {
        Ok(())
    }

    /// Whether what BLAKE3's tree says of each tile would do in place of a node's output. An engine that hashes tensors where they are
    /// then calls [`Observer::tiled`] instead of [`Observer::node`]; others show the output.
    fn tiles(&self, _index: usize, _node: &Node) -> bool {
        false
    }

    /// Takes the chaining value of each tile of 4096 canonical bytes of a node's output, or the root if there is only one, as soon as the
    /// output is there.
    ///
    /// # Errors
    /// Any ends the run.
    fn tiled(&mut self, _index: usize, _node: &Node, _tiles: Vec<[u8; 32]>) -> Result<(), EngineError> {
        Ok(())
    }

    /// May return other bytes of the same length, which the rest of the run then uses: an auditor's rounding decisions are put
    /// in place like this, and so do tests and the demo play a trainer that tampers with an operator.
    ///
    /// # Errors
    /// Any ends the run.
    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError>;
}

/// Runs graphs. Canonical bytes are little-endian and row-major; quantised tensors are `d`-byte two's complement.
pub trait Engine {
    /// The engine and device, for people: `cpu (2 threads, avx512-vnni)`, `wgpu: llvmpipe (Vulkan)`.
    fn describe(&self) -> String;

    /// Copies canonical bytes to the engine. `bytes` has exactly `ty.bytes()` bytes.
    ///
    /// # Errors
    /// If the device has no room for them, or fails.
    fn upload(&mut self, ty: &TensorType, bytes: &[u8]) -> Result<Tensor, EngineError>;

    /// Shows a tensor's canonical bytes (F32, U32 and U8 tensors).
    ///
    /// # Errors
    /// If the device fails.
    fn read(&mut self, tensor: &Tensor, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError>;

    /// The BLAKE3 roots of tensors' canonical bytes, if the engine does better than to show the bytes.
    ///
    /// # Errors
    /// If the device fails.
    fn roots(&mut self, _tensors: &[Tensor]) -> Result<Option<Vec<[u8; 32]>>, EngineError> {
        Ok(None)
    }

    /// Makes a graph ready to run: checks that the device can, and prepares its kernels.
    ///
    /// # Errors
    /// If the device cannot run the graph, or fails.
    fn compile(&mut self, graph: Arc<Graph>) -> Result<Compiled, EngineError>;

    /// Runs a graph: `inputs` in the order of its input ports; the result is in the order of its output ports.
    /// With an observer every node's output is shown as soon as it is there, which is slow.
    ///
    /// # Errors
    /// If the device fails or has no room, or with the observer's error.
    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError>;

    /// Waits for everything that was begun, for those who measure time.
    ///
    /// # Errors
    /// If the device fails.
    fn finish(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// This engine as NVIDIA's, if it is: for who moves tensors between GPUs without passing the host.
    #[cfg(feature = "cuda")]
    fn cuda(&mut self) -> Option<&mut gpu::Cuda> {
        None
    }

    /// Copies a tensor's canonical bytes out.
    ///
    /// # Errors
    /// If the device fails.
    fn download(&mut self, tensor: &Tensor) -> Result<Vec<u8>, EngineError> {
        let mut copy = Vec::new();
        self.read(tensor, &mut |bytes| copy.extend_from_slice(bytes))?;
        Ok(copy)
    }
}

/// A graph's outputs, in their canonical bytes, for inputs in theirs.
///
/// # Errors
/// Those of the engine.
pub fn outputs_of(
    engine: &mut dyn Engine,
    graph: &Arc<Graph>,
    inputs: &[Vec<u8>],
) -> Result<Vec<Vec<u8>>, EngineError> {
    let compiled = engine.compile(graph.clone())?;
    let ports = graph.inputs.iter().zip(inputs);
    let inputs = ports.map(|(port, bytes)| engine.upload(graph.tensor(port.tensor), bytes));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let outputs = engine.run(&compiled, &inputs, None)?;
    outputs.iter().map(|tensor| engine.download(tensor)).collect()
}
