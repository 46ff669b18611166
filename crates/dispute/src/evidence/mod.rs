//! Evidence: what commits to what, and what committed operands give. Verdicts, games, auditors and parties share it.
//!
//! [`leaf`] computes elements from verified slices; [`proven`] is what files and answers carry; `context` holds it to what a party
//! committed to.

pub mod binding;
pub mod cone;
pub(crate) mod context;
pub(crate) mod fold;
pub mod leaf;
pub mod origin;
pub mod proven;
pub(crate) mod tile;
