//! The examination of a chip's log: form, signatures, times, and the number of snapshots.

use tiebreak_record::commit::keys::PublicKey;

use super::finding::Finding;
use super::poisson::{at_most, upper_mean};
use super::seen::Seen;
use super::silence::{DAY, Silence, Silences};
use crate::chip::chain::{Breach, End, NOTHING};
use crate::closed::LogHead;
use crate::register::history::Register;
use crate::snapshot::log::ChipLog;
use crate::snapshot::record::{Event, Serial, SignedRecord};

/// The most findings that are kept; more are counted.
pub const FINDINGS_MAX: usize = 1000;
/// The milliseconds by which a chip's clock may go before the inspector's.
pub const CLOCK_AHEAD: u64 = 600_000;
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
    /// The probability with which an honest chip is said neither to log too rarely nor to be silent for too long.
    pub confidence: f64,
    /// Milliseconds that the chip's agent gives a training to answer: so much later a record may be than its snapshot was due.
    pub patience: u64,
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
    /// The longest time without a due snapshot.
    pub silence: Silence,
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
    silences: Silences,
    /// The times at which the chip is monitored: from the first to before the second of each, in milliseconds since 1970.
    monitored: Vec<(u64, u64)>,
}

/// The probability below which each of the two tests of the rate accuses a chip, so that both together keep the confidence.
pub(crate) fn accused_below(confidence: f64) -> f64 {
    (1.0 - confidence) / 2.0
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
            silence: Silence::default(),
        },
        inspection,
        latest: 0,
        attached: 0,
        fresh: 0,
        logged: 0,
        silences: Silences::default(),
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
                    self.silences.begin(number);
                }
            }
            // The clock had gone before by this time, which was counted already.
            Event::Clock if fresh => {
                let back = before.map_or(0, |before| self.monitored(time, before));
                self.logged = self.logged.saturating_sub(back);
                self.silences.set_back(back);
            }
            _ if fresh => {
                self.logged = self.logged.saturating_add(passed);
                self.silences.pass(passed);
            }
            _ => {}
        }
        let due = fresh && event.is_due() && self.monitored(time, time.saturating_add(1)) > 0;
        if due {
            self.found.rate.events += 1;
            let waited = !matches!(event, Event::Idle);
            self.silences.due(number, if waited { self.inspection.patience } else { 0 });
        }
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
        let behind = self.monitored(last, self.inspection.until);
        self.silences.pass(behind);
        let logged = self.logged.saturating_add(behind);
        let (events, days) = (self.found.rate.events, logged as f64 / DAY);
        let expected = self.inspection.rate * days;
        let probability = at_most(events, expected);
        let at_most = (days > 0.0).then(|| upper_mean(events, self.inspection.confidence) / days);
        self.found.rate = Rate { events, days, expected, probability, at_most };
        let accused = accused_below(self.inspection.confidence);
        if probability < accused {
            self.find(Finding::TooRare { events, days, expected, probability });
        }
        let silence = self.silences.longest(self.inspection.rate, days, self.inspection.patience);
        self.found.silence = silence;
        if silence.probability < accused {
            let Silence { record, days, probability } = silence;
            self.find(Finding::Silent { record, days, probability });
        }
    }
}

#[cfg(test)]
mod tests;
