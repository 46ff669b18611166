//! Contract, programs and the engines without a GPU: golden vectors, gradients, leaves, and hostile programs and jobs. These
//! tests belong to crates/engine, so that other processors build nothing above it (`.ci/cross`).

mod cached;
#[path = "../common/cached.rs"]
mod cached_decoders;
mod cpu_engine;
#[allow(dead_code, reason = "no test here edits a file")]
#[path = "../common/edit.rs"]
mod edit;
mod elementary;
mod gradients;
mod handed;
mod hostile_jobs;
mod leaf;
mod leaf_sizes;
mod programs;
mod recompute;
mod reductions;
mod steps;
mod vectors;
