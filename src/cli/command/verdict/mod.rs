//! `tiebreak verdict`.

mod answer;
mod disclose;
mod known;
mod of_run;

use crate::cli::args::decided::Decided;
use crate::cli::args::limits::{Limits, Watch};
use crate::cli::args::place::files_at;
use crate::cli::args::{key, verdict_file};
use crate::cli::view::disputed::Disputed;
use crate::cli::view::next::{self, Next};
use crate::cli::view::page;
use crate::cli::view::parties::result_json;
use crate::cli::view::progress::Unit;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text, named};
use clap::Subcommand;
use known::KnownKeys;
use of_run::{another_run, read};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tiebreak_audit::rounding::reference_outcome_watched;
use tiebreak_audit::{self as audit, checks, plan, replay_to_watched};
use tiebreak_dispute::answer::AnswerVerdict;
use tiebreak_dispute::check::Examination;
use tiebreak_dispute::game::verdict::{GAME_VERDICT_MAX, GameVerdict};
use tiebreak_dispute::verdict::{Finding, Ruling, Verdict};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::session::Session;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::tensor::TILE_BYTES;
use tiebreak_record::commit::tree_head::Signed;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::{RunError, initial, shell};

/// Check verdicts, show them to people, or make them smaller.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak verdict check verdict.json --trainer-key trainer.key.pub")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Check(Check),
    Report(Report),
    Disclose(disclose::Disclose),
    Narrow(Narrow),
}

/// Derive a verdict again with the scalar reference, from the file alone.
///
/// Verdicts on a whole step, and on an initial state made from weights, need the run too. The command ends with 1 when the verdict
/// convicts, with 0 when it does not, and with 5 when a party forfeited a game. Exit code 3 means that a game's verdict is about nobody whose
/// key was given. Exit code 4 means that the file does not hold together or is about another key.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak verdict check verdict.json --trainer-key trainer.key.pub
  tiebreak verdict check game-verdict.json --party-key alice.key.pub --referee-key referee.key.pub
  tiebreak verdict check answer-verdict.json --signer-key trainer.key.pub")]
struct Check {
    /// Verdict file.
    file: PathBuf,
    /// Trainer's public key: a file or its text.
    #[arg(long, value_name = "KEY")]
    trainer_key: Option<String>,
    /// Folder of the run, for a verdict on a whole step or an initial state.
    #[arg(long, value_name = "RUN")]
    run: Option<PathBuf>,
    /// Folder or address of the data files that the run does not hold.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Weights that the run begins from: one file or address each, in the job's order.
    ///
    /// Verdicts on an initial state need them.
    #[arg(long, value_name = "FILE")]
    weights: Vec<PathBuf>,
    /// Public key of the signer of a receipt, for a verdict on a receipt or of a game about one: a file or its text.
    #[arg(long, value_name = "KEY")]
    signer_key: Option<String>,
    /// Tokenizer that a receipt names, as `tiebreak generate` takes one.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    known: KnownKeys,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    decided: Decided,
}

/// Write a verdict as one HTML file for people.
///
/// The page shows both values, the recomputation, the path of hashes, and how to check it again. The file has no scripts and needs nothing from
/// elsewhere. The page tells the result of the check; the evidence is the verdict.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak verdict report verdict.json --output report.html")]
struct Report {
    /// Verdict file.
    file: PathBuf,
    /// File for the page.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Trainer's public key: a file or its text.
    #[arg(long, value_name = "KEY")]
    trainer_key: Option<String>,
    #[command(flatten)]
    known: KnownKeys,
    #[command(flatten)]
    limits: Limits,
}

