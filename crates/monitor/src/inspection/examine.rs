//! The examination of a chip's log: form, signatures, times, and the number of snapshots.

use tiebreak_record::commit::keys::PublicKey;

use super::finding::Finding;
use super::poisson::{at_most, upper_mean};
use super::seen::Seen;
use crate::chip::chain::{Breach, End, NOTHING};
use crate::closed::LogHead;
use crate::register::history::Register;
use crate::snapshot::log::ChipLog;
use crate::snapshot::record::{Event, Serial, SignedRecord};

/// The most findings that are kept; more are counted.
pub const FINDINGS_MAX: usize = 1000;
/// The milliseconds by which a chip's clock may go before the inspector's.
pub const CLOCK_AHEAD: u64 = 600_000;
/// Milliseconds of a day.
pub const DAY: f64 = 86_400_000.0;
/// Milliseconds of an hour.
pub const HOUR: f64 = 3_600_000.0;

/// The knowledge and the questions of an inspector.
#[derive(Clone, Copy, Debug)]
pub struct Inspection<'a> {
    /// The register of chips.
    pub register: &'a Register,
    /// The chip that was drawn.
    pub serial: &'a Serial,
    /// The part of the log that the inspector saw before.
    pub previous: Option<&'a Seen>,
    /// The head of the log that was published before the draw.
    pub closed: Option<&'a LogHead>,
    /// Snapshots that the chip should log in a day, on average.
    pub rate: f64,
    /// The probability with which an honest chip is not said to log too rarely.
    pub confidence: f64,
    /// The end of the inspected time, in milliseconds since 1970.
    pub until: u64,
    /// Hours for which the chip may have been off in the inspected part of the log; `None` if any time is allowed.
    pub off_at_most: Option<f64>,
}

/// The number of records of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Kinds {
    /// Beginnings.
    pub begin: u64,
    /// Clocks that were set back.
    pub clock: u64,
    /// Trainings that attached themselves.
    pub attach: u64,
    /// Snapshots that were due without a training.
    pub idle: u64,
    /// Snapshots that a training did not answer.
    pub unanswered: u64,
    /// Snapshots.
    pub snapshot: u64,
}

/// A time in which nothing shows that the chip logged: between the last record before a begin and that begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Gap {
    /// The begin.
    pub record: u64,
    /// Milliseconds since the record before it, or since the chip entered the register.
    pub milliseconds: u64,
}

/// An owner of the chip while it wrote records.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Holder {
    /// The first record of this owner at this place.
    pub record: u64,
    /// The owner.
    pub owner: String,
    /// The place.
    pub site: String,
    /// True if the chip was exempt from monitoring.
    pub exempt: bool,
}

/// The number of due snapshots against the rate, in the part of the log that the inspector did not see before.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Rate {
    /// Events at the chip's random times.
    pub events: u64,
    /// Days in which the chip logged.
    pub days: f64,
    /// The expected number of events.
    pub expected: f64,
    /// The probability that an honest chip has at most so many.
    pub probability: f64,
    /// The greatest rate a day that the number leaves possible, with the confidence; `None` without any time.
    pub at_most: Option<f64>,
}

/// The result of an examination.
#[derive(Clone, Debug, PartialEq)]
pub struct Examined {
    /// The number of records.
    pub records: u64,
    /// Bytes of a record that a crash cut off.
    pub torn: usize,
    /// Defects, in the order of the records.
    pub findings: Vec<Finding>,
    /// Defects beyond [`FINDINGS_MAX`].
    pub more: u64,
    /// Records by kind.
    pub kinds: Kinds,
    /// Times without the chip's agent.
    pub gaps: Vec<Gap>,
    /// Owners, in the order of the records.
    pub holders: Vec<Holder>,
    /// Snapshots against the rate.
    pub rate: Rate,
}

impl Examined {
    /// Hours in which nothing shows that the chip logged.
    pub fn off_hours(&self) -> f64 {
        self.off_milliseconds() as f64 / HOUR
    }

    /// Milliseconds in which nothing shows that the chip logged.
    pub fn off_milliseconds(&self) -> u64 {
        self.gaps.iter().fold(0, |sum, gap| sum.saturating_add(gap.milliseconds))
    }
}

