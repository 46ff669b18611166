//! The costs of dispute games about a perceptron, GPT-2 124M and ResNet-50, compared with a referee that computes the whole
//! disputed operator.
//!
//! `cargo bench --no-default-features --features testing --bench game_costs [-- WORDS]`
//!
//! For each network the benchmark trains an honest run, and a run in which one element of one operator's output, or of the state,
//! is wrong. Two parties with these runs play a game. Some liars claim terms that give their element, so that the game searches
//! the terms. The referee's calls are timed separately: fresh referees receive all messages again, and each call counts its least
//! time. The comparison is the leaf of Verde (arXiv 2502.19405): all operands of the operator and its output, and the time of the
//! scalar reference. That time is estimated from a sample of the elements. Runs are in a temporary folder: GPT-2 takes 5 GB of
//! it, and as much memory. WORDS choose the networks whose names contain one.

#[path = "game_costs/clever.rs"]
mod clever;
#[path = "game_costs/liar.rs"]
mod liar;
#[path = "game_costs/networks.rs"]
mod networks;
#[path = "game_costs/whole.rs"]
mod whole;

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use clever::Skew;
use liar::{Liar, Taken};
use networks::{Network, Target};
use tiebreak_dispute::game::message::{Answered, Need, Question, Sealed, Tree};
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::terms::{Clocks, Terms};
use tiebreak_engine::cpu::Cpu;
use tiebreak_game::party::Party;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_run::run::Folder;
use tiebreak_run::run::dir::Run;
use tiebreak_train::cheat::{Cheat, CheatKind};
use tiebreak_train::conduct::{Conduct, Honest};
use tiebreak_train::{Beginning, Silent, begin, train_as};

type Failed = Box<dyn Error>;

/// The number of fresh referees that receive everything again.
const REFEREES: usize = 9;

/// A message that came, with the kind of question that it answers.
struct Event {
    now: u64,
    party: usize,
    bytes: Vec<u8>,
    question: &'static str,
}

/// A game that was played.
struct Game {
    events: Vec<Event>,
    question_bytes: usize,
    parties: Duration,
    found: Vec<String>,
    convicted: Vec<usize>,
}

fn key(number: u8) -> Result<PrivateKey, Failed> {
    Ok(PrivateKey::generate(&format!("party{number}"), [number + 1; 32])?)
}

fn name(question: &Question) -> &'static str {
    match question {
        Question::Commit => "commitment",
        Question::Logs { .. } | Question::Supply { .. } | Question::LogBlock { .. } => "rounding log",
        Question::Reveal => "opening",
        Question::Children { tree: Tree::Terms { .. }, .. } => "subtotals",
        Question::Children { .. } => "level",
        Question::Record { .. } => "record",
        Question::Statement { .. } => "statement",
        Question::Root { .. } | Question::Pass { .. } => "root",
        Question::Slice { .. } => "slice",
        Question::Evidence { need: Need::Terms { .. }, .. } => "terms",
        Question::Evidence { .. } => "operands",
        Question::Total { .. } => "total",
        Question::Binding { .. } => "binding",
    }
}

/// Trains a run to its end.
fn trained(job: &Path, out: &Path, conduct: &mut dyn Conduct) -> Result<Run, Failed> {
    let beginning = Beginning {
        job,
        data_root: None,
        out: Folder::at(out),
        key: None,
        challenge: None,
        logged: false,
        nonce: [0; 16],
    };
    let run = begin(&beginning)?;
    train_as(&run, &mut Cpu::new(2)?, None, conduct, &mut Silent)?;
    Ok(run)
}

/// Plays a game of an honest party and one who lies.
fn played(
    terms: &Terms,
    folder: &Path,
    liar: Box<dyn Conduct>,
    mut skew: Option<Skew>,
) -> Result<Game, Failed> {
    let referee_key = key(9)?;
    let open = |name: &str, number: u8, conduct: Box<dyn Conduct>| -> Result<Party, Failed> {
        let run = Run::open(&folder.join(name))?.with_data([folder.to_path_buf()]);
        Ok(Party::open_as(terms.clone(), run, key(number)?, Box::new(Cpu::new(2)?), conduct)?)
    };
    let mut parties = [open("honest", 0, Box::new(Honest))?, open("liar", 1, liar)?];
    let mut referee = Referee::new(terms)?;
    let (mut events, mut question_bytes, mut now) = (Vec::new(), 0, 0);
    let mut spent = Duration::ZERO;
    referee.start(0);
    while referee.result().is_none() {
        for ask in referee.pending() {
            now += 5;
            let sealed = Sealed::new(ask.asked.clone(), &referee_key).to_bytes();
            question_bytes += sealed.len();
            let began = Instant::now();
            let mut bytes = parties[ask.party].reply(&sealed)?;
            spent += began.elapsed();
            if let Some(skew) = skew.as_mut().filter(|_| ask.party == 1) {
                let own = key(1)?;
                let mut said = Sealed::<Answered>::from_bytes(&bytes, u64::MAX, &own.public())?.body;
                said.answer = skew.answer(&ask.asked.question, said.answer);
                bytes = Sealed::new(said, &own).to_bytes();
            }
            referee.receive(ask.party, &bytes, now);
            events.push(Event { now, party: ask.party, bytes, question: name(&ask.asked.question) });
        }
    }
    let result = referee.result().ok_or("the game has no end")?;
    let convicted = result.losses().filter(|loss| loss.reason.convicts()).map(|loss| loss.party).collect();
    let found = result.games.iter().flat_map(|game| game.found.clone()).collect();
    Ok(Game { events, question_bytes, parties: spent, found, convicted })
}

