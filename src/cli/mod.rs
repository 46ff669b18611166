//! The command line: one file a subcommand, each thin. Data that could be piped goes to stdout, everything else to
//! stderr.
//!
//! Exit codes: 0 match, 1 diverges or convicted, 2 usage, 3 could not decide (own fault or limit), 4 malformed or
//! badly signed.

mod audit;
mod compare;
mod demo;
mod engine;
mod inspect;
mod job;
mod key;
mod log;
mod op;
mod ranks;
mod replay;
mod sample;
mod selftest;
#[cfg(feature = "gpu")]
mod shaders;
mod train;
mod verdict;
mod verify;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::audit::AuditError;
use crate::commit::Malformed;
use crate::engine::EngineError;
use crate::run::RunError;
use crate::step::StepError;
use crate::train::TrainError;
use crate::train::ranks::RankError;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Match = 0,
    Diverges = 1,
    Usage = 2,
    Undecided = 3,
    Malformed = 4,
}

/// An error with its exit code.
pub struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    fn new(exit: Exit, message: impl ToString) -> Failure {
        Failure { exit, message: message.to_string() }
    }
}

type CommandResult = Result<Exit, Failure>;

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        let exit = match error {
            RunError::Malformed { .. } => Exit::Malformed,
            RunError::Io { .. } => Exit::Undecided,
            RunError::Job(_) | RunError::Refused(_) => Exit::Usage,
        };
        Failure::new(exit, error)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        Failure::new(Exit::Undecided, error)
    }
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Failure {
        match error {
            StepError::Run(error) => error.into(),
            StepError::Engine(error) => error.into(),
        }
    }
}

impl From<RankError> for Failure {
    fn from(error: RankError) -> Failure {
        let exit = if matches!(error, RankError::Refused(_)) { Exit::Usage } else { Exit::Undecided };
        Failure::new(exit, error)
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Failure {
        match error {
            TrainError::Run(error) => error.into(),
            TrainError::Rank(error) => error.into(),
            other => Failure::new(Exit::Undecided, other),
        }
    }
}

impl From<AuditError> for Failure {
    fn from(error: AuditError) -> Failure {
        match error {
            AuditError::Run(error) => error.into(),
            other => Failure::new(Exit::Undecided, other),
        }
    }
}

impl From<Malformed> for Failure {
    fn from(error: Malformed) -> Failure {
        Failure::new(Exit::Malformed, error)
    }
}

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
    Audit(audit::Args),
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
    Key(key::Args),
    Log(log::Args),
}

/// Where output goes.
#[derive(Clone, Copy)]
pub struct Printer {
    pub json: bool,
    quiet: bool,
}

impl Printer {
    /// A line for people, on stderr; silent with --json or --quiet.
    pub fn say(&self, line: impl AsRef<str>) {
        if !self.json && !self.quiet {
            let _ = writeln!(std::io::stderr(), "{}", line.as_ref());
        }
    }

    /// The command's result: text for people, or JSON for scripts, on stdout.
    pub fn result(&self, text: impl AsRef<str>, json: &impl serde::Serialize) {
        let mut out = std::io::stdout().lock();
        // A closed pipe is the reader's choice.
        let _ = if self.json {
            serde_json::to_writer_pretty(&mut out, json)
                .map_err(std::io::Error::from)
                .and_then(|()| writeln!(out))
        } else {
            writeln!(out, "{}", text.as_ref())
        };
    }

    /// A progress bar on stderr, hidden unless somebody looks at it.
    pub fn bar(&self, len: u64, unit: &str) -> ProgressBar {
        let hidden = self.json || self.quiet || !std::io::stderr().is_terminal();
        let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(len), target);
        let template = format!("{{bar:30}} {{pos}}/{{len}} {unit}  {{per_sec}}  {{eta}} left  {{msg}}");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        bar
    }
}

/// Parses the command line, runs the command, reports errors.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let printer = Printer { json: args.json, quiet: args.quiet };
    let result = match args.command {
        Command::Demo(args) => demo::run(printer, args),
        Command::Train(args) => train::run(printer, args),
        Command::Verify(args) => verify::run(printer, args),
        Command::Audit(args) => audit::run(printer, args),
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

/// Bytes of the system's randomness.
fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(Exit::Undecided, format!("the system has no randomness: {error}")))?;
    Ok(bytes)
}

/// Bytes for people.
fn bytes_text(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}
