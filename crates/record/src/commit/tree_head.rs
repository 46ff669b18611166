//! Heads: C2SP tlog-checkpoints (origin, size, root) in C2SP signed notes, so that existing witnesses can cosign.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::digest::Digest;
use super::keys::{PrivateKey, PublicKey};
use super::{Malformed, beginning};

/// The most bytes of a note.
pub const NOTE_MAX: usize = 16 * 1024;

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

/// The name and the bytes of a signature's line.
fn signature_line(line: &str) -> Result<(&str, Vec<u8>), Malformed> {
    let parts = line.strip_prefix("\u{2014} ").and_then(|rest| rest.split_once(' '));
    let (name, blob) = parts.ok_or_else(|| {
        wrong(format!("a signature's line is {:?}; a dash, a name and base64 are wanted", beginning(line)))
    })?;
    let blob = STANDARD.decode(blob).map_err(|error| wrong(format!("a signature is not base64: {error}")))?;
    Ok((name, blob))
}

/// The error for a head.
fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid("head", why)
}

impl Head {
    /// The head for people: size, run and root.
    pub fn in_short(&self) -> String {
        format!("over {} records of run {} with root {}", self.size, self.run.short(), self.root.short())
    }

    /// The note's text: origin line, size, base64 root.
    fn text(&self) -> String {
        format!("tiebreak/run/{}\n{}\n{}\n", self.run, self.size, STANDARD.encode(self.root.0))
    }

    /// The note, signed if there is a key.
    pub fn to_note(&self, key: Option<&PrivateKey>) -> String {
        let text = self.text();
        let Some(key) = key else { return format!("{text}\n") };
        let public = key.public();
        let blob = [&public.hash()[..], &key.sign(text.as_bytes())].concat();
        format!("{text}\n\u{2014} {} {}\n", public.name(), STANDARD.encode(blob))
    }

    /// Parses a note strictly and checks the signature if a key is given. Signatures of others (witnesses) may stand
    /// beside the trainer's.
    ///
    /// # Errors
    /// If the note is too long or has another form, or `key` did not sign it.
    pub fn from_note(note: &str, key: Option<&PublicKey>) -> Result<(Head, Signed), Malformed> {
        if note.len() > NOTE_MAX {
            return Err(Malformed::TooLarge { what: "head", limit: NOTE_MAX as u64 });
        }
        let (text, signatures) = note.split_once("\n\n").ok_or_else(|| wrong("there is no blank line"))?;
        let text = format!("{text}\n");
        let [origin, size, root] = text.lines().collect::<Vec<_>>()[..] else {
            let count = text.lines().count();
            return Err(wrong(format!("it has {count} lines; three are wanted: origin, size, root")));
        };
        let run = origin.strip_prefix("tiebreak/run/").ok_or_else(|| {
            wrong(format!("the origin is {:?}; tiebreak/run/ and a run id are wanted", beginning(origin)))
        })?;
        let root: [u8; 32] =
            STANDARD.decode(root).ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
                wrong(format!("the root is {:?}; 32 bytes as base64 are wanted", beginning(root)))
            })?;
        let size = size
            .parse()
            .map_err(|_| wrong(format!("the size is {:?}; a whole number is wanted", beginning(size))))?;
        let head = Head { run: run.parse()?, size, root: Digest(root) };
        let right = head.text();
        if right != text {
            let same = right.bytes().zip(text.bytes()).take_while(|(right, found)| right == found).count();
            return Err(wrong(format!("it differs from its one encoding at byte {same}, counted from 0")));
        }
        let mut signed = Signed::Unknown;
        let lines = match signatures {
            "" => Vec::new(),
            some => some
                .strip_suffix('\n')
                .ok_or_else(|| wrong("the last line has no end"))?
                .split('\n')
                .collect(),
        };
        for line in lines {
            let (name, blob) = signature_line(line)?;
            let Some(key) = key else { continue };
            let Some((hash, signature)) = blob.split_at_checked(4) else {
                return Err(wrong(format!(
                    "a signature has {} bytes; the key's hash alone has 4",
                    blob.len()
                )));
            };
            if name != key.name() || hash != key.hash() {
                continue;
            }
            let signature = signature.try_into().map_err(|_| {
                wrong(format!("an Ed25519 signature has 64 bytes, this one has {}", signature.len()))
            })?;
            if !key.verifies(text.as_bytes(), signature) {
                return Err(wrong(format!("the trainer's signature does not verify by {}", key.to_text())));
            }
            signed = Signed::By;
        }
        if let (Some(key), Signed::Unknown) = (key, signed) {
            return Err(wrong(format!("it is not signed by the trainer's key, {}", key.to_text())));
        }
        Ok((head, signed))
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
