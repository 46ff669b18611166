//! A collector that is killed: a training waits for the next one, and no record that was acknowledged is missing.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tiebreak_collector::client::{Remote, Settings};
use tiebreak_collector::store;
use tiebreak_monitor::chip::keeper::Keeper;
use tiebreak_monitor::register::entry::{Change, Entry};
use tiebreak_monitor::register::file::{from_text, to_text};
use tiebreak_monitor::snapshot::record::{Event, NO_LINK, Record, Serial, SignedRecord};
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};

use crate::common::edit::edit;
use crate::common::gpt_job;
use crate::processes::{FAST, World, ended, until};

#[test]
fn a_training_waits_for_a_collector_that_was_killed_and_nothing_is_lost() {
    let world = World::new();
    let collector = world.collector("chips.sqlite", &[]);
    let port = format!("127.0.0.1:{}", collector.port());
    let agent = world.agent(&collector, &["--rate", FAST, "--patience", "600"]);
    let job = gpt_job(&world.path(""), "step", "");
    edit(&job, &[("steps = 8", "steps = 1500"), ("\nevery = 2", "\nevery = 500")]);
    let training = world.train("run", &["job.toml", "--agent", "chip.sock"]);
    agent.until_said("snapshot", 3);
    drop(collector);
    until("the agent does not say that it waits", || {
        agent.errors().contains("no acknowledgement for 0 s, so a training has to wait").then_some(())
    });
    // The training stands still: no step is written while nobody acknowledges.
    let steps = || fs::read_to_string(world.path("run/metrics.jsonl")).unwrap_or_default().lines().count();
    let (said, before) = (agent.said().len(), {
        thread::sleep(Duration::from_secs(1));
        steps()
    });
    thread::sleep(Duration::from_secs(2));
    assert_eq!((agent.said().len(), steps()), (said, before));
    let again = world.collector("chips.sqlite", &["--listen", &port]);
    let (code, said) = ended(training);
    assert_eq!(code, 0, "{said}");
    let records = agent.stop();
    world.export();
    let log = world.checked_log("out.log");
    assert_eq!(log.len(), records);
    // Nobody is blamed for the time that the collector was gone.
    assert!(log.iter().all(|signed| !matches!(signed.record.event, Event::Unanswered(_))));
    world.same_bits("run");
    drop(again);
}

/// A chip that sends records as fast as it can, and remembers what was acknowledged.
struct Sender {
    serial: Serial,
    key: PrivateKey,
    acknowledged: Vec<SignedRecord>,
}

impl Sender {
    fn next(&self) -> SignedRecord {
        let counter = self.acknowledged.len() as u64;
        let previous = self.acknowledged.last().map_or(NO_LINK, SignedRecord::link);
        let event = if counter == 0 { Event::Begin } else { Event::Idle };
        // 2025-01-01, and a second more for each record.
        let time = (1_735_689_600 + counter) * 1000;
        Record { serial: self.serial.clone(), counter, time, previous, event }.sign(&self.key)
    }
}

/// So many chips, which the register of this folder has, and nobody else.
fn registered(world: &World, chips: u8) -> Vec<Sender> {
    let registrar = PrivateKey::from_text(&fs::read_to_string(world.path("registrar.key")).unwrap()).unwrap();
    let register = from_text(&fs::read_to_string(world.path("chips.register")).unwrap(), None).unwrap();
    let mut register = register.first(0).unwrap().unwrap();
    let sender = |number: u8| Sender {
        serial: Serial::new(&format!("sender-{number}")).unwrap(),
        key: PrivateKey::generate("sender", [number; 32]).unwrap(),
        acknowledged: Vec::new(),
    };
    let chips: Vec<Sender> = (0..chips).map(sender).collect();
    for chip in &chips {
        let [model, owner, site] = ["h100", "Alice", "north"].map(String::from);
        let change = Change::Enter { key: chip.key.public().to_text(), model, owner, site, exempt: None };
        register.append(Entry { time: 1_735_689_600, serial: chip.serial.clone(), change }).unwrap();
    }
    fs::write(world.path("chips.register"), to_text(&register, &registrar)).unwrap();
    chips
}

/// Kills a collector several times while chips send, and looks for each record that was acknowledged.
fn every_acknowledged_record_is_there(database: &str) {
    let world = World::new();
    let chips = registered(&world, 12);
    let public = PublicKey::from_text(&fs::read_to_string(world.path("collector.key.pub")).unwrap()).unwrap();

    let mut collector = Some(world.collector(database, &[]));
    let (address, port) = {
        let first = collector.as_ref().unwrap();
        (first.address.clone(), format!("127.0.0.1:{}", first.port()))
    };
    let (ends, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(0usize)));
    let threads: Vec<_> = chips
        .into_iter()
        .map(|mut chip| {
            let (ends, sent) = (ends.clone(), sent.clone());
            let (url, key) = (address.clone(), public.clone());
            thread::spawn(move || {
                let settings =
                    Settings { url, key, hold: Some(Duration::from_secs(120)), stopped: Arc::default() };
                let mut keeper = Remote::new(settings, |_| {}).unwrap();
                while !ends.load(Relaxed) {
                    let record = chip.next();
                    keeper.append(&record).unwrap();
                    chip.acknowledged.push(record);
                    *sent.lock().unwrap() += 1;
                }
                chip
            })
        })
        .collect();
    for _ in 0..4 {
        let before = *sent.lock().unwrap();
        until("nothing is acknowledged", || (*sent.lock().unwrap() > before + 100).then_some(()));
        // SIGKILL, in the middle of whatever it does.
        drop(collector.take());
        collector = Some(world.collector(database, &["--listen", &port]));
    }
    ends.store(true, Relaxed);
    let chips: Vec<Sender> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    drop(collector.take());
    let file = world.path(database);
    let address = if store::is_url(database) { database } else { file.to_str().unwrap() };
    let mut store = store::open(address, false).unwrap();
    let heads: BTreeMap<Serial, _> = store.heads().unwrap().0;
    for chip in &chips {
        let mut kept = Vec::new();
        let keep = |signed: &SignedRecord| {
            kept.push(signed.clone());
            Ok::<(), store::StoreError>(())
        };
        store::walk(&mut *store, &chip.serial, keep).unwrap();
        assert!(kept == chip.acknowledged, "{}: {} and {}", chip.serial, kept.len(), chip.acknowledged.len());
        assert_eq!(heads[&chip.serial].link, kept.last().unwrap().link());
    }
    assert!(chips.iter().map(|chip| chip.acknowledged.len()).sum::<usize>() > 400);
}

#[test]
fn every_acknowledged_record_is_in_sqlite_after_kills() {
    every_acknowledged_record_is_there("chips.sqlite");
}

#[test]
#[ignore = "needs a PostgreSQL server: .ci/postgres"]
fn every_acknowledged_record_is_in_postgres_after_kills() {
    let server = std::env::var("TIEBREAK_POSTGRES").expect("TIEBREAK_POSTGRES names a server: .ci/postgres");
    every_acknowledged_record_is_there(&format!("{server}/kills"));
}
