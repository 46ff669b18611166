//! `tiebreak referee`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::json;

use crate::cli::args::decided::Decided;
use crate::cli::args::limits::Limits;
use crate::cli::args::random::random;
use crate::cli::args::terms::{beside, read_terms};
use crate::cli::args::{key, verdict_file};
use crate::cli::view::disputed::Disputed;
use crate::cli::view::next::Next;
use crate::cli::view::parties::{Parties, result_json};
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text, named};
use tiebreak_contract::program::network::NETWORK_MAX;
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::terms::{
    Claim, ClaimedRun, Clocks, DisputedReceipt, INCREMENT_MIN, MOVES_MIN, Terms, replay_clock,
    replay_of_steps,
};
use tiebreak_dispute::game::verdict::{Event, GameVerdict};
use tiebreak_game::net::journal::{Entry, Journal};
use tiebreak_game::net::link::Link;
use tiebreak_game::net::referee::{Said, play};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::predictions::PREDICTIONS_MAX;
use tiebreak_record::commit::salted_receipt::{OPENING_MAX, is_salted};
use tiebreak_record::commit::tree_head::{Head, NOTE_MAX};
use tiebreak_run::run::dir::{RUN_JSON_MAX, Run};
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::transcript;
use tiebreak_run::run::{JobFiles, RunError, names, network, read_job, read_program, shell};

/// Question parties who disagree until it is known who is wrong, and write the verdict.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Example: tiebreak referee terms.json --key referee.key 0=http://127.0.0.1:8700 1=bob-folder",
    after_long_help = "A party is named by its key's name or its place in the terms, from 0. The referee reaches it by http:// or in a folder, where \
it writes questions and waits for answers. A referee that was killed goes on with the same command: it reads its journal.\n\n\
The command ends with 0 when all that remain agree, with 1 when somebody is convicted, and with 3 when the game is not \
decided. Exit code 5 means that somebody forfeited, and nobody is convicted.\n\n\
Examples:
  tiebreak referee new --run runs/mine --party alice.key.pub --party bob.key.pub --referee referee.key.pub --step-time 30 --out terms.json
  tiebreak referee terms.json --key referee.key alice.example=http://127.0.0.1:8700 bob.example=bob-folder"
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    play: Option<Play>,
    // Not in `Play`: a group of arguments that has another one in it is never there.
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    decided: Decided,
}

#[derive(Subcommand)]
enum Command {
    New(New),
}

#[derive(clap::Args)]
struct Play {
    /// Terms of the game, which `tiebreak referee new` writes.
    terms: PathBuf,
    /// Place of each party, by its name or number.
    ///
    /// The value is NAME=http://HOST:PORT or NAME=FOLDER.
    #[arg(required = true, value_name = "PARTY=URL|DIR")]
    parties: Vec<String>,
    /// Referee's private key.
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    /// File for the verdict.
    #[arg(long, value_name = "FILE", default_value = "game-verdict.json")]
    out: PathBuf,
    /// Journal of the game; by default TERMS.journal.
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
}

