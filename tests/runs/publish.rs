//! Runs that are published: no reader sees a head before what it covers, and nothing newer is replaced.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::Arc;

use tiebreak_audit::{attachments, checks};
use tiebreak_remote::publish::{Done, publish};
use tiebreak_remote::target::{Found, Put, Source, Target};
use tiebreak_remote::{Patience, target};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::transcript;
use tiebreak_run::run::{Folder, Held, Memory, names};

use super::remote::trained;
use crate::common::key;

/// An object store in memory. It stops after so many writes, and somebody else writes a file before one of this name.
#[derive(Default)]
struct Shelf {
    files: RefCell<BTreeMap<String, Vec<u8>>>,
    writes: Cell<u64>,
    stops_at: Cell<Option<u64>>,
    other: RefCell<Option<(String, Vec<u8>)>>,
    ignores_conditions: bool,
}

fn tag(bytes: &[u8]) -> Found {
    let digest = blake3::hash(bytes).to_hex().to_string();
    Found { length: bytes.len() as u64, tag: Some(digest.clone()), digest: Some(digest), version: None }
}

impl Target for Shelf {
    fn place(&self) -> String {
        "shelf".into()
    }

    fn hold(&self) -> io::Result<Option<Box<dyn Held>>> {
        Ok(None)
    }

    fn found(&self, name: &str) -> io::Result<Option<Found>> {
        Ok(self.files.borrow().get(name).map(|bytes| tag(bytes)))
    }

    fn bytes(&self, name: &str, _: u64) -> io::Result<Option<(Vec<u8>, Found)>> {
        Ok(self.files.borrow().get(name).map(|bytes| (bytes.clone(), tag(bytes))))
    }

    fn put(&self, file: &Source, over: Option<&Found>) -> io::Result<Put> {
        let other = self.other.borrow_mut().take_if(|(name, _)| name == file.name);
        self.files.borrow_mut().extend(other);
        let there = self.found(file.name)?.map(|found| found.tag);
        if !self.ignores_conditions && there != over.map(|found| found.tag.clone()) {
            return Ok(Put::Changed);
        }
        if self.stops_at.get() == Some(self.writes.get()) {
            return Err(io::Error::other("the network is down"));
        }
        self.writes.set(self.writes.get() + 1);
        self.files.borrow_mut().insert(file.name.to_string(), file.read(0..file.length)?);
        Ok(Put::Done)
    }
}

impl Shelf {
    fn run(&self) -> Run {
        Run::of(Arc::new(Memory::holding(self.files.borrow().clone()))).unwrap()
    }
}

/// The run as it was when its head covered so many records.
fn earlier(run: &Memory, head: u64) -> Memory {
    let open = Run::of(Arc::new(run.clone())).unwrap();
    let (transcript, _) = transcript::read(open.at(names::TRANSCRIPT)).unwrap();
    let end = transcript::length(&transcript.records[..head as usize]) as usize;
    let later = |name: &str| name.starts_with("heads/") && *name > *names::head(head);
    let files = run.files().into_iter().filter(|(name, _)| !later(name));
    let cut = files.map(|(name, mut bytes)| {
        if name == names::TRANSCRIPT {
            bytes.truncate(end);
        }
        (name, bytes)
    });
    Memory::holding(cut.collect())
}

fn published(memory: &Memory, to: &dyn Target) -> Result<Done, String> {
    let run = Run::of(Arc::new(memory.clone())).unwrap();
    publish(&run, to, &mut |_, _| {}).map_err(|error| error.to_string())
}

/// A reader at each moment finds every file that the newest head covers, and a call that was interrupted sends nothing twice.
#[test]
fn an_interrupted_publication_is_gone_on_with_and_no_head_is_early() {
    let memory = trained();
    let whole = Shelf::default();
    let done = published(&memory, &whole).unwrap();
    assert_eq!((done.sent, done.there, done.head), (done.files + 1, 0, Some(10)));
    let again = published(&memory, &whole).unwrap();
    assert_eq!(
        (again.sent, again.sent_bytes, again.there, whole.writes.get()),
        (0, 0, done.files, done.sent)
    );
    let (shelf, mut heads) = (Shelf::default(), 0);
    for stop in 1..=done.sent {
        shelf.stops_at.set(Some(stop));
        let ended = published(&memory, &shelf);
        assert_eq!(shelf.writes.get(), stop, "{ended:?}");
        let seen = shelf.files.borrow().keys().filter(|name| name.starts_with("heads/")).count();
        if seen > heads {
            heads = seen;
            let run = shelf.run();
            let mut checked = checks::always(&run, Some(&key().public())).unwrap();
            let beside = attachments::attachments(&run, &checked);
            attachments::note(&mut checked, beside);
            assert!(checked.damaged.is_empty(), "{:?}", checked.damaged);
        }
        let last = stop == done.sent;
        assert_eq!(shelf.files.borrow().contains_key(names::INDEX), last, "the index comes last");
    }
    assert_eq!((heads, *shelf.files.borrow() == *whole.files.borrow()), (4, true));
}