/// The walk over a log.
struct Walk<'a> {
    inspection: Inspection<'a>,
    keys: Vec<(u64, PublicKey)>,
    found: Examined,
    /// The latest time so far, in milliseconds: a clock that is set back brings no older key back.
    latest: u64,
    /// The record of the last attachment.
    attached: u64,
    /// The first record that counts for the rate.
    fresh: u64,
    /// Milliseconds that count for the rate.
    logged: u64,
    /// The times at which the chip is monitored: from the first to before the second of each, in milliseconds since 1970.
    monitored: Vec<(u64, u64)>,
}

/// Examines a log.
pub fn examine(log: &ChipLog, inspection: Inspection) -> Examined {
    let mut walk = Walk {
        monitored: inspection.register.monitored_times(inspection.serial),
        keys: inspection.register.keys_of(inspection.serial),
        found: Examined {
            records: log.records.len() as u64,
            torn: log.torn,
            findings: Vec::new(),
            more: 0,
            kinds: Kinds::default(),
            gaps: Vec::new(),
            holders: Vec::new(),
            rate: Rate::default(),
        },
        inspection,
        latest: 0,
        attached: 0,
        fresh: 0,
        logged: 0,
    };
    if walk.keys.is_empty() {
        walk.find(Finding::UnknownChip { serial: inspection.serial.clone() });
        return walk.found;
    }
    walk.history(log);
    let mut end = NOTHING;
    for record in &log.records {
        walk.chain(&end, record);
        walk.signature(end.records, record);
        walk.event(&end, record);
        walk.times(&end, record);
        end = end.behind(record);
    }
    if let Some(most) = inspection.off_at_most.filter(|most| walk.found.off_hours() > *most) {
        let hours = walk.found.off_hours();
        walk.find(Finding::Off { hours, most });
    }
    walk.rate((end.records > 0).then_some(end.time));
    walk.found
}

