//! NVIDIA's side of tiebreak: the verifier's WGSL kernels as CUDA C++.
//!
//! [`translate`] writes a naga module's compute entry points as CUDA C++ with WGSL's semantics, and [`nvrtc`] compiles that text
//! for a GPU at run time. [`device`] launches it. [`host`] compiles the same text with the host's C++ compiler and runs it, for
//! tests without a GPU. The crate builds without CUDA: all of NVIDIA's libraries are loaded at run time.

#![warn(missing_docs)]

pub mod attention;
pub mod cache;
pub mod columns;
pub mod copies;
pub mod cublas;
pub mod device;
pub mod graphs;
pub mod host;
mod library;
pub mod native;
pub mod nccl;
pub mod near;
pub mod nvrtc;
pub mod quantise;
pub mod tensor_core;
pub mod timer;
pub mod translate;