/// Make the terms of a game: the computation or the receipt, the parties, the referee, the clocks.
///
/// Any run of the computation will do: the terms hold no record of it. In the logged profile the terms hold the root over the disputed
/// records, from the trainer's run, from --head or from --root. With --receipt the game is about the traces that a receipt commits. The
/// same terms make one game; make new ones for another.
#[derive(clap::Args)]
#[command(
    after_help = "Example: tiebreak referee new --run runs/mine --party alice.key.pub --party bob.key.pub \
--referee referee.key.pub --step-time 30 --out terms.json",
    after_long_help = "Examples:
  tiebreak referee new --run runs/mine --party alice.key.pub --party bob.key.pub --referee referee.key.pub --step-time 30 --out terms.json
  tiebreak referee new --job job.toml --run-json run.json --party a.pub --party b.pub --referee r.pub --step-time 30 --out terms2.json
  tiebreak referee new --receipt answer.json --job job.toml --party a.pub --party b.pub --referee r.pub --replay 60 --out terms3.json"
)]
struct New {
    /// Folder of a run of the computation.
    ///
    /// In the logged profile it is the trainer's run, which is disputed.
    #[arg(long, value_name = "RUN", required_unless_present = "job", conflicts_with_all = ["job", "run_json"])]
    run: Option<PathBuf>,
    /// Public key of a party: a file or its text; once for each.
    ///
    /// In the logged profile the first party is the trainer, and with --receipt the signer.
    #[arg(long = "party", value_name = "KEY", required = true)]
    parties: Vec<String>,
    /// Referee's public key: a file or its text.
    #[arg(long, value_name = "KEY")]
    referee: String,
    /// File for the terms.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Job file, in place of --run, together with --run-json or --receipt.
    #[arg(long)]
    job: Option<PathBuf>,
    /// The run.json of a run of the job.
    #[arg(long, value_name = "FILE", requires = "job")]
    run_json: Option<PathBuf>,
    /// Signed receipt of an answer or of predictions, whose traces are disputed.
    ///
    /// The receipt has to commit traces (--trace of `tiebreak generate` and `tiebreak predict`). --run or --job has to have the receipt's model. For a program from a file --job may be the network file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["run_json", "step_time", "head", "root"], help_heading = "Receipts")]
    receipt: Option<PathBuf>,
    /// Opening of a salted receipt.
    ///
    /// The terms hold the opening, and so the text.
    #[arg(long, value_name = "FILE", requires = "receipt", help_heading = "Receipts")]
    opening: Option<PathBuf>,
    /// Seconds that a step takes.
    ///
    /// A job with a [dispute] table says it itself. A party may replay for (steps between checkpoints + 1) x this x 4.
    #[arg(long, value_name = "SECONDS", value_parser = step_time, help_heading = "Clocks")]
    step_time: Option<u64>,
    /// Seconds that a party has for all its replays, in place of --step-time.
    ///
    /// The least is 1.
    #[arg(long, value_name = "SECONDS", value_parser = short_clock, conflicts_with = "step_time", help_heading = "Clocks")]
    replay: Option<u64>,
    /// Seconds that a party has for all its other answers together, at least 5.
    #[arg(long, value_name = "SECONDS", value_parser = moves_clock, default_value = "600", help_heading = "Clocks")]
    moves: u64,
    /// Seconds that each answer adds before it is made, at least 1.
    #[arg(long, value_name = "SECONDS", value_parser = short_clock, default_value = "10", help_heading = "Clocks")]
    increment: u64,
    /// Trainer's signed head of all records of the run, which is disputed.
    ///
    /// The head takes the place of the records in the run's folder.
    #[arg(long, value_name = "FILE", conflicts_with = "root", help_heading = "Logged profile")]
    head: Option<PathBuf>,
    /// Root over all records of the run, which is disputed.
    ///
    /// The root takes the place of the records in the run's folder.
    #[arg(long, value_name = "DIGEST", help_heading = "Logged profile")]
    root: Option<Digest>,
    #[command(flatten)]
    limits: Limits,
}

/// Seconds between `least` and some centuries, as milliseconds.
fn milliseconds(text: &str, least: f64) -> Result<u64, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is wanted".to_string())?;
    match seconds {
        _ if !(least..=1e10).contains(&seconds) => Err(format!("{least} to 10000000000 seconds are wanted")),
        _ => Ok((seconds * 1000.0).round() as u64),
    }
}

/// The time of a step.
fn step_time(text: &str) -> Result<u64, String> {
    milliseconds(text, 0.001)
}

/// The clock of moves. The measures of hostile connections (docs/TRANSPORT.md) hold from these clocks on.
fn moves_clock(text: &str) -> Result<u64, String> {
    milliseconds(text, MOVES_MIN as f64 / 1000.0)
}

/// The time that a move adds, or the clock of replays.
fn short_clock(text: &str) -> Result<u64, String> {
    milliseconds(text, INCREMENT_MIN as f64 / 1000.0)
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    match (args.command, args.play) {
        (Some(Command::New(args)), _) => {
            let _watch = args.limits.watch(printer);
            new(printer, args)
        }
        (None, Some(play)) => {
            let _watch = args.limits.watch(printer);
            args.decided.applied(referee(printer, play))
        }
        (None, None) => {
            Err(Failure::new(Exit::Usage, "the terms of a game are wanted: see tiebreak referee --help"))
        }
    }
}

