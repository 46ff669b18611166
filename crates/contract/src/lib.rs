//! The arithmetic contract: the definition of numbers ([`arith`]) and of training steps ([`program`]), in plain scalar Rust.
//!
//! Everybody who checks a run depends on this crate, and on no other for the definition of right results: engines are held to it
//! bit for bit.
//!
//! The crate opens no file, draws no random number of the system, reads no clock, and starts no thread without the feature
//! `threads`. Values are binary32 bit patterns (`u32`), so nothing between here and a hash can change a bit.
//!
//! Start with [`arith::digits::dot`], the exact product, and [`arith::tree::sum`], the order of sums. Then take [`program::builder::Builder`],
//! which makes graphs and their gradients, and [`program::step::Program`], a whole step. `docs/ARITHMETIC.md` is the same in prose.
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod arith;
#[doc(hidden)]
pub mod parallel;
pub mod program;
