//! Examinations of logs: honest ones, and each defect.

use super::*;
use crate::register::entry::{Change, Entry};
use crate::snapshot::record::{NO_LINK, Record, Shard};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;

const DAY_MS: u64 = 86_400_000;
/// The chip's entry, in days since 1970.
const ENTERED: u64 = 1000;

fn serial() -> Serial {
    Serial::new("A-1").unwrap()
}

fn key(seed: u8) -> PrivateKey {
    PrivateKey::generate("chip", [seed; 32]).unwrap()
}

/// A chip of Alice, of Bob from day 1050 on, and with key 2 from day 1060 on.
fn register() -> Register {
    let mut register = Register::new("example").unwrap();
    let text = |text: &str| text.to_string();
    let first = key(1).public().to_text();
    let enter = Change::Enter {
        key: first,
        model: text("h100"),
        owner: text("Alice"),
        site: text("north"),
        exempt: None,
    };
    let transfer = Change::Transfer { owner: text("Bob"), site: text("south") };
    let replace = Change::Key { key: key(2).public().to_text(), why: text("repair") };
    for (day, change) in [(ENTERED, enter), (1050, transfer), (1060, replace)] {
        register.append(Entry { time: day * 86_400, serial: serial(), change }).unwrap();
    }
    register
}

fn shard(byte: u8) -> Shard {
    Shard { map: Digest([byte; 32]), code: Digest([byte; 32]) }
}

/// The records that a chip writes at these times, in days since it entered.
fn log(events: &[(f64, Event)]) -> ChipLog {
    let mut log = ChipLog { records: Vec::new(), torn: 0 };
    for (counter, (day, event)) in (0..).zip(events) {
        let time = ((ENTERED as f64 + day) * DAY) as u64;
        let previous = log.records.last().map_or(NO_LINK, SignedRecord::link);
        let record = Record { serial: serial(), counter, time, previous, event: *event };
        log.records.push(record.sign(&key(if *day >= 60.0 { 2 } else { 1 })));
    }
    log
}

fn snapshot(step: u32) -> Event {
    Event::Snapshot { shard: shard(3), step, digest: Digest([step as u8; 32]) }
}

/// Ninety days: a training, a restart, an owner and a key that change.
fn honest() -> Vec<(f64, Event)> {
    let attach = Event::Attach { shard: shard(3), computation: Digest([4; 32]) };
    let mut events = vec![(0.5, Event::Begin), (1.0, attach)];
    events.extend((0..4).map(|i| (5.0 + 9.0 * f64::from(i), snapshot(i))));
    events.extend([(40.0, Event::Unanswered(shard(3))), (42.0, Event::Begin), (50.0, Event::Idle)]);
    events.extend([(58.0, Event::Idle), (57.0, Event::Clock), (70.0, Event::Idle), (80.0, Event::Idle)]);
    events
}

fn asked<'a>(register: &'a Register, serial: &'a Serial) -> Inspection<'a> {
    let until = (ENTERED + 90) * DAY_MS;
    let off_at_most = None;
    Inspection {
        register,
        serial,
        previous: None,
        closed: None,
        rate: 0.1,
        confidence: 0.99,
        until,
        off_at_most,
        patience: 0,
    }
}

fn examined(log: &ChipLog, rate: f64) -> Examined {
    let (register, serial) = (register(), serial());
    examine(log, Inspection { rate, ..asked(&register, &serial) })
}

fn kinds(log: &ChipLog) -> Vec<(&'static str, Option<u64>)> {
    examined(log, 0.1).findings.iter().map(|finding| (finding.kind(), finding.record())).collect()
}

#[test]
fn an_honest_log_is_clean_and_counted() {
    let log = log(&honest());
    let found = examined(&log, 0.1);
    assert_eq!(found.findings, []);
    let kinds = Kinds { begin: 2, clock: 1, attach: 1, idle: 4, unanswered: 1, snapshot: 4 };
    assert_eq!((found.records, found.kinds), (13, kinds));
    let gap = |record: u64, days: f64| Gap { record, milliseconds: (days * DAY) as u64 };
    assert_eq!(found.gaps, [gap(0, 0.5), gap(7, 2.0)]);
    let holders: Vec<_> = found.holders.iter().map(|h| (h.record, h.owner.as_str())).collect();
    assert_eq!(holders, [(0, "Alice"), (8, "Bob")]);
    // 39.5 days up to the restart, and 48 after it.
    assert_eq!((found.rate.events, found.rate.days), (9, 87.5));
    assert!((found.rate.expected - 8.75).abs() < 1e-12);
    // The clock was right again on day 57, so that 13 days passed up to record 11.
    assert_eq!((found.silence.record, found.silence.days), (Some(11), 13.0));
}

