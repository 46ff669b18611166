//! Data-parallel training: several processes ("ranks") compute micro-batches of one step each, and the run has the bits of one
//! process. Derivation, costs and trust: `docs/DATA-PARALLEL.md`.
//!
//! [`plan`] divides a step. [`collective`] defines the network; [`tcp`] is one, `nccl` and `mpi` are others. `reduce` adds gradients over
//! the network by the contract's tree, over hosts in `beside`, while the rank computes. [`slots`] divides the optimizer's state. [`share`] is a rank's part of a step, [`lead`] rank 0 and [`worker`] every other rank.

mod beside;
pub mod collective;
pub mod lead;
mod link;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "cuda")]
pub mod nccl;
pub mod plan;
mod protocol;
mod reduce;
pub mod share;
pub mod slots;
pub mod tcp;
pub mod worker;

pub use super::error::{Difference, RankError};
pub use collective::report;
