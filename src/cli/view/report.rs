//! The common part of all commands: exit codes, errors, and the one door of output. Printed text is foreign or may quote foreign text, so
//! all of it is escaped ([`escape`]).

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, OnceLock};

use crate::cli::view::escape::Lines;
use crate::cli::view::{color, escape, heard, help};
use clap::ColorChoice;

use tiebreak_audit::AuditError;
use tiebreak_engine::EngineError;
use tiebreak_engine::cpu::kernel::Kernel;
use tiebreak_game::party::PartyError;
use tiebreak_record::commit::Malformed;
use tiebreak_run::run::RunError;
use tiebreak_run::step::StepError;
use tiebreak_train::TrainError;
use tiebreak_train::ranks::RankError;

/// The kernel of native products that the program has which called this command, if it has one.
pub fn callers_kernel() -> Option<Arc<dyn Kernel>> {
    heard::kernel()
}

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command did its work, and found nothing to object to.
    Match = 0,
    /// A run or a verdict shows a difference.
    Diverges = 1,
    /// The command line or a job file is wrong.
    Usage = 2,
    /// The question could not be decided on this machine.
    Undecided = 3,
    /// A file is not what it should be.
    Malformed = 4,
    /// In a dispute game somebody lost by what the referee alone attests (its time was up, it opened nothing), and nobody was convicted.
    Forfeit = 5,
}

/// An error with its exit code.
pub struct Failure {
    pub exit: Exit,
    pub message: String,
    /// A command or an action that helps.
    pub help: Option<String>,
    /// The error's fields, for programs.
    pub fields: Option<serde_json::Value>,
}

impl Failure {
    pub fn new(exit: Exit, message: impl ToString) -> Failure {
        Failure { exit, message: message.to_string(), help: None, fields: None }
    }

    /// The same error, with the limit of memory that would do.
    pub fn needs_memory(self, bytes: u64) -> Failure {
        self.help(help::more_memory(bytes))
    }

    /// The same error, with a command or an action that helps.
    pub fn help(self, help: impl ToString) -> Failure {
        Failure { help: Some(help.to_string()), ..self }
    }
}

pub type CommandResult = Result<Exit, Failure>;

/// An error with a file that the command line names: one that is not there was mistyped.
pub fn named(error: RunError) -> Failure {
    let absent = matches!(&error, RunError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound);
    if absent { Failure { exit: Exit::Usage, ..error.into() } } else { error.into() }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        let exit = match error {
            RunError::Malformed { .. } | RunError::Unsigned { .. } | RunError::OtherKey { .. } => {
                Exit::Malformed
            }
            RunError::Io { .. } | RunError::Memory { .. } => Exit::Undecided,
            RunError::NoJob { .. } | RunError::NoRun { .. } | RunError::Locked { .. } => Exit::Usage,
            RunError::Job(_) | RunError::Refused(_) => Exit::Usage,
        };
        Failure { help: help::of_run(&error), ..Failure::new(exit, error) }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        let (help, fields) = (help::of_engine(&error), wrong_device(&error));
        Failure { help, fields, ..Failure::new(Exit::Undecided, error) }
    }
}

/// The place where a device is wrong, for programs.
fn wrong_device(error: &EngineError) -> Option<serde_json::Value> {
    let EngineError::WrongResult { device, operator, part, element, tile, found, expected } = error else {
        return None;
    };
    let [found, expected] = [found, expected].map(|word| format!("{word:08x}"));
    Some(serde_json::json!({
        "kind": part.kind(),
        "device": device,
        "operator": operator,
        "element": element,
        "tile": tile,
        "found": found,
        "expected": expected,
    }))
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
            TrainError::Engine(error) => error.into(),
            other => Failure::new(Exit::Undecided, other),
        }
    }
}

impl From<AuditError> for Failure {
    fn from(error: AuditError) -> Failure {
        match error {
            AuditError::Run(error) => error.into(),
            AuditError::Engine(error) => error.into(),
            other => Failure::new(Exit::Undecided, other),
        }
    }
}

impl From<PartyError> for Failure {
    fn from(error: PartyError) -> Failure {
        match error {
            PartyError::Refused(why) => Failure::new(Exit::Usage, why),
            PartyError::Malformed(error) => error.into(),
            PartyError::Run(error) => error.into(),
            PartyError::Engine(error) => error.into(),
            other => Failure::new(Exit::Undecided, other),
        }
    }
}

impl From<Malformed> for Failure {
    fn from(error: Malformed) -> Failure {
        Failure { help: help::of_malformed(&error), ..Failure::new(Exit::Malformed, error) }
    }
}

