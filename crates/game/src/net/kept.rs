//! A party's journal: every answer that it gave, on disk before it is sent. So a question has one answer, also after a restart,
//! and whatever happened to the run meanwhile.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::lines::{LinePlace, Lines};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::proven::Base64;
use tiebreak_run::run::RunError;
use tiebreak_run::run::disk::Disk;

/// A line: the question that was answered, and the sealed answer.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    question: Digest,
    answer: Base64,
}

/// The answers that a party gave in a game.
pub struct Kept {
    lines: Lines,
    /// The positions of the answers in the file.
    places: HashMap<Digest, LinePlace>,
}

impl Kept {
    /// Opens a party's journal, or begins it.
    ///
    /// # Errors
    /// If another process has it, it is of another game or party or damaged, or the system refuses.
    pub fn open(path: &Path, game: &Digest, party: &PublicKey, disk: Disk) -> Result<Kept, RunError> {
        let (lines, given) = Lines::open::<Given>(path, game, Some(&party.to_text()), disk)?;
        let mut places = HashMap::new();
        for line in given {
            if places.insert(line.says.question, line.place).is_some() {
                return Err(lines.wrong(line.number, "a question has two answers"));
            }
        }
        Ok(Kept { lines, places })
    }

    /// The number of answers.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// The answer to a question, if it was given.
    ///
    /// # Errors
    /// If the file cannot be read any more.
    pub fn answer(&mut self, question: &Digest) -> Result<Option<Vec<u8>>, RunError> {
        let Some(place) = self.places.get(question) else { return Ok(None) };
        let given: Given = self.lines.again(*place)?;
        if given.question != *question {
            return Err(RunError::invalid(self.lines.path(), "it was changed while the party runs"));
        }
        Ok(Some(given.answer.0))
    }

    /// Stores the answer to a question that was not answered before, and returns when it is safe on disk.
    ///
    /// # Errors
    /// If the file is full, or the system refuses.
    pub fn keep(&mut self, question: Digest, answer: &[u8]) -> Result<(), RunError> {
        let place = self.lines.append(&Given { question, answer: Base64(answer.to_vec()) })?;
        self.places.insert(question, place);
        Ok(())
    }
}
