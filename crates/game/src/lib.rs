//! The dispute game as its parties play it ([`party`]), and between machines ([`net`]).

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod net;
pub mod party;

use tiebreak_contract::program;
use tiebreak_record::{commit, job, rounding};
use tiebreak_run::{run, step};
use {
    tiebreak_audit as audit, tiebreak_dispute as dispute, tiebreak_engine as engine, tiebreak_train as train,
};
