//! Inspecting a chip's log: the register says who may have written it, and the rate of snapshots how many records there are.

pub mod examine;
pub mod finding;
pub mod poisson;
pub mod seen;
mod silence;
