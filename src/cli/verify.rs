//! `tiebreak verify`.

use std::path::PathBuf;

use serde_json::json;

use super::{CommandResult, Exit, Failure, Printer, key};
use crate::audit::checks;
use crate::run::dir::Run;

/// Check a run's structure, hashes and signature, in seconds, without replaying anything.
#[derive(clap::Args)]
#[command(after_help = "Example: tiebreak verify runs/shakespeare --trainer-key trainer.key.pub")]
pub struct Args {
    run: PathBuf,
    /// The trainer's public key: a file or its text. Without it nobody knows who signed.
    #[arg(long)]
    trainer_key: Option<String>,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let public = args.trainer_key.as_deref().map(key::read_public).transpose()?;
    let run = Run::open(&args.run)?;
    let checked = checks::always(&run, public.as_ref())?;
    let mut lines = vec![format!("run {}: {}", run.id, checked.signed)];
    lines.extend(checked.passed.iter().map(|line| format!("  ok: {line}")));
    lines.extend(checked.not_checked.iter().map(|line| format!("  not checked: {line}")));
    let unexpected = run.unexpected_files()?;
    lines.extend(unexpected.iter().map(|name| format!("  not of the run: {name}")));
    lines.push("  not checked: that any step computes what it says (tiebreak audit replays steps)".into());
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
            "inconsistent": wrong,
        }),
    );
    match wrong {
        None => Ok(Exit::Match),
        Some(what) => {
            Err(Failure::new(Exit::Diverges, format!("{what} (tiebreak audit writes the verdict)")))
        }
    }
}
