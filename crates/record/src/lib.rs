//! What is declared and promised: a job ([`job`]), commitments ([`commit`]) and the rules of logged roundings ([`rounding`]).
//!
//! Nothing here opens a file, starts a thread or draws a random number.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod commit;
pub mod job;
pub mod rounding;
