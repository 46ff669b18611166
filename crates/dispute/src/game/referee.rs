//! The referee as a pure state machine: (state, message, time) -> state. No message panics, every game ends within its bound, and the same
//! events give the same result.
//!
//! All parties commit to their records before any party opens its commitment. Then parties that differ play two at a time, and
//! losers are out. So at most k - 1 games are played by k parties, and a party that is never wrong and always answers remains.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::breach::{Breach, Unsettled};
use super::duel::Duel;
use super::logs::Supply;
use super::message::{Answer, Answered, Asked, Question, Sealed, Statement, commitment, to_bytes};
use super::moves::{
    Bound, Clock, QUESTION_MAX, QuestionKind, Who, answer_max, bound, kind, largest, of, row,
};
use super::result::{GameResult, Loss, Played};
use super::rules::Rules;
use super::stage::Next;
use super::terms::{Clocks, Terms};
use super::tried::Tried;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::{Digest, hash};

/// A question that a party has not answered yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The party's index in the terms.
    pub party: usize,
    /// The question.
    pub asked: Asked,
    /// The time at which the party's time is up, in milliseconds since the start.
    pub deadline: u64,
    /// The most bytes of the sealed answer.
    pub limit: u64,
}

/// The outcome of a question.
pub(super) enum Said {
    Waiting,
    Answer(Answer),
    Declined,
    /// Time is up. The referee may tell how the party was asked.
    TimedOut(Option<Tried>),
    Lost(Breach),
}

pub(super) struct Pending {
    pub ask: Ask,
    since: u64,
    clock: Clock,
    pub said: Said,
}

/// The remaining time of a party in the current game.
#[derive(Clone, Copy)]
struct Left {
    moves: u64,
    replay: u64,
    run: u64,
}

/// A part of a log that the trainer supplied well, as the transcript of a game keeps it. The consequences follow from these
/// fields alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taken {
    /// [`Supplied::digest`].
    pub supplied: Digest,
    /// The number of slices of its log.
    pub slices: u64,
}

pub(super) enum Phase {
    /// Challengers of the logged profile get the logs that they lack.
    Logs(Supply),
    Commit,
    Reveal,
    Play,
    Over,
}

/// The referee of a dispute.
pub struct Referee {
    pub(super) rules: Rules,
    clocks: Clocks,
    bound: Bound,
    /// The most bytes of any answer.
    largest: u64,
    pub(super) phase: Phase,
    now: u64,
    turn: u32,
    pub(super) pending: Vec<Pending>,
    left: Vec<Left>,
    commitments: Vec<Option<Digest>>,
    roots: Vec<Option<Digest>>,
    /// Parties against which nothing was found.
    pub(super) standing: BTreeSet<usize>,
    duel: Option<Duel>,
    /// The question that the current game asked last.
    last: Option<QuestionKind>,
    /// Answers and bytes of the current game.
    spent: (u64, u64),
    /// The questions that parties answered, and digests of the answers, by party and turn. The digests show if a party gives two
    /// answers to one question.
    said: BTreeMap<(usize, u32), [Digest; 2]>,
    statements: Vec<(usize, Statement)>,
    /// Challengers whose game ended without a loss.
    unsettled: BTreeSet<usize>,
    /// The last part of a log that came.
    pub(super) taken: Option<Taken>,
    tried: Vec<Tried>,
    pub(super) result: GameResult,
}

impl Referee {
    /// The referee of a game with these terms.
    ///
    /// # Errors
    /// If the terms contradict themselves.
    pub fn new(terms: &Terms) -> Result<Referee, Malformed> {
        let rules = Rules::new(terms)?;
        let parties = rules.parties.len();
        let clocks = terms.clocks;
        let result =
            GameResult { absent: Vec::new(), games: Vec::new(), remaining: Vec::new(), upheld: None };
        Ok(Referee {
            bound: bound(&rules, &clocks),
            largest: largest(&rules),
            left: vec![Left { moves: 0, replay: 0, run: 0 }; parties],
            clocks,
            phase: Phase::Commit,
            now: 0,
            turn: 0,
            pending: Vec::new(),
            commitments: vec![None; parties],
            roots: vec![None; parties],
            standing: (0..parties).collect(),
            duel: None,
            last: None,
            spent: (0, 0),
            said: BTreeMap::new(),
            statements: Vec::new(),
            unsettled: BTreeSet::new(),
            taken: None,
            tried: Vec::new(),
            result,
            rules,
        })
    }

