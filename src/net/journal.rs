//! A referee's journal: what was fed to the game, in order, each entry safe on disk before the game sees it. A referee that was killed feeds it
//! again and is where it was.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::commit::digest::Digest;
use crate::commit::proven::Base64;
use crate::dispute::game::message::{Supplied, from_bytes, to_bytes};
use crate::dispute::game::moves::CARRIED_MAX;
use crate::dispute::game::referee::Taken;
use crate::run::RunError;
use crate::run::disk::{self, Disk};

/// The most bytes of a journal.
const JOURNAL_MAX: u64 = 1 << 30;
const FORMAT: u32 = 1;

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Heading {
    format: u32,
    game: Digest,
}

/// What was fed to the game, and when: milliseconds of the game.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum Entry {
    /// The game began.
    Start {
        /// The time.
        at: u64,
    },
    /// A party's message.
    Message {
        /// The time.
        at: u64,
        /// The party's place in the terms.
        party: usize,
        /// The message, whatever it is.
        bytes: Base64,
    },
    /// A part of a rounding log that the trainer supplied well: the last one lies beside the journal.
    Supplied {
        /// The time.
        at: u64,
        /// The party's place in the terms.
        party: usize,
        /// What came of it.
        part: Taken,
    },
    /// A deadline passed.
    Tick {
        /// The time.
        at: u64,
    },
}

impl Entry {
    /// The time.
    pub fn at(&self) -> u64 {
        match self {
            Entry::Start { at }
            | Entry::Message { at, .. }
            | Entry::Supplied { at, .. }
            | Entry::Tick { at } => *at,
        }
    }
}

/// An open journal. No other process has it.
pub struct Journal {
    path: PathBuf,
    file: File,
    disk: Disk,
}

impl Journal {
    /// Opens the journal of a game, and reads what is in it; one that is not there is begun. A last line without its end was being written when
    /// the referee was killed, so the game never saw it: it is cut off.
    ///
    /// # Errors
    /// If another process has it, it is of another game or damaged, or the system refuses.
    pub fn open(path: &Path, game: &Digest, disk: Disk) -> Result<(Journal, Vec<Entry>), RunError> {
        let path = std::path::absolute(path).map_err(RunError::io(path))?;
        disk::refuse_link(&path)?;
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(RunError::io(&path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(RunError::Refused(format!("another referee writes {}", path.display())));
            }
            Err(TryLockError::Error(error)) => return Err(RunError::io(&path)(error)),
        }
        let mut text = Vec::new();
        (&mut file).take(JOURNAL_MAX).read_to_end(&mut text).map_err(RunError::io(&path))?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut journal = Journal { path, file, disk };
        let entries = journal.parsed(&text[..whole], game)?;
        if whole < text.len() {
            journal.disk.truncate(&journal.file, whole as u64).map_err(RunError::io(&journal.path))?;
        }
        journal.file.seek(SeekFrom::End(0)).map_err(RunError::io(&journal.path))?;
        if whole == 0 {
            journal.line(&Heading { format: FORMAT, game: *game })?;
            let folder = journal.path.parent().unwrap_or(Path::new("/"));
            File::open(folder).and_then(|folder| journal.disk.sync(&folder)).map_err(RunError::io(folder))?;
        }
        Ok((journal, entries))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The entries of whole lines.
    fn parsed(&self, text: &[u8], game: &Digest) -> Result<Vec<Entry>, RunError> {
        let wrong = |line: usize, why: String| RunError::invalid(&self.path, format!("line {line}: {why}"));
        let mut lines = (1..).zip(text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()));
        if let Some((_, first)) = lines.next() {
            let heading: Heading =
                serde_json::from_slice(first).map_err(|error| wrong(1, error.to_string()))?;
            if heading.format != FORMAT {
                return Err(wrong(1, format!("format {} is not {FORMAT}", heading.format)));
            }
            if heading.game != *game {
                let why =
                    format!("it is the journal of game {}, not of {game}: name another file", heading.game);
                return Err(RunError::Refused(format!("{}: {why}", self.path.display())));
            }
        }
        let mut entries: Vec<Entry> = Vec::new();
        for (number, line) in lines {
            let entry: Entry =
                serde_json::from_slice(line).map_err(|error| wrong(number, error.to_string()))?;
            if entries.is_empty() != matches!(entry, Entry::Start { .. }) {
                return Err(wrong(number, "a game starts once, before all else".into()));
            }
            if entries.last().is_some_and(|before| before.at() > entry.at()) {
                return Err(wrong(number, "time does not run backwards".into()));
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Appends an entry, and returns when it is safe on disk.
    ///
    /// # Errors
    /// If the system refuses. Then the journal is not to be written any more, but to be opened again.
    pub fn append(&mut self, entry: &Entry) -> Result<(), RunError> {
        self.line(entry)
    }

    /// Where the part of a log lies that the pending question hands on.
    fn part_path(&self) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(".part");
        name.into()
    }

    /// Keeps the part of a log that the next question hands on, in place of the one before.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn keep_part(&self, part: &Supplied) -> Result<(), RunError> {
        self.disk.replace(&self.part_path(), &to_bytes(part))
    }

    /// The part that was kept last.
    ///
    /// # Errors
    /// If there is none, or it is malformed.
    pub fn kept_part(&self) -> Result<Supplied, RunError> {
        let path = self.part_path();
        let bytes = disk::read(&path, CARRIED_MAX)?;
        from_bytes("part of a log", &bytes, CARRIED_MAX).map_err(|why| RunError::malformed(&path, why))
    }

    fn line(&mut self, what: &impl Serialize) -> Result<(), RunError> {
        let mut line = serde_json::to_vec(what).expect("entries are plain data");
        line.push(b'\n');
        let written = self.disk.write(&mut self.file, &line).and_then(|()| self.disk.sync(&self.file));
        written.map_err(RunError::io(&self.path))
    }
}
