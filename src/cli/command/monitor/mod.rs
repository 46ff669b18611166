//! `tiebreak monitor`: how a fleet of chips is inspected so that an undeclared training run is found.

mod agent;
mod inspections;
mod picture;
mod plan;
mod table;

use clap::Subcommand;

use crate::cli::view::report::{CommandResult, Printer};

/// Plan inspections of chips, and log on them, to find undeclared training runs.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor plan --chips 1e5 --run chinchilla-1t
  tiebreak monitor agent --socket chip.sock --log chip.log --key chip.key --serial H100-0042")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Agent(agent::Args),
    Plan(plan::Args),
    Table(table::Args),
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    match args.command {
        Command::Agent(args) => agent::run(printer, args),
        Command::Plan(args) => plan::run(printer, args),
        Command::Table(args) => table::run(printer, args),
    }
}
