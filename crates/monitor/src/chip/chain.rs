//! The rules of a chip's log from one record to the next: chip, key, numbers, links, times and attachments.

use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;

use crate::snapshot::record::{Event, NO_LINK, Serial, Shard, SignedRecord};

/// The end of a log: the values that the next record has to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The number of records, which is the next record's counter.
    pub records: u64,
    /// The link that the next record has.
    pub link: Digest,
    /// The time of the last record; 0 if there is none.
    pub time: u64,
    /// The part of a training that is attached.
    pub shard: Option<Shard>,
}

/// The end of a log without records.
pub const NOTHING: End = End { records: 0, link: NO_LINK, time: 0, shard: None };

/// A rule of the log that a record breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// The counter is not the next one.
    #[error("its counter is {found}, and {due} comes next")]
    Counter {
        /// The record's counter.
        found: u64,
        /// The next one.
        due: u64,
    },
    /// The link is not that of the record before.
    #[error("its link to the record before is {}", found.not(due))]
    Link {
        /// The record's link.
        found: Digest,
        /// The link of the record before.
        due: Digest,
    },
    /// The log does not start with a begin record.
    #[error("a log starts with a begin record; this is a {found} record")]
    NoBegin {
        /// The name of the record's kind.
        found: &'static str,
    },
    /// The time is before that of the record before, and no record says that the clock was set back.
    #[error("its time is {found}, before the {before} of the record before")]
    TimeBack {
        /// The record's time.
        found: u64,
        /// The time of the record before.
        before: u64,
    },
    /// Map or code are not those of the attachment.
    #[error("it has map {} and code {} after {}", found.map.short(), found.code.short(), attachment(*due))]
    Shard {
        /// The record's part of a training.
        found: Shard,
        /// The attached part; `None` if no training is attached.
        due: Option<Shard>,
    },
}

fn attachment(due: Option<Shard>) -> String {
    due.map_or("no attachment".into(), |due| {
        format!("an attachment with map {} and code {}", due.map.short(), due.code.short())
    })
}

impl End {
    /// The end behind a record, if that record continues the log. Chip and signature are not looked at.
    ///
    /// # Errors
    /// If the record breaks a rule of the log: the first of [`End::breaches`].
    pub fn follow(&self, signed: &SignedRecord) -> Result<End, Malformed> {
        match self.breaches(signed).next() {
            None => Ok(self.behind(signed)),
            Some(breach) => Err(Malformed::invalid("chip record", breach.to_string())),
        }
    }

    /// The rules of the log that a record breaks if it comes next: all of them, for who goes on behind it.
    pub fn breaches(&self, signed: &SignedRecord) -> impl Iterator<Item = Breach> {
        let record = &signed.record;
        let counter = (record.counter != self.records)
            .then_some(Breach::Counter { found: record.counter, due: self.records });
        let link =
            (record.previous != self.link).then_some(Breach::Link { found: record.previous, due: self.link });
        let begin = (self.records == 0 && record.event != Event::Begin)
            .then(|| Breach::NoBegin { found: record.event.name() });
        let time = (record.time < self.time && record.event != Event::Clock)
            .then_some(Breach::TimeBack { found: record.time, before: self.time });
        let shard = match record.event {
            Event::Unanswered(shard) | Event::Snapshot { shard, .. } if self.shard != Some(shard) => {
                Some(Breach::Shard { found: shard, due: self.shard })
            }
            _ => None,
        };
        [counter, link, begin, time, shard].into_iter().flatten()
    }

    /// The end behind a record, whatever is wrong with it.
    pub fn behind(&self, signed: &SignedRecord) -> End {
        let shard = match signed.record.event {
            Event::Begin => None,
            Event::Attach { shard, .. } => Some(shard),
            Event::Clock | Event::Idle | Event::Unanswered(_) | Event::Snapshot { .. } => self.shard,
        };
        End { records: self.records + 1, link: signed.link(), time: signed.record.time, shard }
    }
}

/// The end of a log that was checked so far, and the chip and key that its next record has to have.
#[derive(Clone, Debug)]
pub struct Chain {
    serial: Serial,
    key: PublicKey,
    end: End,
}

impl Chain {
    /// The chain of a log without records, of this chip and its key.
    pub fn new(serial: Serial, key: PublicKey) -> Chain {
        Chain::behind(serial, key, NOTHING)
    }

    /// The chain of a log that somebody else has checked up to this end.
    pub fn behind(serial: Serial, key: PublicKey, end: End) -> Chain {
        Chain { serial, key, end }
    }

    /// The chip.
    pub fn serial(&self) -> &Serial {
        &self.serial
    }

    /// The number of records, which is the next record's counter.
    pub fn next(&self) -> u64 {
        self.end.records
    }

    /// The link that the next record has.
    pub fn link(&self) -> Digest {
        self.end.link
    }

    /// The time of the last record; 0 if there is none.
    pub fn time(&self) -> u64 {
        self.end.time
    }

    /// Checks the next record of the log.
    ///
    /// # Errors
    /// If the record is of another chip or key, or breaks a rule of the log.
    pub fn check(&mut self, signed: &SignedRecord) -> Result<(), Malformed> {
        let wrong = |why: String| Err(Malformed::invalid("chip record", why));
        let record = &signed.record;
        if record.serial != self.serial {
            return wrong(format!("it is of the chip {}; this chip is {}", record.serial, self.serial));
        }
        if !signed.is_signed_by(&self.key) {
            return wrong(format!("the key {} did not sign it", self.key.to_text()));
        }
        self.end = self.end.follow(signed)?;
        Ok(())
    }

    /// Goes on behind a record that is right, since this chip made it.
    pub(super) fn advance(&mut self, signed: &SignedRecord) {
        self.end = self.end.behind(signed);
    }
}