#[test]
fn nothing_newer_is_replaced_and_no_other_run() {
    let memory = trained();
    let old = earlier(&memory, 4);
    let shelf = Shelf::default();
    let first = published(&old, &shelf).unwrap();
    let grown = published(&memory, &shelf).unwrap();
    // The transcript, the later heads and the index.
    assert_eq!((first.head, grown.head, grown.sent), (Some(4), Some(10), 4));
    let now = shelf.files.borrow().clone();
    let stale = published(&old, &shelf).unwrap_err();
    assert!(stale.contains("its head covers 10 records, and the newest head here 4 records"), "{stale}");
    // A longer run of somebody else is no newer state of this one.
    shelf.files.borrow_mut().insert(names::RUN_JSON.into(), b"{}".to_vec());
    let other = published(&old, &shelf).unwrap_err();
    assert!(other.contains("run.json: another run is published there"), "{other}");
    shelf.files.borrow_mut().insert(names::RUN_JSON.into(), now[names::RUN_JSON].clone());
    // Another publisher who is ahead, and whose index this one did not see yet.
    shelf.files.borrow_mut().remove(names::INDEX);
    let stale = published(&old, &shelf).unwrap_err();
    assert!(stale.contains("transcript: a newer state of the file is there"), "{stale}");
    shelf.files.borrow_mut().insert(names::INDEX.into(), now[names::INDEX].clone());
    assert!(*shelf.files.borrow() == now);
    // Two at a time: the one who comes second with a file looks again, and with the index publishes again.
    let raced = Shelf::default();
    let head = names::head(10);
    *raced.other.borrow_mut() = Some((head.clone(), now[&head].clone()));
    let done = published(&memory, &raced).unwrap();
    assert_eq!((done.there, *raced.files.borrow() == now), (1, true));
    raced.files.borrow_mut().remove(names::INDEX);
    *raced.other.borrow_mut() = Some((names::INDEX.into(), now[names::INDEX].clone()));
    let refused = published(&memory, &raced).unwrap_err();
    assert!(refused.contains("somebody else published meanwhile: publish again"), "{refused}");
    for (file, why) in [
        (names::RUN_JSON, "another run is published there"),
        (&*names::checkpoint(4), "another file is there"),
        (&*head, "two histories"),
    ] {
        let shelf = Shelf { files: RefCell::new(now.clone()), ..Shelf::default() };
        *shelf.files.borrow_mut().get_mut(file).unwrap().last_mut().unwrap() ^= 1;
        let before = shelf.files.borrow().clone();
        let refused = published(&memory, &shelf).unwrap_err();
        assert!(refused.contains(file) && refused.contains(why), "{refused}");
        assert!(*shelf.files.borrow() == before);
    }
    let careless = Shelf { ignores_conditions: true, ..Shelf::default() };
    let refused = published(&memory, &careless).unwrap_err();
    assert!(
        refused.contains("ignores conditions of writes") && careless.files.borrow().len() == 1,
        "{refused}"
    );
}

#[test]
fn a_folder_gets_a_runs_files_and_no_secret() {
    let memory = trained();
    let here = tempfile::tempdir().unwrap();
    let (run, to) = (here.path().join("run"), here.path().join("www"));
    for (name, bytes) in memory.files() {
        fs::create_dir_all(run.join(&name).parent().unwrap()).unwrap();
        fs::write(run.join(&name), bytes).unwrap();
    }
    let bring = || {
        let place = target(&to, Patience::default()).unwrap();
        publish(&Run::open(&run).unwrap(), &*place, &mut |_, _| {}).map_err(|error| error.to_string())
    };
    let private = key().to_text();
    for (name, bytes, why) in [
        ("trainer.key", "anything", "is no file of a run: move it elsewhere"),
        ("heads/key", "anything", "is no file of a run: move it elsewhere"),
        ("metrics.jsonl", private.as_str(), "holds a secret key: move it elsewhere"),
        ("metrics.jsonl", "SALT+KEY+0", "holds a secret key: move it elsewhere"),
    ] {
        fs::write(run.join(name), bytes).unwrap();
        let refused = bring().unwrap_err();
        assert!(refused.contains(name) && refused.contains(why), "{refused}");
        assert!(!to.join(names::RUN_JSON).exists());
        fs::remove_file(run.join(name)).unwrap();
    }
    // What a trainer writes at this time, and the lock, stay here.
    fs::write(run.join("checkpoints/.step-9.partial"), "half").unwrap();
    fs::write(run.join(names::LOCK), "17").unwrap();
    let done = bring().unwrap();
    assert_eq!((done.there, done.sent), (0, done.files + 1));
    let there = Folder::at(&to);
    assert!(!to.join("checkpoints/.step-9.partial").exists() && there.length(names::LOCK).unwrap() == 0);
    for (name, bytes) in memory.files() {
        assert!(fs::read(to.join(&name)).unwrap() == bytes, "{name}");
    }
    assert_eq!(bring().unwrap().sent, 0);
    // A file of the same length with other bytes is no file that is there.
    let state = to.join(names::checkpoint(4));
    let mut bytes = fs::read(&state).unwrap();
    bytes[900] ^= 1;
    fs::write(&state, bytes).unwrap();
    let refused = bring().unwrap_err();
    assert!(refused.contains("another file is there"), "{refused}");
    fs::remove_file(&state).unwrap();
    assert_eq!(bring().unwrap().sent, 1);
    let held = there.lock(names::LOCK).unwrap();
    assert!(bring().unwrap_err().contains("publishes there now"));
    drop(held);
    #[cfg(unix)]
    {
        let elsewhere = to.with_file_name("elsewhere");
        fs::rename(to.join(names::CHECKPOINTS), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, to.join(names::CHECKPOINTS)).unwrap();
        fs::remove_file(elsewhere.join("step-000000004.safetensors")).unwrap();
        let refused = bring().unwrap_err();
        assert!(refused.contains("its folder is a link"), "{refused}");
        assert!(!elsewhere.join("step-000000004.safetensors").exists());
    }
    for (place, why) in [
        ("http://host/run", "begins with s3://"),
        ("ftp://host/run", "begins with s3://"),
        #[cfg(not(feature = "object-stores"))]
        ("s3://bucket/run", "build it with --features object-stores"),
    ] {
        let refused = target(place.as_ref(), Patience::default()).err().unwrap().to_string();
        assert!(refused.starts_with(place) && refused.contains(why), "{refused}");
    }
}
