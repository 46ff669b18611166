//! Nodes over the same rows: how they find their elements, which of them one kernel computes, and in which passes.

pub(crate) mod access;
#[cfg(feature = "cuda")]
pub mod attention;
pub(crate) mod fusion;
pub(crate) mod layout;
