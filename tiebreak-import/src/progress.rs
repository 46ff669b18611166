//! Progress on stderr: a bar on a terminal, else a line every few seconds.

use std::cell::Cell;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressStyle};

/// The time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The progress of work whose amount is known.
pub struct Progress {
    bar: ProgressBar,
    /// An amount in words.
    text: fn(u64) -> String,
    begin: Instant,
    /// The time of the last line, where lines are printed.
    last: Option<Cell<Instant>>,
}

impl Progress {
    fn new(len: u64, template: &str, text: fn(u64) -> String) -> Progress {
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let begin = Instant::now();
        let last = (!stderr().is_terminal()).then(|| Cell::new(begin));
        Progress { bar: ProgressBar::new(len).with_style(style), text, begin, last }
    }

    /// Counts work that was done.
    pub fn inc(&self, amount: u64) {
        self.bar.inc(amount);
        if let Some(last) = self.last.as_ref().filter(|last| last.get().elapsed() >= LINE_EVERY) {
            last.set(Instant::now());
            eprintln!("{}", self.line(self.begin.elapsed()));
        }
    }

    /// Replaces an amount of the whole, once the right one is known.
    pub fn replace(&self, before: u64, now: u64) {
        let all = self.bar.length().unwrap_or(0);
        self.bar.set_length(all.saturating_sub(before).saturating_add(now));
    }

    /// The amount that is done, the whole, and the time left.
    fn line(&self, elapsed: Duration) -> String {
        let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
        let seconds = elapsed.as_secs_f64() * all.saturating_sub(done) as f64 / done as f64;
        let left = Duration::try_from_secs_f64(seconds.round()).unwrap_or(Duration::MAX);
        let text = self.text;
        format!("{} of {}, about {:#} left", text(done), text(all), HumanDuration(left))
    }

    /// Takes the bar away.
    pub fn finish_and_clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// The progress of bytes that are read.
pub fn bytes(len: u64) -> Progress {
    let template = "{bar:24} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";
    Progress::new(len, template, |bytes| HumanBytes(bytes).to_string())
}

/// The progress of pictures.
pub fn pictures(len: u64) -> Progress {
    let template = "{bar:24} {pos}/{len} pictures {per_sec}, {eta} left";
    Progress::new(len, template, |pictures| format!("{pictures} pictures"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_the_amount_the_whole_and_the_time_left() {
        let progress = bytes(4 << 20);
        let line = || progress.line(Duration::from_secs(7));
        progress.inc(1 << 20);
        assert_eq!(line(), "1.00 MiB of 4.00 MiB, about 21s left");
        progress.inc(3 << 20);
        assert_eq!(line(), "4.00 MiB of 4.00 MiB, about 0s left");
        let none = pictures(9).line(Duration::from_secs(7));
        assert!(none.starts_with("0 pictures of 9 pictures, about "), "{none}");
    }
}
