//! Nodes over the same rows: how they find their elements, which of them one kernel computes, and in which passes.

pub mod access;
#[cfg(feature = "cuda")]
pub mod attention;
pub mod fusion;
pub mod layout;
