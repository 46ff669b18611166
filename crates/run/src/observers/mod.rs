//! The logged profile while a step runs: observers that log a trainer's rounding decisions, or take them from a log, by the rules of
//! `rounding`.
//!
//! [`record`] is the trainer's side. [`replay`] is the auditor's side; it counts in [`tally`] and, for each product, in
//! [`choices`]. `near_ties` and [`norms`] find the elements to log; [`calibrate`] measures thresholds. `filter` finds the elements
//! that an auditor computes exactly; `seen` is what an auditor knows of a product.

pub mod calibrate;
pub mod choices;
mod filter;
pub mod near_ties;
pub mod norms;
pub mod record;
pub mod replay;
mod seen;
pub mod tally;
