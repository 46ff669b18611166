//! The transcript: an append-only file of records. Each frame is a u32 length, the record, and the first eight bytes of the
//! record's BLAKE3 hash, so that a torn tail is told from an edited record.

use std::io::Read;
use std::path::Path;

use super::error::RunError;
use super::stored::Stored;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle::{self, Frontier};
use tiebreak_record::commit::record::{RECORD_BYTES_MAX, Record};
use tiebreak_record::commit::{Malformed, codec::Encoder};

/// The most records of a transcript.
const RECORDS_MAX: usize = 1 << 26;

fn checksum(record: &[u8]) -> [u8; 8] {
    blake3::hash(record).as_bytes()[..8].try_into().expect("a hash has 32 bytes")
}

/// The records of a transcript, with their Merkle leaves.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    /// The records, from the initial one on.
    pub records: Vec<Record>,
    /// The Merkle leaf of each record.
    pub leaves: Vec<Digest>,
}

impl Transcript {
    /// The root over the first `size` records.
    pub fn root(&self, size: usize) -> Digest {
        merkle::root(&self.leaves[..size])
    }

    fn push(&mut self, record: Record, leaf: Digest) {
        self.records.push(record);
        self.leaves.push(leaf);
    }
}

/// The bytes of a frame beside its record.
const FRAME: u64 = 4 + 8;

/// The bytes that these records take in a transcript.
pub fn length(records: &[Record]) -> u64 {
    records.iter().map(|record| record.encode().len() as u64 + FRAME).sum()
}

/// The Merkle leaf of an encoded record.
pub fn leaf(record: &Record) -> Digest {
    merkle::leaf(&record.encode())
}

/// Reads all whole records. Returns them with the number of bytes that they fill; the bytes after these are a torn tail. A record
/// whose checksum is wrong although more bytes follow was edited.
///
/// # Errors
/// If the file cannot be read, or has a malformed record before its torn tail.
pub fn read(file: impl Into<Stored>) -> Result<(Transcript, u64), RunError> {
    let file = file.into();
    let reading = file.open()?;
    let len = reading.length();
    parse(file.path(), reading, len)
}

/// The first `count` whole records, or all if there are fewer. Damage after the records that a head covers harms nobody.
///
/// # Errors
/// If the file cannot be read, or has a malformed record before these are complete.
pub fn read_first(file: &Stored, count: u64) -> Result<Transcript, RunError> {
    let reading = file.open()?;
    let len = reading.length();
    Ok(parse_first(file.path(), reading, len, count)?.0)
}

/// [`read`] from `len` bytes of any reader; errors name them `path`.
///
/// # Errors
/// If the bytes cannot be read, or have a malformed record before their torn tail.
pub fn parse(path: &Path, reader: impl Read, len: u64) -> Result<(Transcript, u64), RunError> {
    parse_first(path, reader, len, u64::MAX)
}

fn parse_first(
    path: &Path,
    mut reader: impl Read,
    len: u64,
    count: u64,
) -> Result<(Transcript, u64), RunError> {
    let mut transcript = Transcript::default();
    let mut whole = 0u64;
    let malformed = |number: usize, why: Malformed| {
        RunError::malformed(path, Malformed::invalid("transcript", format!("record {number}: {why}")))
    };
    while whole + 4 <= len && (transcript.records.len() as u64) < count {
        let number = transcript.records.len();
        if number >= RECORDS_MAX {
            return Err(malformed(
                number,
                Malformed::TooLarge { what: "transcript", limit: RECORDS_MAX as u64 },
            ));
        }
        let mut frame = [0; 4];
        reader.read_exact(&mut frame).map_err(RunError::io(path))?;
        let size = u32::from_le_bytes(frame) as usize;
        if size > RECORD_BYTES_MAX {
            let limit = RECORD_BYTES_MAX as u64;
            return Err(malformed(number, Malformed::TooLarge { what: "record", limit }));
        }
        if size == 0 {
            break; // no record is empty: a tail that the file system filled with zeros
        }
        let end = whole + 4 + size as u64 + 8;
        if end > len {
            break;
        }
        let mut bytes = vec![0; size + 8];
        reader.read_exact(&mut bytes).map_err(RunError::io(path))?;
        let (record, sum) = bytes.split_at(size);
        if checksum(record) != sum {
            if end == len {
                break; // the last record: a write that did not finish
            }
            let hex = |sum: &[u8]| sum.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let why =
                format!("its checksum is wrong: {}, and its bytes give {}", hex(sum), hex(&checksum(record)));
            return Err(malformed(number, Malformed::invalid("record", why)));
        }
        let leaf = merkle::leaf(record);
        transcript.push(Record::decode(record).map_err(|why| malformed(number, why))?, leaf);
        whole = end;
    }
    Ok((transcript, whole))
}

/// The bytes of an encoded record in a transcript.
fn frame(record: &[u8]) -> Vec<u8> {
    let mut frame = Encoder::default();
    frame.bytes(record);
    frame.0.extend(checksum(record));
    frame.0
}

/// Replaces a transcript by these records, whole or not at all.
///
/// # Errors
/// If the store refuses.
#[doc(hidden)] // for recordings alone
pub fn replace(file: &Stored, records: &[Record]) -> Result<(), RunError> {
    file.replace_by(|to| records.iter().try_for_each(|record| to.write_all(&frame(&record.encode()))))
}

/// Appends to a transcript.
pub struct TranscriptWriter {
    file: Stored,
    frontier: Frontier,
}

impl TranscriptWriter {
    /// Opens a transcript for appending, or makes it, and cuts off a torn tail. Returns the records that are there.
    ///
    /// # Errors
    /// If fewer than the `published` records that a head covers are whole. Then nothing is cut: what looks like a torn tail is
    /// damage to records that were promised.
    pub fn open(file: impl Into<Stored>, published: u64) -> Result<(TranscriptWriter, Transcript), RunError> {
        let file = file.into();
        let len = file.length_or_0()?;
        if len == 0 {
            file.append(&[])?;
        }
        let (transcript, whole) = read(file.clone())?;
        if (transcript.leaves.len() as u64) < published {
            let found = transcript.leaves.len();
            let why = format!(
                "a published head covers records that are not there, {published} and not {found}; the transcript was damaged"
            );
            return Err(RunError::invalid(file.path(), why));
        }
        if len != whole {
            file.truncate(whole)?;
        }
        let mut frontier = Frontier::default();
        transcript.leaves.iter().for_each(|leaf| frontier.push(*leaf));
        Ok((TranscriptWriter { file, frontier }, transcript))
    }

    /// Appends a record, which is durable only after [`TranscriptWriter::sync`].
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn append(&mut self, record: &Record) -> Result<(), RunError> {
        let bytes = record.encode();
        self.file.append(&frame(&bytes))?;
        self.frontier.push(merkle::leaf(&bytes));
        Ok(())
    }

    /// Syncs everything appended so far.
    ///
    /// # Errors
    /// If the store refuses.
    pub fn sync(&self) -> Result<(), RunError> {
        self.file.sync()
    }

    /// Records so far.
    pub fn size(&self) -> u64 {
        self.frontier.size()
    }

    /// The Merkle root over the records so far.
    pub fn root(&self) -> Digest {
        self.frontier.root()
    }
}
