//! The execution of programs: the engines of the host, and those of GPUs.

pub use tiebreak_engine::*;
#[cfg(any(feature = "gpu", feature = "cuda"))]
pub use tiebreak_gpu as gpu;
