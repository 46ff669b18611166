//! The one thread that writes: it takes the records that wait, stores them in one transaction, and only then says that they are kept.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::snapshot::record::{RECORD_BYTES, Serial, SignedRecord};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::admission::{Attributed, NEW, Refusal, State, admit};
use crate::roster::Roster;
use crate::store::{Appended, Store, StoreError};

/// Requests that wait at most; more are told to come again.
const WAITING: usize = 8192;
/// Questions about the last record that wait at most. Strangers may ask them, so they never fill the queue of the chips' records.
const QUESTIONS: usize = 256;
/// Requests of one transaction at most.
const BATCH: usize = 1024;
/// The times that a transaction is tried where several collectors write to one database.
const TRIES: u32 = 5;

/// The reasons why a record is not kept.
#[derive(Debug, thiserror::Error)]
pub enum Unkept {
    /// The record is not taken.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store failed, so nobody knows whether the record is kept.
    #[error("this collector cannot keep the record now")]
    Failed,
    /// Too many requests wait.
    #[error("this collector has requests enough that wait: send this one again later")]
    Busy,
}

/// The answer to a question about a chip.
type LastRecord = Result<Option<SignedRecord>, Unkept>;

enum Job {
    Keep(Box<Attributed>, oneshot::Sender<Result<(), Unkept>>),
    Last(Serial, oneshot::Sender<LastRecord>),
}

/// A handle by which requests reach the thread that writes.
#[derive(Clone)]
pub struct Writer {
    jobs: mpsc::Sender<Job>,
    questions: Arc<Semaphore>,
}

impl Writer {
    /// Starts the thread. It ends when all handles are gone.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn start(store: Box<dyn Store>, roster: Arc<Roster>) -> io::Result<(Writer, JoinHandle<()>)> {
        let (sender, jobs) = mpsc::channel(WAITING);
        let thread = thread::Builder::new()
            .name("writer".into())
            .spawn(move || Writing { store, roster }.run(jobs))?;
        Ok((Writer::of(sender), thread))
    }

    fn of(jobs: mpsc::Sender<Job>) -> Writer {
        Writer { jobs, questions: Arc::new(Semaphore::new(QUESTIONS)) }
    }

    /// Keeps a record: it is durable when this returns.
    ///
    /// # Errors
    /// If the record is not taken, or the store fails.
    pub async fn keep(&self, found: Attributed) -> Result<(), Unkept> {
        let (answer, answered) = oneshot::channel();
        self.jobs.try_send(Job::Keep(Box::new(found), answer)).map_err(|_| Unkept::Busy)?;
        answered.await.unwrap_or(Err(Unkept::Failed))
    }

    /// The last record of a chip.
    ///
    /// # Errors
    /// If too many ask, or the store fails.
    pub async fn last(&self, chip: Serial) -> LastRecord {
        let _question = self.questions.try_acquire().map_err(|_| Unkept::Busy)?;
        let (answer, answered) = oneshot::channel();
        self.jobs.try_send(Job::Last(chip, answer)).map_err(|_| Unkept::Busy)?;
        answered.await.unwrap_or(Err(Unkept::Failed))
    }
}

struct Writing {
    store: Box<dyn Store>,
    roster: Arc<Roster>,
}

/// A request, and the decision about it that counts once the transaction is durable.
type Decided = Vec<Result<(), Refusal>>;

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis());
    u64::try_from(now).unwrap_or(u64::MAX)
}

