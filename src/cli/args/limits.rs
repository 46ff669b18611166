//! Memory and time that a command may take which reads files of others.

use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::place::{run_at, with_data};
use crate::cli::view::report::{Exit, Failure, Printer, bytes_text};
use tiebreak_audit::plan::ReplayPlan;
use tiebreak_run::run::RunError;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::limits::{machine_memory, memory_in_use};
use tiebreak_run::run::reader::Salts;

/// The pause between two looks at the memory in use.
const LOOKED_EVERY: Duration = Duration::from_millis(5);

/// Limits of a command, from its first byte on.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// Most memory, in MiB; by default the machine's memory.
    ///
    /// The command refuses work that needs more.
    #[arg(long, value_name = "MIB", hide_short_help = true)]
    max_memory: Option<u64>,
    /// Most time, in seconds.
    ///
    /// The command stops then, and says which parts it did not check.
    #[arg(long, value_name = "SECONDS", hide_short_help = true)]
    max_time: Option<u64>,
}

/// Ends the command when its time is up or its memory is used up, until it is dropped.
pub struct Watch {
    _held: Option<Sender<()>>,
    memory: Arc<AtomicBool>,
    decided: Arc<OnceLock<(String, Exit)>>,
}

impl Watch {
    /// From here on a limit ends the command with this finding and its exit code: only the evidence of it is not made yet.
    pub fn decided(&self, finding: String, exit: Exit) {
        let _ = self.decided.set((finding, exit));
    }

    /// From here on a plan's figure counts, which was compared with the limit: the memory in use is looked at no more.
    pub fn planned(&self) {
        self.memory.store(false, Relaxed);
    }
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

    /// Begins to hold what cannot stop by itself to the limits: reading and checking files. Memory is what the system says that the
    /// process takes, where somebody set a limit and the system says it.
    pub fn watch(&self, printer: Printer) -> Watch {
        let (time, most) = (self.time(), self.max_memory.map(|_| self.memory()));
        let memory = Arc::new(AtomicBool::new(most.is_some()));
        let decided = Arc::new(OnceLock::<(String, Exit)>::new());
        if time.is_none() && most.is_none() {
            return Watch { _held: None, memory, decided };
        }
        let found = decided.clone();
        let ended = move |why: String, help: &str| match found.get() {
            None => Failure::new(Exit::Undecided, format!("{why}; nothing was decided")).help(help),
            Some((finding, exit)) => {
                Failure::new(*exit, format!("{finding}; no verdict is written: {why}")).help(help)
            }
        };
        let (start, looking) = (Instant::now(), memory.clone());
        let exceeded = move || {
            let used = most.filter(|_| looking.load(Relaxed)).zip(memory_in_use());
            match (left(time, start), used) {
                (Some(Duration::ZERO), _) => Some(ended("--max-time was reached".into(), "raise --max-time")),
                (_, Some((most, used))) if used > most => {
                    let (used, most) = (bytes_text(used), bytes_text(most));
                    let why = format!("it takes {used} of memory, the limit is {most}");
                    let help = "raise --max-memory (MiB); without it the limit is the machine's memory";
                    Some(ended(why, help))
                }
                _ => None,
            }
        };
        let end = move |failure| process::exit(printer.end(Err(failure)) as i32);
        // At once, so that a limit of nothing is kept by the shortest command.
        if let Some(why) = exceeded() {
            end(why);
        }
        let (held, dropped) = channel::<()>();
        thread::spawn(move || {
            let pause = || match most {
                Some(_) => LOOKED_EVERY,
                None => left(time, start).unwrap_or(LOOKED_EVERY),
            };
            while dropped.recv_timeout(pause()) == Err(RecvTimeoutError::Timeout) {
                if let Some(why) = exceeded() {
                    end(why);
                }
            }
        });
        Watch { _held: Some(held), memory, decided }
    }

    /// Opens a run that is read within these limits.
    pub fn open(&self, path: &Path) -> Result<Run, RunError> {
        Ok(run_at(path, Salts::Refused)?.with_memory(self.memory()))
    }

    /// [`open`](Limits::open), for who may say where the data files are.
    ///
    /// # Errors
    /// If the run cannot be read, or holds its data files already.
    pub fn open_with_data(&self, path: &Path, data: Option<&PathBuf>) -> Result<Run, Failure> {
        Limits::with_data(self.open(path)?, data)
    }

    /// A run whose data files may be in a folder, or at an address.
    ///
    /// # Errors
    /// If the run holds its data files already, or this build reads no address of that kind.
    pub fn with_data(run: Run, data: Option<&PathBuf>) -> Result<Run, Failure> {
        if let Some(folder) = data.filter(|_| run.holds_data()) {
            let why = format!("the run holds its data files, and --data names {} for them", folder.display());
            return Err(Failure::new(Exit::Usage, why).help("leave --data out"));
        }
        Ok(with_data(run, data)?)
    }

    /// The limit of memory as an option for another process.
    pub fn memory_option(&self) -> Option<String> {
        self.max_memory.map(|most| format!("--max-memory={most}"))
    }

    /// The limit that is reached by now, in words, for work that began at `start` and stops by itself.
    pub fn reached(&self, start: Instant) -> Option<String> {
        if left(self.time(), start) == Some(Duration::ZERO) {
            return Some("since --max-time was reached".into());
        }
        let most = self.max_memory.map(|_| self.memory())?;
        let used = memory_in_use().filter(|&used| used > most)?;
        let (used, most) = (bytes_text(used), bytes_text(most));
        Some(format!("since it takes {used} of memory, and --max-memory allows {most}"))
    }

    /// Refuses what takes more memory.
    pub fn check(&self, what: &str, bytes: u64) -> Result<(), Failure> {
        let limit = self.memory();
        if bytes <= limit {
            return Ok(());
        }
        let (needed, limit) = (bytes_text(bytes), bytes_text(limit));
        let why = format!("{what} needs about {needed} of memory, the limit is {limit}");
        Err(Failure::new(Exit::Undecided, why).needs_memory(bytes))
    }

    /// Refuses a plan that needs too much memory.
    pub fn check_plan(&self, plan: &ReplayPlan) -> Result<(), Failure> {
        self.check("a replay", plan.memory)
    }
}

/// The rest of a time that began at `start`.
pub fn left(time: Option<Duration>, start: Instant) -> Option<Duration> {
    time.map(|time| time.saturating_sub(start.elapsed()))
}
