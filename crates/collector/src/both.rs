//! A chip that keeps its log twice: in memory of its own, and at a collector.
//!
//! The chip's own log comes first, so a collector that lost records is found out at the next start. Records that the collector
//! lacks are sent then, in their order.

use tiebreak_monitor::chip::keeper::{Keeper, KeeperError, Memory, Resumed, walk};
use tiebreak_monitor::snapshot::record::{Serial, SignedRecord};
use tiebreak_record::commit::keys::PublicKey;

use crate::client::Remote;

/// A keeper of two copies.
pub struct Both<M> {
    own: M,
    remote: Remote,
}

impl<M: Memory> Both<M> {
    /// A log in `own` and at a collector.
    pub fn new(own: M, remote: Remote) -> Both<M> {
        Both { own, remote }
    }

    /// Checks that the collector's last record is one of the chip's own log.
    fn compare(&mut self, last: &SignedRecord, own: u64) -> Result<(), KeeperError> {
        let counter = last.record.counter;
        if counter >= own {
            let why = format!(
                "it has {} records of this chip, and the chip's own log has {own}",
                counter.saturating_add(1)
            );
            return Err(KeeperError::Refused(why));
        }
        let mut found = None;
        walk(&mut self.own, counter, |signed| {
            found = found.or(Some(signed.link()));
            Ok(())
        })?;
        match found {
            Some(link) if link == last.link() => Ok(()),
            _ => {
                let own = found.map_or("nothing".into(), |link| link.short());
                let why = format!(
                    "its record {counter} of this chip has the link {}, and the chip's own log has {own}",
                    last.link().short()
                );
                Err(KeeperError::Refused(why))
            }
        }
    }
}

impl<M: Memory> Keeper for Both<M> {
    fn resume(&mut self, serial: &Serial, key: &PublicKey) -> Result<Resumed, KeeperError> {
        let resumed = self.own.resume(serial, key)?;
        let last = self.remote.last(serial)?;
        if let Some(last) = &last {
            self.compare(last, resumed.chain.next())?;
        }
        let from = last.map_or(0, |last| last.record.counter + 1);
        let (own, remote) = (&mut self.own, &mut self.remote);
        walk(own, from, |signed| remote.send(signed))?;
        Ok(resumed)
    }

    fn append(&mut self, record: &SignedRecord) -> Result<(), KeeperError> {
        self.own.append(record)?;
        self.remote.send(record)
    }
}