/// Why standard output could not be written, if it could not.
static UNWRITTEN: OnceLock<String> = OnceLock::new();

/// Notes an error of standard output. A closed pipe is the reader's choice, and none.
fn note(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = UNWRITTEN.set(format!("the result could not be written to standard output: {error}"));
    }
}

/// The one door of all output, which is escaped ([`escape`]).
#[derive(Clone, Copy)]
pub struct Printer {
    /// True if results go to stdout as JSON, and errors to stderr.
    pub json: bool,
    /// True if only the line with the result is printed, and no progress.
    pub quiet: bool,
    /// Colour of outcome words.
    pub color: ColorChoice,
}

impl Printer {
    /// Lines for people, on stderr or for the caller ([`heard`]); silent with --json or --quiet.
    pub fn say(&self, lines: impl Into<Lines>) {
        if let Some(caller) = heard::caller() {
            caller.say(lines.into().text());
            return;
        }
        if !self.json && !self.quiet {
            let _ = writeln!(io::stderr(), "{}", self.on_stderr(lines.into().text()));
        }
    }

    /// Prints the result of the command on stdout: lines for people, or JSON for scripts. The first line says it; --quiet prints no other.
    pub fn result(&self, lines: impl Into<Lines>, json: &impl serde::Serialize) {
        let lines = lines.into();
        let text = if self.quiet { lines.first().to_string() } else { lines.text() };
        let painted = color::is_wanted(self.color, io::stdout().is_terminal());
        self.write(if painted { color::painted(&text) } else { text }, json);
    }

    /// Prints the document that the command was called for on stdout: a text that --quiet leaves whole, or JSON.
    pub fn document(&self, lines: impl Into<Lines>, json: &impl serde::Serialize) {
        self.write(lines.into().text(), json);
    }

    fn write(&self, text: String, json: &impl serde::Serialize) {
        if let Some(caller) = heard::caller() {
            let mut bytes = Vec::new();
            let written = if self.json {
                escape::write_json(&mut bytes, json)
            } else {
                bytes.write_all(text.as_bytes())
            };
            match written.and_then(|()| String::from_utf8(bytes).map_err(io::Error::other)) {
                Ok(json) => caller.take_result(json),
                Err(error) => caller.say(format!("warning: the result is no JSON: {error}")),
            }
            return;
        }
        // JSON is written as it is made, since a result of many ranges takes many times their memory as a text.
        let mut out = io::BufWriter::new(io::stdout().lock());
        let written =
            if self.json { escape::write_json(&mut out, json) } else { out.write_all(text.as_bytes()) };
        note(written.and_then(|()| writeln!(out)).and_then(|()| out.flush()));
    }

    /// A piece of a text that was escaped already, on stdout. Whether more of it can be written.
    pub fn piece(&self, text: &str) -> bool {
        let mut out = io::stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        let goes_on = written.is_ok();
        note(written);
        goes_on
    }

    /// The end of a command: prints its error to stderr, as a line or as JSON. A result that was not written is an error, unless there is a worse one.
    pub fn end(&self, result: CommandResult) -> Exit {
        let result = match (result, UNWRITTEN.get()) {
            (Ok(Exit::Match), Some(why)) => Err(Failure::new(Exit::Undecided, why)),
            (result, _) => result,
        };
        let failure = match result {
            Ok(exit) => return exit,
            Err(failure) => failure,
        };
        let mut json = serde_json::json!({ "error": failure.message, "exit": failure.exit as u8 });
        if let Some(help) = &failure.help {
            json["help"] = serde_json::json!(help);
        }
        if let Some(fields) = &failure.fields {
            json["wrong_device"] = fields.clone();
        }
        self.error(&failure.message, &json);
        if let (Some(help), false) = (&failure.help, self.json) {
            let _ = writeln!(io::stderr(), "help: {}", escape::one_line(help));
        }
        failure.exit
    }

    /// Something that went wrong beside the result, on stderr.
    pub fn problem(&self, what: &str) {
        self.error(what, &serde_json::json!({ "problem": what }));
    }

    /// A text for stderr, with colour if it is wanted there.
    fn on_stderr(&self, text: String) -> String {
        if color::is_wanted(self.color, io::stderr().is_terminal()) { color::painted(&text) } else { text }
    }

    fn error(&self, message: &str, json: &serde_json::Value) {
        if let Some(caller) = heard::caller() {
            caller.say(format!("warning: {}", escape::one_line(message)));
            return;
        }
        let text = match self.json {
            false => self.on_stderr(format!("error: {}", escape::one_line(message))),
            true => escape::json(&json.to_string()).into_owned(),
        };
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// Bytes for people.
pub fn bytes_text(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}
