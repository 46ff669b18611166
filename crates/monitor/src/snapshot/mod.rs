//! Snapshots: what a chip logs about the training state in its memory, and which slices of the state it holds.

pub mod log;
pub mod record;
pub mod shard_map;
