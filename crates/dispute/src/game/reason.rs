//! The reasons why parties lose, and which of them anybody can re-derive.

use serde::{Deserialize, Serialize};

/// The reason why a party lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The party committed to a value that is not the one that the contract gives.
    WrongValue,
    /// The party committed to a rounding that no honest kernel takes.
    IllegalRounding,
    /// Two things that the party signed contradict each other.
    Contradiction,
    /// The party signed two answers to one question, or two statements about one step.
    Equivocation,
    /// The party's record carries another rounding log than the trainer's, under which it was to replay.
    OtherLog,
    /// The party's time was up.
    Timeout,
    /// The party did not open its commitment.
    Refusal,
    /// The party's answer was larger than any right answer.
    Oversize,
    /// The party's answer was no answer: not signed, not in its encoding, or to another question.
    Garbage,
}

impl Reason {
    /// True if anybody can re-derive the loss from signed bytes.
    pub fn convicts(self) -> bool {
        use Reason::*;
        matches!(self, WrongValue | IllegalRounding | Contradiction | Equivocation | OtherLog)
    }

    /// The reason in words.
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
