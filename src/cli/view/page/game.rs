//! The verdict of a dispute game as a page.

use std::collections::BTreeMap;

use super::verdict::{element_text, index_of, type_text};
use super::{Page, Tone};
use crate::cli::view::disputed::Disputed;
use crate::cli::view::parties::Parties;
use tiebreak_contract::arith::words::word_from_bytes;
use tiebreak_dispute::game::message::{Answer, Answered, Field, Need, Question, Sealed, Subject, Tree};
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::result::{GameResult, Loss};
use tiebreak_dispute::game::rules::Rules;
use tiebreak_dispute::game::search::{Join, children};
use tiebreak_dispute::game::terms::Terms;
use tiebreak_dispute::game::verdict::{Event, GameVerdict};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::proven::Base64;
use tiebreak_record::commit::tensor::SLICE_BYTES;
use tiebreak_run::run::shell;

/// A question, and what came of it by party: when, how many bytes, and the answer if it is one.
struct Turn {
    question: Question,
    answers: BTreeMap<usize, (u64, usize, Option<Answer>)>,
}

/// A game that was played again.
struct Game<'t> {
    terms: &'t Terms,
    people: &'t Parties,
    names: Vec<String>,
    referee: Referee,
    turns: BTreeMap<u32, Turn>,
}

/// The statements of a game's two parties about one place.
struct Difference {
    place: String,
    values: [String; 2],
}

