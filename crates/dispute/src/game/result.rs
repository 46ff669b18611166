//! How games end, and what a result is worth.
//!
//! *Convicted*: anybody can re-derive it from what the party signed. *Forfeited*: the referee says so; nobody else can know what arrived
//! when. A loss never certifies the other party.

use serde::{Deserialize, Serialize};

use tiebreak_record::commit::digest::Digest;

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

/// A party that is out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// Its place among the parties of the terms.
    pub party: usize,
    /// Why.
    pub reason: Reason,
    /// What is wrong, in words.
    pub what: String,
}

/// A game of two parties that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Played {
    /// The two parties.
    pub parties: [usize; 2],
    /// What was found, level by level.
    pub found: Vec<String>,
    /// Who lost, in the order in which it was found.
    pub losses: Vec<Loss>,
    /// Why nobody lost: the rounding log lacks the decision that would show who is right, or the referee came to what cannot be.
    pub incomplete_log: Option<String>,
}

/// What a dispute came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GameResult {
    /// Parties that lost before any game: no commitment, or none that its opening fits.
    pub absent: Vec<Loss>,
    /// The games, in order.
    pub games: Vec<Played>,
    /// The parties that nothing was found against.
    pub remaining: Vec<usize>,
    /// The root over all records that the remaining parties claim, if they claim one.
    pub upheld: Option<Digest>,
}

impl GameResult {
    /// Everybody who lost.
    pub fn losses(&self) -> impl Iterator<Item = &Loss> {
        self.absent.iter().chain(self.games.iter().flat_map(|game| &game.losses))
    }

    /// Whether somebody was convicted.
    pub fn convicts(&self) -> bool {
        self.losses().any(|loss| loss.reason.convicts())
    }
}
