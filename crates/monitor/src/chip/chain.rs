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

impl End {
    /// The end behind a record, if that record continues the log. Chip and signature are not looked at.
    ///
    /// # Errors
    /// If the record breaks a rule of the log.
    pub fn follow(&self, signed: &SignedRecord) -> Result<End, Malformed> {
        let wrong = |why: String| Err(Malformed::invalid("chip record", why));
        let record = &signed.record;
        if record.counter != self.records {
            return wrong(format!("its counter is {}, and {} comes next", record.counter, self.records));
        }
        if record.previous != self.link {
            return wrong(format!("its link to the record before is {}", record.previous.not(&self.link)));
        }
        let begins = record.event == Event::Begin;
        if self.records == 0 && !begins {
            return wrong(format!(
                "a log starts with a begin record; this is a {} record",
                record.event.name()
            ));
        }
        if record.time < self.time && record.event != Event::Clock {
            return wrong(format!(
                "its time is {}, before the {} of the record before",
                record.time, self.time
            ));
        }
        if let Event::Unanswered(shard) | Event::Snapshot { shard, .. } = record.event
            && self.shard != Some(shard)
        {
            let due = self.shard.map_or("no attachment".into(), |due| {
                format!("an attachment with map {} and code {}", due.map.short(), due.code.short())
            });
            return wrong(format!(
                "it has map {} and code {} after {due}",
                shard.map.short(),
                shard.code.short()
            ));
        }
        Ok(self.behind(signed))
    }

    /// The end behind a record that is right.
    fn behind(&self, signed: &SignedRecord) -> End {
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
