//! The logged profile while a step runs: observers that log a trainer's rounding decisions, or take them from a log, by the rules of
//! `rounding`.
//!
//! [`record`] is the trainer's side, [`replay`] the auditor's with what it counts in [`tally`] and, of each product, [`choices`]; `near_ties` and [`norms`] find what is
//! logged; [`calibrate`] measures thresholds.

pub mod calibrate;
pub mod choices;
pub mod near_ties;
pub mod norms;
pub mod record;
pub mod replay;
pub mod tally;