    /// The bounds of one game of two.
    pub fn bound(&self) -> Bound {
        self.bound
    }

    /// The rules that follow from the terms.
    #[doc(hidden)] // for the layers above
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// A referee that omits a check, for tests of tests.
    #[cfg(feature = "faults")]
    pub fn with_fault(mut self, fault: super::rules::Fault) -> Referee {
        self.rules.plant(fault);
        self
    }

    /// Asks everybody for a commitment. In the logged profile, each challenger is first asked which of the trainer's logs it
    /// lacks.
    pub fn start(&mut self, now: u64) {
        self.now = now;
        if self.turn == 0 && self.pending.is_empty() {
            match self.rules.is_logged() {
                true => self.supply_next(0),
                false => self.commit(),
            }
        }
    }

    pub(super) fn commit(&mut self) {
        let all: Vec<usize> = self.standing.iter().copied().collect();
        self.phase = Phase::Commit;
        self.wind(&all);
        self.ask(Question::Commit, &all);
    }

    /// Gives parties their full time.
    pub(super) fn wind(&mut self, parties: &[usize]) {
        let Clocks { moves, replay, .. } = self.clocks;
        for &party in parties {
            self.left[party] = Left { moves, replay, run: self.bound.supply.replay };
        }
    }

    /// The questions that nobody has answered yet.
    pub fn pending(&self) -> Vec<Ask> {
        let waiting = self.pending.iter().filter(|pending| matches!(pending.said, Said::Waiting));
        waiting.map(|pending| pending.ask.clone()).collect()
    }

    /// The result, once the dispute is over.
    pub fn result(&self) -> Option<&GameResult> {
        matches!(self.phase, Phase::Over).then_some(&self.result)
    }

    /// The state of the dispute, in a line for people.
    pub fn progress(&self) -> String {
        match (&self.phase, &self.duel) {
            (Phase::Logs(supply), _) => supply.progress(),
            (Phase::Commit, _) => format!("the parties commit to their {}", self.rules.whole().1),
            (Phase::Reveal, _) => "the parties open their commitments".into(),
            (Phase::Play, Some(duel)) => {
                let [a, b] = [0, 1].map(|side: usize| duel.sides[side].party);
                format!("parties {a} and {b}: {}", duel.found.last().map_or("", String::as_str))
            }
            _ => "over".into(),
        }
    }

    /// Takes bytes that came from a party at this time.
    pub fn receive(&mut self, party: usize, bytes: &[u8], now: u64) {
        self.taken = None;
        self.tick(now);
        if matches!(self.phase, Phase::Over) || party >= self.rules.parties.len() {
            return;
        }
        let Some(place) = self.pending.iter().position(|pending| pending.ask.party == party) else {
            return self.late(party, bytes);
        };
        if !matches!(self.pending[place].said, Said::Waiting) {
            return self.late(party, bytes);
        }
        let limit = self.pending[place].ask.limit;
        let oversize = |limit: u64| Said::Lost(Breach::TooLong { len: bytes.len(), limit });
        let said = match Sealed::<Answered>::from_bytes(bytes, self.largest, &self.rules.parties[party]) {
            Err(Malformed::TooLarge { .. }) => oversize(self.largest),
            Err(error) => Said::Lost(Breach::NoAnswer(error)),
            // An answer of an earlier turn may come again, and may have been larger.
            Ok(sealed) => match self.accepted(place, sealed.body) {
                Some(Said::Answer(_)) if bytes.len() as u64 > limit => oversize(limit),
                Some(said) => said,
                None => return,
            },
        };
        let turn = self.pending[place].ask.asked.turn;
        self.spent = (self.spent.0 + 1, self.spent.1 + bytes.len() as u64);
        self.settle(place, said);
        self.resolve();
        if self.taken.is_some() {
            // A transcript does not hold this answer.
            self.said.remove(&(party, turn));
        }
    }

