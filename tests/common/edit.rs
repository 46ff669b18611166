//! Texts with replacements. An edit that changes nothing, or changes more than one place, fails.

use std::fs;
use std::path::Path;

/// A text with each `from`, which occurs exactly once, replaced by its `to`, one after the other.
///
/// # Panics
/// If one does not occur, or occurs more often.
pub fn edited(text: &str, edits: &[(&str, &str)]) -> String {
    edits.iter().fold(text.to_string(), |text, (from, to)| {
        let count = text.matches(from).count();
        assert!(count == 1, "{from:?} occurs {count} times in {text}");
        text.replacen(from, to, 1)
    })
}

/// Edits a file in place, and returns its text.
///
/// # Panics
/// As [`edited`] does.
pub fn edit(path: impl AsRef<Path>, edits: &[(&str, &str)]) -> String {
    let text = edited(&fs::read_to_string(&path).unwrap(), edits);
    fs::write(&path, &text).unwrap();
    text
}
