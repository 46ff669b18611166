//! The same by files, for people without a network between them: the referee writes `question-NNNN.json` into a folder, the party writes
//! `answer-NNNN.json` beside it. NNNN is the turn. Files appear whole, and people may carry the folder to and fro.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::de::IgnoredAny;

use super::desk::{Desk, Refused, Taken};
use crate::commit::digest::{Digest, hash};
use crate::dispute::game::message::{Asked, Sealed};
use crate::dispute::game::moves::CARRIED_MAX;
use crate::run::RunError;
use crate::run::disk::{self, Disk};

/// How often a folder is looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a question that could not be answered is left alone.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Where the question of a turn lies.
pub fn question_path(folder: &Path, turn: u32) -> PathBuf {
    folder.join(format!("question-{turn:04}.json"))
}

/// Where its answer lies.
pub fn answer_path(folder: &Path, turn: u32) -> PathBuf {
    folder.join(format!("answer-{turn:04}.json"))
}

/// The turns of which a folder has files of this kind (`question`, `answer`), ascending.
fn turns(folder: &Path, kind: &str) -> Result<Vec<u32>, RunError> {
    let mut turns = Vec::new();
    for entry in fs::read_dir(folder).map_err(RunError::io(folder))? {
        let name = entry.map_err(RunError::io(folder))?.file_name();
        let name = name.to_string_lossy();
        let number = name.strip_prefix(kind).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".json"));
        turns.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    turns.sort_unstable();
    Ok(turns)
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// A folder's absolute path; it is made if it is not there.
fn made(folder: &Path) -> Result<PathBuf, RunError> {
    let folder = std::path::absolute(folder).map_err(RunError::io(folder))?;
    Disk::default().create_folder(&folder)?;
    Ok(folder)
}

/// A party's side of a folder.
pub struct Answers {
    folder: PathBuf,
    /// Questions that were not answered, and when to try again.
    refused: HashMap<Digest, Instant>,
}

impl Answers {
    /// Answers in a folder, which is made if it is not there.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new(folder: &Path) -> Result<Answers, RunError> {
        Ok(Answers { folder: made(folder)?, refused: HashMap::new() })
    }

    /// Answers what is asked there until the desk is closed.
    pub fn serve(&mut self, desk: &Desk) {
        while !desk.is_closed() {
            if let Err(error) = self.pass(desk) {
                // A shared folder may be away for a while.
                tracing::warn!(error = ?error.to_string(), "the folder of questions");
                std::thread::sleep(AGAIN_AFTER.min(10 * LOOK_EVERY));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Answers each question that has no answer yet.
    fn pass(&mut self, desk: &Desk) -> Result<(), RunError> {
        for turn in turns(&self.folder, "question")? {
            let (question, answer) = (question_path(&self.folder, turn), answer_path(&self.folder, turn));
            if is_there(&answer) {
                continue;
            }
            let sealed = match disk::read(&question, desk.limit()) {
                Ok(sealed) => sealed,
                Err(RunError::Malformed { source, .. }) => {
                    tracing::debug!(turn, why = ?source.to_string(), "a file is no question");
                    continue;
                }
                Err(error) => return Err(error),
            };
            let name = hash("tiebreak 2 sealed question", &sealed);
            if self.refused.get(&name).is_some_and(|again| Instant::now() < *again) {
                continue;
            }
            match answered(desk, turn, sealed) {
                Ok(bytes) => Disk::default().replace(&answer, &bytes)?,
                Err(Refused::Closed) => return Ok(()),
                Err(why) => {
                    tracing::warn!(turn, why = ?why.to_string(), "a question was not answered");
                    self.refused.insert(name, Instant::now() + AGAIN_AFTER);
                }
            }
        }
        Ok(())
    }
}

/// Waits for the answer to a question.
fn answered(desk: &Desk, turn: u32, sealed: Vec<u8>) -> Result<Vec<u8>, Refused> {
    let asked = desk.check(&sealed)?;
    if asked.turn != turn {
        return Err(Refused::Foreign(format!(
            "the file's name says turn {turn}, the question {}",
            asked.turn
        )));
    }
    tracing::info!(turn, question = ?asked.question, "question");
    match desk.take(sealed)? {
        Taken::Known(answer) => Ok(answer.to_vec()),
        Taken::Later(told) => {
            told.blocking_recv().unwrap_or(Err(Refused::Closed)).map(|answer| answer.to_vec())
        }
    }
}

/// The referee's side of a folder.
pub struct Questions {
    folder: PathBuf,
}

impl Questions {
    /// Questions of a game in a folder, which is made if it is not there.
    ///
    /// # Errors
    /// If it holds questions of another game, or answers to questions that nobody asked: as answers of this game they would be garbage.
    pub fn new(folder: &Path, game: &Digest) -> Result<Questions, RunError> {
        let folder = made(folder)?;
        let other = |path: &Path| {
            RunError::Refused(format!(
                "{} is not of this game: give each game and party an empty folder of its own",
                path.display()
            ))
        };
        for turn in turns(&folder, "question")? {
            let path = question_path(&folder, turn);
            let bytes = disk::read(&path, CARRIED_MAX)?;
            let ours = serde_json::from_slice::<Sealed<Asked>>(&bytes).is_ok_and(|q| q.body.game == *game);
            if !ours {
                return Err(other(&path));
            }
        }
        for turn in turns(&folder, "answer")? {
            if !is_there(&question_path(&folder, turn)) {
                return Err(other(&answer_path(&folder, turn)));
            }
        }
        Ok(Questions { folder })
    }

    /// Writes a question, unless it is there.
    ///
    /// # Errors
    /// If the system refuses, or another question stands in its place.
    pub fn put(&self, turn: u32, sealed: &[u8]) -> Result<(), RunError> {
        let path = question_path(&self.folder, turn);
        if !is_there(&path) {
            return Disk::default().replace(&path, sealed);
        }
        match disk::read(&path, CARRIED_MAX)? == sealed {
            true => Ok(()),
            false => Err(RunError::Refused(format!("{} holds another question", path.display()))),
        }
    }

    /// The answer to a turn's question, if it is there: at most `limit` + 1 bytes of it. A file that ends within its JSON may be one that is
    /// still being copied, and is no answer unless this is the `last` look.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn answer(&self, turn: u32, limit: u64, last: bool) -> Result<Option<Vec<u8>>, RunError> {
        use io::Read;
        let path = answer_path(&self.folder, turn);
        if !is_there(&path) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let read = disk::open(&path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(RunError::io(&path))?;
        let cut = serde_json::from_slice::<IgnoredAny>(&bytes).is_err_and(|error| error.is_eof());
        Ok((last || !cut || bytes.len() as u64 > limit).then_some(bytes))
    }
}
