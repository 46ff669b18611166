//! Commitments: digests of tensors, states, steps and runs, and signed heads. No I/O.
//!
//! Hashes are taken over a canonical little-endian encoding of this crate, never over a printer's output. Tensors
//! are hashed with BLAKE3, whose tree gives verified tiles; everything above tensors is a Merkle tree of RFC 6962
//! with SHA-256. Layouts: `docs/RUN-FORMAT.md`.

pub mod answer_trace;
pub mod codec;
pub mod correction;
pub mod cosignature;
pub mod digest;
pub mod keys;
pub mod merkle;
pub mod multiproof;
pub mod named_head;
pub mod predictions;
pub mod proven;
pub mod receipt;
pub mod record;
pub mod salted_file;
pub mod salted_receipt;
pub mod salts;
mod signature;
pub mod state;
pub mod table;
pub mod tensor;
pub mod trace;
pub mod tree_head;

/// Bytes or text that break the rules of their format: always the fault of their author.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes end before a value does.
    #[error("{what} ends too early")]
    Truncated {
        /// The kind of thing that was decoded.
        what: &'static str,
    },
    /// Bytes are left after the last value.
    #[error("{what} has {extra} bytes too many")]
    Trailing {
        /// The kind of thing that was decoded.
        what: &'static str,
        /// The number of bytes that are left.
        extra: usize,
    },
    /// A value is not allowed.
    #[error("{what}: {why}")]
    Invalid {
        /// The kind of thing that was read.
        what: &'static str,
        /// The value and the rule that it breaks, in words.
        why: String,
    },
    /// The thing follows another contract than this program checks.
    #[error("{what}: it follows {found:?}; this program checks {expected:?} only")]
    OtherContract {
        /// The kind of thing that was read.
        what: &'static str,
        /// The contract that it names.
        found: String,
        /// The contract of this program.
        expected: &'static str,
    },
    /// A length is above its limit.
    #[error("{what} is larger than the limit of {limit}")]
    TooLarge {
        /// The kind of thing that was read.
        what: &'static str,
        /// The limit, in the unit of the length: bytes or items.
        limit: u64,
    },
}

/// The beginning of a text from a file, for an error that quotes it: 40 characters at most.
pub fn beginning(text: &str) -> String {
    text.chars().take(40).collect()
}

/// The sentence about bytes that say something in another encoding than the right one.
pub fn other_encoding(found: &[u8], right: &[u8]) -> String {
    other_encoding_at(right.iter().zip(found).take_while(|(right, found)| right == found).count())
}

/// The sentence about bytes that differ from their one encoding from this byte on.
#[doc(hidden)] // for the layers above
pub fn other_encoding_at(byte: usize) -> String {
    format!("it differs from its one encoding at byte {byte}, counted from 0")
}

impl Malformed {
    /// A `what` that breaks a rule; `why` names the rule.
    #[doc(hidden)] // for the layers above
    pub fn invalid(what: &'static str, why: impl Into<String>) -> Malformed {
        Malformed::Invalid { what, why: why.into() }
    }
}