/// The least time of deriving everything from the terms, and of each call.
fn timed(terms: &Terms, events: &[Event]) -> Result<(Duration, Vec<Duration>), Failed> {
    let mut start = Duration::MAX;
    let mut calls = vec![Duration::MAX; events.len()];
    for _ in 0..REFEREES {
        let began = Instant::now();
        let mut referee = Referee::new(terms)?;
        start = start.min(began.elapsed());
        referee.start(0);
        for (event, least) in events.iter().zip(&mut calls) {
            let began = Instant::now();
            referee.receive(event.party, &event.bytes, event.now);
            *least = (*least).min(began.elapsed());
        }
    }
    Ok((start, calls))
}

/// One dispute: trains the run that lies, plays, and prints.
fn dispute(network: &Network, folder: &Path, honest: &Run, target: &Target) -> Result<(), Failed> {
    let taken = Taken::default();
    let node = target.node(honest.program());
    let conduct = |taken: Option<Taken>| -> Box<dyn Conduct> {
        match node {
            Some(node) => Box::new(Liar::new(network.step, node, taken, target.clever)),
            None => Box::new(Cheat { kind: CheatKind::WeightAfter, step: network.step }),
        }
    };
    let out = folder.join("liar");
    trained(&folder.join("job.toml"), &out, conduct(Some(taken.clone())).as_mut())?;
    let clocks = Clocks { moves: 600_000, increment: 1000, replay: 86_400_000 };
    let keys = [key(0)?.public(), key(1)?.public()];
    let job = (honest.job_text.clone(), honest.program_file.clone());
    let terms = Terms::new(
        honest.file.summary().computation(),
        job,
        &keys,
        &key(9)?.public(),
        clocks,
        Digest([9; 32]),
    );
    let bound = Referee::new(&terms)?.bound();
    println!("  {}: at most {} answers and {} bytes", target.name, bound.messages, bound.bytes);
    let game = played(&terms, folder, conduct(None), target.clever.then(Skew::default))?;
    std::fs::remove_dir_all(&out)?;
    if game.convicted != [1] {
        return Err(format!("{:?} were convicted: {:#?}", game.convicted, game.found).into());
    }
    if target.clever != game.events.iter().any(|event| event.question == "subtotals") {
        return Err(format!("whether terms are searched is not as meant: {:#?}", game.found).into());
    }
    let (start, calls) = timed(&terms, &game.events)?;
    print(&game, start, &calls);
    match node {
        Some(node) => whole::print(honest.program(), node, &taken),
        None => Ok(()),
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn print(game: &Game, start: Duration, calls: &[Duration]) {
    for line in &game.found {
        println!("    {line}");
    }
    let answer_bytes: usize = game.events.iter().map(|event| event.bytes.len()).sum();
    println!(
        "    {} answers; {} bytes of questions, {answer_bytes} of answers",
        game.events.len(),
        game.question_bytes
    );
    if let Some(event) = game.events.iter().max_by_key(|event| event.bytes.len()) {
        println!("    largest answer: {} bytes ({})", event.bytes.len(), event.question);
    }
    let leaf = game.events.iter().filter(|event| matches!(event.question, "operands" | "terms"));
    let leaf = leaf.map(|event| event.bytes.len());
    println!("    largest answer with operands: {} bytes", leaf.max().unwrap_or(0));
    let all: Duration = calls.iter().sum();
    println!(
        "    referee: {:.1} ms at the start, then {:.2} ms in all",
        milliseconds(start),
        milliseconds(all)
    );
    if let Some((event, call)) = game.events.iter().zip(calls).max_by_key(|(_, call)| **call) {
        println!("    slowest call: {:.2} ms ({})", milliseconds(*call), event.question);
    }
    println!("    both parties: {:.1} s", game.parties.as_secs_f64());
}

fn main() -> Result<(), Failed> {
    // Cargo itself passes `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    for network in networks::all() {
        if !words.is_empty() && !words.iter().any(|word| network.name.contains(word.as_str())) {
            continue;
        }
        let folder = tempfile::tempdir()?;
        network.write(folder.path())?;
        let began = Instant::now();
        let honest = trained(&folder.path().join("job.toml"), &folder.path().join("honest"), &mut Honest)?;
        println!("{}: {} steps in {:.1} s", network.name, network.steps, began.elapsed().as_secs_f64());
        for target in &network.targets {
            dispute(&network, folder.path(), &honest, target)?;
        }
    }
    Ok(())
}
