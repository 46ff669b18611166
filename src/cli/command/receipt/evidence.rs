//! What checks of receipts of both kinds do with a trace and a verdict.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::args::Check;
use crate::cli::args::verdict_file;
use crate::cli::view::next::Next;
use crate::cli::view::report::{Exit, Failure, Printer, bytes_text};
use tiebreak_dispute::answer::AnswerVerdict;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::answer_trace::AnswerTrace;
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::{RunError, shell};

/// The file of the signer's trace, if it is given, and the root that the receipt commits.
pub fn trace_file(args: &Check, traces: Option<Digest>) -> Result<Option<(&Path, Digest)>, Failure> {
    let Some(path) = &args.trace else { return Ok(None) };
    let none = || {
        let why = format!("{} commits no traces: leave --trace out", args.receipt.display());
        Failure::new(Exit::Usage, why)
    };
    Ok(Some((path, traces.ok_or_else(none)?)))
}

/// Refuses a trace that is not the one that the receipt commits.
pub fn holds(path: &Path, what: &str, [found, own]: [Digest; 2]) -> Result<(), Failure> {
    let why = format!("its {what} have the root {found}, and the receipt commits {own}");
    let wrong = || RunError::malformed(path, Malformed::invalid("trace", why)).into();
    if found == own { Ok(()) } else { Err(wrong()) }
}

/// Nothing is decided about a receipt of another network file's model. Several files may give one program, and a receipt names one of
/// them: which one the signer means, the program does not tell.
pub fn another_network(said: &Digest, found: &Digest) -> Failure {
    let why =
        format!("UNDECIDED: the receipt is of the model {said}, and that of the network file is {found}");
    let help = "name the signer's network file: others may give the same program in other words";
    Failure::new(Exit::Undecided, why).help(help)
}

/// Why there is no verdict on a receipt without a signature.
pub const UNSIGNED: &str = "no verdict is written: nobody signed the receipt, so that it accuses nobody";
/// Why there is none without the trace's file.
pub const WITHOUT_TRACE: &str = "no verdict is written: the receipt commits traces. Ask the signer for the trace's file, and give it by --trace; a signer who withholds it can be asked in a game (`tiebreak referee new --receipt`)";
/// The same of a receipt of predictions, about which no game is played.
pub const WITHOUT_TRACE_OF_PREDICTIONS: &str = "no verdict is written: the receipt commits traces. Ask the signer for the trace's file, and give it by --trace";
/// Why there is none otherwise.
pub const NOTHING_STANDS: &str =
    "no verdict is written: no evidence stands without the model; who has the model finds the same";

/// The trace for the evidence. One that is not the signer's hides no difference that shows without it.
pub fn usable(
    printer: Printer,
    trace: Result<Option<AnswerTrace>, Failure>,
    differs: bool,
) -> Result<Option<AnswerTrace>, Failure> {
    match trace {
        Err(bad) if differs && bad.exit == Exit::Malformed => {
            printer.problem(&format!("the trace is left out: {}", bad.message));
            Ok(None)
        }
        trace => trace,
    }
}

/// A verdict's file, or why there is none.
pub struct Saved {
    pub file: Option<PathBuf>,
    pub line: String,
    pub next: Option<Next>,
}

impl Saved {
    /// Adds the file, or the reason, to a document.
    pub fn show(&self, json: &mut Value) {
        json["verdict_file"] = json!(self.file);
        json["no_verdict"] = json!(self.file.is_none().then_some(&self.line));
        json["next"] = json!(self.next);
    }
}

pub fn save(args: &Check, evidence: Option<Result<AnswerVerdict, &str>>) -> Result<Option<Saved>, Failure> {
    Ok(match (&args.verdict, evidence) {
        (Some(path), Some(Ok(verdict))) => {
            let bytes = verdict.to_bytes();
            let file = verdict_file::save_bytes(path, &bytes)?;
            let (kind, size) = (verdict.claim.kind(), bytes_text(bytes.len() as u64));
            let line = format!("  {kind} verdict ({size}): {}", file.display());
            let command = format!("tiebreak verdict check {}", shell::path(&file));
            Some(Saved { file: Some(file), line, next: Some(Next::new("anybody can check it", command)) })
        }
        (_, Some(Err(why))) => Some(Saved { file: None, line: format!("  {why}"), next: None }),
        _ => None,
    })
}
