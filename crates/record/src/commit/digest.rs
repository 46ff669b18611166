//! 32-byte digests, and hashing with domain separation.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Malformed;

/// A digest, printed as 64 lower-case hexadecimal digits.
///
/// ```
/// use tiebreak_record::commit::digest::Digest;
///
/// let digest = Digest([0xab; 32]);
/// assert_eq!(digest.to_string().parse(), Ok(digest));
/// assert_eq!(digest.short(), "abababab");
/// // One spelling: lower case, 64 digits.
/// assert!("AB".repeat(32).parse::<Digest>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// This digest and the one that is due, for an error: `0123abcd, not 89abcdef`.
    #[doc(hidden)] // for the layers above
    pub fn not(&self, due: &Digest) -> String {
        format!("{}, not {}", self.short(), due.short())
    }

    /// The first eight hexadecimal digits, for people.
    #[doc(hidden)] // for the layers above
    pub fn short(&self) -> String {
        self.to_string()[..8].to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Digest, Malformed> {
        let wrong = || Malformed::invalid("digest", "64 lower-case hexadecimal digits are wanted");
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Digest(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = Malformed;

    fn try_from(text: String) -> Result<Digest, Malformed> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

/// BLAKE3 of `bytes` under a domain, in `derive_key` mode, so digests of different kinds of things never are
/// equal. `context` follows the form "tiebreak 2 run-id".
pub fn hash(context: &'static str, bytes: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    hasher.update(bytes);
    Digest(*hasher.finalize().as_bytes())
}
