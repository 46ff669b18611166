//! The progress of an audit.

/// Receives an audit's progress.
pub trait Progress {
    /// Called after a step was replayed: `done` of `planned` steps are.
    fn step(&mut self, step: u32, done: u64, planned: u64);
}

/// Reports no progress.
pub struct Silent;

impl Progress for Silent {
    fn step(&mut self, _: u32, _: u64, _: u64) {}
}