impl Game<'_> {
    /// Plays a game again, and keeps what was asked and answered.
    fn replayed<'t>(terms: &'t Terms, events: &[Event], people: &'t Parties) -> Result<Game<'t>, Malformed> {
        let (parties, _) = terms.keys()?;
        let mut referee = Referee::new(terms)?;
        let mut turns: BTreeMap<u32, Turn> = BTreeMap::new();
        referee.start(0);
        for event in events {
            for ask in referee.pending() {
                // Of the supply of logs, which may have thousands of turns, the page says what came of it.
                if matches!(ask.asked.question, Question::Logs { .. } | Question::Supply { .. }) {
                    continue;
                }
                let turn = Turn { question: ask.asked.question, answers: BTreeMap::new() };
                turns.entry(ask.asked.turn).or_insert(turn);
            }
            if let (Some(party), Some(Base64(bytes))) = (event.party, &event.message) {
                let ask = referee.pending().into_iter().find(|ask| ask.party == party);
                if let (Some(ask), Some(key)) = (ask, parties.get(party)) {
                    let sealed = Sealed::<Answered>::from_bytes(bytes, ask.limit, key).ok();
                    let answer = sealed.map(|sealed| sealed.body.answer);
                    if let Some(turn) = turns.get_mut(&ask.asked.turn) {
                        turn.answers.insert(party, (event.at, bytes.len(), answer));
                    }
                }
            }
            event.feed(&mut referee);
        }
        let names = (0..parties.len()).map(|party| people.name(party)).collect();
        Ok(Game { terms, people, names, referee, turns })
    }

    fn rules(&self) -> &Rules {
        self.referee.rules()
    }

    fn name(&self, party: usize) -> &str {
        self.names.get(party).map_or("", String::as_str)
    }

    /// The turns in which both of two parties opened a place: the turn, its question, and their answers.
    fn both(&self, parties: [usize; 2]) -> impl Iterator<Item = (u32, &Question, [&Answer; 2])> {
        self.turns.iter().filter_map(move |(number, turn)| {
            let [a, b] =
                parties.map(|party| turn.answers.get(&party).and_then(|(_, _, answer)| answer.as_ref()));
            Some((*number, &turn.question, [a?, b?]))
        })
    }

    /// The first part below a node that two parties differ in.
    fn level(&self, tree: Tree, first: u64, count: u64, values: [&[u8]; 2]) -> Option<Difference> {
        let (_, leaf, join) = self.rules().shape(tree);
        let parts = children(first, count, leaf);
        let size = join.bytes();
        let at = |side: usize, i: usize| values[side].get(i * size..(i + 1) * size);
        let i = (0..parts.len()).find(|&i| at(0, i) != at(1, i))?;
        let (first, count) = parts[i];
        let place = match count {
            1 => format!("leaf {first}"),
            _ => format!("leaves {first} to {}", first + count - 1),
        };
        Some(Difference {
            place,
            values: [0, 1].map(|side| value_text(join, at(side, i).unwrap_or_default())),
        })
    }

    /// The first element that two parties differ in, within a slice of a tensor.
    fn element(&self, subject: Subject, slice: u64, bytes: [&[u8]; 2]) -> Option<Difference> {
        let (_, ty) = self.rules().tensor(subject)?;
        let size = ty.dtype.size();
        let at = bytes[0].iter().zip(bytes[1]).position(|(a, b)| a != b)?;
        let element = (usize::try_from(slice).ok()? * SLICE_BYTES + at) / size;
        let begin = (element * size).checked_sub(usize::try_from(slice).ok()? * SLICE_BYTES)?;
        let values = bytes.map(|bytes| match bytes.get(begin..begin + size) {
            Some(bytes) => element_text(ty.dtype, word_from_bytes(ty.dtype, bytes)),
            None => "it goes on in the next slice".into(),
        });
        let place = format!(
            "element {element}, {:?} by rows, of {}: {}",
            index_of(&ty.shape, element),
            self.rules().describe(subject),
            type_text(&ty)
        );
        Some(Difference { place, values })
    }

    fn tree_text(&self, tree: Tree) -> String {
        let samples = self.rules().is_of_predictions();
        match tree {
            Tree::Transcript => "records".into(),
            Tree::Batch { step } => format!("batch of step {step}"),
            Tree::Gradients { step } => format!("gradients of step {step}'s micro-batches"),
            Tree::Trace { step } => format!("operators of step {step}"),
            Tree::Receipt if samples => {
                "roots of the receipt: over traces, and over samples and logits".into()
            }
            Tree::Receipt => "roots of the receipt: over traces, and over tokens and rows".into(),
            Tree::Rows if samples => "samples and their logits".into(),
            Tree::Rows => "tokens and rows of the answer".into(),
            Tree::Passes if samples => "passes of the samples".into(),
            Tree::Passes => "windows of the answer".into(),
            Tree::Pass { pass } => format!("operators of {}", self.rules().pass_in_words(pass)),
            Tree::Tensor { subject } => format!("bytes of {}", self.rules().describe(subject)),
            Tree::Terms { subject, element, .. } => {
                format!("terms of element {element} of {}", self.rules().describe(subject))
            }
        }
    }

    fn question_text(&self, question: &Question) -> String {
        let of = |subject: &Subject| self.rules().describe(*subject);
        match question {
            Question::Commit => format!("commit to your {}", self.people.claimed()),
            Question::Logs { .. } => "which of the rounding logs you lack".into(),
            Question::Supply { place } => {
                format!("the log of step {} from slice {} on", place.step, place.first)
            }
            Question::LogBlock { step, part, block } => {
                format!("block {block} of part {part} of the log of step {step}")
            }
            Question::Reveal => "open your commitment".into(),
            Question::Children { tree, first, count } => {
                format!(
                    "{}: what is below leaves {first} to {}",
                    self.tree_text(*tree),
                    first + count.saturating_sub(1)
                )
            }
            Question::Record { index } => format!("record {index}"),
            Question::Statement { step } => format!("the root over the operators of step {step}"),
            Question::Pass { pass } => {
                format!("the root over the operators of {}", self.rules().pass_in_words(*pass))
            }
            Question::Root { subject } => format!("the hash of {}", of(subject)),
            Question::Slice { subject, slice } => format!("slice {slice} of {}", of(subject)),
            Question::Total { subject, element, .. } => {
                format!("the total of element {element} of {}", of(subject))
            }
            Question::Evidence { subject, element, need } => {
                let need = match need {
                    Need::All => "what it reads".into(),
                    Need::Frame { .. } => "what it reads beside its terms".into(),
                    Need::Terms { first, count, .. } => {
                        format!("terms {first} to {}", first + count.saturating_sub(1))
                    }
                    Need::Decision => "the rounding log's decision".into(),
                };
                format!("element {element} of {}: {need}", of(subject))
            }
            Question::Binding { step, field } => {
                let field = match field {
                    Field::Gradient { micro } => format!("gradient of micro-batch {micro}"),
                    Field::State => "state".into(),
                    Field::Clip => "clip factor".into(),
                    Field::Loss => "loss".into(),
                };
                format!("the outputs that make the {field}, step {step}")
            }
        }
    }
}

