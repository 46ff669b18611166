//! The process that renders chats for another one, and its caller's side.
//!
//! The template engine counts work, and so bounds most of what templates do. It does not count everything: lists that a template joins
//! again and again are walked for as long as one likes, and values in values overflow the stack when they are dropped. So the template
//! runs in a process of its own. A watchdog there ends a rendering that takes too long. On Unix the system refuses it memory beyond a
//! bound. A stack that overflows ends that process alone.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::render::{Compiled, Rendered};
use super::template::Template;
use super::{Chat, TEXT_MAX};

/// The first argument of a process that renders.
const ARGUMENT: &str = "render-chats-of-standard-input";
/// The memory of the process that renders: addresses, the program's own included.
const MEMORY: u64 = 1 << 30;
/// The stack of the thread that renders.
const STACK: usize = 1 << 26;
/// The most bytes of an answer: each of a text can take six in JSON.
const ANSWER_MAX: u64 = 6 * TEXT_MAX as u64 + (1 << 22);
/// The exit code of a process whose rendering took too long.
const LATE: i32 = 3;
/// The most bytes that are read of a process's last words.
const WORDS_MAX: u64 = 1 << 12;

/// True if this program is also the one that renders.
static RENDERS: AtomicBool = AtomicBool::new(false);

/// Renders for another process, if the command line asks for it; returns the exit code then. Each program whose commands render
/// chats calls this first.
pub fn serve_if_asked() -> Option<ExitCode> {
    RENDERS.store(true, Ordering::Relaxed);
    if std::env::args_os().nth(1)? != ARGUMENT {
        return None;
    }
    Some(serve())
}

#[cfg(unix)]
fn bound_memory() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    // A system that knows no such bound leaves those on work and time.
    let most = |most| Rlimit { current: Some(most), maximum: Some(most) };
    let _ = setrlimit(Resource::As, most(MEMORY));
    let _ = setrlimit(Resource::Core, most(0));
}

#[cfg(not(unix))]
fn bound_memory() {}

/// Answers requests from standard input until it ends.
fn serve() -> ExitCode {
    bound_memory();
    let (watch, watched) = channel::<Duration>();
    let dog = thread::Builder::new().spawn(move || {
        // A message begins a rendering, and has its time; the next one ends it.
        while let Ok(time) = watched.recv() {
            if watched.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                std::process::exit(LATE);
            }
        }
    });
    let worker = thread::Builder::new().stack_size(STACK).spawn(move || {
        let mut lines = io::stdin().lock().lines();
        let Some(Ok(seconds)) = lines.next() else { return };
        let time = Duration::from_secs(seconds.parse().unwrap_or(0));
        let mut compiled = None;
        while let Some(Ok(line)) = lines.next() {
            let _ = watch.send(time);
            let answer = answered(&line, &mut compiled).unwrap_or_else(|why| json!({ "error": why }));
            let _ = watch.send(time);
            let mut out = io::stdout().lock();
            if writeln!(out, "{answer}").and_then(|()| out.flush()).is_err() {
                return;
            }
        }
    });
    let joined = dog.and(worker).map(|worker| worker.join().is_ok());
    if matches!(joined, Ok(true)) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The answer to a request: the first has the template, the others have messages. One with `most` asks for a prompt of at most so
/// many bytes, the others for the text whose answers are there.
fn answered(line: &str, compiled: &mut Option<Compiled>) -> Result<Value, String> {
    let asked: Value = serde_json::from_str(line).map_err(|why| why.to_string())?;
    match compiled {
        None => {
            let source = asked["source"].as_str().unwrap_or_default().into();
            let tokens = asked["tokens"].as_object().cloned().unwrap_or_default();
            *compiled = Some(Compiled::of(&Template { source, tokens })?);
            Ok(json!({}))
        }
        Some(compiled) => {
            let chat = Chat::read(&asked["messages"])?;
            match asked["most"].as_u64() {
                Some(most) => Ok(json!({ "text": compiled.prompt(&chat, most)? })),
                None => Ok(compiled.answers(&chat)?.to_json()),
            }
        }
    }
}

/// A template in a process of its own, which renders one chat after another.
pub struct Renderer {
    template: Template,
    bounds: Bounds,
    worker: Option<Worker>,
}

/// The time of a rendering.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The most seconds for one chat.
    pub seconds: u32,
    /// The help in the error of a chat beyond a bound.
    pub help: &'static str,
}

