//! The origin of a draw's seed, and of a promised run's: a public beacon, or nonces to which both sides committed before. Rule:
//! docs/MONITORING-FORMAT.md, "Draws".

use serde::{Deserialize, Serialize};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::codec::Encoder;
use tiebreak_record::commit::digest::{Digest, hash};

use crate::beacon::{self, Chain, Unverified, Verified};

/// The most bytes of a beacon's value, and of the text that names its round.
pub const BEACON_MAX: usize = 256;

/// A nonce and the commitment that its owner published before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revealed {
    /// [`commitment`] of the nonce.
    pub commitment: Digest,
    /// 32 random bytes.
    pub nonce: Digest,
}

/// The origin of a draw's seed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Randomness {
    /// A public beacon.
    Beacon {
        /// The beacon and its round, which both sides agreed on before the round.
        round: String,
        /// The round's value, in hexadecimal digits.
        value: String,
    },
    /// Nonces of both sides.
    Revealed {
        /// The inspector's.
        inspector: Revealed,
        /// The operator's.
        operator: Revealed,
    },
}

fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid("draw", why)
}

/// The commitment to a nonce, which its owner publishes before the logs are closed.
pub fn commitment(nonce: &Digest) -> Digest {
    hash("tiebreak 2 draw-commitment", &nonce.0)
}

impl Randomness {
    /// Checks the signature of a round of drand. `None` if the value comes from elsewhere.
    ///
    /// # Errors
    /// If the round's network is none of `chains`, or the value is not its signature.
    pub fn signed(&self, chains: &[Chain]) -> Result<Option<Verified>, Unverified> {
        match self {
            Randomness::Beacon { round, value } => beacon::verify(round, value, chains),
            Randomness::Revealed { .. } => Ok(None),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Malformed> {
        match self {
            Randomness::Beacon { round, value } => {
                let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
                let bytes = value.len() / 2;
                if !(16..=BEACON_MAX).contains(&bytes) || value.len() % 2 == 1 || !value.bytes().all(is_hex) {
                    let why = "a beacon's value has 16 to 256 bytes, in lower-case hexadecimal digits";
                    return Err(wrong(why));
                }
                if round.is_empty() || round.len() > BEACON_MAX || round.chars().any(char::is_control) {
                    return Err(wrong("the beacon's round is named by 1 to 256 bytes of text"));
                }
                Ok(())
            }
            Randomness::Revealed { inspector, operator } => {
                for (name, side) in [("inspector", inspector), ("operator", operator)] {
                    if commitment(&side.nonce) != side.commitment {
                        let why = format!(
                            "the {name}'s nonce is not the one of its commitment {}",
                            side.commitment
                        );
                        return Err(wrong(why));
                    }
                }
                if inspector.nonce == operator.nonce {
                    return Err(wrong(
                        "both sides have one nonce, so one of them copied the other's commitment",
                    ));
                }
                Ok(())
            }
        }
    }

    /// The seed: H("tiebreak 2 draw-seed", the value or the nonces). The round's text is left out, since texts of one round differ.
    pub(crate) fn seed(&self) -> Digest {
        let mut e = Encoder::default();
        match self {
            Randomness::Beacon { value, .. } => e.u8(0).bytes(value.as_bytes()),
            Randomness::Revealed { inspector, operator } => {
                e.u8(1).digest(&inspector.nonce).digest(&operator.nonce)
            }
        };
        hash("tiebreak 2 draw-seed", &e.0)
    }

    pub(crate) fn encode(&self, e: &mut Encoder) {
        match self {
            Randomness::Beacon { round, value } => {
                e.u8(0).bytes(round.as_bytes()).bytes(value.as_bytes());
            }
            Randomness::Revealed { inspector, operator } => {
                e.u8(1).digest(&inspector.nonce).digest(&operator.nonce);
            }
        }
    }
}
