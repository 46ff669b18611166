//! Salts of a run whose commitments hide (`commit.scheme` 1): the secret key, the salts that it gives, and salted digests.
//!
//! A salt is a keyed BLAKE3 hash of a place. So one salt can be told without another, and nobody who lacks the key can test a
//! guess of what a digest is of. Layout: `docs/RUN-FORMAT.md`.

use std::fmt;

use super::Malformed;
use super::codec::Encoder;
use super::digest::{Digest, hash};
use super::tensor::Hash;

/// The beginning of a key file's line.
const MARK: &str = "SALT+KEY+";

/// The kinds of places that salts belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tensor of a state: step, and the tensor's index in the state's table.
    State,
    /// A tensor of a batch: step, and the index of its leaf.
    Batch,
    /// The gradients of a micro-batch: step, and micro-batch.
    Gradients,
    /// A step's loss: step, and 0.
    Loss,
    /// A step's clip factor: step, and 0.
    Clip,
    /// A slice of a data file: number of the file, and of the slice.
    Slice,
    /// The length of a data file: number of the file, and 0.
    Length,
    /// The seed: 0 and 0.
    Seed,
}

impl Kind {
    /// The name that a salt's input begins with.
    fn name(self) -> &'static str {
        match self {
            Kind::State => "state",
            Kind::Batch => "batch",
            Kind::Gradients => "gradients",
            Kind::Loss => "loss",
            Kind::Clip => "clip",
            Kind::Slice => "slice",
            Kind::Length => "length",
            Kind::Seed => "seed",
        }
    }
}

/// The secret from which all salts of one run follow.
#[derive(Clone, PartialEq, Eq)]
pub struct SaltKey([u8; 32]);

impl fmt::Debug for SaltKey {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "SaltKey of {}", self.commitment().short())
    }
}

impl SaltKey {
    /// A key from 32 bytes of the system's randomness.
    ///
    /// ```
    /// use tiebreak_record::commit::digest::Digest;
    /// use tiebreak_record::commit::salts::{Kind, SaltKey, salted};
    ///
    /// let key = SaltKey::new([7; 32]); // take the system's randomness
    /// assert_eq!(SaltKey::from_text(&key.to_text())?, key);
    /// let plain = Digest([1; 32]);
    /// let leaf = key.salted(Kind::Slice, 0, 4, &plain);
    /// // Whoever is told the salt checks the leaf, and learns no other salt.
    /// assert_eq!(salted(&key.salt(Kind::Slice, 0, 4), &plain), leaf);
    /// assert_ne!(key.salted(Kind::Slice, 0, 5, &plain), leaf);
    /// # Ok::<(), tiebreak_record::commit::Malformed>(())
    /// ```
    pub fn new(random: [u8; 32]) -> SaltKey {
        SaltKey(random)
    }

    /// The line of a key file, without a line end.
    pub fn to_text(&self) -> String {
        format!("{MARK}{}", Digest(self.0))
    }

    /// Parses the form of [`SaltKey::to_text`]; white space at the end is ignored.
    ///
    /// # Errors
    /// If the text has another form. The error quotes nothing of it.
    pub fn from_text(text: &str) -> Result<SaltKey, Malformed> {
        let digits = text.trim_end().strip_prefix(MARK);
        let digits = digits.ok_or_else(|| {
            let found = text.len();
            Malformed::invalid(
                "salt key",
                format!("the form is {MARK} and 64 hexadecimal digits; it has {found} bytes of another form"),
            )
        })?;
        let key = digits.parse::<Digest>().map_err(|_| {
            let found = digits.len();
            Malformed::invalid(
                "salt key",
                format!(
                    "it has {found} characters behind {MARK}; 64 lower-case hexadecimal digits are wanted"
                ),
            )
        })?;
        Ok(SaltKey(key.0))
    }