impl Renderer {
    /// Starts the process, which reads the template.
    ///
    /// # Errors
    /// If this program did not call [`serve_if_asked`], the system starts no process, or the template is not understood, in words.
    pub fn start(template: Template, bounds: Bounds) -> Result<Renderer, String> {
        let worker = Some(Worker::start(&template, bounds)?);
        Ok(Renderer { template, bounds, worker })
    }

    /// The text of a chat whose answers are there, and where they are.
    ///
    /// # Errors
    /// If the template refuses the chat or goes beyond a bound, or the answers' parts cannot be told, in words.
    pub fn answers(&mut self, chat: &Chat) -> Result<Rendered, String> {
        let answer = self.ask(&json!({ "messages": chat.to_json() }))?;
        Rendered::read(&answer).ok_or_else(|| FAILED.into())
    }

    /// The text of a chat and the beginning of its next answer, of at most so many bytes.
    ///
    /// # Errors
    /// If the template refuses the chat or goes beyond a bound, in words.
    pub fn prompt(&mut self, chat: &Chat, most: usize) -> Result<String, String> {
        let answer = self.ask(&json!({ "messages": chat.to_json(), "most": most }))?;
        answer["text"].as_str().map(String::from).ok_or_else(|| FAILED.into())
    }

    /// Starts the process again, if the last chat ended it.
    ///
    /// # Errors
    /// If the system starts none, in words.
    pub fn ready(&mut self) -> Result<(), String> {
        if self.worker.is_none() {
            self.worker = Some(Worker::start(&self.template, self.bounds)?);
        }
        Ok(())
    }

    fn ask(&mut self, request: &Value) -> Result<Value, String> {
        let mut worker = match self.worker.take() {
            Some(worker) => worker,
            None => Worker::start(&self.template, self.bounds)?,
        };
        let answer = worker.ask(request)?;
        // A process that answers goes on; another one is started in place of one that does not.
        self.worker = Some(worker);
        match answer["error"].as_str() {
            Some(why) => Err(why.into()),
            None => Ok(answer),
        }
    }
}

/// The error about a process that ended for another reason than a bound.
const FAILED: &str = "the process of the chat template ended: it failed, or somebody ended it";

struct Worker {
    bounds: Bounds,
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(template: &Template, bounds: Bounds) -> Result<Worker, String> {
        if !RENDERS.load(Ordering::Relaxed) {
            return Err("this program renders no chats, since only `tiebreak` and `tiebreak-import` start the process in which \
                        templates run: use these commands"
                .into());
        }
        let failed = |why: io::Error| format!("no process for the chat template could be started: {why}");
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        // The last words are short without a list of the functions that were called.
        command.env("RUST_BACKTRACE", "0");
        command.arg(ARGUMENT).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(failed)?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { return Err(FAILED.into()) };
        let mut worker = Worker { bounds, process, input, output: BufReader::new(output) };
        // An error of this line is one of the next as well.
        drop(writeln!(worker.input, "{}", bounds.seconds));
        let answer = worker.ask(&json!({ "source": template.source, "tokens": template.tokens }))?;
        match answer["error"].as_str() {
            Some(why) => Err(why.into()),
            None => Ok(worker),
        }
    }

    fn ask(&mut self, request: &Value) -> Result<Value, String> {
        let sent = writeln!(self.input, "{request}").and_then(|()| self.input.flush());
        let mut line = Vec::new();
        let read = sent.and_then(|()| (&mut self.output).take(ANSWER_MAX).read_until(b'\n', &mut line));
        let answer = read.ok().and_then(|_| serde_json::from_slice(&line).ok());
        answer.ok_or_else(|| self.ended())
    }

    /// The error about a process that gives no answer. One that goes on is stopped; one that is at its end keeps its exit code.
    fn ended(&mut self) -> String {
        drop(self.process.kill());
        let (code, mut words) = (self.process.wait().ok().and_then(|status| status.code()), Vec::new());
        if let Some(stderr) = self.process.stderr.take() {
            drop(stderr.take(WORDS_MAX).read_to_end(&mut words));
        }
        // The standard library's own words before it aborts.
        let words = String::from_utf8_lossy(&words);
        let Bounds { seconds, help } = self.bounds;
        let bound = match () {
            () if code == Some(LATE) => format!("{seconds} s"),
            () if words.contains("memory allocation of") => format!("{} MiB of memory", MEMORY >> 20),
            () if words.contains("overflowed its stack") => format!("{} MiB of stack", STACK >> 20),
            () => return FAILED.into(),
        };
        format!("the chat template was stopped: it took more than {bound}; {help}")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
