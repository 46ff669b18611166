//! The look at a job's data files before a run begins: how far it is, and which of them the run copies.

use crate::cli::view::progress::ProgressBar;
use crate::cli::view::report::{Printer, bytes_text};

/// Shows how far a pass over ids and labels is.
pub fn scanning(printer: Printer) -> impl FnMut(u64, u64) {
    let mut shown: Option<(u64, ProgressBar)> = None;
    move |done, all| {
        if shown.as_ref().is_none_or(|(of, _)| *of != all) {
            shown = Some((all, printer.bar(all, "bytes of ids and labels")));
        }
        let Some((_, bar)) = &shown else { return };
        bar.set_position(done);
        bar.set_message("");
        if done >= all {
            bar.finish_and_clear();
            shown = None;
        }
    }
}

/// Lists the data files of which a run holds a copy: whoever publishes the run publishes them.
pub fn say_copied<'a>(printer: Printer, files: impl Iterator<Item = (&'a str, u64)>) {
    for (path, bytes) in files {
        printer.say(format!("the run will hold a copy of {path} ({})", bytes_text(bytes)));
    }
}
