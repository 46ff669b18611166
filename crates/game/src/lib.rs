//! The dispute game as its parties play it ([`party`]), and between machines ([`net`]).

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod net;
pub mod party;
