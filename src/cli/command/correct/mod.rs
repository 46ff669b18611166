//! `tiebreak correct`: ways back for a trainer whose hardware computed wrongly.

mod begin;
mod check;
mod sign;
mod withdraw;

use clap::Subcommand;

use crate::cli::view::report::{CommandResult, Printer};

/// Take back wrong steps of a run whose hardware failed, as its trainer.
///
/// Records that no head covers are withdrawn, and the run goes on from the last good one. Where a head covers them, a corrected run is
/// begun from the last good record and trained, and a signed correction says that it takes the place of the other.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tiebreak correct withdraw runs/mine --step 17",
    after_long_help = "Examples:
  tiebreak correct withdraw runs/mine --step 17
  tiebreak correct begin runs/mine --step 17 --out runs/mine-2 --key trainer.key
  tiebreak correct sign runs/mine --new runs/mine-2 --step 17 --key trainer.key --reason device
  tiebreak correct check runs/mine/corrections/step-000000017 --old runs/mine --new runs/mine-2"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Withdraw(withdraw::Args),
    Begin(begin::Args),
    Sign(sign::Args),
    Check(check::Args),
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    match args.command {
        Command::Withdraw(args) => withdraw::run(printer, &args),
        Command::Begin(args) => begin::run(printer, &args),
        Command::Sign(args) => sign::run(printer, &args),
        Command::Check(args) => check::run(printer, &args),
    }
}
