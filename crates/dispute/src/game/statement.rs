//! A party's signed statement about the operators of a step.

use serde::{Deserialize, Serialize};

use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::proven::Base64;

/// A party's statement about a step, signed once: the root over the step's operators. Two different statements of one key about
/// one record convict the party.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// The computation.
    pub computation: Digest,
    /// The step, from 1.
    pub step: u32,
    /// The Merkle leaf of the step's record.
    pub record: Digest,
    /// The root over the step's operators.
    pub trace: Digest,
    /// The Ed25519 signature of the domain `tiebreak 2 statement` and the fields, one on each line.
    pub signature: Base64,
}

impl Statement {
    /// A signed statement.
    #[doc(hidden)] // for the layers above
    pub fn new(computation: Digest, step: u32, record: Digest, trace: Digest, key: &PrivateKey) -> Statement {
        let mut statement = Statement { computation, step, record, trace, signature: Base64(Vec::new()) };
        statement.signature = Base64(key.sign(&statement.signed()).to_vec());
        statement
    }

    /// The signed bytes: a domain and the fields.
    fn signed(&self) -> Vec<u8> {
        let Statement { computation, step, record, trace, .. } = self;
        format!("tiebreak 2 statement\n{computation}\n{step}\n{record}\n{trace}\n").into_bytes()
    }

    /// True if the statement has another root than `other` about the same record.
    pub(crate) fn contradicts(&self, other: &Statement) -> bool {
        let about = |s: &Statement| (s.computation, s.step, s.record);
        about(self) == about(other) && self.trace != other.trace
    }

    /// True if `key` signed the statement.
    #[doc(hidden)] // for the layers above
    pub fn is_of(&self, key: &PublicKey) -> bool {
        let signature = self.signature.0.as_slice().try_into();
        signature.is_ok_and(|signature| key.verifies(&self.signed(), signature))
    }
}