/// The run whose computation the terms name.
fn computation(args: &New) -> Result<Run, Failure> {
    match (&args.run, &args.job, &args.run_json) {
        (Some(run), _, _) => Ok(args.limits.open(run)?),
        (None, Some(path), Some(run_json)) => {
            let (text, job) = read_job(path)?;
            let (_, program) = read_program(&JobFiles::new(path, None)?, &job)?;
            let json = disk::read_text(run_json, RUN_JSON_MAX).map_err(named)?;
            Ok(Run::from_files([(run_json, &json), (path, &text)], program)?)
        }
        _ => Err(Failure::new(Exit::Usage, "give --run, or --job and --run-json")),
    }
}

/// The claim of a logged run's trainer.
fn claim(args: &New, run: &Run, trainer: &PublicKey) -> Result<Option<Claim>, Failure> {
    let usage = |why: String| Failure::new(Exit::Usage, why);
    let size = u64::from(run.job().steps) + 2;
    match (&run.job().rounding, &args.head, args.root) {
        (None, None, None) => Ok(None),
        (None, ..) => {
            Err(usage("--head and --root are of the logged profile: this job's products are exact".into()))
        }
        (Some(_), Some(path), _) => {
            let note = disk::read_text(path, NOTE_MAX as u64).map_err(named)?;
            let (head, _) =
                Head::from_note(&note, Some(trainer)).map_err(|why| RunError::malformed(path, why))?;
            Ok(Some(Claim { run: ClaimedRun::of(run.file.summary()), root: head.root, head: Some(note) }))
        }
        (Some(_), None, Some(root)) => {
            Ok(Some(Claim { run: ClaimedRun::of(run.file.summary()), root, head: None }))
        }
        (Some(_), None, None) if args.run.is_none() => Err(usage(
            "the run is of the logged profile: say by --head or --root which records are disputed".into(),
        )),
        (Some(_), None, None) => {
            let (transcript, _) = transcript::read(run.at(names::TRANSCRIPT))?;
            if transcript.records.len() as u64 != size {
                let found = transcript.records.len();
                let why = format!(
                    "has {found} of the {size} records of all its steps: a run is disputed when it is over"
                );
                return Err(usage(format!("{} {why}", run.layout.root.display())));
            }
            let own = run.file.trainer_key.as_ref() == Some(&trainer.to_text());
            let head = match own && run.layout.head(size).exists() {
                true => {
                    run.head(size, Some(trainer))?;
                    Some(disk::read_text(&run.layout.head(size), NOTE_MAX as u64)?)
                }
                false => None,
            };
            Ok(Some(Claim {
                run: ClaimedRun::of(run.file.summary()),
                root: transcript.root(transcript.leaves.len()),
                head,
            }))
        }
    }
}

fn new(printer: Printer, args: New) -> CommandResult {
    let parties: Vec<PublicKey> =
        args.parties.iter().map(|party| key::read_public(party)).collect::<Result<_, _>>()?;
    let referee_key = key::read_public(&args.referee)?;
    let terms = match &args.receipt {
        Some(receipt) => about_receipt(&args, receipt, &parties, &referee_key)?,
        None => about_run(&args, &parties, &referee_key)?,
    };
    written(printer, &args, &terms)
}

/// The terms of a game about a run.
fn about_run(args: &New, parties: &[PublicKey], referee_key: &PublicKey) -> Result<Terms, Failure> {
    let run = computation(args)?;
    let given = args.replay.or(args.step_time.map(|step| replay_of_steps(run.job(), step)));
    let said = replay_clock(run.job());
    if said.is_some() && given.is_some() {
        let why = "the job's [dispute] table says how long a step takes: leave --step-time and --replay out";
        return Err(Failure::new(Exit::Usage, why));
    }
    let replay = said.or(given).ok_or_else(|| {
        Failure::new(Exit::Usage, "the job has no [dispute] table: give --step-time, how long a step takes")
    })?;
    let clocks = Clocks { moves: args.moves, increment: args.increment, replay };
    let nonce = Digest(random()?);
    let job = (run.job_text.clone(), run.program_file.clone());
    let terms = Terms::new(run.file.summary().computation(), job, parties, referee_key, clocks, nonce);
    Ok(match claim(args, &run, &parties[0])? {
        Some(claim) => terms.claiming(claim),
        None => terms,
    })
}