/// Cut a tile verdict down to one element, with the tile's bytes from the trainer.
///
/// Ask the trainer, or the signer of a receipt, for the bytes of the tile that the verdict names: at most 4096, in the canonical layout.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak verdict narrow verdict.json --tile tile.bin --out small.json")]
struct Narrow {
    /// Verdict file.
    file: PathBuf,
    /// File with the bytes of the committed tile.
    #[arg(long, value_name = "FILE")]
    tile: PathBuf,
    /// File for the smaller verdict.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    limits: Limits,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    match args.command {
        Command::Check(args) => {
            let watch = args.limits.watch(printer);
            let decided = args.decided;
            if let Some((verdict, size)) = answer::read(&args.file)? {
                return decided.applied(check_answer(printer, &args, &verdict, size));
            }
            decided.applied(match read_game(&args.file)? {
                Some((verdict, size)) => check_game(printer, args, verdict, size),
                None => no_receipt(&args).and_then(|()| check(printer, args, &watch)),
            })
        }
        Command::Report(args) => report(printer, args),
        Command::Disclose(args) => disclose::run(printer, args),
        Command::Narrow(args) => narrow(printer, args),
    }
}

/// The verdict of a dispute game, if the file is one; nothing if it is another kind of verdict.
fn read_game(file: &Path) -> Result<Option<(GameVerdict, u64)>, Failure> {
    let bytes = disk::read(file, GAME_VERDICT_MAX).map_err(named)?;
    // The first field tells the two kinds apart: each has one encoding.
    if !bytes.starts_with(b"{\"game\":") {
        return Ok(None);
    }
    let verdict = GameVerdict::from_bytes(&bytes).map_err(|error| RunError::malformed(file, error))?;
    Ok(Some((verdict, bytes.len() as u64)))
}

/// Checks a verdict on a receipt.
fn check_answer(printer: Printer, args: &Check, verdict: &AnswerVerdict, size: u64) -> CommandResult {
    no_game(&args.known)?;
    let given = [
        ("trainer-key", args.trainer_key.is_some()),
        ("run", args.run.is_some()),
        ("data", args.data.is_some()),
        ("weights", !args.weights.is_empty()),
    ];
    if let Some((option, _)) = given.into_iter().find(|(_, given)| *given) {
        let why = format!(
            "--{option} is for verdicts on a run; this one is on a receipt: name its signer by --signer-key"
        );
        return Err(Failure::new(Exit::Usage, why));
    }
    let named =
        answer::Named { signer_key: args.signer_key.as_deref(), tokenizer: args.tokenizer.as_deref() };
    answer::check(printer, &args.file, (verdict, size), named)
}

/// Refuses what only verdicts on receipts have.
fn no_receipt(args: &Check) -> Result<(), Failure> {
    let given = [("signer-key", args.signer_key.is_some()), ("tokenizer", args.tokenizer.is_some())];
    let Some((option, _)) = given.into_iter().find(|(_, given)| *given) else { return Ok(()) };
    let file = args.file.display();
    let why = format!("--{option} is for verdicts on receipts, and {file} is none: leave the option out");
    Err(Failure::new(Exit::Usage, why))
}

