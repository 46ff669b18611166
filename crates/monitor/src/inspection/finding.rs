//! The defects of a chip's log that an inspector may find.

use tiebreak_record::commit::cosignature::utc;

use crate::snapshot::record::Serial;

/// A defect of a chip's log, which an honest chip never has.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Finding {
    /// There is no record.
    #[error("the log has no records, though the register has the chip since {}", utc(*.since))]
    Empty {
        /// Seconds since 1970 at which the chip entered.
        since: u64,
    },
    /// The register never had the chip.
    #[error("the register does not have the chip {serial}")]
    UnknownChip {
        /// The chip.
        serial: Serial,
    },
    /// A record is of another chip.
    #[error("record {record} is of chip {found}, not of {expected}")]
    OtherSerial {
        /// The record.
        record: u64,
        /// The chip that the record names.
        found: Serial,
        /// The chip that is inspected.
        expected: Serial,
    },
    /// The first record begins nothing.
    #[error("record 0 is no begin: the beginning of the log is gone")]
    NoBegin,
    /// A counter is not the record's number.
    #[error("record {record} has the counter {found}: records were removed, repeated or put in")]
    Counter {
        /// The record.
        record: u64,
        /// The counter.
        found: u64,
    },
    /// A link is not that of the record before.
    #[error("record {record} does not link to the record before it: one of both was exchanged")]
    Link {
        /// The record.
        record: u64,
    },
    /// A time is before that of the record before, and no record says that the clock was set back.
    #[error("record {record} is of {}, before the record before it of {}", utc(*.time / 1000), utc(*.before / 1000))]
    TimeBack {
        /// The record.
        record: u64,
        /// Milliseconds since 1970 of the record before.
        before: u64,
        /// Milliseconds since 1970 of the record.
        time: u64,
    },
    /// A time has not come yet.
    #[error("record {record} is of {}, after the end of the inspected time", utc(*.time / 1000))]
    Future {
        /// The record.
        record: u64,
        /// Milliseconds since 1970.
        time: u64,
    },
    /// The register does not have the chip at a record's time.
    #[error("record {record} is of {}, when the register did not have the chip", utc(*.time / 1000))]
    NotRegistered {
        /// The record.
        record: u64,
        /// Milliseconds since 1970.
        time: u64,
    },
    /// A key signed that was the chip's at another time.
    #[error("record {record} is signed by a key that was not the chip's at {}", utc(*.time / 1000))]
    ReplacedKey {
        /// The record.
        record: u64,
        /// Milliseconds since 1970.
        time: u64,
    },
    /// No key of the chip signed.
    #[error("record {record} is signed by no key that the register has for the chip")]
    Signature {
        /// The record.
        record: u64,
    },
    /// A training's record without an attachment.
    #[error("record {record} is of a training, and none attached itself since the last begin")]
    NotAttached {
        /// The record.
        record: u64,
    },
    /// Map or code are not those of the attachment.
    #[error("record {record} has another shard map or code than its attachment, record {attached}")]
    OtherShard {
        /// The record.
        record: u64,
        /// The record of the attachment.
        attached: u64,
    },
    /// Records are gone that the inspector saw before.
    #[error("the log has {now} records, and the inspector saw {seen}: it was rolled back")]
    RolledBack {
        /// Records that the inspector saw.
        seen: u64,
        /// Records now.
        now: u64,
    },
    /// A record differs from what the inspector saw before.
    #[error("record {record} is another one than the inspector saw: the log was written anew from there on")]
    Forked {
        /// The first record that differs.
        record: u64,
    },
    /// The log is not the one whose head was published before the draw.
    #[error("the log does not continue its published head of {records} records")]
    NotClosed {
        /// Records under the published head.
        records: u64,
    },
    /// The chip was off for longer than it may be.
    #[error("nothing shows that the chip logged in {hours:.2} hours; at most {most:.2} are allowed")]
    Off {
        /// Hours before begins, in the inspected part of the log.
        hours: f64,
        /// The allowed hours.
        most: f64,
    },
    /// Too few snapshots were due.
    #[error(
        "{events} snapshots were due in {days:.1} days, {expected:.1} are expected: the chip logs too rarely (probability {probability:.1e})"
    )]
    TooRare {
        /// Events at the chip's random times.
        events: u64,
        /// Days in which the chip logged.
        days: f64,
        /// The expected number of events.
        expected: f64,
        /// The probability that an honest chip has so few.
        probability: f64,
    },
    /// No snapshot was due for too long, though the agent ran.
    #[error(
        "no snapshot was due for {days:.2} days, and no begin says that the agent was off: it may have been suspended (probability at most \
         {probability:.1e})"
    )]
    Silent {
        /// The record that ended the time; `None` if the inspected time ended it.
        record: Option<u64>,
        /// The length in days, without the time that a training had to answer.
        days: f64,
        /// A bound of the probability that an honest chip has such a time.
        probability: f64,
    },
}

impl Finding {
    /// The stable name of the finding, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Finding::Empty { .. } => "empty",
            Finding::UnknownChip { .. } => "unknown_chip",
            Finding::OtherSerial { .. } => "other_serial",
            Finding::NoBegin => "no_begin",
            Finding::Counter { .. } => "counter",
            Finding::Link { .. } => "link",
            Finding::TimeBack { .. } => "time_back",
            Finding::Future { .. } => "future",
            Finding::NotRegistered { .. } => "not_registered",
            Finding::ReplacedKey { .. } => "replaced_key",
            Finding::Signature { .. } => "signature",
            Finding::NotAttached { .. } => "not_attached",
            Finding::OtherShard { .. } => "other_shard",
            Finding::RolledBack { .. } => "rolled_back",
            Finding::Forked { .. } => "forked",
            Finding::NotClosed { .. } => "not_closed",
            Finding::Off { .. } => "off",
            Finding::TooRare { .. } => "too_rare",
            Finding::Silent { .. } => "silent",
        }
    }

    /// The record that the finding is about.
    pub fn record(&self) -> Option<u64> {
        match self {
            Finding::NoBegin => Some(0),
            Finding::OtherSerial { record, .. }
            | Finding::Counter { record, .. }
            | Finding::Link { record }
            | Finding::TimeBack { record, .. }
            | Finding::Future { record, .. }
            | Finding::NotRegistered { record, .. }
            | Finding::ReplacedKey { record, .. }
            | Finding::Signature { record }
            | Finding::NotAttached { record }
            | Finding::OtherShard { record, .. }
            | Finding::Forked { record } => Some(*record),
            Finding::RolledBack { now, .. } => Some(*now),
            Finding::Silent { record, .. } => *record,
            _ => None,
        }
    }
}
