//! Contract, programs and the engines without a GPU: golden vectors, gradients, leaves, and hostile programs and jobs. These
//! tests need only the feature `engine`, so that they run on other processors and without vector paths too (`.ci/run`,
//! `.ci/cross`).

mod cpu_engine;
#[allow(dead_code, reason = "no test here edits a file")]
#[path = "../common/edit.rs"]
mod edit;
mod elementary;
mod gradients;
mod hostile_jobs;
mod leaf;
mod leaf_sizes;
mod programs;
mod reductions;
mod steps;
mod vectors;
