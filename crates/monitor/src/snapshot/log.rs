//! A chip's log: records one after the other, read without trust in them.

use tiebreak_record::commit::Malformed;

use super::record::{RECORD_BYTES, SignedRecord};

/// The most records of a log that is read, 256 MB: a hundred a day for 28 years.
pub const RECORDS_MAX: usize = 1 << 20;

/// A chip's log as it was read. Nothing is verified but the form of each record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChipLog {
    /// The records, in the file's order.
    pub records: Vec<SignedRecord>,
    /// The bytes of a record that a crash cut off, at the end of the file: fewer than [`RECORD_BYTES`].
    pub torn: usize,
}

impl ChipLog {
    /// Reads a log from the bytes of its file.
    ///
    /// # Errors
    /// If there are more than [`RECORDS_MAX`] records, or a record has not the form of one; the error names its index.
    pub fn read(bytes: &[u8]) -> Result<ChipLog, Malformed> {
        let (whole, torn) = bytes.as_chunks::<RECORD_BYTES>();
        if whole.len() > RECORDS_MAX {
            return Err(Malformed::TooLarge { what: "chip log", limit: RECORDS_MAX as u64 });
        }
        let records = whole.iter().enumerate().map(|(index, bytes)| {
            SignedRecord::decode(bytes).map_err(|error| {
                Malformed::invalid("chip log", format!("record {index} of {}: {error}", whole.len()))
            })
        });
        Ok(ChipLog { records: records.collect::<Result<_, _>>()?, torn: torn.len() })
    }
}