    /// The result of a signed answer; `None` if it is an earlier answer again.
    fn accepted(&mut self, place: usize, body: Answered) -> Option<Said> {
        let Ask { party, asked, .. } = &self.pending[place].ask;
        let (party, turn) = (*party, asked.turn);
        if body.game == asked.game && body.turn < turn {
            return self
                .contradicts(party, &body)
                .then_some(Said::Lost(Breach::TwoAnswers { turn: body.turn }));
        }
        if body.game != asked.game || body.turn != turn || body.question != asked.digest() {
            return Some(Said::Lost(Breach::OtherQuestion));
        }
        // A challenger's reply to a part of a log depends on bytes that a verdict does not hold.
        if !matches!(asked.question, Question::Logs { supplied: Some(_) }) {
            self.said.insert((party, turn), [body.question, said_digest(&body)]);
        }
        if let Answer::Statement(statement) = &body.answer {
            let twice =
                self.statements.iter().any(|(who, other)| *who == party && statement.contradicts(other));
            if twice && statement.is_of(&self.rules.parties[party]) {
                return Some(Said::Lost(Breach::TwoStatements { step: statement.step }));
            }
            self.statements.push((party, statement.clone()));
        }
        Some(if body.answer == Answer::Decline { Said::Declined } else { Said::Answer(body.answer) })
    }

    /// True if an answer differs from the party's answer to the same question. An answer to a question that this referee never
    /// asked shows nothing: anybody with the referee's key can get one from an honest party.
    fn contradicts(&self, party: usize, body: &Answered) -> bool {
        let said = self.said.get(&(party, body.turn));
        said.is_some_and(|[question, said]| *question == body.question && *said != said_digest(body))
    }

    /// A message from a party that owes no answer. Two different answers to one question convict it; everything else is ignored.
    fn late(&mut self, party: usize, bytes: &[u8]) {
        let Ok(sealed) = Sealed::<Answered>::from_bytes(bytes, self.largest, &self.rules.parties[party])
        else {
            return;
        };
        if sealed.body.game != self.rules.game || !self.contradicts(party, &sealed.body) {
            return;
        }
        if let Some(place) = self.pending.iter().position(|pending| pending.ask.party == party) {
            self.pending[place].said = Said::Lost(Breach::TwoAnswers { turn: sealed.body.turn });
            return self.resolve();
        }
        if !self.standing.contains(&party) {
            return;
        }
        let loss = Loss::by(party, Breach::TwoAnswers { turn: sealed.body.turn });
        // The party waits for the other side of its game, or for the end of another game.
        if self.duel.as_ref().is_some_and(|duel| duel.sides.iter().any(|side| side.party == party)) {
            return self.finish(vec![loss], None);
        }
        self.standing.remove(&party);
        self.result.absent.push(loss);
    }

    /// Takes reports of how parties whose time is up were asked; the next [`Referee::tick`] attaches them.
    #[doc(hidden)] // for the layers above
    pub fn tried(&mut self, tried: &[Tried]) {
        self.tried = tried.to_vec();
    }

    /// Time passes: a party that has not answered in its time has lost that time.
    pub fn tick(&mut self, now: u64) {
        self.now = self.now.max(now);
        loop {
            let due =
                |pending: &Pending| matches!(pending.said, Said::Waiting) && pending.ask.deadline <= self.now;
            let Some(place) = self.pending.iter().position(due) else { break };
            let party = self.pending[place].ask.party;
            let tried = self.tried.iter().find(|tried| tried.party == party).cloned();
            self.settle(place, Said::TimedOut(tried));
            self.resolve();
        }
        self.tried.clear();
    }

    /// Notes the outcome of a question, and subtracts the time from the party's clock.
    pub(super) fn settle(&mut self, place: usize, said: Said) {
        let pending = &mut self.pending[place];
        let end = self.now.min(pending.ask.deadline);
        let used = end.saturating_sub(pending.since).saturating_sub(self.clocks.increment);
        let left = &mut self.left[pending.ask.party];
        match pending.clock {
            Clock::Moves => left.moves = left.moves.saturating_sub(used),
            Clock::Replay => left.replay = left.replay.saturating_sub(used),
            Clock::Run => left.run = left.run.saturating_sub(used),
        }
        pending.said = said;
    }