/// The terms of a game about the traces that the receipt in a file commits.
fn about_receipt(
    args: &New,
    path: &Path,
    parties: &[PublicKey],
    referee: &PublicKey,
) -> Result<Terms, Failure> {
    let usage = |why: String| Failure::new(Exit::Usage, why);
    let text = disk::read_text(path, PREDICTIONS_MAX).map_err(named)?;
    let opening = match (is_salted(&text), &args.opening) {
        (_, Some(opening)) => Some(disk::read_text(opening, OPENING_MAX).map_err(named)?),
        (true, None) => return Err(usage(format!("{} is salted: give --opening FILE", path.display()))),
        (false, None) => None,
    };
    let (job, network) = match (&args.run, &args.job) {
        (Some(run), _) => {
            let run = args.limits.open(run)?;
            let network = network::of_run(&run)?.map(|(_, text)| text);
            (run.job_text, network)
        }
        (None, Some(path)) => match disk::read_text(path, NETWORK_MAX) {
            Ok(network) if network.starts_with('{') => (network, None),
            _ => {
                let (text, job) = read_job(path)?;
                let files = JobFiles::new(path, None)?;
                let network = match job.network {
                    Some(_) => network::of_job(&files, &job, &read_program(&files, &job)?.0)?,
                    None => None,
                };
                (text, network)
            }
        },
        (None, None) => return Err(usage("give --run or --job: its model has to be the receipt's".into())),
    };
    // The model of a program from a file is that of its network file.
    let job = network.unwrap_or(job);
    let replay = args.replay.ok_or_else(|| {
        usage("give --replay: the seconds that a party has to compute the passes of the receipt again".into())
    })?;
    let clocks = Clocks { moves: args.moves, increment: args.increment, replay };
    let receipt = DisputedReceipt { text, opening };
    Ok(Terms::about_receipt(receipt, job, parties, referee, clocks, Digest(random()?)))
}

/// Checks terms, and writes their file.
fn written(printer: Printer, args: &New, terms: &Terms) -> CommandResult {
    let referee = Referee::new(terms).map_err(|error| Failure::new(Exit::Usage, error))?;
    referee.rules().check_initial().map_err(|error| Failure::new(Exit::Usage, error))?;
    if fs::symlink_metadata(&args.out).is_ok() {
        let why = format!(
            "{} is there already, and other terms are another game: name another file",
            args.out.display()
        );
        return Err(Failure::new(Exit::Usage, why));
    }
    let out = std::path::absolute(&args.out).map_err(RunError::io(&args.out))?;
    Disk::default().replace(&out, &terms.to_bytes())?;
    let mut lines = vec![format!("game {}", terms.game())];
    let (computation, traces) = (referee.rules().computation(), referee.rules().traces());
    lines.extend(computation.map(|computation| format!("  computation {computation}")));
    let disputed = Disputed::of(terms);
    lines.extend(disputed.iter().flat_map(Disputed::lines));
    lines.push(format!("  terms {}", args.out.display()));
    lines.extend(terms.claim.as_ref().map(|claim| {
        let signed = if claim.head.is_some() { ", which it signed" } else { "" };
        format!("  disputed: the records of party 0, the trainer, with root {}{signed}", claim.root)
    }));
    lines.extend(bound_lines(&referee, terms));
    lines.extend(Parties::own(referee.rules()).namesakes());
    let mut value = json!({
        "game": terms.game(), "computation": computation, "terms": args.out, "clocks": terms.clocks, "bound": referee.bound(), "claim": terms.claim,
        "parties": terms.parties,
    });
    if let Some(root) = traces {
        value["traces"] = json!(root);
        value["receipt"] = json!(disputed.map(|disputed| disputed.json()));
    }
    printer.result(lines, &value);
    Ok(Exit::Match)
}

