//! A game whose parties are all in this process, with a referee between them.

use std::time::Instant;

use super::Party;
use super::error::PartyError;
use tiebreak_dispute::game::message::Sealed;
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::terms::Terms;
use tiebreak_dispute::game::verdict::{Event, GameVerdict};
use tiebreak_record::commit::keys::PrivateKey;

/// Plays a game to its end, by the clock. The parties are in the order of the terms. `turn` sees the referee after every answer.
///
/// # Errors
/// If the terms do not hold together, or a party cannot answer from its run.
///
/// # Panics
/// If there are fewer parties than the terms name.
pub fn play(
    terms: &Terms,
    referee_key: &PrivateKey,
    parties: &mut [Party],
    mut turn: impl FnMut(&Referee),
) -> Result<GameVerdict, PartyError> {
    let mut referee = Referee::new(terms)?;
    let begin = Instant::now();
    let now = || u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    let mut events = Vec::new();
    referee.start(0);
    loop {
        if let Some(result) = referee.result() {
            return Ok(GameVerdict::new(terms.clone(), events, result, referee_key));
        }
        for ask in referee.pending() {
            let question = Sealed::new(ask.asked, referee_key).to_bytes();
            let answer = parties[ask.party].reply(&question)?;
            let at = now();
            referee.receive(ask.party, &answer, at);
            events.push(Event::message(at, ask.party, &answer).kept(&referee));
            turn(&referee);
        }
    }
}
