//! The software stand-in for a chip's firmware: an agent that logs snapshots at random times, and its channel to a trainer.
//!
//! Firmware would run below the operator's reach. This agent is a process of the operator, so nothing keeps the operator from
//! stopping it or from reading its key. The records, the random times and the rules of the log are those that firmware would have.
//!
//! [`agent::Agent`] is a state machine over a [`clock::Clock`], [`times::Times`] and a [`keeper::Keeper`], and opens nothing by
//! itself. A `server` runs one for trainers that come over a Unix socket; an `attachment` is a trainer's side.

pub mod agent;
#[cfg(unix)]
pub mod attachment;
pub mod chain;
pub mod clock;
pub mod code;
#[cfg(unix)]
pub mod connection;
pub mod keeper;
pub mod message;
#[cfg(unix)]
pub mod server;
pub mod times;
