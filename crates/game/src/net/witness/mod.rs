//! Witnesses over HTTP: one that serves, and a client that asks one for its cosignature. Source: C2SP tlog-witness.

pub mod client;
mod keeper;
pub mod metrics;
pub mod server;

pub use keeper::Keeper;
