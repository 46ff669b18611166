//! `tiebreak monitor nonce`.

use std::path::PathBuf;

use serde_json::json;
use tiebreak_monitor::draw::commitment;

use super::registry::write;
use crate::cli::args::random::random;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_record::commit::digest::Digest;

/// Make the secret nonce of one side of a draw, and print the commitment to publish.
///
/// Inspector and operator publish their commitments before logs and declarations are closed, and reveal their nonces after that.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak monitor nonce inspector.nonce")]
pub struct Args {
    /// File for the nonce, which stays secret until the draw.
    file: PathBuf,
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    if args.file.symlink_metadata().is_ok() {
        let why = format!("{} is there already: a nonce is used once", args.file.display());
        return Err(Failure::new(Exit::Usage, why));
    }
    let nonce = Digest(random()?);
    write(&args.file, &format!("{nonce}\n"))?;
    let commitment = commitment(&nonce);
    printer.result(commitment.to_string(), &json!({ "commitment": commitment }));
    Ok(Exit::Match)
}
