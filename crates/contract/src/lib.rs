//! The arithmetic contract: what a number is ([`arith`]) and what a training step is ([`program`]), in plain scalar Rust.
//!
//! Nothing here opens a file, draws a random number or, without the feature `threads`, starts a thread.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod arith;
#[doc(hidden)]
pub mod parallel;
pub mod program;
