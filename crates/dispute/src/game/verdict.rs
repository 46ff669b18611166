//! The file of a finished dispute: terms, everything that came from parties with its time, and the result, signed by the referee.
//!
//! Every reader of the file runs the same state machine again. Convictions need no trust in the referee, since they follow from
//! bytes that the parties signed. A forfeit rests on the referee's word.

use serde::{Deserialize, Serialize};

use super::message::{from_bytes, to_bytes};
use super::referee::{Referee, Taken};
use super::result::{GameResult, Told};
use super::terms::{TERMS_MAX, Terms};
use super::tried::Tried;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::proven::Base64;

/// The most bytes of a file.
pub const GAME_VERDICT_MAX: u64 = 2 * TERMS_MAX;
/// The version of these files.
pub const FORMAT: u32 = 1;

/// An event of a game.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// The time, in milliseconds since the start.
    pub at: u64,
    /// The party whose message it is; `None` where only time passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub party: Option<usize>,
    /// The message's bytes as they came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Base64>,
    /// A part of a log that the trainer supplied well, in place of a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supplied: Option<Taken>,
    /// The attempts to ask the parties that had not answered, where time passed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<Tried>,
}

impl Event {
    /// A message of a party.
    pub fn message(at: u64, party: usize, bytes: &[u8]) -> Event {
        Event {
            at,
            party: Some(party),
            message: Some(Base64(bytes.to_vec())),
            supplied: None,
            tried: Vec::new(),
        }
    }

    /// A part of a log that a trainer supplied well.
    #[doc(hidden)] // for the layers above
    pub fn taken(at: u64, party: usize, taken: Taken) -> Event {
        Event { at, party: Some(party), message: None, supplied: Some(taken), tried: Vec::new() }
    }

    /// Time that passed.
    pub fn tick(at: u64) -> Event {
        Event::tick_after(at, Vec::new())
    }

    /// Time that passed, with the referee's attempts to ask.
    #[doc(hidden)] // for the layers above
    pub fn tick_after(at: u64, tried: Vec<Tried>) -> Event {
        Event { at, party: None, message: None, supplied: None, tried }
    }

    /// Gives the event to a referee.
    #[doc(hidden)] // for the layers above
    pub fn feed(&self, referee: &mut Referee) {
        match (self.party, &self.message, self.supplied) {
            (Some(party), Some(message), _) => referee.receive(party, &message.0, self.at),
            (Some(party), None, Some(taken)) => referee.receive_taken(party, taken, self.at),
            _ => {
                referee.tried(&self.tried);
                referee.tick(self.at);
            }
        }
    }

    /// The event in the form that a transcript keeps, after it was given to the referee.
    #[doc(hidden)] // for the layers above
    pub fn kept(self, referee: &Referee) -> Event {
        match (self.party, referee.taken()) {
            (Some(party), Some(taken)) => Event::taken(self.at, party, taken),
            _ => self,
        }
    }
}

/// The verdict of a finished dispute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GameVerdict {
    /// The version of the format, 1.
    pub game: u32,
    /// The terms.
    pub terms: Terms,
    /// Everything that happened, in order.
    pub events: Vec<Event>,
    /// The result, in words.
    pub result: Told,
    /// The referee's Ed25519 signature of all fields before it.
    pub signature: Base64,
}

impl GameVerdict {
    /// The verdict of a dispute, signed by the referee.
    pub fn new(terms: Terms, events: Vec<Event>, result: &GameResult, key: &PrivateKey) -> GameVerdict {
        let result = result.told();
        let mut verdict = GameVerdict { game: FORMAT, terms, events, result, signature: Base64(Vec::new()) };
        verdict.signature = Base64(key.sign(&verdict.signed()).to_vec());
        verdict
    }

    /// The signed bytes: a domain and the file without its signature.
    fn signed(&self) -> Vec<u8> {
        let unsigned = GameVerdict { signature: Base64(Vec::new()), ..self.clone() };
        [b"tiebreak 2 game verdict\n", to_bytes(&unsigned).as_slice()].concat()
    }

    /// The verdict's only encoding.
    pub fn to_bytes(&self) -> Vec<u8> {
        to_bytes(self)
    }

    /// Parses the only encoding.
    ///
    /// # Errors
    /// If the bytes are another encoding, too many, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<GameVerdict, Malformed> {
        let verdict: GameVerdict = from_bytes("game verdict", bytes, GAME_VERDICT_MAX)?;
        if verdict.game != FORMAT {
            return Err(Malformed::invalid(
                "game verdict",
                format!("format {} is not {FORMAT}", verdict.game),
            ));
        }
        Ok(verdict)
    }

    /// The error for events that give another result than the file says.
    fn other_result(&self, given: Option<&Told>) -> String {
        let numbers = |result: &Told| (result.losses().count(), result.remaining.len());
        let (lost, left) = numbers(&self.result);
        match given.map(numbers) {
            None => format!("its events do not end the game; the file says that {lost} parties lost"),
            Some(same) if same == (lost, left) => {
                format!("its events give other words than the file for the same {lost} losses")
            }
            Some((losses, remaining)) => format!(
                "its events give {losses} losses and leave {remaining} parties; the file says {lost} and {left}"
            ),
        }
    }

    /// Plays all events again and compares the result; returns the referee at the game's end.
    ///
    /// # Errors
    /// If the referee of the terms did not sign the file, the terms give another initial state, or the events give another
    /// result.
    pub fn check(&self) -> Result<Referee, Malformed> {
        self.check_watched(&mut |_, _| {})
    }

    /// Plays all events again and compares the result; returns the referee at the game's end. `watch`: bytes of the initial state
    /// that were made and of messages that were played, and their total.
    ///
    /// # Errors
    /// As [`GameVerdict::check`].
    #[doc(hidden)] // for the layers above
    pub fn check_watched(&self, watch: &mut dyn FnMut(u64, u64)) -> Result<Referee, Malformed> {
        let wrong = |why: String| Malformed::invalid("game verdict", why);
        let mut referee = Referee::new(&self.terms)?;
        let signature = self.signature.0.as_slice();
        let signature = signature
            .try_into()
            .map_err(|_| wrong(format!("its signature has {} bytes; 64 are expected", signature.len())))?;
        let key = &referee.rules().referee;
        if !key.verifies(&self.signed(), signature) {
            return Err(wrong(format!("{}, the referee of its terms, did not sign it", key.to_text())));
        }
        let bytes = |event: &Event| event.message.as_ref().map_or(0, |message| message.0.len() as u64);
        let (mut done, mut all) = (0, self.events.iter().map(bytes).sum::<u64>());
        let messages = all;
        referee.rules().check_initial_watched(&mut |made, state| {
            (done, all) = (made, state.saturating_add(messages));
            watch(done, all);
        })?;
        referee.start(0);
        for event in &self.events {
            event.feed(&mut referee);
            done = done.saturating_add(bytes(event));
            watch(done, all);
        }
        let told = referee.result().map(GameResult::told);
        if told.as_ref() != Some(&self.result) {
            return Err(wrong(self.other_result(told.as_ref())));
        }
        Ok(referee)
    }
}
