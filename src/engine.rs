//! Engines: run a graph or a step on a CPU, on a GPU, or element by element.
//!
//! Run a graph on all cores, and compare with the scalar reference:
//!
//! ```
//! use std::sync::Arc;
//! use tiebreak::arith::DType;
//! use tiebreak::arith::words::bytes_of;
//! use tiebreak::engine::{cpu::Cpu, outputs_of, reference::Reference};
//! use tiebreak::program::builder::Builder;
//! use tiebreak::program::operators::gelu_erf;
//! use tiebreak::program::products::ProductTable;
//!
//! let mut b = Builder::new(ProductTable::preset());
//! let x = b.input("x", DType::F32, &[3]);
//! let y = gelu_erf(&mut b, x);
//! b.output("y", y);
//! let graph = Arc::new(b.finish());
//! let inputs = [bytes_of(&[-1.0f32, 0.0, 1.0].map(f32::to_bits))];
//! assert_eq!(outputs_of(&mut Cpu::new(0)?, &graph, &inputs)?, outputs_of(&mut Reference, &graph, &inputs)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An observer sees the output of each node:
//!
//! ```
//! use std::sync::Arc;
//! use tiebreak::arith::DType;
//! use tiebreak::engine::{Engine, EngineError, Inputs, Observer, cpu::Cpu};
//! use tiebreak::program::builder::Builder;
//! use tiebreak::program::graph::Node;
//! use tiebreak::program::operators::relu;
//! use tiebreak::program::products::ProductTable;
//!
//! struct Seen(Vec<usize>);
//!
//! impl Observer for Seen {
//!     fn node(&mut self, index: usize, _: &Node, bytes: &[u8], _: &mut dyn Inputs) -> Result<Option<Vec<u8>>, EngineError> {
//!         assert_eq!(bytes.len(), 16);
//!         self.0.push(index);
//!         Ok(None)
//!     }
//! }
//!
//! let mut b = Builder::new(ProductTable::preset());
//! let x = b.input("x", DType::F32, &[4]);
//! let y = relu(&mut b, x);
//! b.output("y", y);
//! let graph = Arc::new(b.finish());
//! let mut engine = Cpu::new(1)?;
//! let compiled = engine.compile(graph.clone())?;
//! let input = engine.upload(graph.tensor(x), &[0; 16])?;
//! let mut seen = Seen(Vec::new());
//! engine.run(&compiled, &[input], Some(&mut seen))?;
//! assert_eq!(seen.0, [0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[doc(inline)]
pub use tiebreak_engine::{
    Compiled, Engine, EngineError, Inputs, Observer, QuantisedTensor, Summary, Tensor, Value, Want,
    WrongPart, outputs_of,
};

/// The engine of all cores.
pub mod cpu {
    #[doc(inline)]
    pub use tiebreak_engine::cpu::Cpu;
    #[doc(inline)]
    pub use tiebreak_engine::cpu::native::Native;
}

/// The digest of fixed steps, which is the same on every engine.
pub mod fingerprint {
    #[doc(inline)]
    pub use tiebreak_engine::fingerprint::{FINGERPRINT, fingerprint};
}

/// The engines of GPUs, through wgpu and through NVIDIA's driver.
#[cfg(any(feature = "gpu", feature = "cuda"))]
pub mod gpu {
    #[doc(inline)]
    pub use tiebreak_gpu::GpuEngine;
    #[cfg(feature = "gpu")]
    #[doc(inline)]
    pub use tiebreak_gpu::{AdapterName, Gpu, adapters};
    #[cfg(feature = "cuda")]
    #[doc(inline)]
    pub use tiebreak_gpu::{Cublas, Cuda};
}

/// The scalar reference, element by element.
pub mod reference {
    #[doc(inline)]
    pub use tiebreak_engine::reference::Reference;
}

/// A program on an engine: micro-batches, their sum, the update.
pub mod session {
    #[doc(inline)]
    pub use tiebreak_engine::session::{
        Gradients, Session, StepObserver, StepOutcome, StepScalars, Unobserved,
    };
}
