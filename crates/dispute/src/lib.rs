//! Disputes: the right values of one tile of one operator, and verdicts that anybody can check from a file alone.
//!
//! Everything here runs the scalar reference on verified bytes. The crate opens no file, starts no thread, reads no clock, and
//! knows no network, no engine and no GPU. Trust in a conviction is trust in this crate and the two below it (`docs/REFEREE.md`).
//!
//! Start with [`verdict::Verdict::from_bytes`] and [`verdict::Verdict::check`]. [`evidence::leaf::expected`] is the checker of single elements;
//! [`game`] is the dispute game as a pure state machine.
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod answer;
pub mod check;
mod claim_reader;
pub mod evidence;
pub mod fact;
mod fork;
pub mod game;
mod one_encoding;
pub mod rounding;
pub mod size;
mod tag_first;
mod tile;
pub mod verdict;
mod weights;
