//! The ends of games, and the worth of a result.
//!
//! *Convicted*: anybody can re-derive the loss from bytes that the party signed. *Forfeited*: the referee alone says so;
//! nobody else can know which message arrived at which time. A loss never certifies the other party.

use serde::{Deserialize, Serialize};

use super::breach::{Breach, Unsettled};
pub use super::reason::Reason;
use tiebreak_record::commit::digest::Digest;

/// A party that is out. `W` is the breach by which it lost; files hold its sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss<W = Breach> {
    /// The party's index in the terms.
    pub party: usize,
    /// The reason.
    pub reason: Reason,
    /// The breach.
    pub what: W,
}

impl Loss {
    /// The loss of a party by a breach.
    pub(crate) fn by(party: usize, what: Breach) -> Loss {
        Loss { party, reason: what.reason(), what }
    }
}

/// A game of two parties that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Played<W = Breach, U = Unsettled> {
    /// The two parties.
    pub parties: [usize; 2],
    /// The findings, level by level.
    pub found: Vec<String>,
    /// The losers, in the order in which they were found.
    pub losses: Vec<Loss<W>>,
    /// The reason why nobody lost: the rounding log lacks the decision that would show who is right, or the referee reached an
    /// impossible state.
    pub incomplete_log: Option<U>,
}

/// The result of a dispute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GameResult<W = Breach, U = Unsettled> {
    /// Parties that lost before any game: they gave no commitment, or one that their opening does not fit.
    pub absent: Vec<Loss<W>>,
    /// The games, in order.
    pub games: Vec<Played<W, U>>,
    /// The parties against which nothing was found.
    pub remaining: Vec<usize>,
    /// The root over all records that the remaining parties claim, if they claim one.
    pub upheld: Option<Digest>,
}

/// A result as files hold it. Anybody who plays the events again gets the values.
pub type Told = GameResult<String, String>;

impl<W, U> GameResult<W, U> {
    /// Everybody who lost.
    pub fn losses(&self) -> impl Iterator<Item = &Loss<W>> {
        self.absent.iter().chain(self.games.iter().flat_map(|game| &game.losses))
    }

    /// True if somebody was convicted.
    pub fn convicts(&self) -> bool {
        self.losses().any(|loss| loss.reason.convicts())
    }
}

impl GameResult {
    /// The result in words.
    pub fn told(&self) -> Told {
        let losses = |losses: &[Loss]| {
            let told =
                |loss: &Loss| Loss { party: loss.party, reason: loss.reason, what: loss.what.to_string() };
            losses.iter().map(told).collect()
        };
        let game = |game: &Played| Played {
            parties: game.parties,
            found: game.found.clone(),
            losses: losses(&game.losses),
            incomplete_log: game.incomplete_log.as_ref().map(Unsettled::to_string),
        };
        GameResult {
            absent: losses(&self.absent),
            games: self.games.iter().map(game).collect(),
            remaining: self.remaining.clone(),
            upheld: self.upheld,
        }
    }
}
