//! The words of a collector: JSON objects with exactly these members, and what the collector signs.
//!
//! A chip believes only what the collector's key signed, so nobody between the two can say that a record is kept.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tiebreak_monitor::snapshot::record::{NO_LINK, RECORD_BYTES, Serial, SignedRecord};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};

/// The most bytes of an answer.
pub const ANSWER_MAX: u64 = 4096;
/// The most bytes of a reason in words.
const WHY_MAX: usize = 1024;

/// A signature, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Signature(String);

impl Signature {
    fn of(key: &PrivateKey, message: &[u8]) -> Signature {
        Signature(STANDARD.encode(key.sign(message)))
    }

    fn check(&self, key: &PublicKey, message: &[u8]) -> Result<(), Malformed> {
        let bytes = STANDARD.decode(&self.0).ok().and_then(|bytes| <[u8; 64]>::try_from(bytes).ok());
        match bytes.is_some_and(|signature| key.verifies(message, &signature)) {
            true => Ok(()),
            false => {
                let why = format!("it is not signed by the collector's key, {}", key.identified());
                Err(Malformed::invalid("answer", why))
            }
        }
    }
}

/// The answer to a record: the collector keeps it, durably.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The record's counter.
    pub kept: u64,
    /// The record's link, which binds all of its bytes.
    pub link: Digest,
    /// The collector's signature.
    pub signature: Signature,
}

fn kept(link: &Digest) -> Vec<u8> {
    [b"tiebreak 2 collector kept\n", &link.0[..]].concat()
}

impl Kept {
    /// The collector keeps this record.
    pub fn sign(record: &SignedRecord, key: &PrivateKey) -> Kept {
        let link = record.link();
        Kept { kept: record.record.counter, link, signature: Signature::of(key, &kept(&link)) }
    }

    /// Checks that the collector with this key keeps this record.
    ///
    /// # Errors
    /// If the answer is of another record, or another key signed it.
    pub fn check(&self, record: &SignedRecord, key: &PublicKey) -> Result<(), Malformed> {
        let link = record.link();
        if (self.kept, self.link) != (record.record.counter, link) {
            let why = format!(
                "it is of record {} with the link {}; record {} has {}",
                self.kept,
                self.link.short(),
                record.record.counter,
                link.short()
            );
            return Err(Malformed::invalid("answer", why));
        }
        self.signature.check(key, &kept(&link))
    }
}

/// The answer to a chip that begins: the end of its log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Last {
    /// The number of records that the collector keeps of this chip.
    pub records: u64,
    /// The last of them in Base64; empty if there is none.
    pub record: String,
    /// The collector's signature.
    pub signature: Signature,
}

fn last(nonce: &Digest, serial: &Serial, records: u64, link: &Digest) -> Vec<u8> {
    let mut padded = [0; 31];
    padded[..serial.as_str().len()].copy_from_slice(serial.as_str().as_bytes());
    [b"tiebreak 2 collector last\n", &nonce.0[..], &padded, &records.to_le_bytes(), &link.0].concat()
}

impl Last {
    /// The end of a chip's log, for the chip that drew this nonce.
    pub fn sign(nonce: &Digest, serial: &Serial, record: Option<&SignedRecord>, key: &PrivateKey) -> Last {
        let (records, link) = record.map_or((0, NO_LINK), |last| (last.record.counter + 1, last.link()));
        let text = record.map_or(String::new(), |last| STANDARD.encode(last.encode()));
        let signature = Signature::of(key, &last(nonce, serial, records, &link));
        Last { records, record: text, signature }
    }

    /// The last record of the chip's log, if the collector with this key says so now.
    ///
    /// # Errors
    /// If the answer contradicts itself, is of another chip or another question, or another key signed it.
    pub fn check(
        &self,
        nonce: &Digest,
        serial: &Serial,
        key: &PublicKey,
    ) -> Result<Option<SignedRecord>, Malformed> {
        let record = match self.record.is_empty() {
            true => None,
            false => {
                let bytes = STANDARD
                    .decode(&self.record)
                    .map_err(|error| Malformed::invalid("answer", format!("its record: {error}")))?;
                Some(SignedRecord::decode(&bytes)?)
            }
        };
        let (records, link) =
            record.as_ref().map_or((0, NO_LINK), |last| (last.record.counter.saturating_add(1), last.link()));
        if records != self.records || record.as_ref().is_some_and(|last| last.record.serial != *serial) {
            let what = record.map_or("no record".into(), |last| {
                format!("record {} of chip {}", last.record.counter, last.record.serial)
            });
            let why = format!("its last of {} records of chip {serial} is {what}", self.records);
            return Err(Malformed::invalid("answer", why));
        }
        self.signature.check(key, &last(nonce, serial, records, &link))?;
        Ok(record)
    }
}

/// The answer to what the collector does not take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// The stable name of the reason.
    pub refused: String,
    /// The reason, in words.
    pub why: String,
}

impl Refused {
    /// A reason, of whose words an answer takes the beginning.
    pub fn new(refused: &str, why: &str) -> Refused {
        Refused { refused: refused.to_string(), why: why.chars().take(WHY_MAX / 4).collect() }
    }
}

/// The message of an answer's bytes.
///
/// # Errors
/// If the bytes are no message of this kind.
pub fn read<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, Malformed> {
    serde_json::from_slice(bytes).map_err(|error| Malformed::invalid("answer", error.to_string()))
}

/// The record of a request's body.
///
/// # Errors
/// If the body has another length, or not the form of a record.
pub fn record(body: &[u8]) -> Result<SignedRecord, Malformed> {
    if body.len() != RECORD_BYTES {
        let why = format!("the request has {} bytes; a record has {RECORD_BYTES}", body.len());
        return Err(Malformed::invalid("chip record", why));
    }
    SignedRecord::decode(body)
}
