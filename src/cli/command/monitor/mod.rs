//! `tiebreak monitor`: how a fleet of chips is inspected so that an undeclared training run is found.

mod inspections;
mod matching;
mod picture;
mod plan;
mod rules;
mod shards;
mod statement;
mod table;

use clap::Subcommand;

use crate::cli::view::report::{CommandResult, Printer};

/// Inspect a fleet of chips, so that an undeclared training run is found.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak monitor plan --chips 1e5 --run chinchilla-1t")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Match(matching::Args),
    Plan(plan::Args),
    Rules(rules::Args),
    Statement(statement::Args),
    Table(table::Args),
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    match args.command {
        Command::Match(args) => matching::run(printer, args),
        Command::Plan(args) => plan::run(printer, args),
        Command::Rules(args) => rules::run(printer, args),
        Command::Statement(args) => statement::run(printer, args),
        Command::Table(args) => table::run(printer, args),
    }
}