/// The bounds of a game, for people.
fn bound_lines(referee: &Referee, terms: &Terms) -> Vec<String> {
    let bound = referee.bound();
    let logs = match bound.log_bytes {
        0 => String::new(),
        bytes => format!(" and {} of rounding logs", bytes_text(bytes)),
    };
    let clocks = terms.clocks;
    let mut lines = vec![
        format!(
            "  a game of two takes at most {} answers, {}{logs}, {}; there are at most {}",
            bound.messages,
            bytes_text(bound.bytes),
            time_text(bound.milliseconds),
            terms.parties.len() - 1
        ),
        format!(
            "  a party has {} for its moves of a game, {} more for each, and {} for its replays",
            time_text(clocks.moves),
            time_text(clocks.increment),
            time_text(clocks.replay)
        ),
    ];
    let supply = bound.supply;
    if supply.parts > 0 {
        lines.push(format!(
            "  before it a challenger gets the rounding logs that it lacks, 64 KiB at a time, each sent twice, and has {} to replay the run",
            time_text(supply.replay)
        ));
        // 0.094 bits a value: the entropy of one place in a hundred, a bit for each, and what the code takes above it.
        lines.push(format!(
            "    the log of a step is of {} values: about {} if one in a hundred is near a tie, and at most {} by its format, so that all logs take at most {}",
            supply.values,
            bytes_text(supply.values / 85),
            bytes_text(supply.step_bytes),
            bytes_text(supply.bytes)
        ));
    }
    lines
}

/// Milliseconds for people.
fn time_text(milliseconds: u64) -> String {
    match milliseconds {
        0..10_000 => format!("{} s", milliseconds as f64 / 1000.0),
        10_000..600_000 => format!("{} s", milliseconds / 1000),
        600_000..36_000_000 => format!("{} min", milliseconds / 60_000),
        _ => format!("{} h", milliseconds / 3_600_000),
    }
}

/// The ways to the parties, in the order of the terms.
fn links(
    named: &[String],
    key: &PrivateKey,
    keys: &[PublicKey],
    game: &Digest,
) -> Result<Vec<Link>, Failure> {
    let usage = |why: String| Failure::new(Exit::Usage, why);
    let mut links: Vec<Option<Link>> = keys.iter().map(|_| None).collect();
    for text in named {
        let (name, place) = text
            .split_once('=')
            .ok_or_else(|| usage(format!("{text:?} is not NAME=http://HOST:PORT or NAME=FOLDER")))?;
        let by_name: Vec<usize> = (0..keys.len()).filter(|&i| keys[i].name() == name).collect();
        let party = match (by_name.as_slice(), name.parse::<usize>()) {
            ([party], _) => *party,
            (_, Ok(party)) if party < keys.len() => party,
            ([], _) => {
                let names: Vec<&str> = keys.iter().map(PublicKey::name).collect();
                return Err(usage(format!(
                    "the terms name no party {name:?}; they name {}",
                    names.join(", ")
                )));
            }
            _ => {
                return Err(usage(format!(
                    "several parties are called {name:?}: name them by their places, from 0"
                )));
            }
        };
        if links[party].is_some() {
            return Err(usage(format!("party {name:?} is named twice")));
        }
        links[party] = Some(Link::new(place, game, key, &keys[party])?);
    }
    let absent = (0..keys.len()).find(|&party| links[party].is_none());
    if let Some(party) = absent {
        let name = keys[party].name();
        return Err(usage(format!("say where party {name} is: {name}=http://HOST:PORT or {name}=FOLDER")));
    }
    Ok(links.into_iter().flatten().collect())
}

/// Terms, the referee of the game, and the ways to its parties.
struct Prepared {
    terms: Terms,
    referee: Referee,
    private: PrivateKey,
    links: Vec<Link>,
}

