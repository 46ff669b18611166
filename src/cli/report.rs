//! What all commands share: exit codes, errors, where output goes.

use std::io::{IsTerminal, Write};

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
}

/// An error with its exit code.
pub struct Failure {
    pub(super) exit: Exit,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(exit: Exit, message: impl ToString) -> Failure {
        Failure { exit, message: message.to_string() }
    }
}

pub(super) type CommandResult = Result<Exit, Failure>;

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        let exit = match error {
            RunError::Malformed { .. } => Exit::Malformed,
            RunError::Io { .. } | RunError::Limit(_) => Exit::Undecided,
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

/// Where output goes.
#[derive(Clone, Copy)]
pub struct Printer {
    /// Whether the result goes to stdout as JSON.
    pub json: bool,
    pub(super) quiet: bool,
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

/// Bytes of the system's randomness.
pub(super) fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(Exit::Undecided, format!("the system has no randomness: {error}")))?;
    Ok(bytes)
}

/// Bytes for people.
pub(super) fn bytes_text(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}
