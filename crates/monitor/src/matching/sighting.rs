//! The trainings in a chip's log: their snapshots, and the snapshots that were due and did not come.

use tiebreak_record::commit::digest::Digest;

use crate::snapshot::log::ChipLog;
use crate::snapshot::record::{Event, Serial, Shard};

/// A training that attached itself to a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The chip's clock at the attachment, in milliseconds since 1970. The chip saw no state of the training before.
    pub time: u64,
    /// The computation that the chip was told.
    pub computation: Digest,
    /// The training's part on the chip.
    pub shard: Shard,
}

/// A snapshot in a chip's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The chip.
    pub serial: Serial,
    /// The number of the snapshot's record in the log.
    pub record: u64,
    /// The chip's clock, in milliseconds since 1970.
    pub time: u64,
    /// The digest of the shard map.
    pub map: Digest,
    /// The step after which the chip hashed the state, as the training told it.
    pub step: u32,
    /// The shard's digest.
    pub digest: Digest,
    /// The attachment; absent if the log has none of this map and code since the chip's last begin.
    pub attachment: Option<Attachment>,
    /// A later step than [`Sighting::step`] of which the same attachment has an earlier snapshot.
    pub after: Option<u32>,
}

/// A training in a chip's log, from its attachment to the next attachment or begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Training {
    /// The chip.
    pub serial: Serial,
    /// The number of the attachment's record in the log; of the first unanswered snapshot, if there is no attachment.
    pub record: u64,
    /// The record's time, in milliseconds since 1970.
    pub time: u64,
    /// The computation that the chip was told; absent without an attachment.
    pub computation: Option<Digest>,
    /// Snapshots of the training.
    pub snapshots: u64,
    /// Snapshots that were due and that the training did not answer.
    pub unanswered: u64,
}

/// The trainings of a log, in its order. Nobody's signature is looked at here.
pub fn trainings(log: &ChipLog) -> Vec<Training> {
    let mut found: Vec<Training> = Vec::new();
    let mut attached = false;
    for signed in &log.records {
        let record = &signed.record;
        let of = |computation| Training {
            serial: record.serial.clone(),
            record: record.counter,
            time: record.time,
            computation,
            snapshots: 0,
            unanswered: 0,
        };
        match record.event {
            Event::Begin => attached = false,
            Event::Attach { computation, .. } => {
                attached = true;
                found.push(of(Some(computation)));
            }
            Event::Snapshot { .. } | Event::Unanswered(_) => {
                if !attached {
                    attached = true;
                    found.push(of(None));
                }
                if let Some(training) = found.last_mut() {
                    let shown = matches!(record.event, Event::Snapshot { .. });
                    training.snapshots += u64::from(shown);
                    training.unanswered += u64::from(!shown);
                }
            }
            Event::Clock | Event::Idle => {}
        }
    }
    found
}

/// The snapshots of a log, in its order. Nobody's signature is looked at here.
pub fn sightings(log: &ChipLog) -> Vec<Sighting> {
    let (mut attached, mut latest): (Option<Attachment>, u32) = (None, 0);
    let mut found = Vec::new();
    for signed in &log.records {
        let record = &signed.record;
        match record.event {
            Event::Begin => attached = None,
            Event::Attach { shard, computation } => {
                attached = Some(Attachment { time: record.time, computation, shard });
                latest = 0;
            }
            Event::Snapshot { shard, step, digest } => {
                let attachment = attached.filter(|attachment| attachment.shard == shard);
                let after = attachment.map(|_| latest).filter(|&latest| latest > step);
                if attachment.is_some() {
                    latest = latest.max(step);
                }
                found.push(Sighting {
                    serial: record.serial.clone(),
                    record: record.counter,
                    time: record.time,
                    map: shard.map,
                    step,
                    digest,
                    attachment,
                    after,
                });
            }
            Event::Clock | Event::Idle | Event::Unanswered(_) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::record::{NO_LINK, Record};
    use tiebreak_record::commit::keys::PrivateKey;

    fn log(events: &[Event]) -> ChipLog {
        let key = PrivateKey::generate("chip", [1; 32]).unwrap();
        let records = (0..).zip(events).map(|(counter, event)| {
            let serial = Serial::new("chip-1").unwrap();
            Record { serial, counter, time: 100 * counter, previous: NO_LINK, event: *event }.sign(&key)
        });
        ChipLog { records: records.collect(), torn: 0 }
    }

    #[test]
    fn snapshots_that_did_not_come_are_counted_by_training() {
        let shard = Shard { map: Digest([1; 32]), code: Digest([9; 32]) };
        let attach = |computation| Event::Attach { shard, computation: Digest([computation; 32]) };
        let unanswered = Event::Unanswered(shard);
        let snapshot = Event::Snapshot { shard, step: 1, digest: Digest([7; 32]) };
        let events = [
            Event::Begin,
            attach(11),
            snapshot,
            unanswered,
            Event::Idle,
            attach(12),
            attach(13),
            unanswered,
            unanswered,
            Event::Begin,
            unanswered,
            attach(14),
            snapshot,
        ];
        let told = trainings(&log(&events)).into_iter();
        let told = told.map(|t| (t.record, t.computation.map(|c| c.0[0]), t.snapshots, t.unanswered));
        let wanted = [
            (1, Some(11), 1, 1),
            (5, Some(12), 0, 0),
            (6, Some(13), 0, 2),
            (10, None, 0, 1),
            (11, Some(14), 1, 0),
        ];
        assert_eq!(told.collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn a_snapshot_is_of_the_last_attachment_since_the_chip_began() {
        let shard = |map: u8| Shard { map: Digest([map; 32]), code: Digest([9; 32]) };
        let attach =
            |map, computation| Event::Attach { shard: shard(map), computation: Digest([computation; 32]) };
        let snapshot = |map, step| Event::Snapshot { shard: shard(map), step, digest: Digest([7; 32]) };
        let events = [
            Event::Begin,
            snapshot(1, 0),
            attach(1, 11),
            snapshot(1, 3),
            snapshot(1, 3),
            snapshot(1, 2),
            snapshot(2, 4),
            attach(2, 12),
            Event::Idle,
            snapshot(2, 1),
            Event::Begin,
            snapshot(2, 1),
        ];
        let log = log(&events);
        let told = sightings(&log)
            .into_iter()
            .map(|s| (s.record, s.attachment.map(|a| (a.time, a.computation.0[0])), s.after));
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                (1, None, None),
                (3, Some((200, 11)), None),
                (4, Some((200, 11)), None),
                (5, Some((200, 11)), Some(3)),
                (6, None, None),
                (9, Some((700, 12)), None),
                (11, None, None),
            ]
        );
    }
}
