//! A game between players who may be dishonest, by a seeded scheduler that delays, repeats and loses messages.

use tiebreak_dispute::game::message::{Answer, Asked};
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::result::GameResult;
use tiebreak_dispute::game::rules::Fault;
use tiebreak_dispute::game::terms::{Claim, ClaimedRun, Clocks, Terms};
use tiebreak_dispute::game::verdict::{Event, GameVerdict};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::proven::Base64;
use tiebreak_run::run::transcript;

use crate::player::Player;

/// A player's change to an honest answer of its own world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trick {
    /// No change: the player lies only in its world.
    None,
    /// A bit of the answer's values is flipped, from this turn on.
    FlipValue { turn: u32 },
    /// A hash of a proof is changed.
    FlipProof { turn: u32 },
    /// Two answers to one question.
    Twice { turn: u32 },
    /// Bytes that are no message.
    Garbage { turn: u32 },
    /// A message beyond all limits.
    Huge { turn: u32 },
    /// The answer to the previous question.
    Old { turn: u32 },
    /// No answer.
    Silent { turn: u32 },
    /// The player declines.
    Decline { turn: u32 },
    /// From this turn on the player gives an honest party's answers.
    Copy { turn: u32 },
    /// Every answer comes in the last moment.
    Stall,
}

impl Trick {
    /// Every trick, at every turn that a toy's game has.
    pub fn all() -> impl Iterator<Item = Trick> {
        let once = |number: &u64| *number < 11 || Trick::numbered(*number).turn().is_some();
        let tricks = (0..14 * 11).filter(once).map(Trick::numbered);
        tricks.filter(|trick| *trick != Trick::Copy { turn: 0 })
    }

    /// The turn at which the trick begins; `None` for tricks without a turn.
    pub fn turn(self) -> Option<u32> {
        match self {
            Trick::None | Trick::Stall => None,
            Trick::FlipValue { turn }
            | Trick::FlipProof { turn }
            | Trick::Twice { turn }
            | Trick::Garbage { turn }
            | Trick::Huge { turn }
            | Trick::Old { turn }
            | Trick::Silent { turn }
            | Trick::Decline { turn }
            | Trick::Copy { turn } => Some(turn),
        }
    }

    /// The trick with this number.
    pub fn numbered(number: u64) -> Trick {
        let turn = (number / 11 % 14) as u32;
        match number % 11 {
            0 => Trick::None,
            1 => Trick::FlipValue { turn },
            2 => Trick::FlipProof { turn },
            3 => Trick::Twice { turn },
            4 => Trick::Garbage { turn },
            5 => Trick::Huge { turn },
            6 => Trick::Old { turn },
            7 => Trick::Silent { turn },
            8 => Trick::Decline { turn },
            9 => Trick::Copy { turn },
            _ => Trick::Stall,
        }
    }
}

/// A player's tricks: the first, and from the second's turn on the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tricks(pub Trick, pub Trick);

impl Tricks {
    /// No trick, or one.
    pub fn one(trick: Trick) -> Tricks {
        Tricks(trick, Trick::None)
    }

    /// The trick of a turn.
    pub fn at(self, turn: u32) -> Trick {
        match self.1.turn() {
            Some(from) if turn >= from => self.1,
            _ => self.0,
        }
    }
}

/// A small generator of numbers.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }
}

fn flip(bytes: &mut Base64, at: u64) {
    let len = bytes.0.len() as u64;
    if let Some(byte) = bytes.0.get_mut((at % len.max(1)) as usize) {
        *byte ^= 1 << (at % 8);
    }
}

/// An answer with another value in it.
pub fn flipped(answer: Answer, at: u64) -> Answer {
    match answer {
        Answer::Commit { mut commitment } => {
            commitment.0[0] ^= 1;
            Answer::Commit { commitment }
        }
        Answer::Reveal { salt, mut root } => {
            root.0[at as usize % 32] ^= 1;
            Answer::Reveal { salt, root }
        }
        Answer::Children { mut values } => {
            flip(&mut values, at);
            Answer::Children { values }
        }
        Answer::Record { mut record, before } => {
            flip(&mut record, at);
            Answer::Record { record, before }
        }
        Answer::Statement(mut statement) => {
            statement.trace.0[at as usize % 32] ^= 1;
            Answer::Statement(statement)
        }
        Answer::Root { mut root } => {
            root.0[at as usize % 32] ^= 1;
            Answer::Root { root }
        }
        Answer::Slice { mut bytes } => {
            flip(&mut bytes, at);
            Answer::Slice { bytes }
        }
        Answer::Total { mut value } => {
            flip(&mut value, at);
            Answer::Total { value }
        }
        Answer::Operands { mut inputs } => {
            let n = inputs.len().max(1);
            if let Some(input) = inputs.get_mut(at as usize % n) {
                flip(&mut input.bytes, at);
            }
            Answer::Operands { inputs }
        }
        Answer::Logits { window, mut logits } => {
            flip(&mut logits.bytes, at);
            Answer::Logits { window, logits }
        }
        Answer::Samples { files, mut slices } => {
            let n = slices.len().max(1);
            if let Some(slice) = slices.get_mut(at as usize % n) {
                flip(&mut slice.bytes, at);
            }
            Answer::Samples { files, slices }
        }
        Answer::Binding { mut outputs, siblings, kept } => {
            let n = outputs.len().max(1);
            if let Some(output) = outputs.get_mut(at as usize % n) {
                output.0[0] ^= 1;
            }
            Answer::Binding { outputs, siblings, kept }
        }
        other => other,
    }
}

