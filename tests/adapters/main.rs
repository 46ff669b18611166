//! The tests that run on every adapter of this machine, in one process. They share the open adapters, since opening one tests it,
//! which takes a software adapter most of a minute. A software adapter compiles on one core; the lint, and the engine for
//! NVIDIA's GPUs over a stand-in for the driver, keep the other cores busy.
//!
//! The output names a software adapter that is missing. With TIEBREAK_REQUIRE_ADAPTERS (parts of names, separated by commas) a
//! missing one is a failure; CI runs that way.

mod browser;
#[allow(dead_code, reason = "no test here needs the ordinary forward pass")]
#[path = "../common/cached.rs"]
mod cached_decoders;
#[path = "../common/mod.rs"]
mod common;
mod cublas;
mod cuda;
mod cuda_attention;
mod device_check;
mod evaluation;
mod gpus;
mod launches;
mod lint;
mod nccl;
mod operators;
mod primitives;
mod requests;
mod rounding;
mod row_fusion;
#[path = "../common/together.rs"]
mod together;
mod windows;
