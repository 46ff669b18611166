//! Texts in JSON Lines, or in the rows of Parquet files: the string under one key of each line or row is a text.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::SystemTime;

use serde_json::{Map, Value, json};
use tiebreak_token_files::open_plain;

use crate::error::Error;
use crate::output::digest;
use crate::parquet::Rows;
use crate::pieces::Piece;

/// The most bytes of a line. The values of a hostile one take up to 32 times as much memory.
const LINE_MAX: usize = 1 << 24;

/// The texts of a file, one line or row after another.
pub struct Lines<'a> {
    objects: Objects<'a>,
    key: &'a str,
}

impl<'a> Lines<'a> {
    /// The texts under `key`.
    pub fn open(path: &'a Path, key: &'a str) -> Result<Lines<'a>, Error> {
        Ok(Lines { objects: Objects::of(path, Some(key), &[key])?, key })
    }

    /// The bytes of the column, if the file is packed in rows.
    pub fn unpacked(&self) -> Option<u64> {
        match &self.objects.from {
            Reader::Lines(..) => None,
            Reader::Rows(rows, _) => Some(rows.unpacked),
        }
    }

    /// The next text; `None` after the last. Lines of only white space are skipped.
    pub fn next(&mut self) -> Result<Option<Piece>, Error> {
        let Some(object) = self.objects.next()? else { return Ok(None) };
        let text = text(object, self.key).map_err(|why| self.objects.error(&why))?;
        Ok(Some(Piece { text, last: true }))
    }

    /// The description of the file, after it was read to its end.
    pub fn source(self) -> Result<Value, Error> {
        let mut source = self.objects.source()?;
        source["json_key"] = self.key.into();
        Ok(source)
    }
}

/// What gives a file's lines.
enum Reader {
    /// The file itself.
    Lines(BufReader<File>),
    /// The process that reads rows of Parquet, and what the file had before: its length, and when it was changed.
    Rows(Rows, Version),
}

/// What tells a file from another one under its name.
type Version = (u64, Option<SystemTime>);

fn version(path: &Path) -> Result<Version, Error> {
    let about = fs::metadata(path).map_err(Error::io(path))?;
    Ok((about.len(), about.modified().ok()))
}

/// The objects of a file of JSON Lines or Parquet, one line or row after another.
pub struct Objects<'a> {
    path: &'a Path,
    from: Reader,
    /// The hash of the lines that were read.
    hasher: blake3::Hasher,
    /// The number of lines or rows that were read.
    lines: u64,
    /// The number of objects in them.
    objects: u64,
}

/// True if a file begins and ends as Parquet files do.
pub fn is_parquet(path: &Path) -> Result<bool, Error> {
    let marks = |mut file: File| {
        let [mut start, mut end] = [[0; 4]; 2];
        if file.metadata()?.len() < 12 {
            return Ok(false);
        }
        file.read_exact(&mut start)?;
        file.seek(SeekFrom::End(-4))?;
        file.read_exact(&mut end)?;
        // The second is that of an encrypted file, of which the reader says so.
        Ok(start == *b"PAR1" && (end == *b"PAR1" || end == *b"PARE"))
    };
    open_plain(path).and_then(marks).map_err(Error::io(path))
}

impl<'a> Objects<'a> {
    /// The objects with all their keys, of which these are texts, or hold texts.
    pub fn open(path: &'a Path, texts: &[&str]) -> Result<Objects<'a>, Error> {
        Objects::of(path, None, texts)
    }

    /// The objects; rows of Parquet with the key alone, if one is given.
    fn of(path: &'a Path, key: Option<&str>, texts: &[&str]) -> Result<Objects<'a>, Error> {
        let from = match is_parquet(path)? {
            true => {
                let version = version(path)?;
                Reader::Rows(Rows::open(path, key, texts)?, version)
            }
            false => {
                let file = open_plain(path).map_err(Error::io(path))?;
                Reader::Lines(BufReader::with_capacity(1 << 20, file))
            }
        };
        Ok(Objects { path, from, hasher: blake3::Hasher::new(), lines: 0, objects: 0 })
    }

    /// The next line, with its end; empty after the last.
    fn line(&mut self) -> Result<Vec<u8>, Error> {
        let mut line = Vec::new();
        match &mut self.from {
            Reader::Lines(file) => {
                let most = LINE_MAX as u64 + 1;
                file.by_ref().take(most).read_until(b'\n', &mut line).map_err(Error::io(self.path))?;
                self.hasher.update(&line);
            }
            Reader::Rows(rows, _) => {
                let row = rows.next(LINE_MAX).map_err(|why| Error::malformed(self.path, why))?;
                line.extend(row.into_iter().flatten());
            }
        }
        Ok(line)
    }

    /// The next object; `None` after the last. Lines of only white space are skipped.
    pub fn next(&mut self) -> Result<Option<Map<String, Value>>, Error> {
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(None);
            }
            self.lines += 1;
            if !line.trim_ascii().is_empty() {
                self.objects += 1;
                return object(&line).map(Some).map_err(|why| self.error(&why));
            }
        }
    }

    /// An error in the line or row that was read last.
    pub fn error(&self, why: &str) -> Error {
        let unit = if matches!(self.from, Reader::Lines(..)) { "line" } else { "row" };
        Error::malformed(self.path, format!("{unit} {}: {why}", self.lines))
    }

    /// The description of the file, after it was read to its end.
    pub fn source(self) -> Result<Value, Error> {
        let name = self.path.file_name().map(|name| name.to_string_lossy());
        let (bytes, blake3) = match &self.from {
            Reader::Lines(_) => (self.hasher.count(), self.hasher.finalize().to_hex().to_string()),
            Reader::Rows(_, before) => {
                let digest = digest(self.path)?;
                if version(self.path)? != *before {
                    let why = "it changed while it was read: import it again";
                    return Err(Error::malformed(self.path, why));
                }
                digest
            }
        };
        Ok(json!({ "name": name, "bytes": bytes, "blake3": blake3, "documents": self.objects }))
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
