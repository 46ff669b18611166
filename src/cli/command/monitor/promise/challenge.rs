//! `tiebreak monitor promise challenge`.

use std::path::PathBuf;

use serde_json::json;

use super::log::read_log;
use crate::cli::args::limits::Limits;
use crate::cli::command::monitor::beacon::{self, ChainArgs};
use crate::cli::command::monitor::nonce;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_run::run::RunError;

/// Print the challenge of a promised run, once the beacon's round has come.
///
/// `tiebreak train --challenge` makes it part of the seed, on which initial weights and order of data depend.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak monitor promise challenge trainer.promises --nonce run.nonce --beacon round.json")]
pub struct Args {
    /// File of the trainer's promises.
    log: PathBuf,
    /// Nonce of the promise: a file, or its digits.
    #[arg(long, value_name = "NONCE")]
    nonce: String,
    /// Value of the promised round, in hexadecimal digits; or the file of a round of drand, as its servers give it.
    #[arg(long, value_name = "HEX|FILE")]
    beacon: String,
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    limits: Limits,
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let log = read_log(&args.log)?;
    let nonce = nonce::read("--nonce", &args.nonce)?;
    let found = log.of_nonce(&nonce).and_then(|number| Some((number, log.promises().nth(number)?)));
    let Some((number, promise)) = found else {
        let commitment = tiebreak_monitor::randomness::commitment(&nonce);
        let why =
            format!("none of its {} promises has the nonce's commitment {commitment}", log.promises().len());
        return Err(RunError::invalid(&args.log, why).into());
    };
    let value = beacon::of_round(&args.beacon, &promise.round, &args.chain)?;
    let challenge = log
        .challenge(number, &value.value, &nonce)
        .map_err(|error| Failure::new(Exit::Usage, format!("--beacon {}: {error}", args.beacon)))?;
    let next = Next::new(
        "train the promised run with",
        format!("tiebreak train JOB --out RUN --key KEY --challenge {challenge}"),
    )
    .note("JOB is the promised job, KEY the key of the promises");
    let lines = vec![
        format!("challenge {challenge}"),
        format!(
            "  of promise {number}; {}",
            beacon::line(&promise.round, &value.value, value.verified.as_ref())
        ),
        next.line(),
    ];
    let round = &promise.round;
    printer.result(
        lines,
        &json!({
            "challenge": challenge, "number": number, "round": round, "beacon": value.value,
            "verified": value.verified, "next": [next],
        }),
    );
    Ok(Exit::Match)
}
