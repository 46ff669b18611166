//! The reasons why a pack cannot be written or read.

use std::io;

use tiebreak_record::commit::Malformed;

/// The reasons why a pack cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The bytes are no pack, or the pack was changed.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The pack's files need more memory than they may take.
    #[error("the pack's files need at least {needed} bytes of memory, and may take {limit}")]
    Memory {
        /// The bytes that the files need up to the one that did not fit.
        needed: u64,
        /// The limit.
        limit: u64,
    },
    /// No recipient of the pack is the reader.
    #[error("the pack is sealed for others, and this identity is {0}")]
    NotForUs(String),
    /// The system refused.
    #[error(transparent)]
    Io(io::Error),
}

/// An error of a pack's bytes.
pub(super) fn invalid(why: impl Into<String>) -> PackError {
    Malformed::invalid("pack", why).into()
}

impl From<io::Error> for PackError {
    /// Decryption reports changed bytes as invalid data, and a missing end as an early one.
    fn from(error: io::Error) -> PackError {
        match error.kind() {
            io::ErrorKind::InvalidData => invalid(error.to_string()),
            io::ErrorKind::UnexpectedEof => Malformed::Truncated { what: "pack" }.into(),
            _ => PackError::Io(error),
        }
    }
}
