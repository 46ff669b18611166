//! Progress on stderr, if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

fn bar(len: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(len).with_style(style)
}

/// A bar for bytes that are read.
pub fn bytes(len: u64) -> ProgressBar {
    bar(len, "{bar:24} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left")
}

/// A bar for pictures.
pub fn pictures(len: u64) -> ProgressBar {
    bar(len, "{bar:24} {pos}/{len} pictures {per_sec}, {eta} left")
}
