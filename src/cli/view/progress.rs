//! The progress of work on stderr: bars with the time left, and without a terminal a line every few seconds.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressDrawTarget, ProgressStyle};

use crate::cli::view::escape::{self, Lines};
use crate::cli::view::heard::{self, Heard};
use crate::cli::view::report::{Printer, bytes_text};

impl Printer {
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
        let what = what.to_string();
        self.goes_on("{spinner} {wide_msg}", move |_, elapsed| working_text(&what, elapsed, seconds))
    }

    /// Says how far work is that is counted, from two seconds on and until it is dropped: the amount done, the whole, the time so far and
    /// the time left. Nothing with --json or --quiet.
    pub fn counting(&self, what: &str, unit: Unit) -> Counting {
        let caller = heard::caller().map(|caller| (caller, what.to_string()));
        let (what, amount) = (what.to_string(), Arc::new(Amount::default()));
        let seen = amount.clone();
        let text = move |bar: &indicatif::ProgressBar, elapsed| {
            let [done, all] = seen.now();
            bar.set_length(all.max(1));
            bar.set_position(done);
            counted_text(&what, unit, [done, all], elapsed)
        };
        Counting { amount, caller, _working: self.goes_on("{bar:10} {wide_msg}", text) }
    }

    /// Says a text from two seconds on: all the time on a terminal, else every few seconds.
    fn goes_on(
        &self,
        template: &str,
        text: impl Fn(&indicatif::ProgressBar, Duration) -> String + Send + 'static,
    ) -> Working {
        if self.json || self.quiet {
            return Working::silent();
        }
        let printer = *self;
        match io::stderr().is_terminal() {
            true => {
                let bar = indicatif::ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
                if let Ok(style) = ProgressStyle::with_template(template) {
                    bar.set_style(style);
                }
                let shown = bar.clone();
                let say = move |elapsed| {
                    shown.set_message(text(&shown, elapsed));
                    shown.tick();
                };
                Working::new(bar, [SLOW, Duration::from_millis(200)], say)
            }
            false => {
                let hidden = indicatif::ProgressBar::hidden();
                let unseen = hidden.clone();
                Working::new(hidden, [SLOW, LINE_EVERY], move |elapsed| printer.say(text(&unseen, elapsed)))
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
    caller: Option<Arc<Heard>>,
}

impl ProgressBar {
    fn new(bar: indicatif::ProgressBar, unit: &'static str, lines: Option<Printer>) -> ProgressBar {
        if let Ok(style) =
            ProgressStyle::with_template(&format!("{{bar:10}} {{pos}}/{{len}} {unit}  {{wide_msg}}"))
        {
            bar.set_style(style);
        }
        let now = || Cell::new(Instant::now());
        let caller = heard::caller();
        ProgressBar { bar, unit, begin: now(), lines, last_line: now(), before: Cell::new(0), caller }
    }

    /// Begins behind work that was done before: the bar shows it at once, and counts its speed from there and from now.
    pub fn begin_at(&self, before: u64) {
        self.before.set(before);
        self.begin.set(Instant::now());
        self.bar.reset_eta();
        self.set_position(before);
    }

    /// Sets the amount of work, where that is known only later.
    pub fn set_length(&self, len: u64) {
        self.bar.set_length(len);
    }

    /// Sets the amount of work that is done.
    pub fn set_position(&self, done: u64) {
        self.bar.set_position(done);
        self.tell();
    }

    /// Adds one to the amount of work that is done.
    pub fn advance(&self) {
        self.bar.inc(1);
        self.tell();
    }

    /// Tells the caller how far the work is, if a program called the command.
    fn tell(&self) {
        if let Some(caller) = &self.caller {
            caller.note(self.bar.position(), self.bar.length().unwrap_or(0), self.unit);
        }
    }

    /// The wish of the caller that the work ends, if a program called the command.
    pub fn wish(&self) -> ControlFlow<()> {
        match &self.caller {
            Some(caller) if caller.is_asked_to_stop() => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    /// Says something beside the bar, after its speed and the time that is left.
    pub fn set_message(&self, message: impl AsRef<str>) {
        if let Some(caller) = &self.caller {
            caller.note_message(&escape::one_line(message.as_ref()));
        }
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
        [first, every]: [Duration; 2],
        say: impl Fn(Duration) + Send + 'static,
    ) -> Working {
        let (held, dropped) = channel::<()>();
        let begin = Instant::now();
        let thread = thread::spawn(move || {
            let mut pause = first;
            while dropped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                say(begin.elapsed());
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

/// The amount of work that is done, and the whole; 0 until that is known.
#[derive(Default)]
struct Amount {
    done: AtomicU64,
    all: AtomicU64,
}

impl Amount {
    fn now(&self) -> [u64; 2] {
        [&self.done, &self.all].map(|amount| amount.load(Relaxed))
    }
}

/// The unit in which work is counted.
#[derive(Clone, Copy)]
pub enum Unit {
    Bytes,
    /// Things with this name.
    Of(&'static str),
    /// Hundredths of the whole, where the unit says nothing to people.
    Share,
}

impl Unit {
    fn text(self, [done, all]: [u64; 2]) -> String {
        match self {
            Unit::Bytes => format!("{} of {}", bytes_text(done), bytes_text(all)),
            Unit::Of(name) => format!("{done} of {all} {name}"),
            Unit::Share => format!("{:.0} %", 100.0 * done as f64 / all as f64),
        }
    }
}

/// Work that is counted, and says how far it is until this is dropped.
pub struct Counting {
    amount: Arc<Amount>,
    /// The caller and the name of the work, if a program called the command.
    caller: Option<(Arc<Heard>, String)>,
    _working: Working,
}

impl Counting {
    /// The observer of the work, which takes the amount done and the whole.
    pub fn watch(&self) -> impl FnMut(u64, u64) + Send + use<> {
        let (amount, caller) = (self.amount.clone(), self.caller.clone());
        move |done, all| {
            if let Some((caller, what)) = &caller {
                caller.note(done, all, what);
            }
            amount.done.store(done, Relaxed);
            amount.all.store(all, Relaxed);
        }
    }
}

/// The amount of work that is done, the time so far and the time left, in words.
fn counted_text(what: &str, unit: Unit, [done, all]: [u64; 2], elapsed: Duration) -> String {
    if all == 0 {
        return working_text(what, elapsed, None);
    }
    let left = match done {
        0 => String::new(),
        _ => {
            let seconds = elapsed.as_secs_f64() * all.saturating_sub(done) as f64 / done as f64;
            let left = Duration::try_from_secs_f64(seconds.round()).unwrap_or(Duration::MAX);
            format!(", about {:#} left", HumanDuration(left))
        }
    };
    format!("{} ... {}, {} s{left}", escape::one_line(what), unit.text([done, all]), elapsed.as_secs())
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

#[cfg(test)]
mod tests {
    use clap::ColorChoice;

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
        let working = Working::new(hidden, times, move |elapsed| {
            let _ = say.send(working_text("checking", elapsed, Some(40.0)));
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

    #[test]
    fn counted_work_says_the_amount_the_whole_and_the_time_left() {
        let printer = Printer { json: true, quiet: true, color: ColorChoice::Never };
        let counting = printer.counting("checking", Unit::Bytes);
        counting.watch()(1 << 20, 4 << 20);
        assert_eq!(counting.amount.now(), [1 << 20, 4 << 20]);
        let text = |unit, amount| counted_text("a\u{1b}", unit, amount, Duration::from_secs(7));
        let bytes = text(Unit::Bytes, counting.amount.now());
        assert_eq!(bytes, "a\\u{1b} ... 1.00 MiB of 4.00 MiB, 7 s, about 21s left");
        assert_eq!(text(Unit::Of("steps"), [0, 9]), "a\\u{1b} ... 0 of 9 steps, 7 s");
        assert_eq!(text(Unit::Share, [7, 28]), "a\\u{1b} ... 25 %, 7 s, about 21s left");
        assert_eq!(text(Unit::Share, [0, 0]), "a\\u{1b} ... 7 s");
        assert_eq!(text(Unit::Of("steps"), [9, 4]), "a\\u{1b} ... 9 of 4 steps, 7 s, about 0s left");
    }
}
