//! Requests that wait together, over a store that counts its reads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tiebreak_monitor::closed::ClosedLogs;
use tiebreak_monitor::snapshot::record::{Event, Serial, SignedRecord};
use tokio::sync::{mpsc, oneshot};

use super::{Job, QUESTIONS, Unkept, Writer, Writing};
use crate::admission::{State, attribute};
use crate::made::{Chip, register};
use crate::roster::Roster;
use crate::store::{self, Appended, Store, StoreError};

/// A SQLite store that counts the records it is asked for.
struct Counting(Box<dyn Store>, Arc<AtomicUsize>);

impl Store for Counting {
    fn states(&mut self, chips: &[&Serial]) -> Result<BTreeMap<Serial, State>, StoreError> {
        self.0.states(chips)
    }

    fn append(&mut self, appended: &BTreeMap<Serial, Appended>) -> Result<(), StoreError> {
        self.0.append(appended)
    }

    fn records(&mut self, chip: &Serial, from: u64, count: u64) -> Result<Vec<SignedRecord>, StoreError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.records(chip, from, count)
    }

    fn heads(&mut self) -> Result<ClosedLogs, StoreError> {
        self.0.heads()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[test]
fn questions_that_wait_together_read_a_chip_once_and_after_the_records() {
    let folder = tempfile::tempdir().unwrap();
    let reads = Arc::new(AtomicUsize::new(0));
    let path = folder.path().join("chips");
    let counting = Counting(store::open(path.to_str().unwrap(), true).unwrap(), reads.clone());
    let roster = Arc::new(Roster::new(folder.path().join("register"), None, register(3)));
    let (sender, jobs) = mpsc::channel(1024);
    let mut chip = Chip::new(1);
    let mut asked = Vec::new();
    for _ in 0..100 {
        let (answer, answered) = oneshot::channel();
        sender.try_send(Job::Last(chip.serial.clone(), answer)).unwrap();
        asked.push(answered);
    }
    let signed = chip.write(Event::Begin);
    let found = attribute(&register(3), signed.clone()).unwrap();
    let (answer, mut kept) = oneshot::channel();
    sender.try_send(Job::Keep(Box::new(found), answer)).unwrap();
    drop(sender);
    Writing { store: Box::new(counting), roster }.run(jobs);
    assert!(matches!(kept.try_recv(), Ok(Ok(()))));
    for mut answered in asked {
        assert_eq!(answered.try_recv().unwrap().unwrap(), Some(signed.clone()));
    }
    assert_eq!(reads.load(Ordering::Relaxed), 1);
}

#[test]
fn questions_leave_room_for_records() {
    runtime().block_on(async {
        let (sender, mut jobs) = mpsc::channel(1024);
        let writer = Writer::of(sender);
        let mut chip = Chip::new(1);
        let asking: Vec<_> = (0..QUESTIONS)
            .map(|_| (writer.clone(), chip.serial.clone()))
            .map(|(writer, serial)| tokio::spawn(async move { writer.last(serial).await }))
            .collect();
        while jobs.len() < QUESTIONS {
            tokio::task::yield_now().await;
        }
        assert!(matches!(writer.last(chip.serial.clone()).await, Err(Unkept::Busy)));
        let found = attribute(&register(3), chip.write(Event::Begin)).unwrap();
        let keeping = writer.clone();
        let keeping = tokio::spawn(async move { keeping.keep(found).await });
        while jobs.len() == QUESTIONS {
            tokio::task::yield_now().await;
        }
        // Answered questions make room for others.
        while let Ok(job) = jobs.try_recv() {
            match job {
                Job::Last(_, answer) => drop(answer.send(Ok(None))),
                Job::Keep(_, answer) => drop(answer.send(Ok(()))),
            }
        }
        assert!(matches!(keeping.await, Ok(Ok(()))));
        for asked in asking {
            assert!(matches!(asked.await, Ok(Ok(None))));
        }
        let again = tokio::spawn(async move { writer.last(chip.serial.clone()).await });
        let Some(Job::Last(_, answer)) = jobs.recv().await else { panic!("a question is expected") };
        drop(answer.send(Ok(None)));
        assert!(matches!(again.await, Ok(Ok(None))));
    });
}
