//! Screening of a run: which segment between two checkpoints looks least like an honest one.
//!
//! Source: Choi, Shavit and Duvenaud, "Tools for Verifying Neural Models' Training Data" (arXiv 2307.00682). A screening reads
//! losses that forward passes gave and steps that records have. It convicts nobody: it says which segment to replay first.

pub mod continuity;
pub mod memory;
pub mod outlier;
pub mod segment;
pub mod sign;
