//! The duties of a database of chips' logs, and the rows that every one of them has.

use std::collections::BTreeMap;

use tiebreak_monitor::chip::chain::End;
use tiebreak_monitor::closed::{ClosedLogs, LogHead};
use tiebreak_monitor::snapshot::record::{RECORD_BYTES, Serial, Shard, SignedRecord};
use tiebreak_record::commit::digest::Digest;

use crate::admission::State;

/// The reasons why a store does not do what it is asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another collector changed the same logs at the same time. Nothing was stored.
    #[error("another collector appended to the same logs: {0}")]
    Raced(String),
    /// The database does not answer, or refuses.
    #[error("the database: {0}")]
    Database(String),
    /// The database holds what no collector put there.
    #[error("the database is damaged: {0}")]
    Damaged(String),
}

/// Records of one chip, which continue its log.
#[derive(Clone, Debug)]
pub struct Appended {
    /// The number of records before.
    pub before: u64,
    /// The bytes of each record, in their order.
    pub records: Vec<[u8; RECORD_BYTES]>,
    /// The state behind the last of them.
    pub state: State,
}

/// A database of chips' logs.
pub trait Store: Send {
    /// The states of these chips; none for a chip without records.
    ///
    /// # Errors
    /// If the database fails.
    fn states(&mut self, chips: &[&Serial]) -> Result<BTreeMap<Serial, State>, StoreError>;

    /// Records of a chip from a counter on, at most so many.
    ///
    /// # Errors
    /// If the database fails, or its records are not those of the chip in their order.
    fn records(&mut self, chip: &Serial, from: u64, most: u64) -> Result<Vec<SignedRecord>, StoreError>;

    /// Appends to the logs of several chips: all of it, durably, or nothing.
    ///
    /// # Errors
    /// If a log has another number of records than before, or the database fails.
    fn append(&mut self, chips: &BTreeMap<Serial, Appended>) -> Result<(), StoreError>;

    /// The heads of all logs.
    ///
    /// # Errors
    /// If the database fails.
    fn heads(&mut self) -> Result<ClosedLogs, StoreError>;
}

/// A row of a chip as databases have it.
pub(super) struct Row {
    pub serial: String,
    pub records: i64,
    pub link: Vec<u8>,
    pub time: i64,
    pub latest: i64,
    pub shard: Option<(Vec<u8>, Vec<u8>)>,
}

pub(super) fn number(what: &str, number: i64) -> Result<u64, StoreError> {
    u64::try_from(number).map_err(|_| StoreError::Damaged(format!("{what} is {number}")))
}

pub(super) fn signed(what: &str, number: u64) -> Result<i64, StoreError> {
    i64::try_from(number)
        .map_err(|_| StoreError::Database(format!("{what} is {number}; 2^63 - 1 is the most")))
}

fn digest(bytes: &[u8]) -> Result<Digest, StoreError> {
    let length = bytes.len();
    Ok(Digest(bytes.try_into().map_err(|_| StoreError::Damaged(format!("a digest has {length} bytes")))?))
}

fn chip(serial: &str) -> Result<Serial, StoreError> {
    Serial::new(serial).map_err(|error| StoreError::Damaged(format!("{serial:?}: {error}")))
}

impl Row {
    pub fn state(&self) -> Result<(Serial, State), StoreError> {
        let shard = match &self.shard {
            Some((map, code)) => Some(Shard { map: digest(map)?, code: digest(code)? }),
            None => None,
        };
        let (records, time) = (number("a number of records", self.records)?, number("a time", self.time)?);
        let end = End { records, link: digest(&self.link)?, time, shard };
        Ok((chip(&self.serial)?, State { end, latest: number("a time", self.latest)? }))
    }
}

/// Decodes a record that stands at a place of a chip's log.
pub(super) fn record(serial: &Serial, counter: u64, bytes: &[u8]) -> Result<SignedRecord, StoreError> {
    let damaged = |why: String| StoreError::Damaged(format!("record {counter} of {serial}: {why}"));
    let signed = SignedRecord::decode(bytes).map_err(|error| damaged(error.to_string()))?;
    match signed.record.serial == *serial && signed.record.counter == counter {
        true => Ok(signed),
        false => Err(damaged(format!("it is record {} of {}", signed.record.counter, signed.record.serial))),
    }
}

pub(super) fn head(serial: &str, records: i64, link: &[u8]) -> Result<(Serial, LogHead), StoreError> {
    Ok((chip(serial)?, LogHead { records: number("a number of records", records)?, link: digest(link)? }))
}
