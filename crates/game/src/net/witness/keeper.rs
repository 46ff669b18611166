//! A witness's memory: the last checkpoint of each log that it cosigned, on disk before the cosignature is given.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::metrics::WitnessMetrics;
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
    /// The most logs of a key. A trainer has a log a run, so without a bound it could fill the disk.
    most: u64,
    /// The right to write, of this process, and the number of logs of each key. A request takes it while it is decided and its
    /// checkpoint is written, so that no two requests see the same state.
    writing: Mutex<Writing>,
    metrics: WitnessMetrics,
}

/// The right to write, and what is written.
struct Writing {
    _held: Box<dyn Held>,
    /// The logs that are kept, by the key that signed their last checkpoints.
    logs: HashMap<[u8; 32], u64>,
}

/// The name of the file that holds the last checkpoint of a log.
fn name(origin: &str) -> String {
    format!("log-{}", hash("tiebreak 2 witnessed-log", origin.as_bytes()))
}

impl Keeper {
    /// A witness over a store, which no other process may use meanwhile. It keeps at most `most` logs of a key.
    ///
    /// # Errors
    /// If another process holds the store, it cannot be locked, or a checkpoint in it is damaged.
    pub fn open(key: PrivateKey, logs: Logs, store: Arc<dyn Store>, most: u64) -> io::Result<Keeper> {
        let writing = Writing { _held: store.lock("lock")?, logs: HashMap::new() };
        let (writing, metrics) = (Mutex::new(writing), WitnessMetrics::default());
        let keeper = Keeper { key, logs, store, most, writing, metrics };
        let mut counts: HashMap<[u8; 32], u64> = HashMap::new();
        for name in keeper.store.list("")?.iter().filter(|name| name.starts_with("log-")) {
            let checkpoint = keeper.kept(name)?;
            keeper.metrics.logs.inc();
            if let Some(key) = checkpoint.as_ref().and_then(|checkpoint| keeper.logs.signer(checkpoint)) {
                *counts.entry(key.bytes()).or_default() += 1;
            }
        }
        keeper.writing.lock().unwrap_or_else(PoisonError::into_inner).logs = counts;
        Ok(keeper)
    }

    /// The metrics of this witness.
    pub fn metrics(&self) -> &WitnessMetrics {
        &self.metrics
    }

    /// The number of logs of which the witness cosigned a checkpoint.
    ///
    /// # Errors
    /// If the store cannot be listed.
    pub fn seen(&self) -> io::Result<usize> {
        Ok(self.store.list("")?.iter().filter(|name| name.starts_with("log-")).count())
    }

    /// The checkpoint in a file; `None` if there is no such file.
    fn kept(&self, name: &str) -> io::Result<Option<Checkpoint>> {
        let length = match self.store.length(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            length => length?,
        };
        let damaged = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {why}"));
        if length > NOTE_MAX as u64 {
            return Err(damaged(format!("it has {length} bytes; a checkpoint has at most {NOTE_MAX}")));
        }
        let text = String::from_utf8(self.store.read(name, 0..length)?).map_err(|error| {
            damaged(format!("it is not UTF-8 from byte {} on", error.utf8_error().valid_up_to()))
        })?;
        Checkpoint::read(&text).map(Some).map_err(|error| damaged(error.to_string()))
    }

    /// The last checkpoint of a log; `None` if the log is new.
    fn last(&self, origin: &str) -> io::Result<Option<Seen>> {
        let name = name(origin);
        let Some(last) = self.kept(&name)? else { return Ok(None) };
        if last.origin != origin {
            let (found, due) = (beginning(&last.origin), beginning(origin));
            let why = format!("{name}: it holds a checkpoint of {found:?}, not {due:?}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Some(Seen { size: last.size, root: last.root }))
    }

    /// Decides about a request at `time`, in seconds since 1970. The checkpoint is on disk before the signature line is returned.
    ///
    /// # Errors
    /// If the store fails; the inner error is the reason for a refusal.
    pub fn add(&self, request: &AddCheckpoint, time: u64) -> io::Result<Result<String, Refusal>> {
        let decided = self.decided(request, time);
        self.metrics.decided(&decided, time);
        decided
    }

    /// The decision, which is on disk if it is a cosignature.
    fn decided(&self, request: &AddCheckpoint, time: u64) -> io::Result<Result<String, Refusal>> {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_new = false;
        let decided = self.logs.decide(request, |origin| {
            let last = self.last(origin)?;
            is_new = last.is_none();
            Ok::<_, io::Error>(last.unwrap_or(NOTHING_SEEN))
        })?;
        if let Err(refusal) = decided {
            return Ok(Err(refusal));
        }
        let signer = self.logs.signer(&request.checkpoint).filter(|_| is_new).map(|key| key.bytes());
        if signer.is_some_and(|key| writing.logs.get(&key).is_some_and(|count| *count >= self.most)) {
            return Ok(Err(Refusal::Full(self.most)));
        }
        let note = &request.checkpoint.note;
        self.store.replace(&name(&request.checkpoint.origin), &mut |file| file.write_all(note.as_bytes()))?;
        if is_new {
            self.metrics.logs.inc();
        }
        if let Some(key) = signer {
            *writing.logs.entry(key).or_default() += 1;
        }
        let signed = cosigned(note, &self.key, time).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Ok(signed[note.len()..].to_string()))
    }
}
