//! The dispute game as its parties play it ([`party`]), and between machines ([`net`]).
//!
//! The game's rules are in `tiebreak-dispute`. This crate answers from a run's folder, and carries questions and answers. The
//! crate decides no verdict, and a party's private key signs only that party's answers.
//!
//! Start with [`party`] for parties of one process, with [`net::desk`] for a party that answers over a network, with
//! [`net::referee`] for the referee.
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod net;
pub mod party;
