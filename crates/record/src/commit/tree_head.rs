//! Heads: C2SP tlog-checkpoints (origin, size, root) in C2SP signed notes, so that existing witnesses can cosign.

use super::digest::Digest;
use super::keys::{PrivateKey, PublicKey};
use super::named_head::{self, NamedHead};
use super::{Malformed, beginning};

/// The most bytes of a note.
pub const NOTE_MAX: usize = named_head::NOTE_MAX;

/// A transcript's size and root.
///
/// ```
/// use tiebreak_record::commit::digest::Digest;
/// use tiebreak_record::commit::keys::PrivateKey;
/// use tiebreak_record::commit::tree_head::{Head, Signed};
///
/// let key = PrivateKey::generate("trainer.example", [7; 32])?;
/// let head = Head { run: Digest([1; 32]), size: 42, root: Digest([2; 32]) };
/// let note = head.to_note(Some(&key));
/// assert_eq!(Head::from_note(&note, Some(&key.public()))?, (head.clone(), Signed::By));
/// // Without a key nobody vouches for who signed.
/// assert_eq!(Head::from_note(&note, None)?, (head, Signed::Unknown));
/// let forged = note.replace("\n42\n", "\n43\n");
/// assert!(Head::from_note(&forged, Some(&key.public())).is_err());
/// # Ok::<(), tiebreak_record::commit::Malformed>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The run id, part of the note's origin line.
    pub run: Digest,
    /// Records that the head covers.
    pub size: u64,
    /// The Merkle root over the records' leaves.
    pub root: Digest,
}

/// The result of looking for a trainer's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signed {
    /// The given key signed the note.
    By,
    /// No key was given to check against, or the note is unsigned.
    Unknown,
}

impl Head {
    /// The head for people: size, run and root.
    #[doc(hidden)] // for the layers above
    pub fn in_short(&self) -> String {
        format!("over {} records of run {} with root {}", self.size, self.run.short(), self.root.short())
    }

    fn named(&self) -> NamedHead {
        NamedHead { origin: format!("tiebreak/run/{}", self.run), size: self.size, root: self.root }
    }

    /// The note, signed if there is a key.
    pub fn to_note(&self, key: Option<&PrivateKey>) -> String {
        self.named().to_note(key)
    }

    /// Parses a note strictly and checks the signature if a key is given. Signatures of others (witnesses) may stand
    /// beside the trainer's.
    ///
    /// # Errors
    /// If the note is too long or has another form, or `key` did not sign it.
    pub fn from_note(note: &str, key: Option<&PublicKey>) -> Result<(Head, Signed), Malformed> {
        let (head, signed) = NamedHead::from_note(note, key, "trainer")?;
        let run = head.origin.strip_prefix("tiebreak/run/").ok_or_else(|| {
            let found = beginning(&head.origin);
            Malformed::invalid(
                "head",
                format!("the origin is {found:?}; tiebreak/run/ and a run id are wanted"),
            )
        })?;
        let signed = if signed { Signed::By } else { Signed::Unknown };
        Ok((Head { run: run.parse()?, size: head.size, root: head.root }, signed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_round_trips_and_every_changed_byte_is_seen() {
        let key = PrivateKey::generate("trainer.example", [7; 32]).unwrap();
        let key = PrivateKey::from_text(&key.to_text()).unwrap();
        let public = PublicKey::from_text(&key.public().to_text()).unwrap();
        let head = Head { run: Digest([1; 32]), size: 42, root: Digest([2; 32]) };
        let note = head.to_note(Some(&key));
        assert_eq!(Head::from_note(&note, Some(&public)), Ok((head.clone(), Signed::By)));
        assert_eq!(Head::from_note(&note, None), Ok((head.clone(), Signed::Unknown)));
        assert!(Head::from_note(&head.to_note(None), Some(&public)).is_err());
        assert!(Head::from_note(&head.to_note(None), None).is_ok());
        // A note that is cut anywhere, or has other line ends, is no note.
        for cut in 0..note.len() {
            if let Some(part) = note.get(..cut) {
                assert!(Head::from_note(part, Some(&public)).is_err(), "{cut} bytes of the note");
            }
        }
        assert!(Head::from_note(&note.replace('\n', "\r\n"), None).is_err());
        assert!(Head::from_note(&format!("{note}\n"), None).is_err());
        for i in 0..note.len() {
            let mut bytes = note.clone().into_bytes();
            bytes[i] ^= 1;
            if let Ok(changed) = String::from_utf8(bytes) {
                assert!(Head::from_note(&changed, Some(&public)).is_err(), "byte {i} of the note");
            }
        }
        let other = PrivateKey::generate("trainer.example", [8; 32]).unwrap().public();
        assert!(Head::from_note(&note, Some(&other)).is_err());
    }
}
