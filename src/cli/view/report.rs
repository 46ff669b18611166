//! The common part of all commands: exit codes, errors, and the one door of output. Printed text is foreign or may quote foreign text, so
//! all of it is escaped ([`escape`]).

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::ColorChoice;
use indicatif::{HumanDuration, ProgressDrawTarget, ProgressStyle};

use crate::cli::view::escape::Lines;
use crate::cli::view::{color, escape, help};

use tiebreak_audit::AuditError;
use tiebreak_engine::EngineError;
use tiebreak_game::party::PartyError;
use tiebreak_record::commit::Malformed;
use tiebreak_run::run::RunError;
use tiebreak_run::step::StepError;
use tiebreak_train::TrainError;
use tiebreak_train::ranks::RankError;

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
}

impl Failure {
    pub fn new(exit: Exit, message: impl ToString) -> Failure {
        Failure { exit, message: message.to_string(), help: None }
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
        Failure { help: help::of_engine(&error), ..Failure::new(Exit::Undecided, error) }
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
    /// Lines for people, on stderr; silent with --json or --quiet.
    pub fn say(&self, lines: impl Into<Lines>) {
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
        let text = match self.json {
            false => Ok(text),
            true => serde_json::to_string_pretty(json).map(|json| escape::json(&json).into_owned()),
        };
        let mut out = io::stdout().lock();
        note(
            text.map_err(io::Error::from).and_then(|text| writeln!(out, "{text}")).and_then(|()| out.flush()),
        );
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
        let text = match self.json {
            false => self.on_stderr(format!("error: {}", escape::one_line(message))),
            true => escape::json(&json.to_string()).into_owned(),
        };
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// A progress bar on stderr; where that is no terminal, a line every few seconds. Neither with --json or --quiet.
    pub fn bar(&self, len: u64, unit: &'static str) -> ProgressBar {
        let (silent, is_terminal) = (self.json || self.quiet, io::stderr().is_terminal());
        let hidden = silent || !is_terminal;
        let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = indicatif::ProgressBar::with_draw_target(Some(len), target);
        ProgressBar::new(bar, unit, (!silent && !is_terminal).then_some(*self))
    }

    /// The result of work that says that it goes on, as [`working`](Printer::working) does.
    pub fn during<T>(&self, what: &str, work: impl FnOnce() -> T) -> T {
        let _working = self.working(what, None);
        work()
    }

    /// Says that work goes on whose steps nobody counts, from two seconds on and until it is dropped: the time so far, and the time left
    /// if `seconds` estimates the whole. Nothing with --json or --quiet.
    pub fn working(&self, what: &str, seconds: Option<f64>) -> Working {
        if self.json || self.quiet {
            return Working::silent();
        }
        let (printer, what) = (*self, what.to_string());
        match io::stderr().is_terminal() {
            true => {
                let bar = indicatif::ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
                if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                    bar.set_style(style);
                }
                let shown = bar.clone();
                let say = move |line: String| {
                    shown.set_message(line);
                    shown.tick();
                };
                Working::new(bar, what, seconds, [SLOW, Duration::from_millis(200)], say)
            }
            false => {
                let hidden = indicatif::ProgressBar::hidden();
                Working::new(hidden, what, seconds, [SLOW, LINE_EVERY], move |line| printer.say(line))
            }
        }
    }
}

/// The time after which work without a bar says that it goes on.
const SLOW: Duration = Duration::from_secs(2);

/// The time between two lines of progress where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// A progress bar of one line, whatever the terminal's width: what does not fit is cut off.
pub struct ProgressBar {
    bar: indicatif::ProgressBar,
    unit: &'static str,
    begin: Cell<Instant>,
    /// The printer of lines in place of a bar, if there is one, and the time of the last line.
    lines: Option<Printer>,
    last_line: Cell<Instant>,
    /// The work before the bar began, which says nothing about its speed.
    before: Cell<u64>,
}

impl ProgressBar {
    fn new(bar: indicatif::ProgressBar, unit: &'static str, lines: Option<Printer>) -> ProgressBar {
        if let Ok(style) =
            ProgressStyle::with_template(&format!("{{bar:10}} {{pos}}/{{len}} {unit}  {{wide_msg}}"))
        {
            bar.set_style(style);
        }
        let now = || Cell::new(Instant::now());
        ProgressBar { bar, unit, begin: now(), lines, last_line: now(), before: Cell::new(0) }
    }

    /// Begins behind work that was done before: the bar shows it at once, and counts its speed from there and from now.
    pub fn begin_at(&self, before: u64) {
        self.before.set(before);
        self.begin.set(Instant::now());
        self.bar.reset_eta();
        self.bar.set_position(before);
    }

    /// Sets the amount of work, where that is known only later.
    pub fn set_length(&self, len: u64) {
        self.bar.set_length(len);
    }

