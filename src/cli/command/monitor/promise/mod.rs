//! `tiebreak monitor promise`: a trainer commits to a run before a beacon's round gives the rest of its seed.

mod add;
mod challenge;
mod check;
pub mod log;

use clap::Subcommand;

use crate::cli::view::report::{CommandResult, Printer};

/// Promise runs before a beacon gives their seeds, which nobody can choose then.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak monitor promise add new.promises job.toml --key trainer.key --nonce run.nonce --round 'drand 52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971 900000000'")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Add(add::Args),
    Challenge(challenge::Args),
    Check(check::Args),
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    match args.command {
        Command::Add(args) => add::run(printer, &args),
        Command::Challenge(args) => challenge::run(printer, &args),
        Command::Check(args) => check::run(printer, &args),
    }
}