/// Plays a game again.
fn check_game(printer: Printer, args: Check, verdict: GameVerdict, size: u64) -> CommandResult {
    let given = [
        ("run", "a run", args.run.is_some()),
        ("data", "a run", args.data.is_some()),
        ("weights", "a run", !args.weights.is_empty()),
        ("tokenizer", "a token", args.tokenizer.is_some()),
    ];
    if let Some((option, on, _)) = given.into_iter().find(|(.., given)| *given) {
        let why =
            format!("--{option} is for verdicts on {on}; this is a dispute game's: leave the option out");
        return Err(Failure::new(Exit::Usage, why));
    }
    let signer = args.signer_key.as_deref().map(key::read_public).transpose()?;
    let trainer = args.trainer_key.as_deref().map(key::read_public).transpose()?;
    let counting = printer.counting("playing the game again", Unit::Bytes);
    let referee = verdict.check_watched(&mut counting.watch());
    let referee = referee.map_err(|error| RunError::malformed(&args.file, error))?;
    drop(counting);
    let rules = referee.rules();
    let result = referee.result().ok_or_else(|| Failure::new(Exit::Undecided, "the game has no result"))?;
    let mut parties = args.known.parties(rules, trainer.as_ref())?;
    if let Some(signer) = &signer {
        parties.know_signer(signer)?;
    }
    let mut lines = parties.lines(result);
    let computation = rules.computation();
    let of_run = computation.map(|computation| format!("of computation {computation}"));
    let disputed = Disputed::of(&verdict.terms);
    let about = of_run.unwrap_or("on a receipt".into());
    lines.push(format!("  game verdict, {}, {about}", bytes_text(size)));
    lines.extend(disputed.iter().flat_map(Disputed::lines));
    lines.push(format!("  {}", parties.referee_line(verdict.events.len())));
    for game in result.games.iter() {
        let [a, b] = game.parties;
        lines.push(format!("  party {a} against party {b}:"));
        lines.extend(game.found.iter().map(|found| format!("    {found}")));
    }
    if result.losses().any(|loss| !loss.reason.convicts()) {
        lines.push("  a forfeit is the referee's word: nobody else can know what arrived when".into());
    }
    let exit = parties.exit(result);
    // The page takes the signer as a party.
    let signer = args.signer_key.iter().map(|key| format!("--party-key {}", shell::word(key)));
    let known: Vec<String> = args.known.options().into_iter().chain(signer).collect();
    let next = page_command(&args.file, &args.trainer_key, &known);
    lines.push(next.line());
    let known = parties.json();
    let mut value = json!({
        "kind": "game", "bytes": size, "game": rules.game, "computation": computation, "parties": known["parties"],
        "referee": known["referee"], "namesakes": parties.namesakes(), "events": verdict.events.len(),
        "convicts": parties.convicts(result), "result": result_json(result), "exit": exit as u8,
        "next": [next],
    });
    if let Some(root) = rules.traces() {
        value["traces"] = json!(root);
        value["receipt"] = json!(disputed.map(|disputed| disputed.json()));
    }
    printer.result(lines, &value);
    Ok(exit)
}

/// The command that shows a verdict to people, with the keys that are known.
fn page_command(file: &Path, trainer: &Option<String>, known: &[String]) -> Next {
    let key = trainer.iter().map(|key| format!("--trainer-key {}", shell::word(key)));
    let options: String = key.chain(known.iter().cloned()).map(|option| format!(" {option}")).collect();
    let command = format!("tiebreak verdict report {} --output report.html{options}", shell::path(file));
    Next::new("show it to people", command)
}

/// Refuses what only a dispute game's verdict has.
fn no_game(known: &KnownKeys) -> Result<(), Failure> {
    if known.party_key.is_empty() && known.referee_key.is_none() {
        return Ok(());
    }
    let why =
        "--party-key and --referee-key are of dispute games; this verdict is on a run: give --trainer-key";
    Err(Failure::new(Exit::Usage, why))
}

/// Refuses what the check of a verdict would not look at.
fn refuse_unused(args: &Check, outcome: &Ruling) -> Result<(), Failure> {
    let (run, data, weights) = (args.run.is_some(), args.data.is_some(), !args.weights.is_empty());
    let why = match outcome {
        Ruling::NeedsReplay { step: 0, .. } if data => {
            "--data is for verdicts on a step; this one is on an initial state"
        }
        Ruling::NeedsReplay { step: 1.., .. } if weights => {
            "--weights is for verdicts on an initial state; this one is on a step"
        }
        Ruling::NeedsReplay { .. } => return Ok(()),
        _ if run || data || weights => {
            "this verdict is checked from its file alone: leave --run, --data and --weights out"
        }
        _ => return Ok(()),
    };
    Err(Failure::new(Exit::Usage, why))
}

/// A conviction in lines.
fn conviction(finding: &Finding) -> Vec<String> {
    let signed = match finding.signed {
        Signed::By => "signed by the trainer's key",
        Signed::Unknown => "signer unknown: give --trainer-key",
    };
    vec![
        format!("CONVICTS run {} ({signed}) from this file alone", finding.run),
        format!("step {}: {}", finding.step, finding.what),
    ]
}

/// Examines a verdict, and shows how far that is.
fn examined(printer: Printer, verdict: &Verdict, key: Option<&PublicKey>) -> Examination {
    let counting = printer.counting("checking the verdict", Unit::Bytes);
    verdict.examine_watched(key, &mut counting.watch())
}

