//! The process that renders chats for another one, and its caller's side.
//!
//! The template engine counts work, and so bounds most of what templates do. It does not count everything: lists that a template joins
//! again and again are walked for as long as one likes, and values in values overflow the stack when they are dropped. So the template
//! runs in a process of its own. A watchdog there ends a rendering that takes too long. On Unix the system refuses it memory beyond a
//! bound. A stack that overflows ends that process alone.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
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

/// Renders for another process, if the command line asks for it; returns the exit code then. Each program whose commands render
/// chats calls this first.
pub fn serve_if_asked() -> Option<ExitCode> {
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
                std::process::exit(1);
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

/// The answer to a request: the first has the template, the others have messages.
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
            Ok(compiled.answers(&chat)?.to_json())
        }
    }
}

/// A template in a process of its own, which renders one chat after another.
pub struct Renderer {
    template: Template,
    /// The most seconds for one chat.
    seconds: u32,
    worker: Option<Worker>,
}

impl Renderer {
    /// Starts the process, which reads the template and has so many seconds for each chat.
    ///
    /// # Errors
    /// If the system starts none, or the template is not understood, in words.
    pub fn start(template: Template, seconds: u32) -> Result<Renderer, String> {
        let worker = Some(Worker::start(&template, seconds)?);
        Ok(Renderer { template, seconds, worker })
    }

    /// The text of a chat whose answers are there, and where they are.
    ///
    /// # Errors
    /// If the template refuses the chat or goes beyond a bound, or the answers' parts cannot be told, in words.
    pub fn answers(&mut self, chat: &Chat) -> Result<Rendered, String> {
        let mut worker = match self.worker.take() {
            Some(worker) => worker,
            None => Worker::start(&self.template, self.seconds)?,
        };
        let answer = worker.ask(&json!({ "messages": chat.to_json() }))?;
        // A process that answers goes on; another one is started in place of one that does not.
        self.worker = Some(worker);
        match answer["error"].as_str() {
            Some(why) => Err(why.into()),
            None => Rendered::read(&answer).ok_or_else(|| ended(self.seconds)),
        }
    }
}

/// The error about a process that gives no answer.
fn ended(seconds: u32) -> String {
    format!(
        "the chat template was stopped: it took more than {seconds} s, {} MiB of memory or {} MiB of stack; shorten the messages, or raise --template-time",
        MEMORY >> 20,
        STACK >> 20
    )
}

struct Worker {
    seconds: u32,
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(template: &Template, seconds: u32) -> Result<Worker, String> {
        let failed = |why: io::Error| format!("no process for the chat template could be started: {why}");
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg(ARGUMENT).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(failed)?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { return Err(ended(seconds)) };
        let mut worker = Worker { seconds, process, input, output: BufReader::new(output) };
        writeln!(worker.input, "{seconds}").map_err(|_| ended(seconds))?;
        let answer = worker.ask(&json!({ "source": template.source, "tokens": template.tokens }))?;
        match answer["error"].as_str() {
            Some(why) => Err(why.into()),
            None => Ok(worker),
        }
    }

    fn ask(&mut self, request: &Value) -> Result<Value, String> {
        let sent = writeln!(self.input, "{request}").and_then(|()| self.input.flush());
        sent.map_err(|_| ended(self.seconds))?;
        let mut line = Vec::new();
        let read = (&mut self.output).take(ANSWER_MAX).read_until(b'\n', &mut line);
        read.ok().and_then(|_| serde_json::from_slice(&line).ok()).ok_or_else(|| ended(self.seconds))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
