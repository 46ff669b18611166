//! The process that renders chats for another one, and its caller's side.
//!
//! The template engine counts work, and so bounds most of what templates do. It does not count everything: lists that a template joins
//! again and again are walked for as long as one likes, and values in values overflow the stack when they are dropped. So the template
//! runs in a process of its own.

use std::io::{self, BufRead, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use super::render::{Compiled, Rendered};
use super::template::Template;
use super::{Chat, TEXT_MAX};
use crate::process::{Process, bound_memory, watched};

/// The first argument of a process that renders.
pub const ARGUMENT: &str = "render-chats-of-standard-input";
/// The memory of the process that renders: addresses, the program's own included.
const MEMORY: u64 = 1 << 30;
/// The most bytes of an answer: each of a text can take six in JSON.
const ANSWER_MAX: u64 = 6 * TEXT_MAX as u64 + (1 << 22);

/// Answers requests from standard input until it ends.
pub fn serve() -> ExitCode {
    bound_memory(MEMORY);
    watched(|watch| {
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
    })
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
    /// The help in the error of a chat that takes longer.
    pub help: &'static str,
}

impl Renderer {
    /// Starts the process, which reads the template.
    ///
    /// # Errors
    /// If this program did not call [`crate::serve_if_asked`], the system starts no process, or the template is not understood, in words.
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
    process: Process,
}

impl Worker {
    fn start(template: &Template, bounds: Bounds) -> Result<Worker, String> {
        let mut worker = Worker { bounds, process: Process::start(ARGUMENT, "the chat template")? };
        // An error of this line is one of the next as well.
        drop(worker.process.send(&[format!("{}\n", bounds.seconds).as_bytes()]));
        let answer = worker.ask(&json!({ "source": template.source, "tokens": template.tokens }))?;
        match answer["error"].as_str() {
            Some(why) => Err(why.into()),
            None => Ok(worker),
        }
    }

    fn ask(&mut self, request: &Value) -> Result<Value, String> {
        let sent = self.process.send(&[format!("{request}\n").as_bytes()]);
        let mut line = Vec::new();
        let output = &mut self.process.output;
        let read = sent.and_then(|()| output.take(ANSWER_MAX).read_until(b'\n', &mut line));
        let answer = read.ok().and_then(|_| serde_json::from_slice(&line).ok());
        answer.ok_or_else(|| self.ended())
    }

    /// The error about a process that gives no answer.
    fn ended(&mut self) -> String {
        let bounds = (self.bounds.seconds, MEMORY);
        let beyond = self.process.beyond("the chat template", bounds, [self.bounds.help, NO_TIME]);
        beyond.unwrap_or_else(|| FAILED.into())
    }
}

/// The help in the error of a chat beyond a bound that is not time.
const NO_TIME: &str = "shorten the messages, or use another template";
