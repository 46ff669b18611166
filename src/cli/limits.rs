//! What a command that reads files of others may take: memory and time.

use std::path::Path;
use std::process;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::{Exit, Failure, Printer, bytes_text};
use crate::audit::plan::ReplayPlan;
use crate::run::RunError;
use crate::run::dir::Run;
use crate::run::limits::machine_memory;

/// Limits of a command, from its first byte on.
#[derive(clap::Args)]
pub(super) struct Limits {
    /// Refuse what needs more memory, in MiB; by default the machine's memory.
    #[arg(long)]
    max_memory: Option<u64>,
    /// Stop after this many seconds and say what was not checked.
    #[arg(long)]
    max_time: Option<u64>,
}

/// Ends the command when its time is up, until it is dropped.
pub(super) struct Watch {
    _held: Option<Sender<()>>,
}

impl Limits {
    /// The most bytes of memory.
    pub fn memory(&self) -> u64 {
        self.max_memory.map_or_else(machine_memory, |limit| limit.saturating_mul(1 << 20))
    }

    /// The time, if it is limited.
    pub fn time(&self) -> Option<Duration> {
        self.max_time.map(Duration::from_secs)
    }

    /// Begins to count the time of what cannot stop by itself: reading and checking files.
    pub fn watch(&self, printer: Printer) -> Watch {
        let Some(time) = self.time() else { return Watch { _held: None } };
        let (held, dropped) = channel::<()>();
        thread::spawn(move || {
            if dropped.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                let failure = Failure::new(Exit::Undecided, "--max-time was reached; nothing was decided");
                process::exit(printer.end(Err(failure)) as i32);
            }
        });
        Watch { _held: Some(held) }
    }

    /// Opens a run that is read within these limits.
    pub fn open(&self, path: &Path) -> Result<Run, RunError> {
        Ok(Run::open(path)?.with_memory(self.memory()))
    }

    /// Refuses what takes more memory.
    pub fn check(&self, what: &str, bytes: u64) -> Result<(), Failure> {
        let limit = self.memory();
        if bytes <= limit {
            return Ok(());
        }
        let (needed, limit) = (bytes_text(bytes), bytes_text(limit));
        let why = format!("{what} needs about {needed} of memory, the limit is {limit}; raise --max-memory");
        Err(Failure::new(Exit::Undecided, why))
    }

    /// Refuses a plan that needs too much memory.
    pub fn check_plan(&self, plan: &ReplayPlan) -> Result<(), Failure> {
        self.check("a replay", plan.memory)
    }
}

/// What is left of a time that began at `start`.
pub(super) fn left(time: Option<Duration>, start: Instant) -> Option<Duration> {
    time.map(|time| time.saturating_sub(start.elapsed()))
}
