//! What is declared and promised: a job ([`job`]), commitments ([`commit`]) and the rules of logged roundings ([`rounding`]).
//!
//! A trainer and whoever checks one agree here on what a run is called, and on what its records say.
//!
//! It opens no file, starts no thread, draws no random number and runs no program: texts and bytes come in, and are parsed with bounds.
//!
//! Start with [`job::Job::parse`] and [`job::computation::Computation::derive`]. A run's promises are [`commit::record::Record`]s under a
//! [`commit::tree_head::Head`]; [`commit::tensor`] and [`commit::merkle`] prove parts of them.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod commit;
pub mod job;
pub mod rounding;
