//! `tiebreak verify`.

use std::path::PathBuf;

use serde_json::json;

use crate::cli::args::expect::Expectations;
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_audit::attachments::{Attachments, Damaged, attachments};
use tiebreak_audit::checks;
use tiebreak_audit::ground::Ground;

/// Check a run's structure, hashes and signature, in seconds, without replaying anything.
#[derive(clap::Args)]
#[command(after_help = "Example: tiebreak verify runs/shakespeare --trainer-key trainer.key.pub")]
pub struct Args {
    run: PathBuf,
    /// The trainer's public key: a file or its text. Without it nobody knows who signed.
    #[arg(long)]
    trainer_key: Option<String>,
    /// Check what the head covers and nothing more: of a run that is still trained, or whose released model you do not have.
    #[arg(long)]
    prefix: bool,
    #[command(flatten)]
    expect: Expectations,
    #[command(flatten)]
    limits: Limits,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let public = args.trainer_key.as_deref().map(key::read_public).transpose()?;
    let _watch = args.limits.watch(printer);
    let run = args.limits.open(&args.run)?;
    let expected = args.expect.check(&run)?;
    let mut checked = checks::always(&run, public.as_ref())?;
    expected.note(&mut checked);
    let beside = match checked.inconsistent {
        None => attachments(&run, &checked),
        Some(_) => Attachments::default(), // what comes after a contradiction is not looked at
    };
    checked.passed.extend(beside.passed);
    checked.not_checked.extend(beside.missing);
    if args.prefix {
        checked.allow_prefix();
    }
    let mut lines = vec![format!("run {}: {}", run.id, checked.signed)];
    lines.extend(checked.passed.iter().map(|line| format!("  ok: {line}")));
    lines.extend(checked.not_checked.iter().map(|line| format!("  not checked: {line}")));
    let unexpected = run.unexpected_files()?;
    lines.extend(unexpected.iter().map(|name| format!("  not of the run: {name}")));
    lines.push("  not checked: that any step computes what it says (tiebreak audit replays steps)".into());
    let damaged = beside.damaged.iter().map(|(what, error)| format!("  DAMAGED: {what}: {error}"));
    lines.extend(damaged.chain(checked.damaged.iter().map(|error| format!("  DAMAGED: {error}"))));
    let not_finite = checked.not_finite();
    lines.extend(not_finite.iter().map(|losses| format!("  NOT FINITE, as the records say: {losses}")));
    let all = checked.damaged.iter().chain(beside.damaged.iter().map(|(_, error)| error));
    let all: Vec<Damaged> = all.map(|error| Damaged::of(&run, error)).collect();
    let incomplete = checked.undecided();
    lines.extend(incomplete.iter().map(|why| format!("INCOMPLETE: {why}")));
    let kind =
        checked.inconsistent.as_ref().map(|found| &found.what).or(incomplete.as_ref()).map(Ground::kind);
    let wrong = checked.inconsistent.as_ref().map(|found| format!("step {}: {}", found.step, found.what));
    printer.result(
        lines,
        &json!({
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
        }),
    );
    match wrong {
        None if !beside.damaged.is_empty() => {
            let why = format!("{} files are not what the records commit", beside.damaged.len());
            Err(Failure::new(Exit::Malformed, why))
        }
        None => match checked.damaged.into_iter().next() {
            Some(error) => Err(error.into()),
            None if incomplete.is_some() => Ok(Exit::Undecided),
            None => Ok(Exit::Match),
        },
        Some(what) => {
            Err(Failure::new(Exit::Diverges, format!("{what} (tiebreak audit writes the verdict)")))
        }
    }
}