    /// Sets the amount of work that is done.
    pub fn set_position(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Adds one to the amount of work that is done.
    pub fn advance(&self) {
        self.bar.inc(1);
    }

    /// Says something beside the bar, after its speed and the time that is left.
    pub fn set_message(&self, message: impl AsRef<str>) {
        let (done, len) = (self.bar.position(), self.bar.length().unwrap_or(0));
        let elapsed = self.begin.get().elapsed();
        let speed = speed(done.saturating_sub(self.before.get()), len.saturating_sub(done), elapsed);
        let message = format!("{speed}{}", escape::one_line(message.as_ref()));
        if let Some(printer) = self.lines.filter(|_| self.last_line.get().elapsed() >= LINE_EVERY) {
            self.last_line.set(Instant::now());
            printer.say(format!("{done}/{len} {}  {message}", self.unit));
        }
        self.bar.set_message(message);
    }

    /// Says a line above the bar, which goes on below it.
    pub fn aside(&self, printer: Printer, line: impl Into<Lines>) {
        self.bar.suspend(|| printer.say(line));
    }

    /// Takes the bar away.
    pub fn finish_and_clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// Work that goes on, and says so until this is dropped.
pub struct Working {
    bar: indicatif::ProgressBar,
    running: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Working {
    fn silent() -> Working {
        Working { bar: indicatif::ProgressBar::hidden(), running: None }
    }

    /// Says it after the first time, and each time that the second one has passed.
    fn new(
        bar: indicatif::ProgressBar,
        what: String,
        seconds: Option<f64>,
        [first, every]: [Duration; 2],
        say: impl Fn(String) + Send + 'static,
    ) -> Working {
        let (held, dropped) = channel::<()>();
        let begin = Instant::now();
        let thread = thread::spawn(move || {
            let mut pause = first;
            while dropped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                say(working_text(&what, begin.elapsed(), seconds));
                pause = every;
            }
        });
        Working { bar, running: Some((held, thread)) }
    }

    /// Says a line above, while the work goes on.
    pub fn aside(&self, printer: Printer, line: impl Into<Lines>) {
        self.bar.suspend(|| printer.say(line));
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Some((held, thread)) = self.running.take() {
            drop(held);
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

/// The time so far, in words, and the time left if that was estimated.
fn working_text(what: &str, elapsed: Duration, seconds: Option<f64>) -> String {
    let left = seconds
        .map(|seconds| Duration::from_secs_f64((seconds - elapsed.as_secs_f64()).clamp(0.0, 1e9).round()));
    let left = left.map_or(String::new(), |left| format!(", about {:#} left", HumanDuration(left)));
    format!("{} ... {} s{left}", escape::one_line(what), elapsed.as_secs())
}

/// The speed and the time left, in words; nothing where nothing is done yet.
fn speed(done: u64, left: u64, elapsed: Duration) -> String {
    let each_second = done as f64 / elapsed.as_secs_f64();
    if done == 0 || !each_second.is_finite() {
        return String::new();
    }
    // Durations end where seconds do not fit.
    let left = Duration::try_from_secs_f64((left as f64 / each_second).round()).unwrap_or(Duration::MAX);
    format!("{each_second:.1}/s  {:#} left  ", HumanDuration(left))
}

/// Bytes for people.
pub fn bytes_text(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of 1500 steps that is resumed at 1424 and takes 17 steps a second.
    #[test]
    fn steps_before_a_resume_count_for_no_speed() {
        let bar = Printer { json: true, quiet: true, color: ColorChoice::Never }.bar(1500, "steps");
        bar.begin_at(1424);
        bar.set_position(1441);
        assert_eq!(speed(1441 - bar.before.get(), 59, Duration::from_secs(1)), "17.0/s  3s left  ");
        assert_eq!(speed(0, 59, Duration::from_secs(1)), "");
        bar.set_message("a\u{1b}");
        assert!(!bar.bar.message().contains('\u{1b}'), "{}", bar.bar.message());
    }

    #[test]
    fn work_says_that_it_goes_on_until_it_is_dropped() {
        let (say, said) = channel();
        let times = [Duration::from_millis(5); 2];
        let hidden = indicatif::ProgressBar::hidden();
        let working = Working::new(hidden, "checking".into(), Some(40.0), times, move |line| {
            let _ = say.send(line);
        });
        for _ in 0..3 {
            assert_eq!(
                said.recv_timeout(Duration::from_secs(30)).unwrap(),
                "checking ... 0 s, about 40s left"
            );
        }
        drop(working);
        while said.try_recv().is_ok() {}
        assert_eq!(said.recv(), Err(std::sync::mpsc::RecvError), "the thread has ended");
        assert_eq!(working_text("a\u{1b}", Duration::from_secs(7), None), "a\\u{1b} ... 7 s");
        assert_eq!(working_text("b", Duration::from_secs(7), Some(1.0)), "b ... 7 s, about 0s left");
    }
}
