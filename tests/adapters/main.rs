//! What runs on every adapter of this machine, in one process: opening an adapter tests it, which takes a software adapter most of
//! a minute, so that these tests share what is open.
//!
//! A software adapter that is missing is named in the output; with TIEBREAK_REQUIRE_ADAPTERS (parts of names, separated by
//! commas) a missing one is a failure, which is how CI runs.

#![cfg(feature = "cli")]

#[cfg(feature = "gpu")]
mod browser;
#[path = "../common/mod.rs"]
mod common;
mod evaluation;
#[cfg(feature = "gpu")]
mod launches;
mod operators;
#[cfg(feature = "gpu")]
mod primitives;
mod rounding;
#[cfg(feature = "gpu")]
mod row_fusion;
#[cfg(feature = "gpu")]
mod windows;
