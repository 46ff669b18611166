//! The execution of programs. An engine knows nothing about logs, commitments or disputes: observers handle those.
//!
//! [`cpu::Cpu`] uses all cores, [`reference::Reference`] computes element by element, and their bits are the same. GPUs are in
//! `tiebreak-gpu`.
//!
//! The crate opens no file and no connection. Only products of a trainer of the logged profile ([`cpu::native`]) depend on how a machine adds floats.
//!
//! Start with [`outputs_of`], which runs one graph, and [`session::Session`], which runs steps. A new engine implements
//! [`Engine`].
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod cpu;
pub mod device_check;
mod error;
pub mod fingerprint;

pub mod liveness;
pub mod observer;
pub mod outside;
pub mod recompute;
pub mod reference;
pub mod session;
pub mod update_share;

use std::any::Any;
use std::sync::{Arc, OnceLock};

pub use error::{EngineError, WrongPart};
pub use observer::{Inputs, Observer, QuantisedTensor, Summary, Value, Want};
use outside::Outside;
use tiebreak_contract::program::graph::{Graph, TensorType};

/// A tensor in an engine's memory. Clones share the memory; the last clone frees it. No engine changes a tensor.
#[derive(Clone)]
pub struct Tensor(Arc<Kept<dyn Any + Send + Sync>>);

/// A tensor's storage, and the BLAKE3 root of its canonical bytes once somebody noted it.
struct Kept<T: ?Sized> {
    root: OnceLock<[u8; 32]>,
    storage: T,
}

impl Tensor {
    /// A tensor of the engine that keeps `storage` for it.
    pub fn new(storage: impl Any + Send + Sync) -> Tensor {
        Tensor(Arc::new(Kept { root: OnceLock::new(), storage }))
    }

    /// The root of the tensor's bytes, if it was noted.
    #[doc(hidden)] // for the layers above
    pub fn noted(&self) -> Option<[u8; 32]> {
        self.0.root.get().copied()
    }

    /// Notes the root of the tensor's bytes, for whoever needs it again: a frozen parameter is one tensor for many steps.
    #[doc(hidden)] // for the layers above
    pub fn note(&self, root: [u8; 32]) {
        self.0.root.get_or_init(|| root);
    }

    /// The same tensor in another storage, with the root that was noted.
    pub(crate) fn again(&self, storage: impl Any + Send + Sync) -> Tensor {
        Tensor(Arc::new(Kept { root: self.0.root.clone(), storage }))
    }

    /// The storage, with the type that the tensor's engine uses.
    ///
    /// # Panics
    /// If another engine made the tensor: a fault of this program.
    pub fn storage<T: Any>(&self) -> &T {
        self.0.storage.downcast_ref().expect("a tensor is used with the engine that made it")
    }
}

/// A graph prepared for one engine.
pub struct Compiled {
    /// The graph that was compiled.
    pub graph: Arc<Graph>,
    engine: Box<dyn Any + Send + Sync>,
}

impl Compiled {
    /// A graph with the data that its engine keeps for it.
    pub fn new(graph: Arc<Graph>, engine: impl Any + Send + Sync) -> Compiled {
        Compiled { graph, engine: Box::new(engine) }
    }

    /// The data that the engine keeps for the graph that it compiled.
    ///
    /// # Panics
    /// If another engine compiled the graph: a fault of this program.
    pub fn of<T: Any>(&self) -> &T {
        self.engine.downcast_ref().expect("a graph is run by the engine that compiled it")
    }
}

