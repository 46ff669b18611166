//! The JSON form of proofs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::record::Record;
use super::tensor::Hash;
use super::tree_head::Head;
use super::{Malformed, merkle};

/// Bytes as base64 text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Base64(pub Vec<u8>);

impl From<Base64> for String {
    fn from(bytes: Base64) -> String {
        STANDARD.encode(bytes.0)
    }
}

impl TryFrom<String> for Base64 {
    type Error = base64::DecodeError;

    fn try_from(text: String) -> Result<Base64, base64::DecodeError> {
        Ok(Base64(STANDARD.decode(text)?))
    }
}

/// BLAKE3 hashes, one after another, as base64 text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Base64", into = "Base64")]
pub struct Hashes(pub Vec<Hash>);

impl From<Hashes> for Base64 {
    fn from(hashes: Hashes) -> Base64 {
        Base64(hashes.0.concat())
    }
}

impl TryFrom<Base64> for Hashes {
    type Error = &'static str;

    fn try_from(bytes: Base64) -> Result<Hashes, &'static str> {
        let (hashes, rest) = bytes.0.as_chunks::<32>();
        if rest.is_empty() { Ok(Hashes(hashes.to_vec())) } else { Err("hashes have 32 bytes each") }
    }
}

/// A record that the head covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvenRecord {
    /// The record's leaf number: 0 for the initial state, n for step n.
    pub index: u64,
    /// The record's canonical bytes.
    pub record: Base64,
    /// The inclusion proof of RFC 6962, section 2.1.1, in the head's tree.
    pub proof: Vec<Digest>,
}

impl ProvenRecord {
    /// The record, after checking that `head` covers it.
    ///
    /// # Errors
    /// If the head does not cover the record, or the bytes are no record.
    #[doc(hidden)] // for the layers above
    pub fn under(&self, head: &Head) -> Result<Record, Malformed> {
        let leaf = merkle::leaf(&self.record.0);
        if merkle::root_from_proof(leaf, self.index, head.size, &self.proof)? != head.root {
            return Err(Malformed::invalid("record", "the head does not cover the record"));
        }
        Record::decode(&self.record.0)
    }
}