impl Writing {
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut waiting = Vec::new();
        // While one transaction is written, the requests of the next one gather.
        while jobs.blocking_recv_many(&mut waiting, BATCH) > 0 {
            let (mut keep, mut asked) = (Vec::new(), BTreeMap::<Serial, Vec<_>>::new());
            for job in waiting.drain(..) {
                match job {
                    Job::Keep(found, answer) => keep.push((*found, answer)),
                    Job::Last(chip, answer) => asked.entry(chip).or_default().push(answer),
                }
            }
            let (found, answers): (Vec<_>, Vec<_>) = keep.into_iter().unzip();
            match self.keep(&found) {
                Ok(decided) => {
                    for (answer, decided) in answers.into_iter().zip(decided) {
                        // A client that is gone sends its record again.
                        let _ = answer.send(decided.map_err(Unkept::Refused));
                    }
                }
                Err(error) => {
                    tracing::error!(%error, records = found.len(), "records were not kept");
                    answers.into_iter().for_each(|answer| drop(answer.send(Err(Unkept::Failed))));
                }
            }
            // Records come first. However many ask about a chip, it is read once.
            for (chip, answers) in asked {
                let last = self.last(&chip).inspect_err(|error| {
                    tracing::error!(%error, %chip, "the last record was not read");
                });
                for answer in answers {
                    let last = last.as_ref().map(Clone::clone).map_err(|_| Unkept::Failed);
                    let _ = answer.send(last);
                }
            }
        }
    }

    fn last(&mut self, chip: &Serial) -> Result<Option<SignedRecord>, StoreError> {
        let states = self.store.states(&[chip])?;
        let Some(state) = states.get(chip) else { return Ok(None) };
        let from = state.end.records.saturating_sub(1);
        let records = self.store.records(chip, from, 1)?;
        match records.into_iter().next() {
            Some(record) if record.link() == state.end.link => Ok(Some(record)),
            found => {
                let why = format!(
                    "the last record has the link {}; the chip's row has {}",
                    found.map_or("of nothing".into(), |record| record.link().short()),
                    state.end.link.short()
                );
                Err(StoreError::Damaged(why))
            }
        }
    }

    /// Decides about records and stores those that are taken, in one transaction.
    fn keep(&mut self, found: &[Attributed]) -> Result<Decided, StoreError> {
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let register = self.roster.register();
        let mut tries = 0;
        loop {
            let (decided, appended) = self.decide(&register, found)?;
            if appended.is_empty() {
                return Ok(decided);
            }
            match self.store.append(&appended) {
                Ok(()) => return Ok(decided),
                Err(StoreError::Raced(why)) if tries < TRIES => {
                    tracing::info!(why, "another collector was faster");
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn decide(
        &mut self,
        register: &Register,
        found: &[Attributed],
    ) -> Result<(Decided, BTreeMap<Serial, Appended>), StoreError> {
        let mut chips: Vec<&Serial> = found.iter().map(|found| &found.signed.record.serial).collect();
        chips.sort_unstable();
        chips.dedup();
        let states = self.store.states(&chips)?;
        let mut appended: BTreeMap<Serial, Appended> = BTreeMap::new();
        let (mut decided, now) = (Vec::with_capacity(found.len()), now());
        for found in found {
            let serial = &found.signed.record.serial;
            let before = states.get(serial).copied().unwrap_or(NEW);
            let here = appended.get(serial);
            let state = here.map_or(before, |here| here.state);
            decided.push(if found.signed.record.counter < state.end.records {
                self.again(&before, here, &found.signed)?
            } else {
                admit(register, &state, found, now)
                    .map(|state| put(&mut appended, before.end.records, state, &found.signed))
            });
        }
        Ok((decided, appended))
    }

    /// A record whose counter is kept already: it is the same one, or a fork.
    fn again(
        &mut self,
        before: &State,
        here: Option<&Appended>,
        signed: &SignedRecord,
    ) -> Result<Result<(), Refusal>, StoreError> {
        let (serial, counter) = (&signed.record.serial, signed.record.counter);
        let damaged = |why: String| StoreError::Damaged(format!("record {counter} of {serial}: {why}"));
        let kept = match counter.checked_sub(before.end.records) {
            // It came with this batch.
            Some(at) => {
                let bytes = here.and_then(|here| here.records.get(at as usize));
                let bytes = bytes.ok_or_else(|| damaged(format!("record {at} of its batch is not there")))?;
                SignedRecord::decode(bytes).map_err(|error| damaged(error.to_string()))?
            }
            None => {
                let records = self.store.records(serial, counter, 1)?;
                records.into_iter().next().ok_or_else(|| {
                    damaged(format!("the chip's row has {} records, without it", before.end.records))
                })?
            }
        };
        if kept == *signed {
            return Ok(Ok(()));
        }
        let (serial, kept, found) = (serial.clone(), kept.link(), signed.link());
        Ok(Err(Refusal::Fork { serial, counter, kept, found }))
    }
}

/// Puts a record that was taken into the transaction.
fn put(chips: &mut BTreeMap<Serial, Appended>, before: u64, state: State, signed: &SignedRecord) {
    let chip = chips.entry(signed.record.serial.clone());
    let chip = chip.or_insert_with(|| Appended { before, records: Vec::new(), state });
    let bytes: [u8; RECORD_BYTES] = signed.encode().try_into().expect("a record has its length");
    chip.records.push(bytes);
    chip.state = state;
}

#[cfg(test)]
mod tests;