/// Runs graphs. Canonical bytes are little-endian and row-major; quantised tensors are `d`-byte two's complement.
///
/// ```
/// use std::sync::{Arc, OnceLock};
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

    /// Passes a tensor's canonical bytes to `visit` (F32, U32 and U8 tensors).
    ///
    /// # Errors
    /// If the device fails.
    fn read(&mut self, tensor: &Tensor, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError>;

    /// The BLAKE3 roots of tensors' canonical bytes, if the engine has a faster way than showing the bytes.
    ///
    /// # Errors
    /// If the device fails.
    fn roots(&mut self, _tensors: &[Tensor]) -> Result<Option<Vec<[u8; 32]>>, EngineError> {
        Ok(None)
    }

    /// The roots that [`Engine::roots`] gives, as a tensor of the engine [tensors, 8] of words, for [`Engine::read_each`] to read
    /// later: nobody waits for the device before. `None` if the engine has no such way for these tensors.
    ///
    /// # Errors
    /// If the device fails.
    fn roots_later(&mut self, _tensors: &[Tensor]) -> Result<Option<Tensor>, EngineError> {
        Ok(None)
    }

    /// [`Engine::read`] for small tensors, which are passed to `visit` in order with their places in the list. An engine on a
    /// device waits for it once.
    ///
    /// # Errors
    /// If the device fails.
    fn read_each(
        &mut self,
        tensors: &[Tensor],
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), EngineError> {
        tensors.iter().enumerate().try_for_each(|(i, tensor)| self.read(tensor, &mut |bytes| visit(i, bytes)))
    }

    /// Prepares a graph: checks that the device can run it, and makes its kernels.
    ///
    /// # Errors
    /// If the device cannot run the graph, or fails.
    fn compile(&mut self, graph: Arc<Graph>) -> Result<Compiled, EngineError>;

    /// Runs a graph. `inputs` are in the order of its input ports; the result is in the order of its output ports. An observer
    /// sees every node's output as soon as it is computed, which is slow.
    ///
    /// # Errors
    /// If the device fails or has no room, or the observer returns an error.
    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError>;

    /// [`Engine::run`] on inputs that nobody needs any more. An engine may free each input as soon as its last reader is done, if
    /// the caller holds no other reference to it.
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

    /// The most roundings that a term of a native binary64 product of K terms passes: one of the term, then those of sums. Each is
    /// to nearest. `None` if no such number is known.
    fn binary64_roundings(&self, _k: usize) -> Option<usize> {
        None
    }

    /// True if tensors are in the host's memory, so that keeping one costs no device anything.
    fn is_on_host(&self) -> bool {
        false
    }

    /// True if quantised tensors may enter and leave a graph, so that integers which are made once serve many runs.
    #[doc(hidden)] // for the layers above
    fn takes_integers(&self) -> bool {
        false
    }

    /// The same tensor in the form in which many products read it fastest; the engine keeps it as it is if it has no such form.
    #[doc(hidden)] // for the layers above
    fn packed(&mut self, tensor: Tensor) -> Tensor {
        tensor
    }

    /// True if the engine computes tensors again instead of keeping them ([`recompute::Recomputing`]), so that who needs another
    /// engine beside it takes one that does so too.
    #[doc(hidden)] // for the layers above
    fn recomputes(&self) -> bool {
        false
    }

    /// Waits for all work that was begun, so that callers can measure time.
    ///
    /// # Errors
    /// If the device fails.
    fn finish(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// The tensor, or the same one in a place outside of memory: one that nobody reads for a while. Only an engine that was given such a
    /// place ([`Engine::use_outside`]) puts it there.
    ///
    /// # Errors
    /// If the place fails.
    #[doc(hidden)] // for sessions
    fn put_outside(&mut self, tensor: Tensor) -> Result<Tensor, EngineError> {
        Ok(tensor)
    }

    /// Keeps the tensors that nobody reads for a while in this place from now on. False if the engine has no such use for it.
    #[doc(hidden)] // for the command
    fn use_outside(&mut self, _outside: Arc<dyn Outside>) -> bool {
        false
    }

    /// True if the engine was given a place outside of memory ([`Engine::use_outside`]).
    #[doc(hidden)] // for the layers above
    fn keeps_outside(&self) -> bool {
        false
    }

    /// Returns memory that is kept for later graphs to the system, for other users meanwhile.
    fn release(&mut self) {}

    /// The engine's concrete type, for callers that need more than this trait: moving tensors between GPUs without passing the
    /// host.
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

/// Writes the named methods of an [`Engine`] that is made of another one: `forward!(self => self.cpu; describe, upload)`. Methods
/// with defaults that are not named keep their defaults.
#[macro_export]
#[doc(hidden)] // for engines around engines, in the layers above
macro_rules! forward {
    ($this:ident => $inner:expr; $($method:ident),+ $(,)?) => {
        $($crate::forward!(@ $method $this $inner);)+
    };
    (@ describe $this:ident $inner:expr) => {
        fn describe(&$this) -> String {
            $inner.describe()
        }
    };
    (@ upload $this:ident $inner:expr) => {
        fn upload(
            &mut $this,
            ty: &tiebreak_contract::program::graph::TensorType,
            bytes: &[u8],
        ) -> Result<$crate::Tensor, $crate::EngineError> {
            $inner.upload(ty, bytes)
        }
    };
    (@ read $this:ident $inner:expr) => {
        fn read(
            &mut $this,
            tensor: &$crate::Tensor,
            visit: &mut dyn FnMut(&[u8]),
        ) -> Result<(), $crate::EngineError> {
            $inner.read(tensor, visit)
        }
    };
    (@ roots $this:ident $inner:expr) => {
        fn roots(
            &mut $this,
            tensors: &[$crate::Tensor],
        ) -> Result<Option<Vec<[u8; 32]>>, $crate::EngineError> {
            $inner.roots(tensors)
        }
    };
    (@ roots_later $this:ident $inner:expr) => {
        fn roots_later(
            &mut $this,
            tensors: &[$crate::Tensor],
        ) -> Result<Option<$crate::Tensor>, $crate::EngineError> {
            $inner.roots_later(tensors)
        }
    };
    (@ read_each $this:ident $inner:expr) => {
        fn read_each(
            &mut $this,
            tensors: &[$crate::Tensor],
            visit: &mut dyn FnMut(usize, &[u8]),
        ) -> Result<(), $crate::EngineError> {
            $inner.read_each(tensors, visit)
        }
    };
    (@ compile $this:ident $inner:expr) => {
        fn compile(
            &mut $this,
            graph: std::sync::Arc<tiebreak_contract::program::graph::Graph>,
        ) -> Result<$crate::Compiled, $crate::EngineError> {
            $inner.compile(graph)
        }
    };
    (@ run $this:ident $inner:expr) => {
        fn run(
            &mut $this,
            compiled: &$crate::Compiled,
            inputs: &[$crate::Tensor],
            observer: Option<&mut dyn $crate::Observer>,
        ) -> Result<Vec<$crate::Tensor>, $crate::EngineError> {
            $inner.run(compiled, inputs, observer)
        }
    };
    (@ run_owning $this:ident $inner:expr) => {
        fn run_owning(
            &mut $this,
            compiled: &$crate::Compiled,
            inputs: Vec<$crate::Tensor>,
            observer: Option<&mut dyn $crate::Observer>,
        ) -> Result<Vec<$crate::Tensor>, $crate::EngineError> {
            $inner.run_owning(compiled, inputs, observer)
        }
    };
    (@ binary64_roundings $this:ident $inner:expr) => {
        fn binary64_roundings(&$this, k: usize) -> Option<usize> {
            $inner.binary64_roundings(k)
        }
    };
    (@ takes_integers $this:ident $inner:expr) => {
        fn takes_integers(&$this) -> bool {
            $inner.takes_integers()
        }
    };
    (@ packed $this:ident $inner:expr) => {
        fn packed(&mut $this, tensor: $crate::Tensor) -> $crate::Tensor {
            $inner.packed(tensor)
        }
    };
    (@ is_on_host $this:ident $inner:expr) => {
        fn is_on_host(&$this) -> bool {
            $inner.is_on_host()
        }
    };
    (@ recomputes $this:ident $inner:expr) => {
        fn recomputes(&$this) -> bool {
            $inner.recomputes()
        }
    };
    (@ put_outside $this:ident $inner:expr) => {
        fn put_outside(&mut $this, tensor: $crate::Tensor) -> Result<$crate::Tensor, $crate::EngineError> {
            $inner.put_outside(tensor)
        }
    };
    (@ use_outside $this:ident $inner:expr) => {
        fn use_outside(&mut $this, outside: std::sync::Arc<dyn $crate::outside::Outside>) -> bool {
            $inner.use_outside(outside)
        }
    };
    (@ keeps_outside $this:ident $inner:expr) => {
        fn keeps_outside(&$this) -> bool {
            $inner.keeps_outside()
        }
    };
    (@ finish $this:ident $inner:expr) => {
        fn finish(&mut $this) -> Result<(), $crate::EngineError> {
            $inner.finish()
        }
    };
    (@ release $this:ident $inner:expr) => {
        fn release(&mut $this) {
            $inner.release()
        }
    };
    (@ as_any $this:ident $inner:expr) => {
        fn as_any(&mut $this) -> Option<&mut dyn std::any::Any> {
            $inner.as_any()
        }
    };
    (@ download $this:ident $inner:expr) => {
        fn download(&mut $this, tensor: &$crate::Tensor) -> Result<Vec<u8>, $crate::EngineError> {
            $inner.download(tensor)
        }
    };
}

/// A pointer to an engine is an engine: every method is forwarded, including those with defaults.
macro_rules! passed_on {
    ($($pointer:ty),*) => {$(
        impl<E: Engine + ?Sized> Engine for $pointer {
            forward!(
                self => (**self);
                describe, upload, read, roots, roots_later, read_each, compile, run, run_owning, binary64_roundings,
                is_on_host, takes_integers, packed, recomputes, put_outside, use_outside, keeps_outside, finish,
                release, as_any, download,
            );
        }
    )*};
}
passed_on!(&mut E, Box<E>);

/// A graph's outputs for given inputs, all in canonical bytes.
///
/// # Errors
/// If the engine fails.
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
