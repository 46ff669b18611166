//! Texts in JSON Lines: the string under one key of each line is a text.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Map, Value, json};
use tiebreak_token_files::open_plain;

use crate::error::Error;
use crate::pieces::Piece;

/// The most bytes of a line. The values of a hostile one take up to 32 times as much memory.
const LINE_MAX: usize = 1 << 24;

/// The texts of a file of JSON Lines, one line after another.
pub struct Lines<'a> {
    objects: Objects<'a>,
    key: &'a str,
}

impl<'a> Lines<'a> {
    /// The texts under `key`.
    pub fn open(path: &'a Path, key: &'a str) -> Result<Lines<'a>, Error> {
        Ok(Lines { objects: Objects::open(path)?, key })
    }

    /// The next line's text; `None` after the last. Lines of only white space are skipped.
    pub fn next(&mut self) -> Result<Option<Piece>, Error> {
        let Some(object) = self.objects.next()? else { return Ok(None) };
        let text = text(object, self.key).map_err(|why| self.objects.error(&why))?;
        Ok(Some(Piece { text, last: true }))
    }

    /// The description of the file, after it was read to its end.
    pub fn source(self) -> Value {
        let mut source = self.objects.source();
        source["json_key"] = self.key.into();
        source
    }
}

/// The objects of a file of JSON Lines, one line after another.
pub struct Objects<'a> {
    path: &'a Path,
    file: BufReader<File>,
    hasher: blake3::Hasher,
    /// The number of lines that were read.
    lines: u64,
    /// The number of objects in them.
    objects: u64,
}

impl<'a> Objects<'a> {
    pub fn open(path: &'a Path) -> Result<Objects<'a>, Error> {
        let file = BufReader::with_capacity(1 << 20, open_plain(path).map_err(Error::io(path))?);
        Ok(Objects { path, file, hasher: blake3::Hasher::new(), lines: 0, objects: 0 })
    }

    /// The next line's object; `None` after the last. Lines of only white space are skipped.
    pub fn next(&mut self) -> Result<Option<Map<String, Value>>, Error> {
        loop {
            let mut line = Vec::new();
            let most = LINE_MAX as u64 + 1;
            self.file.by_ref().take(most).read_until(b'\n', &mut line).map_err(Error::io(self.path))?;
            if line.is_empty() {
                return Ok(None);
            }
            self.lines += 1;
            self.hasher.update(&line);
            if !line.trim_ascii().is_empty() {
                self.objects += 1;
                return object(&line).map(Some).map_err(|why| self.error(&why));
            }
        }
    }

    /// An error in the line that was read last.
    pub fn error(&self, why: &str) -> Error {
        Error::malformed(self.path, format!("line {}: {why}", self.lines))
    }

    /// The description of the file, after it was read to its end.
    pub fn source(self) -> Value {
        let name = self.path.file_name().map(|name| name.to_string_lossy());
        let blake3 = self.hasher.finalize().to_hex();
        json!({ "name": name, "bytes": self.hasher.count(), "blake3": blake3.as_str(), "documents": self.objects })
    }
}

/// A line as an object.
fn object(line: &[u8]) -> Result<Map<String, Value>, String> {
    if line.len() > LINE_MAX {
        return Err(format!(
            "it has more than {LINE_MAX} bytes; write long texts to lines or files of their own"
        ));
    }
    let object: Value = serde_json::from_slice(line).map_err(|why| {
        // The parser counts lines from this one on.
        let text = why.to_string();
        let what = text.split_once(" at line").map_or(&text[..], |(what, _)| what);
        format!("it is no JSON: {what} at byte {}", why.column())
    })?;
    match object {
        Value::Object(object) => Ok(object),
        _ => Err("it is no object of JSON".into()),
    }
}

/// The string under a key of a line.
fn text(mut object: Map<String, Value>, key: &str) -> Result<String, String> {
    match object.remove(key) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("what is under the key {key:?} is no string")),
        None => {
            let keys =
                object.iter().filter(|(_, value)| value.is_string()).map(|(key, _)| format!("{key:?}"));
            let keys = keys.take(8).collect::<Vec<String>>().join(", ");
            let there = if keys.is_empty() {
                "it has no string".into()
            } else {
                format!("--json-key names another: {keys}")
            };
            Err(format!("it has no key {key:?}; {there}"))
        }
    }
}
