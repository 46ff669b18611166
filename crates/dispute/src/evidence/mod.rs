//! Evidence: the chain of commitments, and the results of committed operands. Verdicts, games, auditors and parties share this
//! module.
//!
//! [`leaf`] computes elements from verified slices. [`proven`] has the types that files and answers carry, and `context` checks
//! them against a party's commitments.

pub mod binding;
pub mod cone;
pub(crate) mod context;
pub(crate) mod fold;
pub mod leaf;
pub mod origin;
pub mod proven;
pub(crate) mod tile;
