//! The game by files, for people without a network between them. The referee writes `question-NNNN.json` into a folder, the party
//! writes `answer-NNNN.json` beside it; NNNN is the turn. Files appear whole, and people may carry the folder to and fro.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::desk::{Desk, Refused, Taken};
use super::pass::question_name;
use tiebreak_dispute::game::message::{Asked, Sealed};
use tiebreak_dispute::game::moves::CARRIED_MAX;
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::RunError;
use tiebreak_run::run::disk::{self, Disk};

/// The interval between two looks at a folder.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The time before a question that could not be answered is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The path of a turn's question.
pub fn question_path(folder: &Path, turn: u32) -> PathBuf {
    folder.join(format!("question-{turn:04}.json"))
}

/// The path of a turn's answer.
pub fn answer_path(folder: &Path, turn: u32) -> PathBuf {
    folder.join(format!("answer-{turn:04}.json"))
}

/// The turns whose files of this kind (`question`, `answer`) are in a folder, ascending.
fn turns(folder: &Path, kind: &str) -> Result<Vec<u32>, RunError> {
    let mut turns = Vec::new();
    for entry in fs::read_dir(folder).map_err(RunError::io(folder))? {
        let name = entry.map_err(RunError::io(folder))?.file_name();
        let name = name.to_string_lossy();
        let number = name.strip_prefix(kind).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".json"));
        // Other spellings of a number, such as a copy's, are other files.
        let turn = number.and_then(|number| number.parse::<u32>().ok());
        turns.extend(turn.filter(|turn| name == format!("{kind}-{turn:04}.json")));
    }
    turns.sort_unstable();
    Ok(turns)
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// A folder's absolute path; the folder is made if it does not exist.
fn made(folder: &Path) -> Result<PathBuf, RunError> {
    let folder = std::path::absolute(folder).map_err(RunError::io(folder))?;
    Disk::default().create_folder(&folder)?;
    Ok(folder)
}

/// A party's side of a folder.
pub struct Answers {
    folder: PathBuf,
    /// The highest turn among the referee's signed questions: the current question.
    newest: u32,
    /// Questions that were not answered, with the time to try again.
    refused: HashMap<Digest, Instant>,
}

/// The most questions that are remembered as not answered.
const REFUSED_MAX: usize = 1024;

impl Answers {
    /// Answers in a folder, which is made if it does not exist.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new(folder: &Path) -> Result<Answers, RunError> {
        Ok(Answers { folder: made(folder)?, newest: 0, refused: HashMap::new() })
    }

    /// Answers the folder's questions until the desk is closed.
    pub fn serve(&mut self, desk: &Desk) {
        while !desk.is_closed() {
            let looked = turns(&self.folder, "question");
            for turn in looked.as_deref().unwrap_or_default() {
                if let Err(error) = self.answer(*turn, desk) {
                    tracing::warn!(turn, error = ?error.to_string(), "a file of questions");
                }
            }
            if let Err(error) = looked {
                // A shared folder may be absent for a while.
                tracing::warn!(error = ?error.to_string(), "the folder of questions");
                std::thread::sleep(AGAIN_AFTER);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Answers a question. An existing answer to an earlier question is kept. An existing answer to the newest question is
    /// compared with the party's own: it may be cut off, belong to an older question of this turn, or be somebody else's file.
    fn answer(&mut self, turn: u32, desk: &Desk) -> Result<(), RunError> {
        let (question, answer) = (question_path(&self.folder, turn), answer_path(&self.folder, turn));
        if turn < self.newest && is_there(&answer) {
            return Ok(());
        }
        let sealed = match disk::read(&question, desk.limit()) {
            Ok(sealed) => sealed,
            Err(RunError::Malformed { source, .. }) => {
                tracing::debug!(turn, why = ?source.to_string(), "a file is no question");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let name = question_name(&sealed);
        if self.refused.get(&name).is_some_and(|again| Instant::now() < *again) {
            return Ok(());
        }
        match answered(desk, turn, sealed) {
            Ok(bytes) => {
                self.newest = self.newest.max(turn);
                let same = |there: &[u8]| there == bytes;
                if !disk::read(&answer, bytes.len() as u64).is_ok_and(|there| same(&there)) {
                    Disk::default().replace(&answer, &bytes)?;
                }
            }
            Err(Refused::Closed) => {}
            Err(why) => {
                tracing::warn!(turn, why = ?why.to_string(), "a question was not answered");
                if self.refused.len() >= REFUSED_MAX {
                    self.refused.clear();
                }
                self.refused.insert(name, Instant::now() + AGAIN_AFTER);
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
    match desk.take(&asked, sealed)? {
        Taken::Known(answer) => Ok(answer.to_vec()),
        Taken::Later(told) => {
            tracing::info!(turn, question = ?asked.question, "question");
            told.blocking_recv().unwrap_or(Err(Refused::Closed)).map(|answer| answer.to_vec())
        }
    }
}

/// The referee's side of a folder.
pub struct Questions {
    folder: PathBuf,
}

impl Questions {
    /// Questions of a game in a folder, which is made if it does not exist.
    ///
    /// # Errors
    /// If the folder holds questions of another game, or answers to questions that nobody asked: as answers of this game they
    /// would be garbage.
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
            // A file that is not whole is written again.
            let parsed = serde_json::from_slice::<Sealed<Asked>>(&bytes);
            if parsed.is_ok_and(|question| question.body.game != *game) {
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

    /// Writes a question, unless it is there. Any other file of that name is not this referee's question, or not whole: it is
    /// replaced.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn put(&self, turn: u32, sealed: &[u8]) -> Result<(), RunError> {
        let path = question_path(&self.folder, turn);
        if disk::read(&path, sealed.len() as u64).is_ok_and(|there| there == sealed) {
            return Ok(());
        }
        Disk::default().replace(&path, sealed)
    }

    /// The file in an answer's place, if there is one: at most `limit` + 1 bytes of it. Somebody may still be copying it.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn answer(&self, turn: u32, limit: u64) -> Result<Option<Vec<u8>>, RunError> {
        let path = answer_path(&self.folder, turn);
        if !is_there(&path) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let read = disk::open(&path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(RunError::io(&path))?;
        Ok(Some(bytes))
    }
}