impl Walk<'_> {
    /// The milliseconds from `from` to `to` in which the chip is monitored. A chip that left the register, or is exempt, has to log
    /// nothing.
    fn monitored(&self, from: u64, to: u64) -> u64 {
        let overlap = |&(begin, end): &(u64, u64)| end.min(to).saturating_sub(begin.max(from));
        self.monitored.iter().map(overlap).fold(0, u64::saturating_add)
    }

    fn find(&mut self, finding: Finding) {
        if self.found.findings.len() < FINDINGS_MAX {
            self.found.findings.push(finding);
        } else {
            self.found.more += 1;
        }
    }

    /// Compares the log with what the inspector saw, and with the published head.
    fn history(&mut self, log: &ChipLog) {
        if let Some(seen) = self.inspection.previous {
            match seen.first_difference(log) {
                None => self.fresh = seen.links.len() as u64,
                Some(at) if at == log.records.len() => {
                    self.find(Finding::RolledBack { seen: seen.links.len() as u64, now: at as u64 });
                }
                Some(at) => self.find(Finding::Forked { record: at as u64 }),
            }
        }
        if let Some(closed) = self.inspection.closed {
            let last = closed.records.checked_sub(1).and_then(|last| log.records.get(last as usize));
            if last.is_none_or(|record| record.link() != closed.link) {
                self.find(Finding::NotClosed { records: closed.records });
            }
        }
    }

    /// Serial number, counter, link and beginning.
    fn chain(&mut self, end: &End, signed: &SignedRecord) {
        let (record, number) = (&signed.record, end.records);
        if record.serial != *self.inspection.serial {
            let expected = self.inspection.serial.clone();
            self.find(Finding::OtherSerial { record: number, found: record.serial.clone(), expected });
        }
        for breach in end.breaches(signed) {
            match breach {
                Breach::Counter { found, .. } => self.find(Finding::Counter { record: number, found }),
                Breach::Link { .. } => self.find(Finding::Link { record: number }),
                Breach::NoBegin { .. } => self.find(Finding::NoBegin),
                // These come behind the signature.
                Breach::TimeBack { .. } | Breach::Shard { .. } => {}
            }
        }
    }

    /// The signature by the key of the record's time, and the owner then.
    fn signature(&mut self, number: u64, signed: &SignedRecord) {
        self.latest = self.latest.max(signed.record.time);
        let (time, seconds) = (self.latest, self.latest / 1000);
        let Some(chip) = self.inspection.register.chip_at(self.inspection.serial, seconds) else {
            return self.find(Finding::NotRegistered { record: number, time });
        };
        let (owner, site) = (chip.owner, chip.site);
        if self
            .found
            .holders
            .last()
            .is_none_or(|last| (last.owner.as_str(), last.site.as_str()) != (owner, site))
        {
            let (owner, site) = (owner.to_string(), site.to_string());
            self.found.holders.push(Holder { record: number, owner, site, exempt: chip.exempt.is_some() });
        }
        let now = self.keys.iter().rposition(|(since, _)| *since <= seconds);
        let by = |index: usize| signed.is_signed_by(&self.keys[index].1);
        if now.is_some_and(by) {
            return;
        }
        let another = (0..self.keys.len()).any(|index| Some(index) != now && by(index));
        self.find(match another {
            true => Finding::ReplacedKey { record: number, time },
            false => Finding::Signature { record: number },
        });
    }

    /// The kind, and the attachment.
    fn event(&mut self, end: &End, signed: &SignedRecord) {
        let kinds = &mut self.found.kinds;
        match signed.record.event {
            Event::Begin => kinds.begin += 1,
            Event::Clock => kinds.clock += 1,
            Event::Attach { .. } => {
                kinds.attach += 1;
                self.attached = end.records;
            }
            Event::Idle => kinds.idle += 1,
            Event::Unanswered(_) => kinds.unanswered += 1,
            Event::Snapshot { .. } => kinds.snapshot += 1,
        }
        for breach in end.breaches(signed) {
            if let Breach::Shard { due, .. } = breach {
                let (record, attached) = (end.records, self.attached);
                self.find(match due {
                    None => Finding::NotAttached { record },
                    Some(_) => Finding::OtherShard { record, attached },
                });
            }
        }
    }

    /// The time of a record, the time that the chip logged, and gaps.
    fn times(&mut self, end: &End, signed: &SignedRecord) {
        let (time, event, number) = (signed.record.time, signed.record.event, end.records);
        let before = (number > 0).then_some(end.time);
        if time > self.inspection.until.saturating_add(CLOCK_AHEAD) {
            self.find(Finding::Future { record: number, time });
        }
        for breach in end.breaches(signed) {
            if let Breach::TimeBack { found: time, before } = breach {
                self.find(Finding::TimeBack { record: number, before, time });
            }
        }
        let fresh = number >= self.fresh;
        let passed = before.map_or(0, |before| self.monitored(before, time));
        match event {
            Event::Begin => {
                let milliseconds = if number == 0 { self.monitored(0, time) } else { passed };
                if fresh {
                    self.found.gaps.push(Gap { record: number, milliseconds });
                }
            }
            // The clock had gone before by this time, which was counted already.
            Event::Clock if fresh => {
                let back = before.map_or(0, |before| self.monitored(time, before));
                self.logged = self.logged.saturating_sub(back);
            }
            _ if fresh => self.logged = self.logged.saturating_add(passed),
            _ => {}
        }
        let due = fresh && event.is_due() && self.monitored(time, time.saturating_add(1)) > 0;
        self.found.rate.events += u64::from(due);
    }

    /// The number of events against the rate. The time up to the end counts: the chip has to log then as well.
    fn rate(&mut self, last: Option<u64>) {
        let Some(last) = last else {
            if self.monitored(0, self.inspection.until) > 0 {
                let since = self.monitored.first().map_or(0, |(begin, _)| begin / 1000);
                self.find(Finding::Empty { since });
            }
            return;
        };
        let logged = self.logged.saturating_add(self.monitored(last, self.inspection.until));
        let (events, days) = (self.found.rate.events, logged as f64 / DAY);
        let expected = self.inspection.rate * days;
        let probability = at_most(events, expected);
        let at_most = (days > 0.0).then(|| upper_mean(events, self.inspection.confidence) / days);
        self.found.rate = Rate { events, days, expected, probability, at_most };
        if probability < 1.0 - self.inspection.confidence {
            self.find(Finding::TooRare { events, days, expected, probability });
        }
    }
}

#[cfg(test)]
mod tests {
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
        let events: Vec<_> = honest()
            .into_iter()
            .filter(|(_, e)| !matches!(e, Event::Snapshot { .. } | Event::Idle))
            .collect();
        let found = examined(&log(&events), 0.1);
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
        let found = examine(
            &super::tests::log(&honest()[..3]),
            Inspection { until: far, ..asked(&exempt, &serial_of) },
        );
        assert_eq!((found.findings, found.rate.days), (vec![], 0.0));
        let (register, unknown) = (register(), Serial::new("B").unwrap());
        let found = examine(&log(&events), asked(&register, &unknown));
        assert_eq!(found.findings, [Finding::UnknownChip { serial: unknown }]);
    }
}
