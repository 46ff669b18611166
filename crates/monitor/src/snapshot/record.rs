//! A chip's records: fixed in size, chained, numbered and signed by the chip's key.
//!
//! A record says what happened in the chip at a time that the chip drew: a training was there and its shard of the state had
//! this digest, or no training was there. Layout: docs/MONITORING-FORMAT.md, "Records of a chip". In this project software
//! writes the records; on a real chip the firmware would.

use std::fmt;
use std::str::FromStr;

use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::codec::{Decoder, Encoder};
use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};

/// The bytes of a record.
pub const RECORD_BYTES: usize = 244;
/// The most characters of a serial number.
pub const SERIAL_MAX: usize = 31;
/// The domain of a chip's signatures.
pub const DOMAIN: &str = "tiebreak 2 chip record";
const WHAT: &str = "chip record";

/// The serial number of a chip: 1 to 31 letters, digits, `.`, `_`, `:` or `-`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Serial(String);

impl Serial {
    /// Checks a serial number.
    ///
    /// # Errors
    /// If it is empty, has more than [`SERIAL_MAX`] characters, or another character.
    pub fn new(text: &str) -> Result<Serial, Malformed> {
        let fits = (1..=SERIAL_MAX).contains(&text.len());
        if !fits || !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b)) {
            let why = "1 to 31 letters, digits, '.', '_', ':' or '-' are wanted";
            return Err(Malformed::invalid("serial number", why));
        }
        Ok(Serial(text.to_string()))
    }

    /// The serial number's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The serial number with zeros behind it, as records have it.
    pub(crate) fn padded(&self) -> [u8; SERIAL_MAX] {
        let mut padded = [0; SERIAL_MAX];
        padded[..self.0.len()].copy_from_slice(self.0.as_bytes());
        padded
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Serial {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Serial, Malformed> {
        Serial::new(text)
    }
}

impl TryFrom<String> for Serial {
    type Error = Malformed;

    fn try_from(text: String) -> Result<Serial, Malformed> {
        Serial::new(&text)
    }
}

impl From<Serial> for String {
    fn from(serial: Serial) -> String {
        serial.0
    }
}

/// The part of a training that runs on the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The digest of the shard map ([`super::shard_map::ShardMap::digest`]).
    pub map: Digest,
    /// The digest of the code that ran on the device.
    pub code: Digest,
}

/// The event that a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The chip began to log: its first record, and the first one after each restart.
    Begin,
    /// The clock was set back; the record's time is the new one.
    Clock,
    /// A training attached itself and declared its computation, before the chip saw any of its states. Later snapshots, up to
    /// the next attachment, are of this training.
    Attach {
        /// The training's part on this chip.
        shard: Shard,
        /// The declared computation (docs/RUN-FORMAT.md), which binds job, program, data and initial state.
        computation: Digest,
    },
    /// A snapshot was due, and no training was attached.
    Idle,
    /// A snapshot was due, and the attached training reached no quiescent point in time.
    Unanswered(Shard),
    /// A snapshot of the state after step `step` (0 is the initial state).
    Snapshot {
        /// The training's part on this chip.
        shard: Shard,
        /// The step after which the state was hashed.
        step: u32,
        /// The digest of the device's shard of the state.
        digest: Digest,
    },
}

impl Event {
    /// True if the event is one of the chip's random times: these follow the rate of snapshots, and the others do not.
    pub fn is_due(&self) -> bool {
        matches!(self, Event::Idle | Event::Unanswered(_) | Event::Snapshot { .. })
    }

    /// The event's number in a record.
    fn code(&self) -> u8 {
        match self {
            Event::Begin => 0,
            Event::Clock => 1,
            Event::Attach { .. } => 2,
            Event::Idle => 3,
            Event::Unanswered(_) => 4,
            Event::Snapshot { .. } => 5,
        }
    }

    /// The event's name in JSON and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Begin => "begin",
            Event::Clock => "clock",
            Event::Attach { .. } => "attach",
            Event::Idle => "idle",
            Event::Unanswered(_) => "unanswered",
            Event::Snapshot { .. } => "snapshot",
        }
    }
}

/// A record without its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The chip.
    pub serial: Serial,
    /// The record's number, from 0.
    pub counter: u64,
    /// The chip's clock, in milliseconds since 1970.
    pub time: u64,
    /// The link of the record before ([`SignedRecord::link`]); zeros for record 0.
    pub previous: Digest,
    /// The event.
    pub event: Event,
}

/// A record and the chip's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedRecord {
    /// The record.
    pub record: Record,
    /// The Ed25519 signature of the chip's key over the record.
    pub signature: [u8; 64],
}

/// The link before record 0.
pub const NO_LINK: Digest = Digest([0; 32]);

impl Record {
    /// The bytes that are signed: all but the last 64.
    fn unsigned(&self) -> Vec<u8> {
        let none = Shard { map: NO_LINK, code: NO_LINK };
        let (shard, step, digest) = match self.event {
            Event::Begin | Event::Clock | Event::Idle => (none, 0, NO_LINK),
            Event::Attach { shard, computation } => (shard, 0, computation),
            Event::Unanswered(shard) => (shard, 0, NO_LINK),
            Event::Snapshot { shard, step, digest } => (shard, step, digest),
        };
        let mut e = Encoder::default();
        e.u8(self.event.code());
        e.0.extend(self.serial.padded());
        e.u64(self.counter).u64(self.time).digest(&self.previous);
        e.digest(&shard.map).digest(&shard.code).u32(step).digest(&digest);
        e.0
    }

