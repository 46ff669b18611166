//! A referee's journal: the inputs of the game, in order, each entry safe on disk before the game sees it. A referee that was
//! killed feeds them again and is in the same state.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::lines::Lines;
use tiebreak_dispute::game::message::{Supplied, from_bytes, to_bytes};
use tiebreak_dispute::game::moves::CARRIED_MAX;
use tiebreak_dispute::game::referee::Taken;
use tiebreak_dispute::game::tried::Tried;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::proven::Base64;
use tiebreak_run::run::RunError;
use tiebreak_run::run::disk::{self, Disk};

/// An input of the game, with its time in milliseconds of the game.
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
        /// The message, valid or not.
        bytes: Base64,
    },
    /// A part of a rounding log that the trainer supplied correctly; a file beside the journal holds the last such part.
    Supplied {
        /// The time.
        at: u64,
        /// The party's place in the terms.
        party: usize,
        /// The result of the supply.
        part: Taken,
    },
    /// A deadline passed.
    Tick {
        /// The time.
        at: u64,
        /// For each party that had not answered: how it was asked.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tried: Vec<Tried>,
    },
}

impl Entry {
    /// The time.
    #[doc(hidden)] // for the layers above
    pub fn at(&self) -> u64 {
        match self {
            Entry::Start { at }
            | Entry::Message { at, .. }
            | Entry::Supplied { at, .. }
            | Entry::Tick { at, .. } => *at,
        }
    }
}

/// An open journal. No other process has it.
pub struct Journal {
    lines: Lines,
}

impl Journal {
    /// Opens the journal of a game and reads its entries, or begins a new one. A last line without its end was being written when
    /// the referee was killed, so the game never saw it: it is cut off.
    ///
    /// # Errors
    /// If another process has it, it is of another game or damaged, or the system refuses.
    pub fn open(path: &Path, game: &Digest, disk: Disk) -> Result<(Journal, Vec<Entry>), RunError> {
        let (lines, said) = Lines::open::<Entry>(path, game, None, disk)?;
        let mut entries: Vec<Entry> = Vec::new();
        for line in said {
            let entry = line.says;
            if entries.is_empty() != matches!(entry, Entry::Start { .. }) {
                return Err(lines.wrong(line.number, "a game starts once, before all else"));
            }
            let before = entries.last().map_or(0, Entry::at);
            if before > entry.at() {
                let why = format!("its time is {} ms, and the line before has {before} ms", entry.at());
                return Err(lines.wrong(line.number, &why));
            }
            entries.push(entry);
        }
        Ok((Journal { lines }, entries))
    }

    /// The journal's path.
    pub(crate) fn path(&self) -> &Path {
        self.lines.path()
    }

    /// Appends an entry, and returns when it is safe on disk.
    ///
    /// # Errors
    /// If the system refuses. Then the journal must not be written any more, but opened again.
    #[doc(hidden)] // for the layers above
    pub fn append(&mut self, entry: &Entry) -> Result<(), RunError> {
        self.lines.append(entry).map(drop)
    }

    /// The path of the log's part that the pending question carries.
    fn part_path(&self) -> PathBuf {
        let mut name = OsString::from(self.path());
        name.push(".part");
        name.into()
    }

    /// Stores the part of a log that the next question carries, in place of the one before.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn keep_part(&self, part: &Supplied) -> Result<(), RunError> {
        self.lines.disk().replace(&self.part_path(), &to_bytes(part))
    }

    /// The part that was stored last.
    ///
    /// # Errors
    /// If there is none, or it is malformed.
    pub(crate) fn kept_part(&self) -> Result<Supplied, RunError> {
        let path = self.part_path();
        let bytes = disk::read(&path, CARRIED_MAX)?;
        from_bytes("part of a log", &bytes, CARRIED_MAX).map_err(|why| RunError::malformed(&path, why))
    }
}
