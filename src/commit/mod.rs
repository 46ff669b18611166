//! What is promised: digests of tensors, states, steps and runs, and signed heads. No I/O.
//!
//! What is hashed is a canonical little-endian encoding of ours, never a printer's output. Tensors are hashed with
//! BLAKE3, whose tree gives verified tiles; everything above them is a Merkle tree of RFC 6962 with SHA-256.
//! Layouts: `docs/RUN-FORMAT.md`.

pub mod codec;
pub mod digest;
pub mod keys;
pub mod merkle;
pub mod multiproof;
pub mod record;
pub mod state;
pub mod table;
pub mod tensor;
pub mod trace;
pub mod tree_head;

/// Bytes or text that do not mean what they should: always the fault of whoever made them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("{what} ends too early")]
    Truncated { what: &'static str },
    #[error("{what} has {extra} bytes too many")]
    Trailing { what: &'static str, extra: usize },
    #[error("{what}: {why}")]
    Invalid { what: &'static str, why: String },
    #[error("{what} is larger than the limit of {limit}")]
    TooLarge { what: &'static str, limit: u64 },
}

impl Malformed {
    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Malformed {
        Malformed::Invalid { what, why: why.into() }
    }
}
