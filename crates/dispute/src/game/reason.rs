//! Why parties lose, and which reasons anybody can re-derive.

use serde::{Deserialize, Serialize};

/// Why a party lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It committed to a value that is not the one that the contract gives.
    WrongValue,
    /// It committed to a rounding that no honest kernel takes.
    IllegalRounding,
    /// What it signed contradicts what it signed before.
    Contradiction,
    /// It signed two answers to one question, or two statements about one step.
    Equivocation,
    /// Its record carries another rounding log than the trainer's, under which it was to replay.
    OtherLog,
    /// Its time was up.
    Timeout,
    /// It did not open what it had committed to.
    Refusal,
    /// Its answer was larger than any right one.
    Oversize,
    /// Its answer was no answer: not signed, not in its encoding, or to another question.
    Garbage,
}

impl Reason {
    /// Whether anybody can re-derive the loss from signed bytes.
    pub fn convicts(self) -> bool {
        use Reason::*;
        matches!(self, WrongValue | IllegalRounding | Contradiction | Equivocation | OtherLog)
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Reason::WrongValue => "wrong value",
            Reason::IllegalRounding => "illegal rounding",
            Reason::Contradiction => "contradiction",
            Reason::Equivocation => "equivocation",
            Reason::OtherLog => "another log",
            Reason::Timeout => "timeout",
            Reason::Refusal => "refusal",
            Reason::Oversize => "oversize",
            Reason::Garbage => "garbage",
        }
    }
}