    /// Signs the record with the chip's key: Ed25519 over [`DOMAIN`], a line end, and all bytes before
    /// the signature.
    pub fn sign(self, key: &PrivateKey) -> SignedRecord {
        let signature = key.sign(&signed(&self.unsigned()));
        SignedRecord { record: self, signature }
    }
}

/// The message of a signature.
fn signed(unsigned: &[u8]) -> Vec<u8> {
    [DOMAIN.as_bytes(), b"\n", unsigned].concat()
}

impl SignedRecord {
    /// The record's bytes, always [`RECORD_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.record.unsigned();
        bytes.extend(self.signature);
        bytes
    }

    /// Decodes the bytes of [`SignedRecord::encode`]. The signature is not checked; [`SignedRecord::is_signed_by`] does.
    ///
    /// # Errors
    /// If the bytes are not the one encoding of a record: its length is [`RECORD_BYTES`], and what a kind does not have is zero.
    pub fn decode(bytes: &[u8]) -> Result<SignedRecord, Malformed> {
        let mut d = Decoder::new(WHAT, bytes);
        let kind = d.u8()?;
        let serial = d.take(SERIAL_MAX)?;
        let end = serial.iter().position(|b| *b == 0).unwrap_or(SERIAL_MAX);
        let text = std::str::from_utf8(&serial[..end]).map_err(|error| {
            Malformed::invalid(
                WHAT,
                format!("the serial number is no text from byte {} on", error.valid_up_to()),
            )
        })?;
        let serial = Serial::new(text)?;
        let (counter, time, previous) = (d.u64()?, d.u64()?, d.digest()?);
        let shard = Shard { map: d.digest()?, code: d.digest()? };
        let (step, digest) = (d.u32()?, d.digest()?);
        let event = match kind {
            0 => Event::Begin,
            1 => Event::Clock,
            2 => Event::Attach { shard, computation: digest },
            3 => Event::Idle,
            4 => Event::Unanswered(shard),
            5 => Event::Snapshot { shard, step, digest },
            kind => return Err(Malformed::invalid(WHAT, format!("kind {kind}; kinds are 0 to 5"))),
        };
        let signature = d.take(64)?.try_into().expect("take gives the length asked for");
        d.finish()?;
        let signed = SignedRecord { record: Record { serial, counter, time, previous, event }, signature };
        if signed.encode() != bytes {
            let why = format!("a field that a {} record does not have is not zero", event.name());
            return Err(Malformed::invalid(WHAT, why));
        }
        Ok(signed)
    }

    /// True if the chip's key signed the record.
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        key.verifies(&signed(&self.record.unsigned()), &self.signature)
    }

    /// The link that the next record has: H("tiebreak 2 chip-link", the bytes of this record).
    pub fn link(&self) -> Digest {
        hash("tiebreak 2 chip-link", &self.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(event: Event) -> SignedRecord {
        let serial = Serial::new("H100-0042").unwrap();
        let record = Record { serial, counter: 7, time: 1_700_000_000_000, previous: Digest([3; 32]), event };
        record.sign(&key())
    }

    fn key() -> PrivateKey {
        PrivateKey::generate("chip", [1; 32]).unwrap()
    }

    fn events() -> Vec<Event> {
        let shard = Shard { map: Digest([5; 32]), code: Digest([6; 32]) };
        let digest = Digest([7; 32]);
        vec![
            Event::Begin,
            Event::Clock,
            Event::Attach { shard, computation: digest },
            Event::Idle,
            Event::Unanswered(shard),
            Event::Snapshot { shard, step: 9, digest },
        ]
    }

    #[test]
    fn records_keep_their_fields_and_their_size() {
        for event in events() {
            let signed = record(event);
            let bytes = signed.encode();
            assert_eq!(bytes.len(), RECORD_BYTES);
            assert_eq!(SignedRecord::decode(&bytes).unwrap(), signed);
            assert!(signed.is_signed_by(&key().public()));
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_refused_or_breaks_the_signature() {
        for event in events() {
            let bytes = record(event).encode();
            for bit in 0..bytes.len() * 8 {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                if let Ok(signed) = SignedRecord::decode(&bytes) {
                    assert_eq!(signed.encode(), bytes, "bit {bit} of a {} record", event.name());
                    assert!(!signed.is_signed_by(&key().public()), "bit {bit} of a {} record", event.name());
                }
            }
        }
    }

    #[test]
    fn records_of_another_length_are_refused() {
        let bytes = record(Event::Idle).encode();
        for wrong in [&bytes[..0], &bytes[..RECORD_BYTES - 1], &[&bytes[..], &[0]].concat()] {
            assert!(SignedRecord::decode(wrong).is_err(), "{} bytes", wrong.len());
        }
    }
}
