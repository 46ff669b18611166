//! Matching: every snapshot of chips' logs against the runs that were declared.
//!
//! The crate replays nothing. [`matcher::Matcher::needed`] names the shards whose digests only a replay gives; whoever can replay
//! computes them, and [`matcher::Matcher::judge`] says where each snapshot comes from.

pub mod index;
pub mod matcher;
pub mod provenance;
pub mod run_index;
pub mod sighting;
pub mod silence;