#[test]
fn records_that_were_taken_out_or_exchanged_are_named() {
    let whole = log(&honest());
    let mut gone = whole.clone();
    gone.records.remove(3);
    let expected: Vec<_> = (3..12).map(|record| ("counter", Some(record))).collect();
    let mut found = kinds(&gone);
    assert_eq!(found.remove(1), ("link", Some(3)));
    assert_eq!(found, expected);
    let mut other = whole.clone();
    let Event::Snapshot { digest, .. } = &mut other.records[3].record.event else { unreachable!() };
    digest.0[0] ^= 1;
    assert_eq!(kinds(&other), [("signature", Some(3)), ("link", Some(4))]);
    // The chip's own key signs the exchanged record, and the chain shows it.
    other.records[3] = other.records[3].record.clone().sign(&key(1));
    assert_eq!(kinds(&other), [("link", Some(4))]);
    let mut beheaded = whole.clone();
    beheaded.records.remove(0);
    assert!(kinds(&beheaded).contains(&("no_begin", Some(0))));
    let mut foreign = whole;
    foreign.records[12].record.serial = Serial::new("A-2").unwrap();
    assert_eq!(kinds(&foreign), [("other_serial", Some(12)), ("signature", Some(12))]);
}

#[test]
fn time_without_an_agent_is_a_finding_beyond_the_allowed_hours() {
    let (log, register, serial) = (log(&honest()), register(), serial());
    // 12 hours before the first begin, and 48 before the restart.
    let off = |hours: f64| {
        let asked = Inspection { off_at_most: Some(hours), ..asked(&register, &serial) };
        examine(&log, asked).findings
    };
    assert_eq!(off(60.0), []);
    assert_eq!(off(59.0), [Finding::Off { hours: 60.0, most: 59.0 }]);
}

#[test]
fn keys_count_at_their_times() {
    let mut log = log(&honest());
    let sign = |log: &mut ChipLog, at: usize, seed: u8| {
        log.records[at] = log.records[at].record.clone().sign(&key(seed));
    };
    sign(&mut log, 12, 1);
    assert_eq!(kinds(&log), [("replaced_key", Some(12))]);
    sign(&mut log, 12, 3);
    assert_eq!(kinds(&log), [("signature", Some(12))]);
    // A clock that is set back to a time of the older key does not bring that key back.
    let mut events = honest();
    events.extend([(59.0, Event::Clock), (85.0, Event::Idle)]);
    assert_eq!(kinds(&super::tests::log(&events)), [("replaced_key", Some(13))]);
}

#[test]
fn times_go_forward_unless_a_record_says_otherwise() {
    let mut events = honest();
    events[10].1 = Event::Idle;
    assert_eq!(kinds(&log(&events)), [("time_back", Some(10))]);
    let mut events = honest();
    events.push((95.0, Event::Idle));
    assert_eq!(kinds(&log(&events)), [("future", Some(13))]);
    let mut events = honest();
    events[0].0 = -1.0;
    assert_eq!(kinds(&log(&events)), [("not_registered", Some(0))]);
}

#[test]
fn trainings_have_attachments() {
    let mut events = honest();
    events[8].1 = Event::Unanswered(shard(3));
    assert_eq!(kinds(&log(&events)), [("not_attached", Some(8))]);
    let mut events = honest();
    events[4].1 = Event::Snapshot { shard: shard(5), step: 1, digest: Digest([0; 32]) };
    assert_eq!(kinds(&log(&events)), [("other_shard", Some(4))]);
}

#[test]
fn a_log_continues_what_was_seen_and_published() {
    let events = honest();
    let (whole, short) = (log(&events), log(&events[..9]));
    let mut other = events.clone();
    other[5].1 = snapshot(99);
    let forked = log(&other);
    let with = |log: &ChipLog, seen: &ChipLog| {
        let (previous, closed) = (Seen::of(&serial(), seen), LogHead::of(seen).unwrap());
        let (register, serial) = (register(), serial());
        // The rate is no subject here.
        let confidence = 1.0 - 1e-12;
        let asked = asked(&register, &serial);
        let asked = Inspection { previous: Some(&previous), closed: Some(&closed), confidence, ..asked };
        let found = examine(log, asked);
        (found.findings.iter().map(|f| (f.kind(), f.record())).collect::<Vec<_>>(), found.rate)
    };
    let (found, rate) = with(&whole, &short);
    assert_eq!(found, []);
    // Since the last record that was seen, of day 50.
    assert_eq!((rate.events, rate.days), (3, 40.0));
    assert_eq!(with(&short, &whole).0, [("rolled_back", Some(9)), ("not_closed", None)]);
    assert_eq!(with(&forked, &whole).0, [("forked", Some(5)), ("not_closed", None)]);
    assert_eq!(with(&forked, &short).0, [("forked", Some(5)), ("not_closed", None)]);
}

