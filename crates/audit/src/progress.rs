//! The progress of an audit.

use super::report::Report;

/// Receives an audit's progress.
pub trait Progress {
    /// Called after a step was replayed: `done` of `planned` steps are.
    fn step(&mut self, step: u32, done: u64, planned: u64);

    /// True if somebody asks the audit to stop: it ends before the next step, and its report lists the steps that were not replayed. The
    /// audit asks after each step.
    fn is_asked_to_stop(&mut self) -> bool {
        false
    }

    /// Called after each segment that matches, but for the last. `report` makes the report of the audit as if it ended here.
    #[doc(hidden)] // the command's alone
    fn segment(&mut self, report: &mut dyn FnMut() -> Report) {
        let _ = report;
    }
}

/// Reports no progress.
pub struct Silent;

impl Progress for Silent {
    fn step(&mut self, _: u32, _: u64, _: u64) {}
}
