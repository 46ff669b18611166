//! The command line: the parser, and who runs what. `args` has what commands take, `view` what people see, `command` a file or a folder a
//! subcommand, each thin.
//!
//! Data that could be piped goes to stdout, everything else to stderr. With `--json` both are JSON: a command's result, and its error as
//! `{"error": "...", "exit": N}`, with a `help` where a command or an action helps.
//!
//! Exit codes: 0 match, 1 diverges or convicted, 2 usage, 3 could not decide (own fault or limit), 4 malformed or
//! badly signed, 5 somebody forfeited a dispute game and nobody was convicted.

mod args;
mod command;
mod view;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

#[cfg(feature = "gpu")]
use command::shaders;
use command::{
    adapters, audit, compare, demo, eval, export, import, inspect, job, key, log, logits, monitor, op, plot,
    program, referee, replay, sample, selftest, serve, sign, train, verdict, verify,
};
use view::escape::{Lines, one_line};
use view::help;
use view::report::{Exit, Failure, Printer};

/// Replay disputed steps of neural-network training bit for bit, on any GPU or CPU.
#[derive(Parser)]
#[command(
    name = "tiebreak",
    version,
    after_help = "Start with `tiebreak demo`: it trains a small GPT, plants a \
cheat, audits it and convicts it down to the tile, in about a minute."
)]
struct Args {
    /// Results as JSON on stdout, errors as JSON on stderr, no progress.
    #[arg(long, global = true)]
    json: bool,
    /// The line that says what came out, and no progress.
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
    Referee(Box<referee::Args>),
    Serve(Box<serve::Args>),
    Adapters(adapters::Args),
    Selftest(selftest::Args),
    Op(op::Args),
    #[cfg(feature = "gpu")]
    Shaders(shaders::Args),
    Eval(Box<eval::Args>),
    Sample(sample::Args),
    Logits(logits::Args),
    Export(export::Args),
    Import(import::Args),
    Inspect(inspect::Args),
    Plot(plot::Args),
    Job(job::Args),
    Program(program::Args),
    Key(key::Args),
    Log(log::Args),
    Monitor(monitor::Args),
}

/// Every command and option, as the parser knows them.
pub fn command() -> clap::Command {
    Args::command()
}

/// Parses the command line, runs the command, reports errors.
pub fn main() -> ExitCode {
    ExitCode::from(run(&std::env::args_os().collect::<Vec<_>>()))
}

/// [`main`] with a command line, whose first word is the program's name: the exit code.
pub fn run(line: &[OsString]) -> u8 {
    let args = match Args::try_parse_from(line) {
        Ok(args) => args,
        Err(error) => return not_parsed(line, &error) as u8,
    };
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
        Command::Referee(args) => referee::run(printer, *args),
        Command::Serve(args) => serve::run(printer, *args),
        Command::Adapters(args) => adapters::run(printer, args),
        Command::Selftest(args) => selftest::run(printer, args),
        Command::Op(args) => op::run(printer, args),
        #[cfg(feature = "gpu")]
        Command::Shaders(args) => shaders::run(printer, args),
        Command::Eval(args) => eval::run(printer, *args),
        Command::Sample(args) => sample::run(printer, args),
        Command::Logits(args) => logits::run(printer, args),
        Command::Export(args) => export::run(printer, args),
        Command::Import(args) => import::run(printer, args),
        Command::Inspect(args) => inspect::run(printer, args),
        Command::Plot(args) => plot::run(printer, args),
        Command::Job(args) => job::run(printer, args),
        Command::Program(args) => program::run(printer, args),
        Command::Key(args) => key::run(printer, args),
        Command::Log(args) => log::run(printer, args),
        Command::Monitor(args) => monitor::run(printer, args),
    };
    printer.end(result) as u8
}

/// Prints what is wrong with a command line, or the help that it asks for.
fn not_parsed(line: &[OsString], error: &clap::Error) -> Exit {
    let json = line.iter().any(|argument| argument == "--json");
    let printer = Printer { json, quiet: false };
    if !error.use_stderr() {
        let _ = error.print();
        return Exit::Match;
    }
    // What it quotes of the command line may be a file's name, which somebody else chose: so it is asked again about escaped arguments.
    let escaped = line.iter().map(|argument| one_line(&argument.to_string_lossy()).into_owned());
    let text = match Args::try_parse_from(escaped) {
        Err(again) => again.to_string(),
        Ok(_) => one_line(&error.to_string()).into_owned(),
    };
    let help = help::of_line(error);
    if json {
        let message = text.trim().trim_start_matches("error: ");
        return printer.end(Err(Failure { help, ..Failure::new(Exit::Usage, message) }));
    }
    printer.say(Lines::split(text.trim_end()));
    if let Some(help) = help {
        printer.say(format!("help: {help}"));
    }
    Exit::Usage
}
