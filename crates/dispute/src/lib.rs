//! Disputes: what one tile of one operator must be, and verdicts that anybody can check from a file alone.
//!
//! Everything here runs the scalar reference on verified bytes. There is no clock, no network and no GPU.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod check;
pub mod cone;
mod fold;
mod fork;
pub mod game;
pub mod leaf;
pub mod origin;
pub mod rounding;
pub mod size;
mod tile;
pub mod verdict;
mod weights;
