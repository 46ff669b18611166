//! The command line: one file a subcommand, each thin. Data that could be piped goes to stdout, everything else to
//! stderr.
//!
//! Exit codes: 0 match, 1 diverges or convicted, 2 usage, 3 could not decide (own fault or limit), 4 malformed or
//! badly signed.

mod audit;
mod compare;
mod demo;
mod engine;
mod expect;
mod inspect;
mod job;
mod job_reference;
mod key;
mod limits;
mod log;
mod merge;
mod op;
mod program;
mod program_picture;
mod ranks;
mod replay;
mod report;
mod sample;
mod selftest;
#[cfg(feature = "gpu")]
mod shaders;
mod sign;
mod train;
mod verdict;
mod verdict_file;
mod verify;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use report::{CommandResult, bytes_text, random};
use report::{Exit, Failure, Printer};

/// Replay disputed steps of neural-network training bit for bit, on any GPU or CPU.
#[derive(Parser)]
#[command(
    name = "tiebreak",
    version,
    after_help = "Start with `tiebreak demo`: it trains a small GPT, plants a \
cheat, audits it and convicts it down to the tile, in about a minute."
)]
struct Args {
    /// Results as JSON on stdout, no progress.
    #[arg(long, global = true)]
    json: bool,
    /// No progress.
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Train(train::Args),
    Verify(verify::Args),
    Sign(sign::Args),
    Audit(Box<audit::Args>),
    Replay(replay::Args),
    Compare(compare::Args),
    Verdict(verdict::Args),
    Adapters(engine::AdaptersArgs),
    Selftest(selftest::Args),
    Op(op::Args),
    #[cfg(feature = "gpu")]
    Shaders(shaders::Args),
    Sample(sample::Args),
    Inspect(inspect::Args),
    Job(job::Args),
    Program(program::Args),
    Key(key::Args),
    Log(log::Args),
}

/// Parses the command line, runs the command, reports errors.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let printer = Printer { json: args.json, quiet: args.quiet };
    let result = match args.command {
        Command::Demo(args) => demo::run(printer, args),
        Command::Train(args) => train::run(printer, args),
        Command::Sign(args) => sign::run(printer, args),
        Command::Verify(args) => verify::run(printer, args),
        Command::Audit(args) => audit::run(printer, *args),
        Command::Replay(args) => replay::run(printer, args),
        Command::Compare(args) => compare::run(printer, args),
        Command::Verdict(args) => verdict::run(printer, args),
        Command::Adapters(args) => engine::adapters(printer, args),
        Command::Selftest(args) => selftest::run(printer, args),
        Command::Op(args) => op::run(printer, args),
        #[cfg(feature = "gpu")]
        Command::Shaders(args) => shaders::run(printer, args),
        Command::Sample(args) => sample::run(printer, args),
        Command::Inspect(args) => inspect::run(printer, args),
        Command::Job(args) => job::run(printer, args),
        Command::Program(args) => program::run(printer, args),
        Command::Key(args) => key::run(printer, args),
        Command::Log(args) => log::run(printer, args),
    };
    match result {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "error: {}", failure.message);
            ExitCode::from(failure.exit as u8)
        }
    }
}
