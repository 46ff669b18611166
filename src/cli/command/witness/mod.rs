//! `tiebreak witness`: vouches for the time at which others' logs had a head, and that they only grow.

mod serve;

use clap::Subcommand;

use crate::cli::view::report::{CommandResult, Printer};

/// Vouch for when others' logs had a head, and that they only grow.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tiebreak witness serve --key witness.key --state witness --trainer-key trainer.key.pub"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Args),
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    match args.command {
        Command::Serve(args) => serve::run(printer, args),
    }
}
