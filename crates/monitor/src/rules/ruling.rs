//! The ends of a rule: it holds, is violated, or cannot be decided.

use serde::Serialize;

/// The end of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ruling {
    /// The rule holds.
    Holds,
    /// Something is missing that would decide.
    Undecided,
    /// The rule is violated.
    Violated,
}
