//! `tiebreak monitor`: how a fleet of chips is inspected so that an undeclared training run is found.

mod agent;
mod beacon;
mod collector;
mod cosign;
mod covered;
mod declare;
mod draw;
mod drawn;
mod index;
mod inspect;
mod inspections;
mod matching;
mod neutral_box;
mod nonce;
mod pack;
mod picture;
mod plan;
mod promise;
mod properties;
mod reader;
mod register;
mod registry;
mod reveals;
mod rules;
mod screen;
mod shards;
mod simulate;
mod statement;
mod table;

use clap::Subcommand;

use crate::cli::view::report::{CommandResult, Printer};

/// Log on chips, declare runs and inspect fleets, to find undeclared training runs.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak monitor plan --chips 1e5 --run chinchilla-1t")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Agent(agent::Args),
    Collector(collector::Args),
    Plan(plan::Args),
    Register(register::Args),
    Promise(promise::Args),
    Declare(declare::Args),
    Nonce(nonce::Args),
    Beacon(beacon::Args),
    Draw(draw::Args),
    Inspect(inspect::Args),
    Index(index::Args),
    Match(matching::Args),
    Screen(screen::Args),
    Rules(rules::Args),
    Statement(statement::Args),
    Pack(pack::Args),
    Box(neutral_box::Args),
    Reveals(reveals::Args),
    Simulate(simulate::Args),
    Table(table::Args),
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    match args.command {
        Command::Agent(args) => agent::run(printer, args),
        Command::Collector(args) => collector::run(printer, args),
        Command::Plan(args) => plan::run(printer, args),
        Command::Register(args) => register::run(printer, args),
        Command::Promise(args) => promise::run(printer, args),
        Command::Declare(args) => declare::run(printer, args),
        Command::Nonce(args) => nonce::run(printer, &args),
        Command::Beacon(args) => beacon::run(printer, &args),
        Command::Draw(args) => draw::run(printer, &args),
        Command::Inspect(args) => inspect::run(printer, &args),
        Command::Index(args) => index::run(printer, &args),
        Command::Match(args) => matching::run(printer, args),
        Command::Screen(args) => screen::run(printer, args),
        Command::Rules(args) => rules::run(printer, args),
        Command::Statement(args) => statement::run(printer, args),
        Command::Pack(args) => pack::run(printer, &args),
        Command::Box(args) => neutral_box::run(printer, &args),
        Command::Reveals(args) => reveals::run(printer, &args),
        Command::Simulate(args) => simulate::run(printer, &args),
        Command::Table(args) => table::run(printer, args),
    }
}
