//! A file of JSON lines that only grows. One process at a time has it, and a line counts when it is whole and safe on disk.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::RunError;
use tiebreak_run::run::disk::{self, Disk};

/// The most bytes of a file.
const LINES_MAX: u64 = 1 << 30;
const FORMAT: u32 = 1;

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Heading {
    format: u32,
    game: Digest,
    /// The owner of the file; absent for the referee's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    party: Option<String>,
}

/// An open file of lines. No other process has it.
pub struct Lines {
    path: PathBuf,
    file: File,
    disk: Disk,
    len: u64,
    /// True if bytes of a line may be behind `len`.
    torn: bool,
}

/// The position of a line in its file.
#[derive(Clone, Copy)]
pub struct LinePlace {
    /// The offset of the line's first byte.
    at: u64,
    /// The number of the line's bytes, with the line's end.
    len: u64,
}

/// A line that was read: its number from 1, its position, and its contents.
pub struct Line<T> {
    /// The line's number.
    pub number: usize,
    /// The line's position.
    pub place: LinePlace,
    /// The line's contents.
    pub says: T,
}

/// The time that a file may stay locked by somebody who is about to release it: a process that ends, or one that another thread
/// is just starting.
const UNLOCK: Duration = Duration::from_secs(1);

fn lock(file: &File, path: &Path, who: &str) -> Result<(), RunError> {
    let begin = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if begin.elapsed() < UNLOCK => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(RunError::Refused(format!("{who} writes {}", path.display())));
            }
            Err(TryLockError::Error(error)) => return Err(RunError::io(path)(error)),
        }
    }
}

impl Lines {
    /// Opens the file of a game and reads its lines, or begins a new file. A last line without its end was being written when the
    /// process was killed, so nobody relied on it: it is cut off. `party` is the key of the party that owns the file.
    ///
    /// # Errors
    /// If another process has it, it is of another game or party or damaged, or the system refuses.
    pub fn open<T: DeserializeOwned>(
        path: &Path,
        game: &Digest,
        party: Option<&str>,
        disk: Disk,
    ) -> Result<(Lines, Vec<Line<T>>), RunError> {
        let path = std::path::absolute(path).map_err(RunError::io(path))?;
        disk::refuse_link(&path)?;
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(RunError::io(&path))?;
        let who = if party.is_some() { "another process of this party" } else { "another referee" };
        lock(&file, &path, who)?;
        let mut text = Vec::new();
        (&mut file).take(LINES_MAX).read_to_end(&mut text).map_err(RunError::io(&path))?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut lines = Lines { path, file, disk, len: whole as u64, torn: false };
        let said = lines.parsed(&text[..whole], game, party)?;
        if whole < text.len() {
            lines.disk.truncate(&lines.file, whole as u64).map_err(RunError::io(&lines.path))?;
        }
        if whole == 0 {
            lines.append(&Heading { format: FORMAT, game: *game, party: party.map(String::from) })?;
            let folder = lines.path.parent().unwrap_or(Path::new("/"));
            File::open(folder).and_then(|folder| lines.disk.sync(&folder)).map_err(RunError::io(folder))?;
        }
        Ok((lines, said))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The disk that writes the file.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The error about a wrong line.
    pub fn wrong(&self, line: usize, why: &str) -> RunError {
        RunError::invalid(&self.path, format!("line {line}: {why}"))
    }

    fn parsed<T: DeserializeOwned>(
        &self,
        text: &[u8],
        game: &Digest,
        party: Option<&str>,
    ) -> Result<Vec<Line<T>>, RunError> {
        let mut at = 0;
        let mut said = Vec::new();
        for (number, line) in (1..).zip(text.split_inclusive(|byte| *byte == b'\n')) {
            let place = LinePlace { at, len: line.len() as u64 };
            at += place.len;
            let wrong = |error: serde_json::Error| self.wrong(number, &error.to_string());
            if number > 1 {
                said.push(Line { number, place, says: serde_json::from_slice(line).map_err(wrong)? });
                continue;
            }
            let heading: Heading = serde_json::from_slice(line).map_err(wrong)?;
            if heading.format != FORMAT {
                return Err(self.wrong(1, &format!("format {} is not {FORMAT}", heading.format)));
            }
            if heading.game != *game {
                let why =
                    format!("it is the journal of game {}, not of {game}: name another file", heading.game);
                return Err(RunError::Refused(format!("{}: {why}", self.path.display())));
            }
            if heading.party.as_deref() != party {
                let whose = |party: Option<&str>| party.unwrap_or("the referee").to_string();
                let why = format!(
                    "it is the journal of {}, not of {}: name another file",
                    whose(heading.party.as_deref()),
                    whose(party)
                );
                return Err(RunError::Refused(format!("{}: {why}", self.path.display())));
            }
        }
        Ok(said)
    }

    /// Appends a line, and returns when it is safe on disk.
    ///
    /// # Errors
    /// If the file is full, or the system refuses. Then the line is not in the file, and the next one overwrites it.
    pub fn append(&mut self, what: &impl Serialize) -> Result<LinePlace, RunError> {
        let mut line = serde_json::to_vec(what).expect("lines are plain data");
        line.push(b'\n');
        let (at, len) = (self.len, line.len() as u64);
        if at + len > LINES_MAX {
            let why = format!("{} is full: it has {LINES_MAX} bytes at most", self.path.display());
            return Err(RunError::Refused(why));
        }
        self.write(at, &line).map_err(RunError::io(&self.path))?;
        self.len += len;
        Ok(LinePlace { at, len })
    }

    fn write(&mut self, at: u64, line: &[u8]) -> io::Result<()> {
        if self.torn {
            self.disk.truncate(&self.file, at)?;
        }
        self.torn = true;
        self.file.seek(SeekFrom::Start(at))?;
        self.disk.write(&mut self.file, line)?;
        self.disk.sync(&self.file)?;
        self.torn = false;
        Ok(())
    }

    /// Reads a line again.
    ///
    /// # Errors
    /// If the line is gone, or the system refuses.
    pub fn again<T: DeserializeOwned>(&mut self, place: LinePlace) -> Result<T, RunError> {
        let mut line = vec![0; place.len as usize];
        let read = self.file.seek(SeekFrom::Start(place.at)).and_then(|_| self.file.read_exact(&mut line));
        read.map_err(RunError::io(&self.path))?;
        serde_json::from_slice(&line).map_err(|error| RunError::invalid(&self.path, error.to_string()))
    }
}
