//! Promises: commitments ([`commit`]) and the rules of logged roundings ([`rounding`]).
//!
//! A trainer and everybody who checks a trainer share this crate's definition of the contents of records.
//!
//! The crate opens no file, starts no thread, draws no random number and runs no program. The input is bytes, which are
//! parsed with bounds.
//!
//! A run's promises are [`commit::record::Record`]s under a [`commit::tree_head::Head`]; [`commit::tensor`] and
//! [`commit::merkle`] prove parts of them.
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod commit;
pub mod rounding;
