//! Runs: what is on disk ([`run`]), rounding decisions while a step runs ([`observers`]), one step with its promises ([`step`]), evaluations ([`evaluate`]).

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod evaluate;
pub mod observers;
pub mod run;
pub mod step;