fn prepared(args: &Play) -> Result<Prepared, Failure> {
    let private = key::read_private(&args.key)?;
    let terms = read_terms(&args.terms)?;
    let referee = Referee::new(&terms).map_err(|error| RunError::malformed(&args.terms, error))?;
    let rules = referee.rules();
    rules.check_initial().map_err(|error| RunError::malformed(&args.terms, error))?;
    if private.public().bytes() != rules.referee.bytes() {
        let (named, given) = (&terms.referee, private.public().to_text());
        let why =
            format!("--key is not the referee's key that the terms name: it is {given}, and {named} is due");
        return Err(Failure::new(Exit::Usage, why));
    }
    let links = links(&args.parties, &private, &rules.parties, &rules.game)?;
    Ok(Prepared { terms, referee, private, links })
}

fn referee(printer: Printer, args: Play) -> CommandResult {
    let Prepared { terms, mut referee, private, links } = prepared(&args)?;
    let game = terms.game();
    let path = args.journal.clone().unwrap_or_else(|| beside(&args.terms, ".journal"));
    let (journal, before) = Journal::open(&path, &game, Disk::default())?;
    printer.say(format!("game {game}"));
    bound_lines(&referee, &terms).into_iter().for_each(|line| printer.say(line));
    if !before.is_empty() {
        printer.say(format!("  goes on after {} events of {}", before.len(), path.display()));
    }
    let rules = referee.rules();
    let named_keys: Vec<(&str, String)> = rules
        .parties
        .iter()
        .map(|key| ("--party-key", key.to_text()))
        .chain([("--referee-key", rules.referee.to_text())])
        .collect();
    let parties = Parties::own(referee.rules());
    parties.namesakes().into_iter().for_each(|line| printer.say(line));
    let mut troubles = BTreeMap::new();
    let working = printer.working("waiting for the parties", None);
    let entries = play(&mut referee, journal, before, links, &private, |said| match said {
        Said::Progress(line) => working.aside(printer, line),
        // Who asks again and again is told the same again and again.
        Said::Trouble { party, why } => {
            if troubles.insert(party, why.clone()).as_ref() != Some(&why) {
                working.aside(
                    printer,
                    format!("party {party} ({}) is not reached, and asked again: {why}", parties.name(party)),
                );
            }
        }
    })?;
    drop(working);
    let result = referee.result().ok_or_else(|| Failure::new(Exit::Undecided, "the game has no result"))?;
    let events: Vec<Event> = entries.iter().filter_map(event).collect();
    let messages = events.iter().filter(|event| event.party.is_some()).count();
    let milliseconds = entries.last().map_or(0, Entry::at);
    let about: Vec<String> = Disputed::of(&terms).iter().flat_map(Disputed::lines).collect();
    let verdict = GameVerdict::new(terms, events, result, &private);
    let bytes = verdict.to_bytes();
    let written = verdict_file::save_bytes(&args.out, &bytes)?;
    let exit = parties.exit(result);
    let mut lines = parties.lines(result);
    lines.extend(about);
    let keys: String =
        named_keys.iter().map(|(option, key)| format!(" {option} {}", shell::word(key))).collect();
    let size = bytes_text(bytes.len() as u64);
    lines.push(format!(
        "  {messages} answers in {}; verdict: {}, {size}",
        time_text(milliseconds),
        written.display()
    ));
    let check = format!("tiebreak verdict check {}{keys}", shell::path(&written));
    let next = Next::new("anybody can check it", check);
    lines.push(next.line());
    printer.result(
        lines,
        &json!({
            "game": game, "result": result_json(result), "messages": messages, "milliseconds": milliseconds, "bound": referee.bound(),
            "verdict_file": written, "verdict_bytes": bytes.len(), "exit": exit as u8,
            "next": [next],
        }),
    );
    Ok(exit)
}

/// An event of the game, as its verdict lists it; the start is not listed.
fn event(entry: &Entry) -> Option<Event> {
    match entry {
        Entry::Start { .. } => None,
        Entry::Message { at, party, bytes } => Some(Event::message(*at, *party, &bytes.0)),
        Entry::Supplied { at, party, part } => Some(Event::taken(*at, *party, *part)),
        Entry::Tick { at, tried } => Some(Event::tick_after(*at, tried.clone())),
    }
}
