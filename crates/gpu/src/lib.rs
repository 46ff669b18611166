//! The GPU engines: programs in integer WGSL on whatever runs it. Through wgpu (`Gpu`) that is any GPU, or software adapter,
//! that has Vulkan, Metal or DX12; through NVIDIA's driver (`Cuda`) the same shaders are translated to CUDA C++.
//!
//! Every node is a dispatch of a linted shader, or a few, or several nodes are one. No text reaches a driver that the lint refuses, but for a
//! trainer's native kernels. The crate writes no file of a run, and knows nothing of commitments.
//!
//! Start with [`GpuEngine::open`]: what it gives is a [`tiebreak_engine::Engine`] like any other. Folders import what stands above them: what is
//! asked of a device, rows that nodes share, the text of shaders, what may run for a graph, the logged profile, the engine.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

mod device;
mod logged;
mod plan;
mod rows;
mod run;
mod selftest;
mod wgsl;

#[cfg(feature = "cuda")]
pub use device::cublas::Cublas;
#[cfg(feature = "cuda")]
pub use device::cuda::devices as cuda_devices;
#[cfg(feature = "cuda")]
pub use device::error::engine_error;
pub use device::kernel::Shader;
#[cfg(feature = "wgpu")]
pub use device::recorder::{Command, Launches};
#[cfg(feature = "wgpu")]
pub use device::wgpu::{AdapterName, adapters};
#[cfg(feature = "cuda")]
pub use plan::attention_kernels;
pub use plan::{TextLimits, shader, texts};
#[cfg(feature = "cuda")]
pub use run::engine::Cuda;
#[cfg(feature = "wgpu")]
pub use run::engine::Gpu;
pub use run::engine::GpuEngine;
#[cfg(feature = "wgpu")]
pub use run::recording;

pub use tiebreak_shaders::product::Variant;
/// The version of wgpu that the engine uses.
#[cfg(feature = "wgpu")]
pub use wgpu;
