//! Files and messages of compute monitoring: logs, shard maps, registers, promises, beacons, draws, rules, statements, indices of runs, requests to witnesses, catalogues, packs.
//! The first byte chooses the kind.
#![no_main]

use tiebreak_contract::program::step::StateTensor;
use tiebreak_monitor::beacon::{self, Chain, RoundName};
use tiebreak_monitor::catalogue::Catalogue;
use tiebreak_monitor::closed::ClosedLogs;
use tiebreak_monitor::draw::Draw;
use tiebreak_monitor::inspection::examine::{Inspection, examine};
use tiebreak_monitor::inspection::seen::Seen;
use tiebreak_monitor::matching::index::Declared;
use tiebreak_monitor::matching::matcher::{Matcher, Shards};
use tiebreak_monitor::matching::run_index::{FOUND_MAX, RunIndex};
use tiebreak_monitor::matching::sighting::{sightings, trainings};
use tiebreak_monitor::matching::silence::Silence;
use tiebreak_monitor::pack::read::{Bounds, read};
use tiebreak_monitor::pack::seal::recipients;
use tiebreak_monitor::pack::write::Writer;
use tiebreak_monitor::promise::log::Promises;
use tiebreak_monitor::register;
use tiebreak_monitor::register::entry::{Change, Entry};
use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::rules::file::Rules;
use tiebreak_monitor::snapshot::log::ChipLog;
use tiebreak_monitor::snapshot::record::RECORD_BYTES;
use tiebreak_monitor::snapshot::shard_map::ShardMap;
use tiebreak_monitor::statement::dsse;
use tiebreak_monitor::statement::in_toto::{PAYLOAD_TYPE, Statement};
use tiebreak_monitor::witness::checkpoint::Checkpoint;
use tiebreak_monitor::witness::request::AddCheckpoint;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;

fn key() -> PrivateKey {
    PrivateKey::generate("fuzz", [7; 32]).unwrap()
}

/// Inspects a log, and matches it with a run of three states.
fn judged(log: &ChipLog) {
    let Some(first) = log.records.first() else { return };
    let serial = &first.record.serial;
    let mut register = Register::new("fuzz").unwrap();
    let [model, owner, site] = ["h100", "fuzz", "fuzz"].map(String::from);
    let change = Change::Enter { key: key().public().to_text(), model, owner, site, exempt: None };
    register.append(Entry { time: 0, serial: serial.clone(), change }).unwrap();
    let asked = Inspection {
        register: &register,
        serial,
        previous: None,
        closed: None,
        rate: 0.1,
        confidence: 0.999,
        until: 1 << 50,
        off_at_most: Some(1.0),
        patience: 0,
    };
    examine(log, asked);
    let states = (0..3).map(|byte| Digest([byte; 32])).collect();
    let runs = [Declared { run: Digest([8; 32]), computation: Digest([9; 32]), states, declared: Some(1) }];
    let state = vec![StateTensor { name: "param/a".to_string(), shape: vec![7, 9] }];
    let matcher = Matcher::new(&runs, &[state], [], Some(0));
    let sightings = sightings(log);
    // No shard was computed: a snapshot of a slice stays undecided.
    matcher.needed(&sightings).into_iter().for_each(drop);
    for sighting in &sightings {
        matcher.judge(sighting, &Shards::new()).to_string();
    }
    for training in trainings(log) {
        Silence::of(&training, &runs).map(|silence| silence.to_string());
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let text = std::str::from_utf8(rest);
    match (kind % 15, text) {
        (0, _) => {
            let Ok(log) = ChipLog::read(rest) else { return };
            let whole = log.records.iter().flat_map(|record| record.encode()).collect::<Vec<_>>();
            assert_eq!(whole, rest[..rest.len() - log.torn]);
            assert!(log.torn < RECORD_BYTES);
            judged(&log);
        }
        (11, _) => {
            let Ok(mut index) = RunIndex::open(std::io::Cursor::new(rest)) else { return };
            for byte in 0..=255 {
                let found = index.find(&Digest([byte; 32]));
                assert!(found.is_err() || found.is_ok_and(|runs| runs.len() <= FOUND_MAX));
            }
        }
        (12, _) => {
            let mut writer = Writer::new(Vec::new()).unwrap();
            let bounds = Bounds { memory: 1 << 20, there: rest.len() as u64 };
            let again = |name: String, bytes: Vec<u8>| {
                writer.add(&name, bytes.len() as u64, &mut &bytes[..]).unwrap();
            };
            if read(rest, bounds, again).is_ok() {
                assert_eq!(writer.finish().unwrap(), rest);
            }
            let _ = recipients(rest);
        }
        (1, Ok(text)) => {
            let Ok(map) = ShardMap::from_text(text) else { return };
            assert_eq!(map.to_text(), text);
            let state =
                ["param/a", "m/a"].map(|name| StateTensor { name: name.to_string(), shape: vec![7, 9] });
            let _ = map.check(&state);
        }
        (2, Ok(text)) => {
            let Ok(request) = AddCheckpoint::read(text) else { return };
            assert_eq!(request.to_text(), text);
        }
        (3, Ok(text)) => {
            let Ok(checkpoint) = Checkpoint::read(text) else { return };
            assert_eq!(checkpoint.note, text);
        }
        (4, Ok(text)) => {
            let Ok(seen) = Seen::from_text(text) else { return };
            assert_eq!(seen.to_text(), text);
        }
        (5, Ok(text)) => {
            let Ok(closed) = ClosedLogs::from_text(text) else { return };
            assert_eq!(closed.to_text(), text);
        }
        (6, Ok(text)) => {
            let Ok(register) = register::file::from_text(text, None) else { return };
            let again = register::file::to_text(&register, &key());
            assert_eq!(register::file::from_text(&again, Some(&key().public())), Ok(register));
        }
        (13, Ok(text)) => {
            let Ok(log) = Promises::from_text(text) else { return };
            assert_eq!(log.to_text(), text);
        }
        (14, Ok(text)) => {
            let known = [Chain::quicknet()];
            let _ = beacon::read(text, &known);
            if let Ok(chain) = Chain::from_text(text) {
                let time = chain.time(chain.round_from(1 << 32).number);
                assert!(time.is_none_or(|time| time >= 1 << 32));
            }
            if let Some(name) = RoundName::parse(text) {
                assert_eq!(name.to_string(), text);
            }
        }
        (7, Ok(text)) => {
            let Ok(draw) = Draw::from_text(text) else { return };
            assert_eq!(draw.to_text(), text);
            let _ = draw.signed(&[Chain::quicknet()]);
            let _ = draw.check(&Register::new("fuzz").unwrap(), &ClosedLogs::default());
        }
        (8, Ok(text)) => {
            let _ = Rules::read(text);
        }
        (9, Ok(text)) => {
            assert!(Statement::open(text, &key().public()).is_err(), "nobody signed {text}");
            // The signature stands; what it signs is anybody's.
            let _ = Statement::open(&dsse::sign(PAYLOAD_TYPE, rest, &key()), &key().public());
        }
        (_, Ok(text)) => {
            let _ = Catalogue::read(text).and_then(|added| Catalogue::built_in().and(added));
        }
        _ => {}
    }
});
