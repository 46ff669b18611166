//! `tiebreak correct sign`.

use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::json;

use super::check::Told;
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_audit::checks::{self, Checked};
use tiebreak_audit::corrections::Corrections;
use tiebreak_record::commit::correction::{Correction, History, Reason};
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, Stored, names, shell};

/// Sign the correction that takes back the records of a run from a step on.
///
/// The corrected run has to be trained beyond the step, under a head of its own. The command checks both runs, and writes the correction to
/// the folder `corrections` of each. Publish both.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak correct sign runs/mine --new runs/mine-2 --step 17 --key trainer.key --reason device")]
pub struct Args {
    /// Folder of the run whose records are wrong.
    run: PathBuf,
    /// Folder of the corrected run.
    #[arg(long, value_name = "NEW")]
    new: PathBuf,
    /// First wrong step.
    #[arg(long, value_name = "STEP", value_parser = clap::value_parser!(u32).range(1..))]
    step: u32,
    /// Private key that signed the heads of both runs.
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    /// Reason for the correction.
    #[arg(long, value_enum)]
    reason: ReasonArg,
    /// Reason in your own words, at most 1024 bytes.
    #[arg(long, default_value = "", hide_default_value = true)]
    text: String,
    #[command(flatten)]
    limits: Limits,
}

/// A reason, as the command line has it.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReasonArg {
    /// A device computed wrongly.
    Device,
    /// A program computed wrongly.
    Software,
    /// Anything else.
    Other,
}

impl ReasonArg {
    fn reason(self) -> Reason {
        match self {
            ReasonArg::Device => Reason::Device,
            ReasonArg::Software => Reason::Software,
            ReasonArg::Other => Reason::Other,
        }
    }
}

/// The side of a run, for a correction.
fn history(run: &Run, checked: &Checked, step: u32, key: &PublicKey) -> Result<History, RunError> {
    let path = run.layout.head(checked.head.size);
    let record = checked.transcript.records.get(step as usize).ok_or_else(|| {
        let covered = checked.transcript.records.len();
        let root = run.layout.root.display();
        RunError::Refused(format!("{root}: the head covers {covered} records, and none of step {step}"))
    })?;
    let made = History::new(&checked.note, key, &checked.transcript.leaves, (step, record));
    made.map_err(|why| RunError::malformed(&path, why))
}

/// Writes a correction, unless the same one is there.
fn write(file: &Stored, bytes: &[u8]) -> Result<(), RunError> {
    if file.is_here() && file.read(file.length()?)? != bytes {
        let path = file.path().display();
        let why = "another correction is there, which others may have read already, and it stays";
        return Err(RunError::Refused(format!("{path}: {why}; the new one has {} bytes", bytes.len())));
    }
    file.replace(bytes)
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let (private, step) = (key::read_private(&args.key)?, args.step);
    let public = private.public();
    let [old, new] = [args.limits.open(&args.run)?, args.limits.open(&args.new)?];
    let read = |run: &Run| checks::structure(run, Some(&public));
    let [before, after] =
        printer.during("reading both runs", || Ok::<_, RunError>([read(&old)?, read(&new)?]))?;
    let earlier = Corrections::read(&old, &[])?;
    if let Some(earlier) = earlier.first().filter(|earlier| earlier.step < step) {
        let why = format!(
            "a correction takes back the records from step {} on already, and so that of step {step}",
            earlier.step
        );
        return Err(Failure::new(Exit::Usage, format!("{}: {why}", args.run.display())));
    }
    let histories = [history(&old, &before, step, &public)?, history(&new, &after, step, &public)?];
    let shared = &before.transcript.leaves[..step as usize];
    let last = &before.transcript.records[step as usize - 1];
    let made = Correction::new(histories, (last, shared), (args.reason.reason(), &args.text));
    let made = made.map_err(|why| Failure::new(Exit::Usage, why))?;
    let bytes = made.to_bytes(&private);
    // Whoever reads it will check the same.
    Correction::from_bytes(&bytes, &public)?;
    let file = old.at(names::correction(step));
    write(&new.at(names::CORRECTS), &bytes)?;
    write(&file, &bytes)?;
    let told = Told::of(&made);
    let [run, out] = [&args.run, &args.new].map(|path| shell::path(path));
    let check = format!("tiebreak correct check {} --old {run} --new {out}", shell::path(file.path()));
    let next = Next::new("anybody can check it", check);
    let mut lines = told.lines();
    lines.push(format!(
        "  written: {} and {}",
        file.path().display(),
        new.layout.root.join(names::CORRECTS).display()
    ));
    lines.push(next.line());
    let mut json = told.json();
    json["file"] = json!(file.path());
    json["next"] = json!([next]);
    printer.result(lines, &json);
    Ok(Exit::Match)
}
