//! The dispute game as its parties play it ([`party`]), and between machines ([`net`]).
//!
//! The game's rules are in `tiebreak-dispute`; here is who answers, from a run's folder, and what carries questions and answers.
//! The crate decides no verdict, and a party's private key signs its own answers only.
//!
//! Start with [`party`] for parties of one process, with [`net::desk`] for one that answers, with [`net::referee`] for the one that asks.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod net;
pub mod party;
