//! The duties of every store, against SQLite and against a PostgreSQL server.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tiebreak_monitor::closed::{ClosedLogs, LogHead};
use tiebreak_monitor::snapshot::record::SignedRecord;

use super::{Appended, PIECE, Store, StoreError, open, walk};
use crate::admission::{NEW, State, admit, attribute};
use crate::made::{Chip, register, serial};

/// Makes an empty database on the server that `.ci/postgres` started, and gives its URL.
pub fn postgres() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let server = std::env::var("TIEBREAK_POSTGRES").expect("TIEBREAK_POSTGRES names a server: .ci/postgres");
    let name = format!("test_{}_{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
    let mut client = ::postgres::Client::connect(&format!("{server}/postgres"), ::postgres::NoTls).unwrap();
    client.batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
    format!("{server}/{name}")
}

/// The part of a chip's log from a record on, as an append.
fn part(chip: &Chip, from: usize) -> Appended {
    let register = register(200);
    let state = chip.log.iter().fold(NEW, |state: State, signed| {
        admit(&register, &state, &attribute(&register, signed.clone()).unwrap(), u64::MAX).unwrap()
    });
    let records = chip.log[from..].iter().map(|signed| signed.encode().try_into().unwrap()).collect();
    Appended { before: from as u64, records, state }
}

fn append(store: &mut dyn Store, parts: &[(&Chip, usize)]) -> Result<(), StoreError> {
    let chips = parts.iter().map(|(chip, from)| (chip.serial.clone(), part(chip, *from)));
    store.append(&chips.collect::<BTreeMap<_, _>>())
}

fn bytes(store: &mut dyn Store, chip: &Chip) -> Vec<u8> {
    let mut bytes = Vec::new();
    let keep = |signed: &SignedRecord| {
        bytes.extend(signed.encode());
        Ok::<(), StoreError>(())
    };
    walk(store, &chip.serial, keep).unwrap();
    bytes
}

fn heads(chips: &[&Chip]) -> ClosedLogs {
    let head = |chip: &&Chip| {
        (
            chip.serial.clone(),
            LogHead { records: chip.log.len() as u64, link: chip.log.last().unwrap().link() },
        )
    };
    ClosedLogs(chips.iter().map(head).collect())
}

/// A store keeps what it was given, over a second start, and takes an append whole or not at all.
fn keeps(address: &str) {
    let mut store = open(address, true).unwrap();
    assert_eq!(store.heads().unwrap(), ClosedLogs::default());
    assert_eq!(store.states(&[&serial(1)]).unwrap(), BTreeMap::new());
    assert_eq!(store.records(&serial(1), 0, 10).unwrap(), []);
    let (mut one, two, three) = (Chip::with(1, 3), Chip::with(2, 1), Chip::with(3, 2));
    append(&mut *store, &[(&one, 0), (&two, 0)]).unwrap();
    assert_eq!(store.heads().unwrap(), heads(&[&one, &two]));
    // A log that has another number of records than the append says: nothing of the append is stored.
    let before = one.clone();
    one.write(tiebreak_monitor::snapshot::record::Event::Begin);
    for from in [0, 2] {
        let error = append(&mut *store, &[(&three, 0), (&one, from)]).unwrap_err();
        assert!(matches!(error, StoreError::Raced(_)), "{error}");
        assert_eq!(store.heads().unwrap(), heads(&[&before, &two]));
        assert_eq!(store.records(&serial(3), 0, 10).unwrap(), []);
    }
    // A second collector sees the first one's records, and appends behind them.
    let mut second = open(address, false).unwrap();
    append(&mut *second, &[(&one, 3), (&three, 0)]).unwrap();
    for store in [&mut store, &mut second] {
        let states = store.states(&[&serial(1), &serial(3), &serial(4)]).unwrap();
        let expected = [(serial(1), part(&one, 0).state), (serial(3), part(&three, 0).state)];
        assert_eq!(states, expected.into());
        assert_eq!(store.records(&serial(1), 2, 1).unwrap(), [one.log[2].clone()]);
        assert_eq!(bytes(&mut **store, &one), one.bytes());
    }
    let long = Chip::with(4, PIECE + 3);
    append(&mut *store, &[(&long, 0)]).unwrap();
    drop((store, second));
    let mut store = open(address, false).unwrap();
    assert_eq!(store.heads().unwrap(), heads(&[&one, &two, &three, &long]));
    assert_eq!(bytes(&mut *store, &long), long.bytes());
}

#[test]
fn sqlite_keeps_logs() {
    let folder = tempfile::tempdir().unwrap();
    keeps(folder.path().join("chips").to_str().unwrap());
}

#[test]
#[ignore = "needs a PostgreSQL server: .ci/postgres"]
fn postgres_keeps_logs() {
    keeps(&postgres());
}

#[test]
fn a_file_that_no_collector_made_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let refused = |name: &str, create: bool, says: &str| {
        let before = std::fs::read(at(name)).ok();
        let error = open(&at(name), create).err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
        assert_eq!(std::fs::read(at(name)).ok().map(|bytes| bytes.len()), before.map(|bytes| bytes.len()));
    };
    refused("missing", false, "unable to open");
    std::fs::write(
        at("text"),
        "no database, but a text that is long enough to be one, since it has a hundred bytes and more of it.",
    )
    .unwrap();
    refused("text", true, "not a database");
    rusqlite::Connection::open(at("other")).unwrap().execute_batch("CREATE TABLE mine (x)").unwrap();
    refused("other", true, "application 0x0 with version 0 and 1 tables");
    drop(open(&at("newer"), true).unwrap());
    rusqlite::Connection::open(at("newer")).unwrap().pragma_update(None, "user_version", 2).unwrap();
    refused("newer", true, "with version 2 and");
    assert!(open(&at("missing/folder"), true).is_err() && !Path::new(&at("missing")).exists());
}

#[test]
fn damage_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chips");
    let address = path.to_str().unwrap();
    let chip = Chip::with(1, 4);
    append(&mut *open(address, true).unwrap(), &[(&chip, 0)]).unwrap();
    let damaged = |sql: &str, says: &str| {
        let copy = folder.path().join("copy");
        std::fs::copy(&path, &copy).unwrap();
        rusqlite::Connection::open(&copy).unwrap().execute_batch(sql).unwrap();
        let mut store = open(copy.to_str().unwrap(), false).unwrap();
        let walked = walk(&mut *store, &serial(1), |_| Ok::<(), StoreError>(()));
        let error = walked.err().or(store.heads().err()).unwrap();
        assert!(matches!(error, StoreError::Damaged(_)) && error.to_string().contains(says), "{error}");
    };
    let swapped =
        "UPDATE records SET record = (SELECT record FROM records WHERE counter = 1) WHERE counter = 2";
    damaged(swapped, "record 2 of chip-1: it is record 1 of chip-1");
    damaged("UPDATE records SET record = x'00' WHERE counter = 3", "record 3 of chip-1");
    damaged("DELETE FROM records WHERE counter = 1", "its counter is 2, and 1 comes next");
    damaged("UPDATE chips SET link = x'00'", "a digest has 1 bytes");
    damaged("UPDATE chips SET records = -1", "a number of records is -1");
    damaged("UPDATE chips SET serial = 'a b'", "a b");
}
