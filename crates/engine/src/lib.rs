//! How a program is executed. An engine knows nothing of logs, commitments or disputes: observers do the rest.
//!
//! [`cpu::Cpu`] takes all cores, [`reference::Reference`] computes element by element, and their bits are the same. GPUs are in `tiebreak-gpu`.
//!
//! The crate opens no file and no connection. Only products of a trainer of the logged profile ([`cpu::native`]) depend on how a machine adds floats.
//!
//! Start with [`outputs_of`], which runs one graph, and [`session::Session`], which runs steps. Whoever adds an engine implements [`Engine`].

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod cpu;
mod error;
pub mod fingerprint;

pub mod liveness;
pub mod observer;
pub mod reference;
pub mod session;

use std::any::Any;
use std::sync::Arc;

pub use error::EngineError;
pub use observer::{Inputs, Observer, Summary, Value, Want};
use tiebreak_contract::program::graph::{Graph, TensorType};

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

/// Runs graphs. Canonical bytes are little-endian and row-major; quantised tensors are `d`-byte two's complement.
///
/// ```
/// use std::sync::Arc;
///
/// use tiebreak_contract::arith::DType;
/// use tiebreak_contract::arith::words::bytes_of;
/// use tiebreak_contract::program::builder::Builder;
/// use tiebreak_contract::program::products::ProductTable;
/// use tiebreak_engine::Engine;
/// use tiebreak_engine::cpu::Cpu;
///
/// let mut b = Builder::new(ProductTable::preset());
/// let x = b.input("x", DType::F32, &[2, 2]);
/// let sum = b.sum_last(x);
/// b.output("sum", sum);
/// let graph = Arc::new(b.finish());
///
/// let mut engine = Cpu::new(1)?;
/// let compiled = engine.compile(graph.clone())?;
/// let x = engine.upload(graph.tensor(x), &bytes_of(&[1.0f32, 2.0, 3.0, 4.0].map(f32::to_bits)))?;
/// let outputs = engine.run(&compiled, &[x], None)?;
/// assert_eq!(engine.download(&outputs[0])?, bytes_of(&[3.0f32, 7.0].map(f32::to_bits)));
/// # Ok::<(), tiebreak_engine::EngineError>(())
/// ```
pub trait Engine: Send {
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

    /// [`Engine::run`] on inputs that nobody needs any more: an engine may free each as soon as its last reader is done, if the caller
    /// holds no other reference to it.
    ///
    /// # Errors
    /// As [`Engine::run`].
    fn run_owning(
        &mut self,
        compiled: &Compiled,
        inputs: Vec<Tensor>,
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        self.run(compiled, &inputs, observer)
    }

    /// Waits for everything that was begun, for those who measure time.
    ///
    /// # Errors
    /// If the device fails.
    fn finish(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Gives memory that is kept for later graphs back to the system, for who needs it meanwhile.
    fn release(&mut self) {}

    /// This engine as what it is, for who asks more of an engine than this trait: to move tensors between GPUs without passing the host.
    fn as_any(&mut self) -> Option<&mut dyn Any> {
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

/// An engine behind a pointer is one: every method is passed on, those with defaults too.
macro_rules! passed_on {
    ($($pointer:ty),*) => {$(
        impl<E: Engine + ?Sized> Engine for $pointer {
            fn describe(&self) -> String {
                (**self).describe()
            }
            fn upload(&mut self, ty: &TensorType, bytes: &[u8]) -> Result<Tensor, EngineError> {
                (**self).upload(ty, bytes)
            }
            fn read(&mut self, tensor: &Tensor, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
                (**self).read(tensor, visit)
            }
            fn roots(&mut self, tensors: &[Tensor]) -> Result<Option<Vec<[u8; 32]>>, EngineError> {
                (**self).roots(tensors)
            }
            fn compile(&mut self, graph: Arc<Graph>) -> Result<Compiled, EngineError> {
                (**self).compile(graph)
            }
            fn run(
                &mut self,
                compiled: &Compiled,
                inputs: &[Tensor],
                observer: Option<&mut dyn Observer>,
            ) -> Result<Vec<Tensor>, EngineError> {
                (**self).run(compiled, inputs, observer)
            }
            fn run_owning(
                &mut self,
                compiled: &Compiled,
                inputs: Vec<Tensor>,
                observer: Option<&mut dyn Observer>,
            ) -> Result<Vec<Tensor>, EngineError> {
                (**self).run_owning(compiled, inputs, observer)
            }
            fn finish(&mut self) -> Result<(), EngineError> {
                (**self).finish()
            }
            fn release(&mut self) {
                (**self).release()
            }
            fn as_any(&mut self) -> Option<&mut dyn Any> {
                (**self).as_any()
            }
            fn download(&mut self, tensor: &Tensor) -> Result<Vec<u8>, EngineError> {
                (**self).download(tensor)
            }
        }
    )*};
}
passed_on!(&mut E, Box<E>);

/// A graph's outputs, in their canonical bytes, for inputs in theirs.
///
/// # Errors
/// Those of the engine.
///
/// ```
/// use std::sync::Arc;
///
/// use tiebreak_contract::arith::DType;
/// use tiebreak_contract::arith::words::bytes_of;
/// use tiebreak_contract::program::builder::Builder;
/// use tiebreak_contract::program::operators::{LinearClasses, gelu_tanh, linear};
/// use tiebreak_contract::program::products::ProductTable;
/// use tiebreak_engine::cpu::Cpu;
/// use tiebreak_engine::outputs_of;
/// use tiebreak_engine::reference::Reference;
///
/// let mut b = Builder::new(ProductTable::preset());
/// let x = b.input("x", DType::F32, &[3, 8]);
/// let w = b.input("w", DType::F32, &[5, 8]);
/// let y = linear(&mut b, LinearClasses::HIDDEN, x, w, None);
/// let y = gelu_tanh(&mut b, y);
/// b.output("y", y);
/// let graph = Arc::new(b.finish());
///
/// let numbers = |count: u32| bytes_of(&(0..count).map(|i| (0.1 * i as f32 - 1.0).to_bits()).collect::<Vec<_>>());
/// let inputs = [numbers(24), numbers(40)];
/// // Threads and SIMD here, plain loops there, and the same bits.
/// let cpu = outputs_of(&mut Cpu::new(2)?, &graph, &inputs)?;
/// assert_eq!(cpu, outputs_of(&mut Reference, &graph, &inputs)?);
/// # Ok::<(), tiebreak_engine::EngineError>(())
/// ```
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
