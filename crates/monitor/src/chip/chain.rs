//! The rules of a chip's log from one record to the next: chip, key, numbers, links, times and attachments.

use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;

use crate::snapshot::record::{Event, NO_LINK, Serial, Shard, SignedRecord};

/// The end of a log that was checked so far, and the values that its next record has to have.
#[derive(Clone, Debug)]
pub struct Chain {
    serial: Serial,
    key: PublicKey,
    next: u64,
    link: Digest,
    time: u64,
    shard: Option<Shard>,
}

impl Chain {
    /// The chain of a log without records, of this chip and its key.
    pub fn new(serial: Serial, key: PublicKey) -> Chain {
        Chain { serial, key, next: 0, link: NO_LINK, time: 0, shard: None }
    }

    /// The chip.
    pub fn serial(&self) -> &Serial {
        &self.serial
    }

    /// The number of records, which is the next record's counter.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The link that the next record has.
    pub fn link(&self) -> Digest {
        self.link
    }

    /// The time of the last record; 0 if there is none.
    pub fn time(&self) -> u64 {
        self.time
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
        if record.counter != self.next {
            return wrong(format!("its counter is {}, and {} comes next", record.counter, self.next));
        }
        if record.previous != self.link {
            return wrong(format!("its link to the record before is {}", record.previous.not(&self.link)));
        }
        let begins = record.event == Event::Begin;
        if self.next == 0 && !begins {
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
        self.advance(signed);
        Ok(())
    }

    /// Goes on behind a record that is right, since this chip made it or [`Chain::check`] passed it.
    pub(super) fn advance(&mut self, signed: &SignedRecord) {
        self.next += 1;
        self.link = signed.link();
        self.time = signed.record.time;
        match signed.record.event {
            Event::Begin => self.shard = None,
            Event::Attach { shard, .. } => self.shard = Some(shard),
            Event::Clock | Event::Idle | Event::Unanswered(_) | Event::Snapshot { .. } => {}
        }
    }
}
