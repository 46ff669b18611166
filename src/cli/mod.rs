//! The command line: the parser, and the table of commands. `args` has the arguments of commands, `view` their output, `command` a file or a
//! folder a subcommand, each thin.
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
use std::sync::Arc;

use args::engine::{EngineArgs, EngineKind, open};
use args::outputs;
use clap::error::ErrorKind;
use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

#[cfg(feature = "gpu")]
use command::shaders;
use command::{
    adapters, audit, compare, completions, correct, demo, eval, export, generate, import, inspect, job, key,
    log, logits, man, monitor, op, plot, predict, program, publish, receipt, referee, reference, replay,
    reveal, selftest, serve, serve_model, sign, train, verdict, verify, witness,
};
use tiebreak_engine::{Engine, EngineError};
use tiebreak_run::run::RunError;
use tiebreak_train::fed::Feed;
use view::escape::{Lines, one_line};
// The door of the Python package, which is released with this crate: no interface for others, so no page of the documentation has it.
#[doc(hidden)]
pub use view::heard::{Amount, Heard};
use view::report::{CommandResult, Exit, Failure, Printer};
use view::{help, overview, version};

/// Replay disputed steps of neural-network training bit for bit, on any GPU or CPU.
#[derive(Parser)]
#[command(
    name = "tiebreak",
    version,
    long_version = version::long(),
    after_help = "Example: tiebreak demo   # trains, plants a cheat, and convicts it, in about a minute",
    after_long_help = "Examples:
  tiebreak demo   # trains a small GPT, plants a cheat, audits it and convicts it down to the tile, in about a minute
  tiebreak doctor"
)]
struct Args {
    /// Print results as JSON on stdout and errors as JSON on stderr, without progress.
    #[arg(long, global = true, help_heading = "Output")]
    json: bool,
    /// Print the line that has the result, and no progress.
    #[arg(long, short, global = true, help_heading = "Output")]
    quiet: bool,
    /// Colour of outcomes and errors: auto, always or never.
    ///
    /// `auto` has colour on a terminal alone, and none if NO_COLOR is set or TERM is `dumb`.
    #[arg(
        long,
        global = true,
        help_heading = "Output",
        value_enum,
        value_name = "WHEN",
        default_value_t = ColorChoice::Auto,
        hide_default_value = true,
        hide_possible_values = true
    )]
    color: ColorChoice,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Doctor(adapters::doctor::Args),
    Key(key::Args),
    Job(job::Args),
    Train(train::Args),
    Sign(sign::Args),
    Correct(correct::Args),
    Publish(publish::Args),
    Verify(verify::Args),
    Audit(Box<audit::Args>),
    Watch(Box<audit::watch::Args>),
    Replay(replay::Args),
    Reveal(reveal::Args),
    Compare(compare::Args),
    Verdict(verdict::Args),
    Referee(Box<referee::Args>),
    Serve(Box<serve::Args>),
    Eval(Box<eval::Args>),
    Predict(Box<predict::Args>),
    Export(export::Args),
    Import(import::Args),
    Generate(generate::Args),
    ServeModel(Box<serve_model::Args>),
    Receipt(receipt::Args),
    Logits(logits::Args),
    Inspect(inspect::Args),
    Plot(plot::Args),
    Log(log::Args),
    Adapters(adapters::Args),
    Selftest(selftest::Args),
    Op(op::Args),
    Program(program::Args),
    #[cfg(feature = "gpu")]
    Shaders(shaders::Args),
    Monitor(monitor::Args),
    Witness(witness::Args),
    Completions(completions::Args),
    Man(man::Args),
    Reference(reference::Args),
}

/// Every command and option, as the parser knows them.
pub fn command() -> clap::Command {
    overview::added(Args::command())
}

/// Parses the command line, runs the command, reports errors.
pub fn main() -> ExitCode {
    // The command is also the process in which chat templates and tokenizers run.
    #[cfg(feature = "tokenizer")]
    if let Some(code) = tiebreak_tokenizer::serve_if_asked() {
        return code;
    }
    ExitCode::from(run(&std::env::args_os().collect::<Vec<_>>()))
}