/// An answer with a proof that does not hold.
pub fn unproven(answer: Answer, at: u64) -> Answer {
    match answer {
        Answer::Record { record, before: Some(mut before) } => {
            match before.proof.first_mut() {
                Some(hash) => hash.0[at as usize % 32] ^= 1,
                None => before.index += 1,
            }
            Answer::Record { record, before: Some(before) }
        }
        Answer::Operands { mut inputs } => {
            let n = inputs.len().max(1);
            if let Some(input) = inputs.get_mut(at as usize % n) {
                match input.commitment.proof.first_mut() {
                    Some(hash) => hash.0[0] ^= 1,
                    None => input.commitment.digest.0[0] ^= 1,
                }
            }
            Answer::Operands { inputs }
        }
        Answer::Logits { window, mut logits } => {
            logits.commitment.digest.0[0] ^= 1;
            Answer::Logits { window, logits }
        }
        Answer::Binding { outputs, mut siblings, kept } => {
            match siblings.0.first_mut() {
                Some(hash) => hash[0] ^= 1,
                None => siblings.0.push([0; 32]),
            }
            Answer::Binding { outputs, siblings, kept }
        }
        other => flipped(other, at),
    }
}

/// The messages that a player sends as its answer, each so many milliseconds after the question; none if it is silent.
fn sends(
    player: &Player,
    trick: Trick,
    asked: &Asked,
    old: &[u8],
    time: u64,
    at: u64,
) -> Vec<(u64, Vec<u8>)> {
    let honest = || player.answer(&asked.question);
    let turn = asked.turn;
    let seal = |answer: Answer| player.seal(asked, answer);
    match trick {
        Trick::FlipValue { turn: from } if turn >= from => vec![(1, seal(flipped(honest(), at)))],
        Trick::FlipProof { turn: from } if turn >= from => vec![(1, seal(unproven(honest(), at)))],
        Trick::Twice { turn: from } if turn == from => {
            vec![(1, seal(honest())), (1, seal(flipped(honest(), at)))]
        }
        Trick::Garbage { turn: from } if turn == from => {
            vec![(1, vec![(at % 256) as u8; (at % 300) as usize])]
        }
        Trick::Huge { turn: from } if turn == from => vec![(1, vec![b'['; 600_000])],
        Trick::Old { turn: from } if turn == from => vec![(1, old.to_vec())],
        Trick::Silent { turn: from } if turn >= from => Vec::new(),
        Trick::Decline { turn: from } if turn >= from => vec![(1, seal(Answer::Decline))],
        Trick::Copy { turn: from } if turn >= from => vec![(1, seal(player.truth(&asked.question)))],
        Trick::Stall => vec![(time.saturating_sub(1), seal(honest()))],
        _ => vec![(1, seal(honest()))],
    }
}

/// A referee is killed about once in so many events.
const KILLED_ONCE_IN: u64 = 12;

/// A referee that has asked its first questions.
fn begun(terms: &Terms, fault: Option<Fault>) -> Referee {
    let mut referee = Referee::new(terms).unwrap();
    if let Some(fault) = fault {
        referee = referee.with_fault(fault);
    }
    referee.start(0);
    referee
}

/// A referee that replaces a killed one: it is given all events again, and has the same state.
fn resumed(terms: &Terms, events: &[Event], fault: Option<Fault>, killed: &Referee) -> Referee {
    let mut referee = begun(terms, fault);
    events.iter().for_each(|event| event.feed(&mut referee));
    assert_eq!((referee.pending(), referee.result()), (killed.pending(), killed.result()));
    referee
}

/// The measurements of a game.
pub struct Seen {
    pub result: GameResult,
    pub verdict: GameVerdict,
    pub messages: u64,
    pub bytes: u64,
    pub end: u64,
    /// The number of turns.
    pub turns: u32,
}

