//! The GPU engines: programs in integer WGSL. Through wgpu (`Gpu`) they run on any GPU, or software adapter, that has Vulkan,
//! Metal or DX12. Through NVIDIA's driver (`Cuda`) the same shaders are translated to CUDA C++.
//!
//! A node is one dispatch of a linted shader, or a few; several nodes may share one. No text reaches a driver that the lint
//! refuses, except for a trainer's native kernels. The crate writes no file of a run, and knows nothing of commitments.
//!
//! Start with [`GpuEngine::open`], which gives a [`tiebreak_engine::Engine`] like any other. A folder imports only folders
//! before it in this list: the interface of devices, rows that nodes share, the text of shaders, plans, the logged profile, the
//! engine.
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

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
pub use device::paper::{Counter, Requests};
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
pub use run::planned::{DeviceMemory, Planned};
#[cfg(feature = "wgpu")]
pub use run::recording;

pub use tiebreak_shaders::product::Variant;
/// The version of wgpu that the engine uses.
#[cfg(feature = "wgpu")]
pub use wgpu;