fn check(printer: Printer, args: Check, watch: &Watch) -> CommandResult {
    no_game(&args.known)?;
    let public = args.trainer_key.as_deref().map(key::read_public).transpose()?;
    let (verdict, size) = read(&args.file)?;
    // What is wrong with a verdict that has no such number is found below.
    args.limits.check("the check of this verdict", verdict.memory().unwrap_or(0))?;
    let examination = examined(printer, &verdict, public.as_ref());
    let kind = verdict.claim.kind();
    let mut lines = vec![format!("{kind} verdict, {}", bytes_text(size))];
    lines.extend(examination.steps.iter().map(|step| format!("  ok: {step}")));
    let outcome = examination.outcome.map_err(|error| {
        // How far it held together helps to find what is wrong with it.
        printer.say(std::mem::take(&mut lines));
        Failure::from(RunError::malformed(&args.file, error))
    })?;
    refuse_unused(&args, &outcome)?;
    let decided = match &outcome {
        Ruling::Convicts(finding) => Some(finding.what.0.kind()),
        Ruling::DoesNotConvict(right) => Some(right.0.kind()),
        Ruling::NeedsReplay { .. } => None,
    };
    let (convicts, step, finding) = match outcome {
        Ruling::Convicts(finding) => (true, Some(finding.step), conviction(&finding)),
        Ruling::DoesNotConvict(why) => (false, None, vec![format!("does not convict: {why}")]),
        Ruling::NeedsReplay { step, run: id } => {
            let path = args.run.ok_or_else(|| {
                let why = match step {
                    0 => "this verdict names an initial state made from weights: give --run FOLDER and --weights FILE".into(),
                    step => format!("this verdict names step {step} as a whole: give --run FOLDER"),
                };
                let run = "the run's folder holds what this verdict needs; its trainer has it, and whoever audited it";
                Failure::new(Exit::Usage, why).help(run)
            })?;
            let run = args.limits.open_with_data(&path, args.data.as_ref())?;
            if run.id != id {
                return Err(another_run(&path, &run, id));
            }
            let (convicts, text) = match step {
                0 => weights_verdict(printer, &run, &args.weights)?,
                step => {
                    args.limits.check("a replay", plan::memory_at_most(&run))?;
                    watch.planned();
                    step_verdict(printer, &run, &verdict, step, public.as_ref())?
                }
            };
            (convicts, Some(step), vec![text])
        }
    };
    let text = finding.join("\n");
    if printer.quiet {
        lines.clear(); // what came out is to be the first line
    }
    lines.extend(finding);
    let next = convicts.then(|| page_command(&args.file, &args.trainer_key, &[]));
    let next: Vec<Next> = next.into_iter().collect();
    lines.extend(next::lines(&next));
    printer.result(
        lines,
        &json!({
            "kind": kind, "bytes": size,
            "checked": examination.steps,
            "convicts": convicts,
            "trainer_key_given": public.is_some(),
            "step": step,
            "decided": decided,
            "text": text, "next": next,
        }),
    );
    Ok(if convicts { Exit::Diverges } else { Exit::Match })
}

fn report(printer: Printer, args: Report) -> CommandResult {
    let public = args.trainer_key.as_deref().map(key::read_public).transpose()?;
    let _watch = args.limits.watch(printer);
    let malformed = |error| RunError::malformed(&args.file, error);
    let name = args.file.file_name().unwrap_or_default().to_string_lossy();
    let page = match read_game(&args.file)? {
        Some((verdict, _)) => {
            let referee = verdict.check().map_err(malformed)?;
            let parties = args.known.parties(referee.rules(), public.as_ref())?;
            page::game::page(&verdict, &parties, &name).map_err(malformed)?
        }
        None => {
            no_game(&args.known)?;
            let (verdict, _) = read(&args.file)?;
            args.limits.check("the check of this verdict", verdict.memory().unwrap_or(0))?;
            page::verdict::page(&verdict, public.as_ref(), &name).map_err(malformed)?
        }
    };
    let output = std::path::absolute(&args.output).map_err(RunError::io(&args.output))?;
    Disk::default().replace(&output, page.as_bytes())?;
    let text = format!("{}: {}", args.output.display(), bytes_text(page.len() as u64));
    printer.result(text, &json!({ "file": args.output, "bytes": page.len() }));
    Ok(Exit::Match)
}

