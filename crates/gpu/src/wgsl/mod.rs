//! The text of shaders that are written for a graph: maps, row fusions, and the functions of attention's rows.

#[cfg(feature = "cuda")]
pub mod attention;
pub(crate) mod map;
pub(crate) mod rows;
