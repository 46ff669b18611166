//! The engine plans a graph, has its device make the kernels, and runs them. Tensors stay on the GPU for the whole graph, in
//! pooled buffers that are reused as soon as their last reader is recorded.

mod beside;
#[cfg(feature = "cuda")]
mod cuda;
pub(crate) mod engine;
mod executable;
mod execute;
mod hash;
mod memory;
mod open;
pub(crate) mod planned;
mod pool;
#[cfg(feature = "wgpu")]
pub mod recording;
mod sums;
