//! The rules by which a collector takes a record: the register's key of that time signed it, and it continues the chip's log.
//!
//! Nothing here does I/O. The signature is checked first, without the log, so that strangers cost no look at a database.

use tiebreak_monitor::chip::chain::{End, NOTHING};
use tiebreak_monitor::inspection::examine::CLOCK_AHEAD;
use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::snapshot::log::RECORDS_MAX;
use tiebreak_monitor::snapshot::record::{Serial, SignedRecord};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;

/// The end of a chip's log as a collector knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The end of the log.
    pub end: End,
    /// The latest time of any record: a clock that is set back brings no older key back.
    pub latest: u64,
}

/// The state of a chip that sent nothing yet.
pub const NEW: State = State { end: NOTHING, latest: 0 };

/// The reasons why a collector does not take a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The bytes are no record, or the record breaks a rule of the log.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The register never had the chip.
    #[error("the register never had the chip {0}")]
    UnknownChip(Serial),
    /// The register does not have the chip at the record's time.
    #[error("the register does not have the chip {serial} at {time} ms, the time of record {counter}")]
    NotRegistered {
        /// The chip.
        serial: Serial,
        /// The record.
        counter: u64,
        /// Its time.
        time: u64,
    },
    /// No key of the chip signed the record.
    #[error("no key that the register has for the chip {serial} signed record {counter}")]
    Signature {
        /// The chip.
        serial: Serial,
        /// The record.
        counter: u64,
    },
    /// A key signed that is the chip's at another time.
    #[error("key {found} of the chip {serial} signed record {counter}; at {time} ms its key is number {due}")]
    ReplacedKey {
        /// The chip.
        serial: Serial,
        /// The record.
        counter: u64,
        /// The latest time of the log.
        time: u64,
        /// The number of the key that signed, from 0.
        found: usize,
        /// The number of the key that the chip has then.
        due: usize,
    },
    /// The chip's clock goes before the collector's.
    #[error("record {counter} is of {time} ms; here it is {now} ms: set the chip's clock")]
    Future {
        /// The record.
        counter: u64,
        /// Its time.
        time: u64,
        /// The collector's time.
        now: u64,
    },
    /// The chip signed two records with one counter.
    #[error("fork: record {counter} of the chip {serial} is kept with the link {kept}; this one has {found}")]
    Fork {
        /// The chip.
        serial: Serial,
        /// The counter of both.
        counter: u64,
        /// The link of the one that is kept.
        kept: Digest,
        /// The link of the other.
        found: Digest,
    },
    /// Records before this one are not here.
    #[error("gap: {records} records of the chip {serial} are kept, and this is record {counter}")]
    Gap {
        /// The chip.
        serial: Serial,
        /// The records that are kept.
        records: u64,
        /// The counter of this one.
        counter: u64,
    },
    /// The log takes no more records.
    #[error("the log of the chip {0} has {RECORDS_MAX} records, which is the most that a log holds")]
    Full(Serial),
}

impl Refusal {
    /// The stable name of the reason, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Refusal::Malformed(_) => "malformed",
            Refusal::UnknownChip(_) => "unknown_chip",
            Refusal::NotRegistered { .. } => "not_registered",
            Refusal::Signature { .. } => "signature",
            Refusal::ReplacedKey { .. } => "replaced_key",
            Refusal::Future { .. } => "future",
            Refusal::Fork { .. } => "fork",
            Refusal::Gap { .. } => "gap",
            Refusal::Full(_) => "full",
        }
    }

    /// The status of the HTTP answer.
    pub fn status(&self) -> u16 {
        match self {
            Refusal::Malformed(_) | Refusal::Future { .. } => 400,
            Refusal::UnknownChip(_)
            | Refusal::NotRegistered { .. }
            | Refusal::Signature { .. }
            | Refusal::ReplacedKey { .. } => 403,
            Refusal::Fork { .. } | Refusal::Gap { .. } | Refusal::Full(_) => 409,
        }
    }
}

/// A record that a key of its chip signed, whether or not that is the chip's key now.
#[derive(Clone, Debug)]
pub struct Attributed {
    /// The record.
    pub signed: SignedRecord,
    /// The number of the key, from 0, among those that the register ever had for the chip.
    key: usize,
}

/// Looks for the key that signed a record.
///
/// # Errors
/// If the register does not know the chip, or no key of it signed.
pub fn attribute(register: &Register, signed: SignedRecord) -> Result<Attributed, Refusal> {
    let record = &signed.record;
    let keys = register.keys_of(&record.serial);
    if keys.is_empty() {
        return Err(Refusal::UnknownChip(record.serial.clone()));
    }
    // The newest key is the one that most records have.
    let key = keys.iter().rposition(|(_, key)| signed.is_signed_by(key));
    let (serial, counter) = (record.serial.clone(), record.counter);
    let key = key.ok_or(Refusal::Signature { serial, counter })?;
    Ok(Attributed { signed, key })
}

/// Takes the next record of a log, and returns the state behind it. `now`: milliseconds since 1970.
///
/// # Errors
/// If another key is the chip's at that time, the record is of the future, or it does not continue the log. An earlier record is
/// for the caller to compare with the one that is kept, before this is called.
pub fn admit(register: &Register, state: &State, found: &Attributed, now: u64) -> Result<State, Refusal> {
    let record = &found.signed.record;
    let (serial, counter) = (record.serial.clone(), record.counter);
    if counter > state.end.records {
        return Err(Refusal::Gap { serial, records: state.end.records, counter });
    }
    if counter >= RECORDS_MAX as u64 {
        return Err(Refusal::Full(serial));
    }
    if record.time > now.saturating_add(CLOCK_AHEAD) {
        return Err(Refusal::Future { counter, time: record.time, now });
    }
    let latest = state.latest.max(record.time);
    let seconds = latest / 1000;
    if register.chip_at(&serial, seconds).is_none() {
        return Err(Refusal::NotRegistered { serial, counter, time: latest });
    }
    let due = register.keys_of(&serial).iter().rposition(|(since, _)| *since <= seconds).unwrap_or(0);
    if due != found.key {
        return Err(Refusal::ReplacedKey { serial, counter, time: latest, found: found.key, due });
    }
    Ok(State { end: state.end.follow(&found.signed)?, latest })
}

#[cfg(test)]
mod tests;
