//! Runs: files on disk ([`run`]), rounding decisions while a step runs ([`observers`]), one step with its promises ([`step`]),
//! evaluations ([`evaluate`]), predictions and their receipts ([`predict`]), answers of language models ([`inference`]).
//!
//! Every read from and write to a folder passes through [`run`]; through [`run::disk`], files appear whole or not at all. The
//! crate opens no connection, draws no random number, and accuses nobody.
//!
//! Start with [`run::dir::Run::open`] for a folder that exists, and with [`step::StepRequest`] for a step, which needs no folder.
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod evaluate;
pub mod inference;
pub mod observers;
pub mod predict;
pub mod run;
pub mod step;
