//! Nodes over the same rows: their access to elements, the nodes that one kernel computes, and its passes.

pub(crate) mod access;
#[cfg(feature = "cuda")]
pub mod attention;
pub(crate) mod fusion;
pub(crate) mod layout;