/// Parses a command line.
fn parsed(
    line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    color: ColorChoice,
) -> Result<Args, clap::Error> {
    let mut command = command().color(color);
    let mut matches = command.try_get_matches_from_mut(line)?;
    if let Some(why) = outputs::refused(&command, &matches) {
        return Err(clap::Error::raw(ErrorKind::ArgumentConflict, why + "\n"));
    }
    Args::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// The value of `--color` on a command line that may hold mistakes.
fn color_of(line: &[OsString]) -> ColorChoice {
    let words: Vec<_> = line.iter().map(|word| word.to_string_lossy()).collect();
    let value = words.iter().enumerate().find_map(|(i, word)| match word.strip_prefix("--color") {
        Some("") => words.get(i + 1).map(|next| next.as_ref()),
        Some(rest) => rest.strip_prefix('='),
        None => None,
    });
    value.and_then(|value| ColorChoice::from_str(value, false).ok()).unwrap_or(ColorChoice::Auto)
}

/// [`main`] with a command line, whose first word is the program's name: the exit code.
pub fn run(line: &[OsString]) -> u8 {
    let color = color_of(line);
    let args = match parsed(line, color) {
        Ok(args) => args,
        Err(error) => return not_parsed(line, color, &error) as u8,
    };
    let printer = Printer { json: args.json, quiet: args.quiet, color: args.color };
    printer.end(dispatched(printer, args.command)) as u8
}

/// Runs a command.
fn dispatched(printer: Printer, command: Command) -> CommandResult {
    match command {
        Command::Demo(args) => demo::run(printer, args),
        Command::Doctor(args) => adapters::doctor::run(printer, &args),
        Command::Key(args) => key::run(printer, args),
        Command::Job(args) => job::run(printer, args),
        Command::Train(args) => train::run(printer, args),
        Command::Sign(args) => sign::run(printer, args),
        Command::Correct(args) => correct::run(printer, args),
        Command::Publish(args) => publish::run(printer, &args),
        Command::Verify(args) => verify::run(printer, args),
        Command::Audit(args) => audit::run(printer, *args),
        Command::Watch(args) => audit::watch::run(printer, *args),
        Command::Replay(args) => replay::run(printer, args),
        Command::Reveal(args) => reveal::run(printer, args),
        Command::Compare(args) => compare::run(printer, args),
        Command::Verdict(args) => verdict::run(printer, args),
        Command::Referee(args) => referee::run(printer, *args),
        Command::Serve(args) => serve::run(printer, *args),
        Command::Eval(args) => eval::run(printer, *args),
        Command::Predict(args) => predict::run(printer, *args),
        Command::Export(args) => export::run(printer, args),
        Command::Import(args) => import::run(printer, args),
        Command::Generate(args) => generate::run(printer, args),
        Command::ServeModel(args) => serve_model::run(printer, *args),
        Command::Receipt(args) => receipt::run(printer, args),
        Command::Logits(args) => logits::run(printer, args),
        Command::Inspect(args) => inspect::run(printer, args),
        Command::Plot(args) => plot::run(printer, args),
        Command::Log(args) => log::run(printer, args),
        Command::Adapters(args) => adapters::run(printer, args),
        Command::Selftest(args) => selftest::run(printer, args),
        Command::Op(args) => op::run(printer, args),
        Command::Program(args) => program::run(printer, args),
        #[cfg(feature = "gpu")]
        Command::Shaders(args) => shaders::run(printer, args),
        Command::Monitor(args) => monitor::run(printer, args),
        Command::Witness(args) => witness::run(printer, args),
        Command::Completions(args) => completions::run(printer, &args, self::command()),
        Command::Man(args) => man::run(printer, &args, self::command()),
        Command::Reference(_) => reference::run(printer, self::command()),
    }
}

/// Prints the mistake of a command line, or the help that it asks for.
fn not_parsed(line: &[OsString], color: ColorChoice, error: &clap::Error) -> Exit {
    let json = line.iter().any(|argument| argument == "--json");
    let printer = Printer { json, quiet: false, color };
    if !error.use_stderr() {
        let _ = error.print();
        return Exit::Match;
    }
    // What it quotes of the command line may be a file's name, which somebody else chose: so it is asked again about escaped arguments.
    let escaped = line.iter().map(|argument| one_line(&argument.to_string_lossy()).into_owned());
    let text = match parsed(escaped, ColorChoice::Never) {
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

/// The end of a command that a program called.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit code that the command line would have had.
    pub exit: u8,
    /// The result, which `--json` prints.
    pub result: Option<String>,
    /// The error and its help, if the command failed.
    pub error: Option<(String, Option<String>)>,
}

/// Runs a command as a function: its words without the program's name. Nothing is printed, and no signal is waited for; `heard` gets the
/// progress.
#[doc(hidden)]
pub fn call(words: &[OsString], heard: &Arc<Heard>) -> Ended {
    let line = ["tiebreak", "--json"].into_iter().map(OsString::from).chain(words.iter().cloned());
    let ended = match parsed(line, ColorChoice::Never) {
        Ok(args) => {
            let printer = Printer { json: true, quiet: false, color: ColorChoice::Never };
            heard.during(|| dispatched(printer, args.command))
        }
        Err(error) => Err(Failure::new(Exit::Usage, one_line(error.to_string().trim()))),
    };
    told(ended, heard)
}

/// Records a run whose batches `feed` gives. The words are a job file and options of `train`: `--out`, `--key`, `--data-root`,
/// `--stop-on-nan`, and those of engines and limits.
#[doc(hidden)]
pub fn record(words: &[OsString], heard: &Arc<Heard>, feed: &mut dyn Feed) -> Ended {
    let printer = Printer { json: true, quiet: false, color: ColorChoice::Never };
    told(heard.during(|| train::recording::run(printer, words, feed)), heard)
}

/// The end of a command for its caller.
fn told(ended: CommandResult, heard: &Heard) -> Ended {
    let (exit, error) = match ended {
        Ok(exit) => (exit, None),
        Err(failure) => (failure.exit, Some((failure.message, failure.help))),
    };
    Ended { exit: exit as u8, result: heard.result(), error }
}

/// The exit code, the text and the help that commands have for an error of a run's files.
#[doc(hidden)]
pub fn explained(error: RunError) -> (u8, String, Option<String>) {
    told_error(Failure::from(error))
}

/// The engine of this name with so many threads, 0 for one a core; or the exit code, the text and the help.
#[doc(hidden)]
pub fn engine(name: &str, threads: usize) -> Result<Box<dyn Engine>, (u8, String, Option<String>)> {
    let engine = EngineKind::from_str(name, false).map_err(|why| {
        let names: Vec<_> =
            EngineKind::value_variants().iter().filter_map(ValueEnum::to_possible_value).collect();
        let names: Vec<&str> = names.iter().map(|name| name.get_name()).collect();
        (Exit::Usage as u8, format!("engine: {why}"), Some(format!("give one of {}", names.join(", "))))
    })?;
    open(&EngineArgs { engine, threads, ..EngineArgs::default() }).map_err(told_error)
}

/// The exit code, the text and the help that commands have for an engine's error.
#[doc(hidden)]
pub fn engine_error(error: EngineError) -> (u8, String, Option<String>) {
    told_error(Failure::from(error))
}

fn told_error(failure: Failure) -> (u8, String, Option<String>) {
    (failure.exit as u8, failure.message, failure.help)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(words: &[&str]) -> Ended {
        call(&words.iter().map(OsString::from).collect::<Vec<_>>(), &Arc::default())
    }

    #[test]
    fn a_called_command_gives_its_result_or_its_error() {
        let wrong = called(&["verify", "no such run"]);
        let (message, help) = wrong.error.unwrap();
        assert!(wrong.exit == 2 && wrong.result.is_none() && help.is_some(), "{message}");
        let unknown = called(&["audit", "--no-such-option"]);
        assert_eq!(unknown.exit, 2);
        assert!(!unknown.error.unwrap().0.contains('\n'));
        let asked = called(&["verify", "--help"]);
        assert_eq!((asked.exit, asked.result), (2, None));
        let listed = called(&["job", "reference"]);
        assert!(listed.exit == 0 && listed.result.is_some());
    }
}