    /// The digest of the key, which a run publishes: an auditor who gets the key knows by it that the key is the run's.
    #[doc(hidden)] // for the layers above
    pub fn commitment(&self) -> Digest {
        hash("tiebreak 2 salt-key", &self.0)
    }

    /// The salt of a place.
    #[doc(hidden)] // for the layers above
    pub fn salt(&self, kind: Kind, first: u64, second: u64) -> Hash {
        let mut e = Encoder::default();
        e.bytes(kind.name().as_bytes()).u64(first).u64(second);
        *blake3::keyed_hash(&self.0, &e.0).as_bytes()
    }

    /// The salted form of a digest at a place.
    #[doc(hidden)] // for the layers above
    pub fn salted(&self, kind: Kind, first: u64, second: u64, plain: &Digest) -> Digest {
        salted(&self.salt(kind, first, second), plain)
    }

    /// The salted forms of digests at the places (`first`, 0), (`first`, 1), and so on.
    #[doc(hidden)] // for the layers above
    pub fn each(&self, kind: Kind, first: u64, plain: &[Digest]) -> Vec<Digest> {
        (0..).zip(plain).map(|(second, plain)| self.salted(kind, first, second, plain)).collect()
    }

    /// A scalar of a step, hidden; and a hidden one as it was.
    #[doc(hidden)] // for the layers above
    pub fn masked(&self, kind: Kind, step: u32, word: u32) -> u32 {
        let [a, b, c, d, ..] = self.salt(kind, u64::from(step), 0);
        word ^ u32::from_le_bytes([a, b, c, d])
    }
}

/// The salted form of a digest: H(salt, digest).
pub fn salted(salt: &Hash, plain: &Digest) -> Digest {
    hash("tiebreak 2 salted", &[*salt, plain.0].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden salts, made from the page's text by a script in another language (assets/vectors/salts.py).
    #[test]
    fn salts_are_the_golden_ones() {
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../../../../assets/vectors/salts.json")).unwrap();
        let key = SaltKey::from_text(golden["key"].as_str().unwrap()).unwrap();
        assert_eq!(key.commitment().to_string(), golden["commitment"]);
        let kinds = [
            Kind::State,
            Kind::Batch,
            Kind::Gradients,
            Kind::Loss,
            Kind::Clip,
            Kind::Slice,
            Kind::Length,
            Kind::Seed,
        ];
        let cases = golden["salts"].as_array().unwrap();
        assert!(kinds.iter().all(|kind| cases.iter().any(|case| case["kind"] == kind.name())));
        for case in cases {
            let kind = kinds.into_iter().find(|kind| case["kind"] == kind.name()).unwrap();
            let [first, second] = ["first", "second"].map(|name| case[name].as_u64().unwrap());
            assert_eq!(Digest(key.salt(kind, first, second)).to_string(), case["salt"], "{case}");
            let plain = case["plain"].as_str().unwrap().parse::<Digest>().unwrap();
            assert_eq!(key.salted(kind, first, second, &plain).to_string(), case["salted"], "{case}");
        }
        let number = |name: &str| golden["scalars"][name].as_u64().unwrap() as u32;
        for (kind, name) in [(Kind::Loss, "loss"), (Kind::Clip, "clip")] {
            let hidden = key.masked(kind, number("step"), number(name));
            assert_eq!(hidden, number(&format!("{name}_hidden")));
            assert_eq!(key.masked(kind, number("step"), hidden), number(name));
        }
    }

    #[test]
    fn errors_quote_no_key() {
        let key = SaltKey::new([0xab; 32]);
        let text = key.to_text();
        for wrong in [
            text.replace("SALT", "salt"),
            text[..text.len() - 1].into(),
            text.clone() + "0",
            text.to_uppercase(),
        ] {
            let error = SaltKey::from_text(&wrong).unwrap_err().to_string();
            assert!(!error.to_lowercase().contains("abab"), "{error}");
        }
        assert!(!format!("{key:?}").contains("abab"));
    }
}