/// A game removes a party, unless a rounding log lacks what decides it; a referee that leaves a check out may reach an impossible
/// result.
fn removing_somebody(result: &GameResult, may_not: bool) -> GameResult {
    let nobody = result.games.iter().any(|game| game.losses.is_empty());
    assert!(may_not || !nobody, "a game removes nobody: {result:?}");
    result.clone()
}

/// Plays a game to its end. `seed` decides delays, the messages that come twice, and when the referee is killed. `fault`: a check
/// that the referee leaves out.
pub fn play(
    terms: &Terms,
    referee_key: &PrivateKey,
    players: &[(Player, Tricks)],
    seed: u64,
    fault: Option<Fault>,
) -> Seen {
    let mut referee = begun(terms, fault);
    let (mut numbers, mut kills) = (Numbers(seed), Numbers(!seed));
    let mut now = 0;
    let mut events: Vec<Event> = Vec::new();
    let mut old: Vec<Vec<u8>> = vec![b"{}".to_vec(); players.len()];
    let (mut messages, mut bytes, mut turns) = (0, 0, 0);
    while referee.result().is_none() {
        let pending = referee.pending();
        assert!(!pending.is_empty(), "a game that is not over waits for somebody");
        let mut mail: Vec<(u64, usize, Vec<u8>)> = Vec::new();
        for ask in &pending {
            let (player, tricks) = &players[ask.party];
            let trick = tricks.at(ask.asked.turn);
            let time = ask.deadline - now;
            let sent = sends(player, trick, &ask.asked, &old[ask.party], time, numbers.below(1 << 30));
            let honest = trick == Trick::None || trick == Trick::Stall;
            for (after, message) in sent {
                let delay = if honest && trick != Trick::Stall { numbers.below(20) } else { 0 };
                // A network delivers some messages twice.
                if numbers.below(8) == 0 {
                    mail.push((now + after + delay + numbers.below(5), ask.party, message.clone()));
                }
                mail.push((now + after + delay, ask.party, message));
            }
        }
        mail.sort_by_key(|(at, party, _)| (*at, *party));
        if mail.is_empty() {
            // Nobody answers: time passes.
            now = pending.iter().map(|ask| ask.deadline).min().unwrap();
            events.push(Event::tick(now));
            referee.tick(now);
            continue;
        }
        let turn = pending[0].asked.turn;
        turns = turn + 1;
        for (at, party, message) in mail {
            let first_deadline = referee.pending().iter().map(|ask| ask.deadline).min();
            if first_deadline.is_some_and(|deadline| at >= deadline) {
                continue; // the tick below comes first
            }
            now = now.max(at);
            messages += 1;
            bytes += message.len() as u64;
            referee.receive(party, &message, now);
            events.push(Event::message(now, party, &message).kept(&referee));
            old[party] = message;
            if kills.below(KILLED_ONCE_IN) == 0 {
                referee = resumed(terms, &events, fault, &referee);
            }
        }
        // A silent party loses its time.
        let waiting: Vec<u64> =
            referee.pending().iter().filter(|ask| ask.asked.turn == turn).map(|ask| ask.deadline).collect();
        if let Some(&deadline) = waiting.iter().min() {
            now = now.max(deadline);
            events.push(Event::tick(now));
            referee.tick(now);
        }
    }
    let result = removing_somebody(referee.result().unwrap(), terms.claim.is_some() || fault.is_some());
    let verdict = GameVerdict::new(terms.clone(), events, &result, referee_key);
    Seen { result, verdict, messages, bytes, end: now, turns }
}

/// Terms for players of a run; for a logged run, about its records.
pub fn terms(run: &tiebreak_run::run::dir::Run, keys: &[PrivateKey], referee: &PrivateKey) -> Terms {
    let public: Vec<_> = keys.iter().map(PrivateKey::public).collect();
    let clocks = Clocks { moves: 20_000, increment: 2_000, replay: 60_000 };
    let terms = Terms::new(
        run.file.summary().computation(),
        (run.job_text.clone(), run.program_file.clone()),
        &public,
        &referee.public(),
        clocks,
        Digest([9; 32]),
    );
    if run.job().rounding.is_none() {
        return terms;
    }
    let (transcript, _) = transcript::read(&run.layout.transcript()).unwrap();
    terms.claiming(Claim {
        run: ClaimedRun::of(run.file.summary()),
        root: transcript.root(transcript.leaves.len()),
        head: None,
    })
}

/// A player's key.
pub fn key(number: u8) -> PrivateKey {
    PrivateKey::generate(&format!("party{number}"), [number + 1; 32]).unwrap()
}
