//! The dispute game: parties who claim different records of one computation are questioned, level by level, until the referee computes
//! a few terms itself and knows who is wrong. Contract: `docs/DISPUTE.md`.
//!
//! Nothing here reads a file, a clock or a network: time is a number that comes with each message.

pub mod message;
pub mod search;
pub mod terms;