    /// Asks parties a question.
    pub(super) fn ask(&mut self, question: Question, parties: &[usize]) {
        let kind = kind(&question);
        let limit = answer_max(kind, of(&question), &self.rules);
        let asked = Asked::new(self.rules.game, self.turn, question);
        self.turn += 1;
        self.spent.1 += QUESTION_MAX * parties.len() as u64;
        let pending = |&party: &usize| {
            let left = self.left[party];
            let (clock, time) = match row(kind).clock {
                Clock::Run if self.rules.is_logged() && party > 0 => (Clock::Run, left.run),
                Clock::Run if self.rules.receipt().is_some() => (Clock::Replay, left.replay),
                Clock::Run | Clock::Moves => (Clock::Moves, left.moves),
                Clock::Replay => (Clock::Replay, left.replay),
            };
            let deadline = self.now.saturating_add(time).saturating_add(self.clocks.increment);
            let ask = Ask { party, asked: asked.clone(), deadline, limit };
            Pending { ask, since: self.now, clock, said: Said::Waiting }
        };
        self.pending = parties.iter().map(pending).collect();
    }

    /// Continues when everybody who was asked has answered or lost the right to.
    fn resolve(&mut self) {
        if self.pending.is_empty() || self.pending.iter().any(|pending| matches!(pending.said, Said::Waiting))
        {
            return;
        }
        let done = std::mem::take(&mut self.pending);
        match self.phase {
            Phase::Logs(_) => self.supplied(done),
            Phase::Commit | Phase::Reveal => self.opened(done),
            Phase::Play => self.played(done),
            Phase::Over => {}
        }
    }

    /// Takes commitments or openings that all asked parties gave.
    fn opened(&mut self, done: Vec<Pending>) {
        for Pending { ask: Ask { party, .. }, said, .. } in done {
            let fault = match said {
                Said::Answer(Answer::Commit { commitment }) if matches!(self.phase, Phase::Commit) => {
                    self.commitments[party] = Some(commitment);
                    None
                }
                Said::Answer(Answer::Reveal { salt, root }) if matches!(self.phase, Phase::Reveal) => {
                    self.roots[party] = Some(root);
                    self.opening_fault(party, &salt, &root)
                }
                said => Some(breach(said)),
            };
            if let Some(fault) = fault {
                self.standing.remove(&party);
                self.result.absent.push(Loss::by(party, fault));
            }
        }
        let all: Vec<usize> = self.standing.iter().copied().collect();
        if matches!(self.phase, Phase::Commit) && !all.is_empty() {
            self.phase = Phase::Reveal;
            return self.ask(Question::Reveal, &all);
        }
        self.next_game();
    }

    /// The fault of an opening: the party committed to another one, or the terms give another claim of the trainer.
    fn opening_fault(&self, party: usize, salt: &Digest, root: &Digest) -> Option<Breach> {
        if self.commitments[party] != Some(commitment(&self.rules.parties[party], salt, root)) {
            return Some(Breach::Opening);
        }
        if party > 0 {
            return None;
        }
        if let Some(receipt) = self.rules.receipt() {
            return (receipt.claimed != *root).then_some(Breach::OtherReceipt);
        }
        let claim = self.rules.run()?.claim.as_ref().filter(|claim| claim.root != *root)?;
        Some(if claim.head.is_some() { Breach::OtherRoot } else { Breach::ForsakenRoot })
    }

    /// Starts a game of the next two parties that differ, if there are any.
    fn next_game(&mut self) {
        let standing: Vec<usize> = self.standing.iter().copied().collect();
        let champion = standing.first().copied().filter(|&first| !self.rules.is_logged() || first == 0);
        let other = champion.and_then(|champion| {
            let differs = |party: &&usize| {
                self.roots[**party] != self.roots[champion] && !self.unsettled.contains(*party)
            };
            standing.iter().find(differs).copied()
        });
        let (Some(champion), Some(other)) = (champion, other) else { return self.over() };
        let [Some(a), Some(b)] = [self.roots[champion], self.roots[other]] else { return self.over() };
        self.phase = Phase::Play;
        self.spent = (0, 0);
        self.wind(&[champion, other]);
        self.last = None;
        self.put(Duel::new(&self.rules, [champion, other], [a, b]));
    }

