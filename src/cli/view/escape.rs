//! Text that others wrote, for a terminal.
//!
//! Jobs, keys, run.json, verdicts, program files, file names and the errors that quote them are foreign text. A terminal obeys control characters, so foreign text
//! could move the cursor, hide a line or write one of its own. Everything that a command prints goes through the [`Printer`](super::report::Printer), which escapes it here.
//! A line feed is escaped too: lines are made of [`Lines`], so a line ends only where this program ends it.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::Serialize;

/// True if a terminal obeys a character rather than showing it: control characters (C0, DEL, C1), line and paragraph separators, and those that change the
/// direction of writing (Unicode's `Bidi_Control`).
fn is_obeyed(c: char) -> bool {
    let direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || direction || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Escapes JSON that comes in pieces.
struct Escaped<W>(W);

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        // A serializer writes whole characters.
        let text = std::str::from_utf8(piece).map_err(io::Error::other)?;
        self.0.write_all(json(text).as_bytes())?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes a value as JSON for people and programs, escaped as [`json`] does, without the whole text in memory.
///
/// # Errors
/// If `out` takes no more, or the value is no JSON.
pub fn write_json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    Ok(serde_json::to_writer_pretty(Escaped(out), value)?)
}

fn replaced<'a>(text: &'a str, kept: &[char], escape: impl Fn(char) -> String) -> Cow<'a, str> {
    let escaped = |c: char| is_obeyed(c) && !kept.contains(&c);
    if !text.contains(escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if escaped(c) { out.push_str(&escape(c)) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// A line of text, with `\u{..}` in place of each character that a terminal obeys.
pub fn one_line(text: &str) -> Cow<'_, str> {
    replaced(text, &[], |c| format!("\\u{{{:x}}}", u32::from(c)))
}

/// [`one_line`], for text that is meant to have lines and tabs of its own: what a model writes.
pub fn prose(text: &str) -> Cow<'_, str> {
    replaced(text, &['\n', '\t'], |c| format!("\\u{{{:x}}}", u32::from(c)))
}

/// JSON text that means the same and holds no character that a terminal obeys, but the line feeds between its tokens. In JSON text such a character can be in a
/// string only, where `\uXXXX` stands for it.
pub fn json(text: &str) -> Cow<'_, str> {
    replaced(text, &['\n'], |c| format!("\\u{:04x}", u32::from(c)))
}

/// Lines for people, each without a line feed of its own.
pub struct Lines(Vec<String>);

impl Lines {
    /// Text whose line feeds this program wrote. Foreign text in it went through [`one_line`] before.
    pub fn split(text: &str) -> Lines {
        Lines(text.split('\n').map(|text| one_line(text).into_owned()).collect())
    }

    /// The first line, which says what came out.
    pub fn first(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// All lines.
    pub fn text(&self) -> String {
        self.0.join("\n")
    }
}

/// One line.
impl<T: AsRef<str> + ?Sized> From<&T> for Lines {
    fn from(text: &T) -> Lines {
        Lines(vec![one_line(text.as_ref()).into_owned()])
    }
}

/// One line.
impl From<String> for Lines {
    fn from(text: String) -> Lines {
        Lines::from(&text)
    }
}

/// Each element is one line.
impl From<Vec<String>> for Lines {
    fn from(lines: Vec<String>) -> Lines {
        Lines(lines.iter().map(|text| one_line(text).into_owned()).collect())
    }
}

/// Text that comes byte by byte, of which whole characters are shown.
#[derive(Default)]
pub struct Characters(Vec<u8>);

impl Characters {
    /// The part of the text that can be shown after one more byte, as [`prose`].
    pub fn push(&mut self, byte: u8) -> String {
        self.0.push(byte);
        match std::str::from_utf8(&self.0) {
            Err(error) if error.error_len().is_none() => String::new(), // the character goes on
            _ => self.rest(),
        }
    }

    /// The rest at the end.
    pub fn rest(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.0).into_owned();
        self.0.clear();
        prose(&text).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_nothing_else() {
        assert!(matches!(one_line("é, 漢, 🂡 and \"quotes\" \\u{1b}"), Cow::Borrowed(_)));
        for (text, shown) in [
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("a\nMATCHES\r", "a\\u{a}MATCHES\\u{d}"),
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}"),
            ("\u{202e}txt.exe\u{2069}\u{2028}", "\\u{202e}txt.exe\\u{2069}\\u{2028}"),
        ] {
            assert_eq!(one_line(text), shown);
            assert_eq!(Lines::from(text).text(), shown);
            assert!(!json(&serde_json::to_string(text).unwrap()).contains(is_obeyed));
            let back: String = serde_json::from_str(&json(&serde_json::to_string(text).unwrap())).unwrap();
            assert_eq!(back, text);
        }
        let value = [[1.5, 0.0], [0.0, 2.0]].map(|numbers| (numbers, "é\u{7f}\u{202e}漢"));
        let mut written = Vec::new();
        write_json(&mut written, &value).unwrap();
        assert_eq!(written, json(&serde_json::to_string_pretty(&value).unwrap()).as_bytes());
        assert_eq!(Lines::from(vec!["a\nb".into(), "c".into()]).text(), "a\\u{a}b\nc");
        let mut characters = Characters::default();
        let shown: String =
            "é\n\u{1b}[".bytes().chain([0xff, b'x', 0xc3]).map(|b| characters.push(b)).collect();
        assert_eq!(shown + &characters.rest(), "é\n\\u{1b}[\u{fffd}x\u{fffd}");
    }
}