/// A value of a tree's node.
fn value_text(join: Join, value: &[u8]) -> String {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u128, |n, &byte| n << 8 | u128::from(byte));
    match join {
        Join::Rfc6962 | Join::Blake3 => value.iter().map(|byte| format!("{byte:02x}")).collect(),
        Join::Terms(_) if value.len() == 4 => {
            element_text(tiebreak_contract::arith::DType::F32, number(value) as u32)
        }
        Join::Terms(_) => {
            let integers: Vec<String> =
                value.chunks(16).map(|bytes| (number(bytes) as i128).to_string()).collect();
            integers.join(", ")
        }
    }
}

/// The result, in a line: the title's end.
fn outcome(game: &Game, result: &GameResult) -> (Tone, String, String) {
    let names =
        |losses: &[&Loss]| losses.iter().map(|loss| game.name(loss.party)).collect::<Vec<_>>().join(" and ");
    let losses: Vec<&Loss> = result.losses().collect();
    let known = losses.iter().copied().filter(|loss| game.people.counts(loss));
    let (convicted, forfeited): (Vec<&Loss>, Vec<&Loss>) = known.partition(|loss| loss.reason.convicts());
    let why = losses
        .iter()
        .map(|loss| format!("{}: {}.", game.name(loss.party), loss.what))
        .collect::<Vec<_>>()
        .join(" ");
    let open = result.games.iter().find_map(|game| Some(game.incomplete_log.as_ref()?.to_string()));
    match (convicted.as_slice(), forfeited.as_slice(), open) {
        _ if !losses.is_empty() && convicted.is_empty() && forfeited.is_empty() => {
            let what = "No conviction of anybody known: this is about keys that you did not name, or by the word of a referee that you did not name.";
            (Tone::Neutral, what.into(), why)
        }
        ([], [], Some(why)) => (Tone::Neutral, "It is not decided.".into(), why),
        ([], [], None) => {
            let what = format!("Nobody lost: all parties claim the same {}.", game.people.claimed());
            (Tone::Neutral, what, String::new())
        }
        ([], some, _) => (Tone::Bad, format!("{} forfeited, by the referee's word.", names(some)), why),
        (some, _, _) => (Tone::Bad, format!("{} is convicted, by what it signed itself.", names(some)), why),
    }
}

/// The page of a game whose verdict, which was checked, lies in `file`.
///
/// # Errors
/// If the terms do not hold together.
pub fn page(verdict: &GameVerdict, parties: &Parties, file: &str) -> Result<String, Malformed> {
    let GameVerdict { terms, events, .. } = verdict;
    let game = Game::replayed(terms, events, parties)?;
    let result = game.referee.result();
    let result =
        result.ok_or_else(|| Malformed::invalid("game verdict", "its events do not end the game"))?;
    let (tone, what, why) = outcome(&game, result);
    let mut page = Page::new(match terms.receipt {
        Some(_) if game.rules().is_of_predictions() => "A dispute about a receipt of predictions",
        Some(_) => "A dispute about a receipt of an answer",
        None => "A dispute about a training run",
    });
    page.outcome(tone, &what, &why);
    about(&mut page, &game, result, events);
    for played in &result.games {
        let [a, b] = played.parties.map(|party| game.name(party).to_string());
        page.heading(&format!("{a} against {b}"));
        values(&mut page, &game, played.parties);
        page.heading("How the referee got there");
        page.steps(&played.found);
        if let Some(why) = &played.incomplete_log {
            page.say(&why.to_string());
        }
        path(&mut page, &game, played.parties);
    }
    all_turns(&mut page, &game);
    page.heading("Check it again");
    page.say("The file holds the terms and every message. The check plays the game again, verifies each signature and computes the disputed element once more; it asks nobody:");
    page.commands(&[format!(
        "tiebreak verdict check {} --party-key KEY --referee-key KEY",
        shell::word(file)
    )]);
    page.remark("A conviction follows from what the party signed, whoever was the referee. A forfeit is the referee's word: only it can know what arrived when. A loss says nothing for the other party.");
    Ok(page.finish())
}

