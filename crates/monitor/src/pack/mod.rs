//! Sealed audit packs: everything a replay needs, in one file that a neutral box alone can read.
//!
//! A pack is a list of files, encrypted to the box's key in the age format. docs/MONITORING-FORMAT.md has the layout.

pub mod error;
pub mod name;
pub mod read;
pub mod seal;
pub mod write;
