//! A collector keeps chips' records off the chip: a record counts as kept only when the collector has said so, signed.
//!
//! `client` is the chip's side, [`both`] a chip that keeps its log in a file as well. `admission` has the rules by which a
//! collector takes a record, and does no I/O. With the feature `server`, `server` answers over HTTP, `writer` stores many
//! records at once, and `store` is a database. Definition: docs/MONITORING-FORMAT.md, "Chip and collector".
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

#![warn(missing_docs)]

pub mod admission;
pub mod both;
pub mod client;
#[cfg(test)]
mod made;
pub mod message;
#[cfg(feature = "server")]
pub mod metrics;
#[cfg(feature = "server")]
pub mod roster;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
pub mod writer;
