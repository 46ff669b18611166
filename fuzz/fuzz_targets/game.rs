//! The dispute game: terms, messages and verdicts from bytes; and games of two parties whose records agree except for a lie. Each
//! answer is the paper's, any variant of answers with fields from the input, or any bytes. Every game ends, nothing panics, and a
//! party that answers by its paper alone never contradicts itself.
#![no_main]

mod paper;

use paper::{Paper, Source};
use tiebreak_dispute::game::breach::Unsettled;
use tiebreak_dispute::game::message::{
    Answer, Answered, Asked, Question, Sealed, Statement, from_bytes, to_bytes,
};
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::result::Reason;
use tiebreak_dispute::game::terms::Terms;
use tiebreak_dispute::game::verdict::GameVerdict;

/// The most turns of a game that are played.
const TURNS: usize = 200;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    parsed(bytes);
    played(bytes);
});

/// Parses any bytes as the files and network messages that the game reads.
fn parsed(bytes: &[u8]) {
    if let Ok(terms) = Terms::from_bytes(bytes) {
        assert_eq!(terms.to_bytes(), bytes);
        let _ = Referee::new(&terms);
    }
    if let Ok(verdict) = GameVerdict::from_bytes(bytes) {
        assert!(verdict.check().is_err(), "random bytes are no referee's verdict");
    }
    let _ = Sealed::<Asked>::from_bytes(bytes, 1 << 16, &paper::key(3).public());
    for parsed in [
        from_bytes::<Question>("question", bytes, 1 << 16).map(|q| to_bytes(&q)),
        from_bytes::<Answer>("answer", bytes, 1 << 16).map(|a| to_bytes(&a)),
        from_bytes::<Statement>("statement", bytes, 1 << 16).map(|s| to_bytes(&s)),
    ] {
        assert!(parsed.is_err() || parsed.is_ok_and(|again| again == bytes));
    }
}

fn played(bytes: &[u8]) {
    let mut source = Source(bytes);
    let papers = Paper::pair(&mut source);
    let terms = papers[0].terms();
    let mut referee = Referee::new(&terms).expect("terms that hold together");
    referee.start(0);
    let mut odd = [false; 2];
    let mut now = 0;
    for _ in 0..TURNS {
        let Some(ask) = referee.pending().into_iter().next() else { break };
        now += 7;
        let (party, asked) = (ask.party, &ask.asked);
        let answer = match source.byte() {
            // After the end of the input, answers are the papers'.
            0..200 => papers[party].answer(asked),
            200..250 => paper::any_answer(&mut source),
            _ => {
                odd[party] = true;
                referee.receive(party, source.rest(), now);
                continue;
            }
        };
        odd[party] |= answer != papers[party].answer(asked);
        let Asked { game, turn, .. } = *asked;
        let answered = Answered { game, turn, question: asked.digest(), answer };
        referee.receive(party, &Sealed::new(answered, &paper::key(party as u8 + 1)).to_bytes(), now);
    }
    referee.tick(u64::MAX);
    let result = referee.result().expect("time ends every game");
    for game in result.games.iter().filter(|game| game.losses.is_empty()) {
        assert!(matches!(game.incomplete_log, Some(Unsettled::NoDecision(_))), "{game:?}");
    }
    // Tensors on paper are made up, so a value may be wrong. But a party that answers by one paper never contradicts itself.
    for loss in result.losses().filter(|loss| !odd[loss.party]) {
        let kept =
            matches!(loss.reason, Reason::WrongValue | Reason::OtherLog | Reason::Refusal | Reason::Timeout);
        assert!(kept, "{loss:?}");
    }
}
