//! What a witness keeps: the last checkpoint of each log that it cosigned, on disk before the cosignature is given.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tiebreak_monitor::witness::checkpoint::Checkpoint;
use tiebreak_monitor::witness::policy::{Logs, NOTHING_SEEN, Refusal, Seen};
use tiebreak_monitor::witness::request::AddCheckpoint;
use tiebreak_record::commit::beginning;
use tiebreak_record::commit::cosignature::cosigned;
use tiebreak_record::commit::digest::hash;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::tree_head::NOTE_MAX;
use tiebreak_run::run::{Held, Store};

/// A witness: its key, the logs that it serves, and the store of what it has seen.
pub struct Keeper {
    key: PrivateKey,
    logs: Logs,
    store: Arc<dyn Store>,
    /// The right to write, of this process. A request takes it while it is decided and its checkpoint is written, so that no two
    /// requests see the same state.
    writing: Mutex<Box<dyn Held>>,
}

/// The name of the file that holds the last checkpoint of a log.
fn name(origin: &str) -> String {
    format!("log-{}", hash("tiebreak 2 witnessed-log", origin.as_bytes()))
}

impl Keeper {
    /// A witness over a store, which no other process may use meanwhile.
    ///
    /// # Errors
    /// If another process holds the store, or it cannot be locked.
    pub fn open(key: PrivateKey, logs: Logs, store: Arc<dyn Store>) -> io::Result<Keeper> {
        let writing = Mutex::new(store.lock("lock")?);
        Ok(Keeper { key, logs, store, writing })
    }

    /// The number of logs of which the witness cosigned a checkpoint.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub fn seen(&self) -> io::Result<usize> {
        Ok(self.store.list("")?.iter().filter(|name| name.starts_with("log-")).count())
    }

    fn last(&self, origin: &str) -> io::Result<Seen> {
        let name = name(origin);
        let length = match self.store.length(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(NOTHING_SEEN),
            length => length?,
        };
        let damaged = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {why}"));
        if length > NOTE_MAX as u64 {
            return Err(damaged(format!("it has {length} bytes; a checkpoint has at most {NOTE_MAX}")));
        }
        let text = String::from_utf8(self.store.read(&name, 0..length)?).map_err(|error| {
            damaged(format!("it is not UTF-8 from byte {} on", error.utf8_error().valid_up_to()))
        })?;
        let last = Checkpoint::read(&text).map_err(|error| damaged(error.to_string()))?;
        if last.origin != origin {
            return Err(damaged(format!(
                "it holds a checkpoint of {:?}, not {:?}",
                beginning(&last.origin),
                beginning(origin)
            )));
        }
        Ok(Seen { size: last.size, root: last.root })
    }

    /// Decides about a request at `time`, in seconds since 1970. The checkpoint is on disk before the signature line is returned.
    ///
    /// # Errors
    /// If the store fails; the inner error is the reason for a refusal.
    pub fn add(&self, request: &AddCheckpoint, time: u64) -> io::Result<Result<String, Refusal>> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(refusal) = self.logs.decide(request, |origin| self.last(origin))? {
            return Ok(Err(refusal));
        }
        let note = &request.checkpoint.note;
        self.store.replace(&name(&request.checkpoint.origin), &mut |file| file.write_all(note.as_bytes()))?;
        let signed = cosigned(note, &self.key, time).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Ok(signed[note.len()..].to_string()))
    }
}
