//! `tiebreak verify`.

use std::path::PathBuf;

use serde_json::json;

use crate::cli::args::cache::CacheArgs;
use crate::cli::args::corrections;
use crate::cli::args::decided::Decided;
use crate::cli::args::expect::Expectations;
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::args::salts::SaltArgs;
use crate::cli::view::next::Next;
use crate::cli::view::progress::Unit;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_audit::attachments::{Attachments, Damaged};
use tiebreak_audit::checks::Checked;
use tiebreak_audit::corrections::Corrections;
use tiebreak_audit::ground::Ground;
use tiebreak_audit::watched;
use tiebreak_audit::work::Work;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, shell};

/// Check a run's structure, hashes and signature in seconds, without a replay.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak verify runs/mine --trainer-key trainer.key.pub")]
pub struct Args {
    /// Folder of the run, or its address (http://HOST/PATH).
    run: PathBuf,
    /// Trainer's public key: a file or its text.
    ///
    /// Without the key nobody knows who signed.
    #[arg(long, value_name = "KEY")]
    trainer_key: Option<String>,
    /// Check the records that the head covers, and nothing more.
    ///
    /// The option is for a run that is still trained, or whose released model you do not have.
    #[arg(long)]
    prefix: bool,
    #[command(flatten)]
    expect: Expectations,
    #[command(flatten)]
    salts: SaltArgs,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    decided: Decided,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let (decided, cache) = (args.decided, args.cache.clone());
    let result = verified(printer, args);
    cache.say(printer);
    decided.applied(result)
}

/// The command that replays the run.
fn audit_command(args: &Args, run: &Run) -> Next {
    let key = args.trainer_key.iter().map(|key| format!(" --trainer-key {}", shell::word(key)));
    let prefix = if args.prefix { " --prefix" } else { "" };
    let command = format!(
        "tiebreak audit {}{}{prefix}{}",
        shell::path(&args.run),
        key.collect::<String>(),
        args.salts.option()
    );
    let next = Next::new("audit it with", command);
    match run.computation.is_closed() {
        true => next.note("by who has the salt key, the whole run and its data"),
        false => next,
    }
}

/// The files of a run that hides which show what is hidden, with a line about them.
fn revealing(run: &Run, lines: &mut Vec<String>) -> Result<Vec<String>, RunError> {
    let found = if run.job().hides() { run.revealing()? } else { Vec::new() };
    if !found.is_empty() {
        let all = found.join(", ");
        lines.push(format!("  shows what the commitments hide, and is not for everybody: {all}"));
    }
    Ok(found)
}

/// Checks the records and the files beside them, and shows how far that is.
fn looked_at(
    printer: Printer,
    run: &Run,
    key: Option<&PublicKey>,
) -> Result<(Checked, Attachments), RunError> {
    let counting = printer.counting("checking the run", Unit::Bytes);
    let mut counted = counting.watch();
    let mut work = Work::of_all_files(&mut counted);
    let corrections = Corrections::read(run, &[])?;
    let checked = watched::corrected(run, key, &corrections, &mut work)?;
    let beside = match checked.inconsistent {
        None => watched::attachments(run, &checked, &mut work),
        Some(_) => Attachments::default(), // what comes after a contradiction is not looked at
    };
    if checked.inconsistent.is_none() {
        run.answered()?;
    }
    Ok((checked, beside))
}

/// The stable name of what was found, if something was.
fn kind(checked: &Checked, incomplete: Option<&Ground>) -> Option<&'static str> {
    let found = checked.inconsistent.as_ref().map(|found| &found.what).or(incomplete);
    found.map(Ground::kind).or(checked.corrections.first().map(|_| "corrected"))
}

/// The line that says what was found; nothing if the run is whole and consistent.
fn outcome(
    wrong: Option<&str>,
    checked: &Checked,
    beside: &[(String, RunError)],
    incomplete: Option<&Ground>,
) -> Option<String> {
    if let Some(wrong) = wrong {
        return Some(format!("INCONSISTENT: {wrong}"));
    }
    let taken_back = checked.corrections.first().map(|correction| correction.step);
    match beside.len() + checked.damaged.len() {
        0 => incomplete
            .map(|why| format!("INCOMPLETE: {why}"))
            .or(taken_back.map(|step| format!("CORRECTED: the records from step {step} on are taken back"))),
        1 => Some("DAMAGED: a file is unreadable, or is not what the records commit".into()),
        files => Some(format!("DAMAGED: {files} files are unreadable, or are not what the records commit")),
    }
}

