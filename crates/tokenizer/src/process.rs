//! Processes of this program that work on strangers' files for it, and their caller's side.
//!
//! Libraries for templates and tokenizers count little of what a file can make them do: it can multiply a text, overflow the stack, or
//! let them panic. So they work in processes of their own. A watchdog there ends work that takes too long. On Unix the system refuses
//! the process memory beyond a bound. A stack that overflows ends that process alone.

use std::io::{self, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// The stack of the thread that works.
pub const STACK: usize = 1 << 26;
/// The exit code of a process whose work took too long.
const LATE: i32 = 3;
/// The most bytes that are read of a process's last words.
const WORDS_MAX: u64 = 1 << 12;

/// True if this program is also the one that works.
static SERVES: AtomicBool = AtomicBool::new(false);

/// Notes that this program works for others if it is asked to. Returns the first argument, which asks.
pub fn asked() -> Option<String> {
    SERVES.store(true, Ordering::Relaxed);
    std::env::args_os().nth(1)?.into_string().ok()
}

/// Asks the system to refuse this process more memory: addresses, the program's own included.
#[cfg(unix)]
pub fn bound_memory(bytes: u64) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    // A system that knows no such bound leaves those on work and time.
    let most = |most| Rlimit { current: Some(most), maximum: Some(most) };
    let _ = setrlimit(Resource::As, most(bytes));
    let _ = setrlimit(Resource::Core, most(0));
}

/// This system bounds no memory.
#[cfg(not(unix))]
pub fn bound_memory(_: u64) {}

/// Runs work beside a watchdog. Each message of the work to it begins a request, which has that time, or ends one.
pub fn watched(work: impl FnOnce(&Sender<Duration>) + Send + 'static) -> ExitCode {
    let (watch, messages) = channel::<Duration>();
    let dog = thread::Builder::new().spawn(move || {
        while let Ok(time) = messages.recv() {
            if messages.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                std::process::exit(LATE);
            }
        }
    });
    let worker = thread::Builder::new().stack_size(STACK).spawn(move || work(&watch));
    let joined = dog.and(worker).map(|worker| worker.join().is_ok());
    if matches!(joined, Ok(true)) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A process that works for this one. It ends with this value.
pub struct Process {
    child: Child,
    /// What the process reads.
    pub input: ChildStdin,
    /// What the process writes.
    pub output: BufReader<ChildStdout>,
}

/// The reason why a process gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Its work took too long.
    Late,
    /// The system refused it memory.
    Memory,
    /// Its stack overflowed.
    Stack,
    /// Another one: it failed, or somebody ended it.
    Other,
}

impl Process {
    /// Starts this program as the one that `argument` names.
    ///
    /// # Errors
    /// If this program did not call [`crate::serve_if_asked`], or the system starts no process, in words. `work` says what for.
    pub fn start(argument: &str, work: &str) -> Result<Process, String> {
        if !SERVES.load(Ordering::Relaxed) {
            return Err(format!(
                "this program starts no process for {work}: use the commands `tiebreak` and `tiebreak-import`, which do"
            ));
        }
        let failed = |why: io::Error| format!("no process for {work} could be started: {why}");
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        // The last words are short without a list of the functions that were called.
        command.env("RUST_BACKTRACE", "0");
        command.arg(argument).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(Process { child, input, output: BufReader::new(output) }),
            _ => Err(failed(io::Error::other("it has no pipes"))),
        }
    }

    /// Writes a request.
    ///
    /// # Errors
    /// If the process does not read it.
    pub fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        parts.iter().try_for_each(|part| self.input.write_all(part))?;
        self.input.flush()
    }

    /// The error about a process that gives no answer: it went beyond so many seconds, or bytes of addresses or of stack. `help` is what
    /// to do about the time, and about the rest. None if it ended for another reason.
    pub fn beyond(&mut self, work: &str, (seconds, memory): (u32, u64), help: [&str; 2]) -> Option<String> {
        let (bound, help) = match self.ended() {
            Ended::Late => (format!("{seconds} s"), help[0]),
            Ended::Memory => (format!("{} MiB of memory", memory >> 20), help[1]),
            Ended::Stack => (format!("{} MiB of stack", STACK >> 20), help[1]),
            Ended::Other => return None,
        };
        Some(format!("{work} was stopped: it took more than {bound}; {help}"))
    }

    /// Why a process gives no answer. One that goes on is stopped; one that is at its end keeps its exit code.
    fn ended(&mut self) -> Ended {
        drop(self.child.kill());
        let (code, mut words) = (self.child.wait().ok().and_then(|status| status.code()), Vec::new());
        if let Some(stderr) = self.child.stderr.take() {
            drop(stderr.take(WORDS_MAX).read_to_end(&mut words));
        }
        // The standard library's own words before it aborts.
        let words = String::from_utf8_lossy(&words);
        match () {
            () if code == Some(LATE) => Ended::Late,
            () if words.contains("memory allocation of") => Ended::Memory,
            () if words.contains("overflowed its stack") => Ended::Stack,
            () => Ended::Other,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