    /// Asks the next question of a game, which the table must allow.
    fn put(&mut self, duel: Duel) {
        let (question, sides) = duel.question();
        let kind = kind(&question);
        let asked: Vec<usize> =
            (0..2).filter(|&side| sides[side]).map(|side| duel.sides[side].party).collect();
        let before = self.last.replace(kind);
        let again = before == Some(kind) && row(kind).who == Who::Either;
        let follows = before.is_none_or(|before| again || row(before).next.contains(&kind));
        let fits = (row(kind).who == Who::Both) == (asked.len() == 2);
        let within =
            self.spent.0 <= self.bound.messages && self.spent.1 <= self.bound.bytes + self.bound.log_bytes;
        self.duel = Some(duel);
        if !(follows && fits && within) {
            return self.finish(Vec::new(), Some(Unsettled::NoMove { asked: kind, before }));
        }
        self.ask(question, &asked);
    }

    /// Takes the answers of a game's turn.
    fn played(&mut self, done: Vec<Pending>) {
        let (Some(mut duel), Some(kind)) = (self.duel.take(), self.last) else { return self.over() };
        let mut answers = [None, None];
        let mut losses = Vec::new();
        let either = row(kind).who == Who::Either;
        for Pending { ask: Ask { party, .. }, said, .. } in done {
            let side = usize::from(duel.sides[1].party == party);
            match said {
                Said::Answer(answer) => answers[side] = Some(answer),
                // Both sides committed to the operands, so the other side may supply them.
                Said::Declined | Said::TimedOut(_) if either => {}
                said => losses.push(Loss::by(party, breach(said))),
            }
        }
        let next =
            if losses.is_empty() { duel.answered(&mut self.rules, answers) } else { Next::Lost(losses) };
        if matches!(next, Next::Ask) {
            return self.put(duel);
        }
        self.duel = Some(duel);
        match next {
            Next::Ask => {}
            Next::Lost(losses) => self.finish(losses, None),
            Next::IncompleteLog(leeway) => self.finish(Vec::new(), Some(Unsettled::NoDecision(leeway))),
            Next::Sample(operator) => self.finish(Vec::new(), Some(Unsettled::Sample(operator))),
            Next::Impossible(why) => self.finish(Vec::new(), Some(Unsettled::Impossible(why))),
        }
    }

    /// Ends a game.
    fn finish(&mut self, losses: Vec<Loss>, unsettled: Option<Unsettled>) {
        self.pending.clear();
        let Some(duel) = self.duel.take() else {
            // Somebody lost outside of a game.
            for loss in losses {
                self.standing.remove(&loss.party);
                self.result.absent.push(loss);
            }
            return self.next_game();
        };
        let parties = [0, 1].map(|side: usize| duel.sides[side].party);
        for loss in &losses {
            self.standing.remove(&loss.party);
        }
        if losses.is_empty() {
            self.unsettled.extend(parties.into_iter().max());
        }
        self.result.games.push(Played { parties, found: duel.found, losses, incomplete_log: unsettled });
        self.next_game();
    }

    pub(super) fn over(&mut self) {
        self.phase = Phase::Over;
        self.pending.clear();
        self.duel = None;
        self.result.remaining = self.standing.iter().copied().collect();
        let mut roots = self.result.remaining.iter().map(|&party| self.roots[party]);
        let first = roots.next().flatten();
        self.result.upheld = first.filter(|first| roots.all(|root| root == Some(*first)));
    }
}

/// The digest that tells two answers apart.
fn said_digest(body: &Answered) -> Digest {
    hash("tiebreak 2 answered", &to_bytes(body))
}

/// The breach of a party that gave no answer about its own commitment.
pub(super) fn breach(said: Said) -> Breach {
    match said {
        Said::Lost(breach) => breach,
        Said::TimedOut(tried) => Breach::TimeUp(tried),
        Said::Declined => Breach::Unopened,
        Said::Answer(_) => Breach::OtherKind,
        Said::Waiting => Breach::Silent,
    }
}
