//! `tiebreak monitor`: how a fleet of chips is inspected so that an undeclared training run is found.

mod draw;
mod inspect;
mod inspections;
mod nonce;
mod picture;
mod plan;
mod register;
mod registry;
mod simulate;
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
    Draw(draw::Args),
    Inspect(inspect::Args),
    Nonce(nonce::Args),
    Plan(plan::Args),
    Register(register::Args),
    Simulate(simulate::Args),
    Table(table::Args),
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    match args.command {
        Command::Draw(args) => draw::run(printer, &args),
        Command::Inspect(args) => inspect::run(printer, &args),
        Command::Nonce(args) => nonce::run(printer, &args),
        Command::Plan(args) => plan::run(printer, args),
        Command::Register(args) => register::run(printer, args),
        Command::Simulate(args) => simulate::run(printer, &args),
        Command::Table(args) => table::run(printer, args),
    }
}
