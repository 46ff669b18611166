//! Disputes: the leaf checker, and verdicts that anybody can check from one file. No clock, network or GPU inside.

pub mod leaf;
pub mod position;
