//! Chips, their register and their records, as tests make them.

use tiebreak_monitor::register::entry::{Change, Entry};
use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::snapshot::record::{Event, NO_LINK, Record, Serial, Shard, SignedRecord};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;

/// The second at which chips enter the register.
pub const BEGIN: u64 = 1_700_000_000;

/// The key of a chip, or of a collector.
pub fn key(seed: u8) -> PrivateKey {
    PrivateKey::generate("made.example", [seed; 32]).unwrap()
}

pub fn serial(number: u8) -> Serial {
    Serial::new(&format!("chip-{number}")).unwrap()
}

pub fn entry(seconds: u64, number: u8, change: Change) -> Entry {
    Entry { time: BEGIN + seconds, serial: serial(number), change }
}

/// A register of chips 0 to `chips` - 1, each with the key of its number.
pub fn register(chips: u8) -> Register {
    let mut register = Register::new("made").unwrap();
    for number in 0..chips {
        let [model, owner, site] = ["h100", "Alice", "north"].map(String::from);
        let change = Change::Enter { key: key(number).public().to_text(), model, owner, site, exempt: None };
        register.append(entry(0, number, change)).unwrap();
    }
    register
}

pub fn shard(byte: u8) -> Shard {
    Shard { map: Digest([byte; 32]), code: Digest([2; 32]) }
}

/// A chip that writes one record after the other, one a second.
#[derive(Clone)]
pub struct Chip {
    pub serial: Serial,
    pub key: PrivateKey,
    pub log: Vec<SignedRecord>,
}

impl Chip {
    pub fn new(number: u8) -> Chip {
        Chip { serial: serial(number), key: key(number), log: Vec::new() }
    }

    /// The next record, which the log does not have yet.
    pub fn next(&self, event: Event) -> SignedRecord {
        let counter = self.log.len() as u64;
        let previous = self.log.last().map_or(NO_LINK, SignedRecord::link);
        let time = (BEGIN + counter) * 1000;
        Record { serial: self.serial.clone(), counter, time, previous, event }.sign(&self.key)
    }

    /// Writes a record.
    pub fn write(&mut self, event: Event) -> SignedRecord {
        let signed = self.next(event);
        self.log.push(signed.clone());
        signed
    }

    /// A chip that has written so many records: a begin, an attachment, then snapshots.
    pub fn with(number: u8, records: u64) -> Chip {
        let mut chip = Chip::new(number);
        for counter in 0..records {
            chip.write(match counter {
                0 => Event::Begin,
                1 => Event::Attach { shard: shard(1), computation: Digest([3; 32]) },
                _ => Event::Snapshot { shard: shard(1), step: counter as u32, digest: Digest([4; 32]) },
            });
        }
        chip
    }

    /// The bytes of the log's file.
    pub fn bytes(&self) -> Vec<u8> {
        self.log.iter().flat_map(SignedRecord::encode).collect()
    }
}
