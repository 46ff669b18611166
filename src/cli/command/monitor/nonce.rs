//! `tiebreak monitor nonce`.

use std::path::{Path, PathBuf};

use serde_json::json;
use tiebreak_monitor::randomness::{BEACON_MAX, commitment};

use crate::cli::args::key::{refuse_in_run, write_new};
use crate::cli::args::random::random;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::disk;

/// Make a secret nonce, of a draw or of a promised run, and print its commitment.
///
/// Inspector and operator publish their commitments before logs and declarations are closed, and reveal their nonces after that. A
/// promise (`tiebreak monitor promise add`) has the commitment of a nonce that its trainer reveals later.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak monitor nonce inspector.nonce")]
pub struct Args {
    /// File for the nonce, which stays secret until the draw.
    file: PathBuf,
}

/// A nonce: the digits themselves, or a file with them. `option` names the argument in errors.
pub fn read(option: &str, argument: &str) -> Result<Digest, Failure> {
    let path = Path::new(argument);
    let text = if path.exists() { disk::read_text(path, BEACON_MAX as u64)? } else { argument.to_string() };
    let wrong = |error| Failure::new(Exit::Usage, format!("{option} {argument}: {error}"));
    text.trim_end().parse().map_err(wrong)
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    if args.file.symlink_metadata().is_ok() {
        let why = format!("{} is there already: a nonce is used once", args.file.display());
        return Err(Failure::new(Exit::Usage, why));
    }
    refuse_in_run(&args.file)?;
    let nonce = Digest(random()?);
    write_new(&args.file, &format!("{nonce}\n"), true)?;
    let commitment = commitment(&nonce);
    printer.result(commitment.to_string(), &json!({ "commitment": commitment }));
    Ok(Exit::Match)
}
