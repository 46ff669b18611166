//! A small register of chips, and logs of one of them as chips write them.

use tiebreak_monitor::closed::{ClosedLogs, LogHead};
use tiebreak_monitor::register::entry::{Change, Entry};
use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::snapshot::log::ChipLog;
use tiebreak_monitor::snapshot::record::{Event, NO_LINK, Record, Serial, Shard, SignedRecord};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;

/// Seconds of a day.
const DAY: u64 = 86_400;
/// 2025-01-01, when the first chips enter.
const BEGIN: u64 = 1_735_689_600;

pub fn serial(text: &str) -> Serial {
    Serial::new(text).unwrap()
}

/// The key of a chip.
pub fn chip_key(seed: u8) -> PrivateKey {
    PrivateKey::generate("chip", [seed; 32]).unwrap()
}

/// The entry of a chip, days after 2025-01-01.
pub fn enter(chip: &str, seed: u8, day: u64, exempt: Option<&str>) -> Entry {
    let [model, owner, site] = ["h100", "Alice", "north"].map(String::from);
    let key = chip_key(seed).public().to_text();
    let change = Change::Enter { key, model, owner, site, exempt: exempt.map(String::from) };
    Entry { time: BEGIN + day * DAY, serial: serial(chip), change }
}

/// Five monitored chips and an exempt one. A-1 is Bob's from day 50 on, and has another key from day 60 on.
pub fn register() -> Register {
    let mut register = Register::new("example").unwrap();
    let first = (1u8..6).map(|chip| enter(&format!("A-{chip}"), chip, 0, None));
    let moved = Change::Transfer { owner: "Bob".into(), site: "south".into() };
    let repaired = Change::Key { key: chip_key(11).public().to_text(), why: "repair".into() };
    let later = [(50, moved), (60, repaired)].map(|(day, change)| Entry {
        time: BEGIN + day * DAY,
        serial: serial("A-1"),
        change,
    });
    for entry in first.chain([enter("X-1", 7, 0, Some("a display"))]).chain(later) {
        register.append(entry).unwrap();
    }
    register
}

/// The events of an honest chip, days after 2025-01-01.
pub fn events() -> Vec<(f64, Event)> {
    let shard = Shard { map: Digest([3; 32]), code: Digest([4; 32]) };
    let snapshot = |step: u32| Event::Snapshot { shard, step, digest: Digest([step as u8; 32]) };
    vec![
        (0.5, Event::Begin),
        (1.0, Event::Attach { shard, computation: Digest([5; 32]) }),
        (5.0, snapshot(1)),
        (14.0, snapshot(2)),
        (23.0, snapshot(3)),
        (32.0, snapshot(4)),
        (40.0, Event::Unanswered(shard)),
        (42.0, Event::Begin),
        (50.0, Event::Idle),
        (58.0, Event::Idle),
        (57.0, Event::Clock),
        (70.0, Event::Idle),
        (80.0, Event::Idle),
    ]
}

/// The records that chip A-1 writes of these events.
pub fn records(events: &[(f64, Event)]) -> Vec<SignedRecord> {
    let mut records: Vec<SignedRecord> = Vec::new();
    for (counter, (day, event)) in (0..).zip(events) {
        let time = ((BEGIN as f64 + day * DAY as f64) * 1000.0) as u64;
        let previous = records.last().map_or(NO_LINK, SignedRecord::link);
        let record = Record { serial: serial("A-1"), counter, time, previous, event: *event };
        records.push(record.sign(&chip_key(if *day >= 60.0 { 11 } else { 1 })));
    }
    records
}

/// The log of an honest chip.
pub fn honest() -> Vec<SignedRecord> {
    records(&events())
}

/// The events of an agent that is suspended from day 10 to day 30, with a training that answers once a day. When the agent goes on,
/// it logs all that was due.
pub fn suspended() -> Vec<SignedRecord> {
    let shard = Shard { map: Digest([3; 32]), code: Digest([4; 32]) };
    let mut events = vec![(0.0, Event::Begin), (0.0, Event::Attach { shard, computation: Digest([5; 32]) })];
    events.extend((1..40u32).map(|step| {
        let day = if (10..30).contains(&step) { 30 } else { step };
        (f64::from(day), Event::Snapshot { shard, step, digest: Digest([step as u8; 32]) })
    }));
    records(&events)
}

/// The file of a log.
pub fn bytes(records: &[SignedRecord]) -> Vec<u8> {
    records.iter().flat_map(SignedRecord::encode).collect()
}

/// The published head of A-1's log.
pub fn closed(records: &[SignedRecord]) -> ClosedLogs {
    let log = ChipLog { records: records.to_vec(), torn: 0 };
    ClosedLogs([(serial("A-1"), LogHead::of(&log).unwrap())].into())
}
