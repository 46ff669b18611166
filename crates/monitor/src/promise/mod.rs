//! Promises: a trainer commits to job, program and data of a run before a beacon's round gives the rest of its seed. So nobody tries
//! seeds until one is kind. A promise of a run that goes on from another one is an amendment. Rule: docs/MONITORING-FORMAT.md, "Promises".

pub mod entry;
pub mod examine;
pub mod log;
