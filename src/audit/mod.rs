//! The audit of a run: what is always checked, which part is replayed, and what is reported.

pub mod plan;
