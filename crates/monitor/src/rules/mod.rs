//! Rules for training runs: limits that an inspector writes down, and whether declared runs keep to them.

pub mod decision;
pub mod facts;
pub mod file;
pub mod flop;
pub mod property;
pub mod ruling;
pub mod share;