fn verified(printer: Printer, args: Args) -> CommandResult {
    let public = args.trainer_key.as_deref().map(key::read_public).transpose()?;
    let _watch = args.limits.watch(printer);
    let run = args.cache.around(args.salts.open(&args.limits, &args.run)?)?;
    let expected = args.expect.check(&run)?;
    let (mut checked, beside) = looked_at(printer, &run, public.as_ref())?;
    expected.note(&mut checked);
    checked.passed.extend(beside.passed);
    checked.not_checked.extend(beside.missing);
    checked.not_checked.extend(args.cache.not_checked());
    if args.prefix {
        checked.allow_prefix();
    }
    let wrong = checked.inconsistent.as_ref().map(|found| format!("step {}: {}", found.step, found.what));
    let incomplete = checked.undecided();
    let taken_back = checked.corrections.first().map(|correction| correction.step);
    let signed = format!("run {}: {}", run.id, checked.signed);
    let mut lines = match outcome(wrong.as_deref(), &checked, &beside.damaged, incomplete.as_ref()) {
        Some(outcome) => vec![outcome, signed],
        None => vec![format!("CONSISTENT: {signed}")],
    };
    lines.extend(checked.passed.iter().map(|line| format!("  ok: {line}")));
    lines.extend(checked.not_checked.iter().map(|line| format!("  not checked: {line}")));
    let revealing = revealing(&run, &mut lines)?;
    let unexpected = run.unexpected_files()?;
    lines.extend(unexpected.iter().map(|name| format!("  not of the run: {name}")));
    lines.push("  not checked: that any step computes what it says (tiebreak audit replays steps)".into());
    let damaged = beside.damaged.iter().map(|(what, error)| format!("  DAMAGED: {what}: {error}"));
    lines.extend(damaged.chain(checked.damaged.iter().map(|error| format!("  DAMAGED: {error}"))));
    let not_finite = checked.not_finite();
    lines.extend(not_finite.iter().map(|losses| format!("  NOT FINITE, as the records say: {losses}")));
    let all = checked.damaged.iter().chain(beside.damaged.iter().map(|(_, error)| error));
    let all: Vec<Damaged> = all.map(|error| Damaged::of(&run, error)).collect();
    let listed = checked.corrections.listed();
    lines.extend(corrections::lines(&listed));
    let next = audit_command(&args, &run);
    lines.push(next.line());
    let kind = kind(&checked, incomplete.as_ref());
    let mut json = json!({
        "run": run.id,
        "signed": checked.signed,
        "head_size": checked.head.size,
        "passed": checked.passed,
        "not_checked": checked.not_checked,
        "unexpected": unexpected,
        "damaged": all,
        "not_finite": not_finite,
        "incomplete": incomplete,
        "inconsistent": wrong,
        "kind": kind,
        "hides": run.job().hides(),
        "revealing": revealing,
        "next": [next],
    });
    if !listed.is_empty() {
        json["corrections"] = json!(listed);
    }
    printer.result(lines, &json);
    ended(wrong, checked, beside.damaged.len(), incomplete.is_some() || taken_back.is_some())
}

/// The exit code, or the error, of a run with these faults.
fn ended(wrong: Option<String>, checked: Checked, beside: usize, undecided: bool) -> CommandResult {
    if let Some(what) = wrong {
        return Err(Failure::new(Exit::Diverges, format!("{what} (tiebreak audit writes the verdict)")));
    }
    if beside > 0 {
        return Err(Failure::new(Exit::Malformed, format!("{beside} files are not what the records commit")));
    }
    match checked.damaged.into_iter().next() {
        Some(error) => Err(error.into()),
        None if undecided => Ok(Exit::Undecided),
        None => Ok(Exit::Match),
    }
}
