//! The dispute game between parties who claim different records of one computation. The referee questions them, level by level,
//! until it computes a few terms itself and knows who is wrong. Contract: `docs/DISPUTE.md`.
//!
//! Nothing here reads a file, a clock or a network: time is a number that comes with each message.

pub mod breach;
mod decide;
mod duel;
pub mod element;
mod judge;
pub mod logs;
pub mod message;
mod message_reader;
pub mod moves;
pub mod reason;
mod receipt_rules;
pub mod record_fault;
pub mod referee;
pub mod result;
pub mod rules;
#[doc(hidden)] // for the layers above
pub mod run_rules;
pub mod search;
mod stage;
mod statement;
mod supply;
pub mod terms;
pub mod tried;
pub mod verdict;