fn about(page: &mut Page, game: &Game, result: &GameResult, events: &[Event]) {
    page.heading("What it is about");
    let rules = game.rules();
    let bytes: usize =
        events.iter().filter_map(|event| event.message.as_ref()).map(|bytes| bytes.0.len()).sum();
    let messages = events.iter().filter(|event| event.message.is_some()).count();
    let supplied = match events.iter().filter(|event| event.supplied.is_some()).count() {
        0 => String::new(),
        parts => format!("; {parts} parts of rounding logs were supplied"),
    };
    let seconds = events.last().map_or(0, |event| event.at) as f64 / 1000.0;
    let mut facts = match (rules.run(), &game.terms.computation) {
        (Some(run), Some(computation)) => vec![
            ("computation", run.computation().to_string()),
            ("program", computation.program.to_string()),
            ("records", run.records().to_string()),
        ],
        _ => Disputed::of(game.terms).map(|disputed| disputed.facts()).unwrap_or_default(),
    };
    facts.extend([
        ("game", rules.game.to_string()),
        ("answers", format!("{messages}, {bytes} bytes, {seconds} s{supplied}")),
        ("upheld", result.upheld.map_or("no root".into(), |root| format!("root {root}"))),
        ("referee", game.terms.referee.clone()),
    ]);
    page.facts(&facts);
    let rows: Vec<Vec<String>> = (0..game.names.len())
        .map(|party| {
            let loss = result.losses().find(|loss| loss.party == party);
            let came = match loss {
                None => "nothing was found against it".into(),
                Some(loss) if !game.people.counts(loss) => {
                    format!("not shown of anybody known: {}", loss.reason.name())
                }
                Some(loss) if loss.reason.convicts() => format!("convicted: {}", loss.reason.name()),
                Some(loss) => format!("forfeited: {}", loss.reason.name()),
            };
            vec![game.name(party).to_string(), came, game.terms.parties[party].clone()]
        })
        .collect();
    page.table(&["party", "outcome", "key"], &rows);
    game.people.namesakes().iter().for_each(|line| page.say(line));
}

/// The last place that both parties opened and differ in.
fn values(page: &mut Page, game: &Game, parties: [usize; 2]) {
    let element = game.both(parties).filter_map(|(_, question, answers)| match (question, answers) {
        (Question::Slice { subject, slice }, [Answer::Slice { bytes: a }, Answer::Slice { bytes: b }]) => {
            game.element(*subject, *slice, [&a.0, &b.0])
        }
        _ => None,
    });
    let Some(Difference { place, values: [a, b] }) = element.last() else { return };
    page.say(&format!("The first place in which they differ is {place}."));
    let lost = |party: usize| {
        let result = game.referee.result();
        let convicted =
            result.is_some_and(|result| result.losses().any(|l| l.party == party && l.reason.convicts()));
        convicted.then_some(false)
    };
    let [one, other] = parties;
    page.sides(&[
        (&format!("{}'s value", game.name(one)), a, lost(one)),
        (&format!("{}'s value", game.name(other)), b, lost(other)),
    ]);
}

/// The way from the roots down, level by level.
fn path(page: &mut Page, game: &Game, parties: [usize; 2]) {
    let mut rows = Vec::new();
    for (turn, question, answers) in game.both(parties) {
        let (
            Question::Children { tree, first, count },
            [Answer::Children { values: a }, Answer::Children { values: b }],
        ) = (question, answers)
        else {
            continue;
        };
        if let Some(Difference { place, values: [a, b] }) = game.level(*tree, *first, *count, [&a.0, &b.0]) {
            rows.push(vec![turn.to_string(), game.tree_text(*tree), place, a, b]);
        }
    }
    if rows.is_empty() {
        return;
    }
    page.heading("The path of hashes");
    page.say("Each party opened its own tree, six levels at a time. What is opened gives the hash above it, and the next question is about the first part that differs.");
    let names = parties.map(|party| game.name(party));
    page.table(&["turn", "tree", "first part that differs", names[0], names[1]], &rows);
}

fn all_turns(page: &mut Page, game: &Game) {
    let rows: Vec<Vec<String>> = game
        .turns
        .iter()
        .map(|(number, turn)| {
            let answer = |(party, (at, bytes, answer)): (&usize, &(u64, usize, Option<Answer>))| {
                let what = match answer {
                    Some(Answer::Decline) => "declined",
                    Some(_) => "answered",
                    None => "no answer",
                };
                format!("{} {what}: {bytes} bytes at {} s", game.name(*party), *at as f64 / 1000.0)
            };
            let answers: Vec<String> = turn.answers.iter().map(answer).collect();
            vec![number.to_string(), game.question_text(&turn.question), answers.join("; ")]
        })
        .collect();
    page.heading("Every question");
    page.fold(&format!("{} questions and who answered", rows.len()));
    page.table(&["turn", "question", "answers"], &rows);
    page.unfold();
}