fn narrow(printer: Printer, args: Narrow) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let tile = disk::read(&args.tile, TILE_BYTES as u64)?;
    let malformed = |error| RunError::malformed(&args.file, error);
    let (narrowed, before) = match answer::read(&args.file)? {
        Some((verdict, before)) => {
            let narrowed = verdict.narrowed(&tile).map_err(malformed)?;
            (narrowed.map(|verdict| verdict.to_bytes()), before)
        }
        None => {
            let (verdict, before) = read(&args.file)?;
            (verdict.narrowed(&tile).map_err(malformed)?.map(|verdict| verdict.to_bytes()), before)
        }
    };
    let Some(narrowed) = narrowed else {
        let text =
            "the disclosed tile is what the operator makes of its inputs: there is nothing to convict of";
        printer.result(text, &json!({ "narrowed": false, "text": text }));
        return Ok(Exit::Match);
    };
    let after = narrowed.len() as u64;
    let file = verdict_file::save_bytes(&args.out, &narrowed)?;
    let text = format!("{} -> {}: {}", bytes_text(before), bytes_text(after), file.display());
    printer.result(text, &json!({ "narrowed": true, "bytes_before": before, "bytes": after, "file": file }));
    Ok(Exit::Match)
}

/// Makes the initial state from the weights that a run names.
fn weights_verdict(printer: Printer, run: &Run, weights: &[PathBuf]) -> Result<(bool, String), Failure> {
    if weights.is_empty() {
        let why = "this verdict names an initial state made from weights: give --weights FILE, once for each file of the job";
        return Err(Failure::new(Exit::Usage, why));
    }
    // The run id covers both: what the computation begins from, and the files that it says this is.
    let counting = printer.counting("making the initial state", Unit::Bytes);
    Ok(if initial::of_weights_watched(run, &files_at(weights)?, &mut counting.watch())? == run.file.initial {
        (false, "does not convict: the initial state is the one that the weights' files give".into())
    } else {
        (true, "the initial state DIFFERS from the one that the weights' files give".into())
    })
}

/// Replays a step with the scalar reference. The way there from the last checkpoint runs on the CPU engine and is
/// compared record by record.
fn step_verdict(
    printer: Printer,
    run: &Run,
    verdict: &Verdict,
    step: u32,
    key: Option<&PublicKey>,
) -> Result<(bool, String), Failure> {
    let checked = checks::structure(run, key)?;
    // Two heads of one run may be over different records: the verdict is about the one that it carries.
    let theirs = checked.transcript.records.get(step as usize).map(Record::encode);
    if theirs.as_ref() != verdict.record.as_ref().map(|record| &record.record.0) {
        let why = format!("{}: its record of step {step} is not the verdict's", run.layout.root.display());
        return Err(Failure::new(Exit::Undecided, why));
    }
    let mut cpu = Cpu::new(0)?;
    let mut session = Session::new(&mut cpu, Arc::new(run.program().clone()))?;
    let counting = printer.counting(&format!("replaying to step {step}"), Unit::Of("steps"));
    if let Some((before, what)) = replay_to_watched(run, &checked, &mut session, step, &mut counting.watch())?
    {
        let why = format!("step {before} before it differs already: {what}");
        return Err(Failure::new(Exit::Undecided, why));
    }
    let state = session.download_state()?;
    drop(counting);
    printer.say(format!("replaying step {step} with the scalar reference ..."));
    let counting = printer.counting("the scalar reference computes the step", Unit::Share);
    let theirs = checked.step(step)?;
    let outcome = reference_outcome_watched(run, step, &state, theirs, &mut counting.watch())?;
    drop(counting);
    match outcome {
        audit::Outcome::Matches => {
            Ok((false, format!("does not convict: step {step} is what the scalar reference computes")))
        }
        audit::Outcome::Diverges { what, .. } => {
            Ok((true, format!("step {step} DIVERGES from the scalar reference: {what}")))
        }
        // A log that somebody changed, or a rounding that the log lacks, says nothing about the trainer.
        other => {
            let what = other.what().map_or(String::new(), ToString::to_string);
            Err(Failure::new(Exit::Undecided, format!("step {step} is not decided: {what}")))
        }
    }
}