#[test]
fn a_chip_that_logs_too_rarely_is_named() {
    let events: Vec<_> =
        honest().into_iter().filter(|(_, e)| !matches!(e, Event::Snapshot { .. } | Event::Idle)).collect();
    let found = examined(&log(&events), 0.15);
    assert!(matches!(found.findings[..], [Finding::TooRare { events: 1, .. }]), "{:?}", found.findings);
    // At a tenth of the rate nobody is accused; without records the whole time counts nothing, and that is told.
    assert_eq!(examined(&log(&events), 0.01).findings, []);
    assert_eq!(kinds(&log(&[])), [("empty", None)]);
    // A chip that left, or is exempt, has to log nothing from then on; before it left, an empty log is told.
    let mut left = register();
    let of = |day: u64, change| Entry { time: (ENTERED + day) * 86_400, serial: serial(), change };
    left.append(of(85, Change::Leave { why: "sold".into() })).unwrap();
    let far = (ENTERED + 3000) * DAY_MS;
    let gone = |log: &ChipLog| {
        let serial = serial();
        let found = examine(log, Inspection { until: far, ..asked(&left, &serial) });
        (found.findings.iter().map(Finding::kind).collect::<Vec<_>>(), found.rate.days)
    };
    assert_eq!(gone(&super::tests::log(&honest())), (vec![], 82.5));
    assert_eq!(gone(&super::tests::log(&[])), (vec!["empty"], 0.0));
    let mut exempt = Register::new("example").unwrap();
    let mut entry = register().entries()[0].clone();
    let Change::Enter { exempt: why, .. } = &mut entry.change else { unreachable!() };
    *why = Some("a display".into());
    exempt.append(entry).unwrap();
    let serial_of = serial();
    let found =
        examine(&super::tests::log(&honest()[..3]), Inspection { until: far, ..asked(&exempt, &serial_of) });
    assert_eq!((found.findings, found.rate.days), (vec![], 0.0));
    let (register, unknown) = (register(), Serial::new("B").unwrap());
    let found = examine(&log(&events), asked(&register, &unknown));
    assert_eq!(found.findings, [Finding::UnknownChip { serial: unknown }]);
}

/// Forty days at one snapshot a day. An agent that is suspended for twenty days logs all that was due when it goes on.
#[test]
fn a_suspended_agent_is_silent_for_too_long() {
    let begin = [(0.5, Event::Begin)];
    let all = |time: fn(f64) -> f64| {
        let due = (1..40u32).map(|i| (time(0.5 + f64::from(i)), Event::Idle));
        log(&begin.iter().copied().chain(due).collect::<Vec<_>>())
    };
    let (register, serial) = (register(), serial());
    let asked = |patience| {
        let until = (ENTERED + 40) * DAY_MS;
        Inspection { rate: 1.0, confidence: 0.999, until, patience, ..asked(&register, &serial) }
    };
    let honest = examine(&all(|day| day), asked(0));
    assert_eq!((honest.findings, honest.silence.days), (vec![], 1.0));
    let suspended = all(|day| if (10.0..30.0).contains(&day) { 30.0 } else { day });
    let found = examine(&suspended, asked(0));
    let [Finding::Silent { record: Some(10), days, probability }] = found.findings[..] else {
        panic!("{:?}", found.findings)
    };
    // From day 9.5 to 30; three begins of silences are the log's, the agent's and 39.5 expected snapshots.
    assert_eq!(days, 20.5);
    assert!((probability / (41.5 * (-20.5f64).exp()) - 1.0).abs() < 1e-12, "{probability:e}");
    // An idle chip has no training that it waits for.
    assert_eq!(examine(&suspended, asked(DAY_MS)).silence.days, 20.5);
    // The number of snapshots shows nothing.
    assert_eq!(found.rate.events, 39);
    // A training may answer late. A clock that is set back counts no time twice.
    let attach = Event::Attach { shard: shard(3), computation: Digest([4; 32]) };
    let events = [(0.5, Event::Begin), (10.0, attach), (5.0, Event::Clock), (8.0, snapshot(1))];
    let until = (ENTERED + 9) * DAY_MS;
    let found = examine(&log(&events), Inspection { until, ..asked(DAY_MS / 4) });
    assert_eq!((found.silence.record, found.silence.days), (Some(3), 7.25));
}
