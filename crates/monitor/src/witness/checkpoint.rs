//! Checkpoints of any log, as C2SP tlog-checkpoint has them in signed notes: origin, size, root, and signature lines.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::named_head::signature_line;
use tiebreak_record::commit::tree_head::NOTE_MAX;
use tiebreak_record::commit::{Malformed, beginning};

const WHAT: &str = "checkpoint";

/// A checkpoint as it was read. Its signatures are not verified; [`Checkpoint::is_signed_by`] does that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The whole note.
    pub note: String,
    /// The log's name, the first line.
    pub origin: String,
    /// The number of leaves.
    pub size: u64,
    /// The root over them.
    pub root: Digest,
}

fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid(WHAT, why)
}

/// A decimal number without leading zeros.
pub(super) fn decimal(text: &str) -> Option<u64> {
    text.parse::<u64>().ok().filter(|number| number.to_string() == text)
}

/// The 32 bytes of a hash in its one base64 text.
pub(super) fn hash(text: &str) -> Option<Digest> {
    let bytes: [u8; 32] = STANDARD.decode(text).ok()?.try_into().ok()?;
    (STANDARD.encode(bytes) == text).then_some(Digest(bytes))
}

impl Checkpoint {
    /// Reads a note that holds a checkpoint.
    ///
    /// # Errors
    /// If the note is longer than [`NOTE_MAX`], has another form, or has no signature line.
    pub fn read(note: &str) -> Result<Checkpoint, Malformed> {
        if note.len() > NOTE_MAX {
            return Err(Malformed::TooLarge { what: WHAT, limit: NOTE_MAX as u64 });
        }
        if note.chars().any(|c| c.is_control() && c != '\n') {
            return Err(wrong("it has control characters"));
        }
        // The text is everything before the last blank line (signed-note); a checkpoint has no blank line of its own.
        let (text, signatures) = note.rsplit_once("\n\n").ok_or_else(|| wrong("there is no blank line"))?;
        let mut lines = text.split('\n');
        let (Some(origin), Some(size), Some(root)) = (lines.next(), lines.next(), lines.next()) else {
            return Err(wrong("three lines are wanted: origin, size, root"));
        };
        if origin.is_empty() || lines.any(str::is_empty) {
            return Err(wrong("its origin or an extension line is empty"));
        }
        let size = decimal(size)
            .ok_or_else(|| wrong(format!("the size is {:?}; a decimal number is wanted", beginning(size))))?;
        let root = hash(root).ok_or_else(|| {
            wrong(format!("the root is {:?}; 32 bytes of base64 are wanted", beginning(root)))
        })?;
        let checkpoint = Checkpoint { note: note.to_string(), origin: origin.to_string(), size, root };
        let lines = signatures.strip_suffix('\n').ok_or_else(|| wrong("the last line has no line end"))?;
        if let Some(line) = lines.split('\n').position(|line| signature(line).is_none()) {
            return Err(wrong(format!("signature line {} is malformed", line + 1)));
        }
        Ok(checkpoint)
    }

    /// The text that signatures are over: all lines before the blank one.
    fn text(&self) -> &str {
        let end = self.note.rfind("\n\n").map_or(0, |blank| blank + 1);
        &self.note[..end]
    }

    /// True if a signature line of the key verifies. Lines of other keys, also of the same name, are passed over.
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        let lines = self.note[self.text().len()..].lines().filter_map(signature);
        let mut own = lines.filter(|(name, _)| *name == key.name());
        own.any(|(_, blob)| key.verifies_note(self.text(), &blob))
    }
}

/// The name and the bytes of a signature line.
fn signature(line: &str) -> Option<(&str, Vec<u8>)> {
    signature_line(line).ok().filter(|(name, blob)| !name.is_empty() && !name.contains('+') && blob.len() > 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_record::commit::keys::PrivateKey;
    use tiebreak_record::commit::tree_head::Head;

    /// The example of C2SP signed-note, verified there by its authors' code.
    const EXAMPLE_KEY: &str = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k";

    #[test]
    fn heads_of_runs_are_checkpoints() {
        let key = PrivateKey::generate("trainer.example", [7; 32]).unwrap();
        let head = Head { run: Digest([1; 32]), size: 42, root: Digest([2; 32]) };
        let checkpoint = Checkpoint::read(&head.to_note(Some(&key))).unwrap();
        assert_eq!((checkpoint.size, checkpoint.root), (42, Digest([2; 32])));
        assert_eq!(checkpoint.origin, format!("tiebreak/run/{}", Digest([1; 32])));
        assert!(checkpoint.is_signed_by(&key.public()));
        assert!(!checkpoint.is_signed_by(&PublicKey::from_text(EXAMPLE_KEY).unwrap()));
        // Another key of the same name.
        let other = PrivateKey::generate("trainer.example", [8; 32]).unwrap();
        assert!(!checkpoint.is_signed_by(&other.public()));
    }

    #[test]
    fn other_forms_are_refused() {
        let root = STANDARD.encode([2; 32]);
        let line = format!("\u{2014} log {}\n", STANDARD.encode([0; 68]));
        let good = format!("log\n42\n{root}\n\n{line}");
        assert!(Checkpoint::read(&good).is_ok());
        assert!(Checkpoint::read(&format!("log\n42\n{root}\nextension\n\n{line}{line}")).is_ok());
        let bad = [
            String::new(),
            "\n\n".into(),
            format!("log\n42\n{root}\n{line}"),
            format!("\n42\n{root}\n\n{line}"),
            format!("log\n042\n{root}\n\n{line}"),
            format!("log\n-1\n{root}\n\n{line}"),
            format!("log\n99999999999999999999\n{root}\n\n{line}"),
            format!("log\n42\n{}\n\n{line}", &root[1..]),
            format!("log\n42\n{root}\n\n"),
            format!("log\n42\n{root}\n\n{}", line.trim_end()),
            format!("log\n42\n{root}\n\n\u{2014} log\n"),
            format!("log\n42\r\n{root}\n\n{line}"),
            format!("{}\n42\n{root}\n\n{line}", "l".repeat(NOTE_MAX)),
        ];
        for note in bad {
            assert!(Checkpoint::read(&note).is_err(), "{note:?}");
        }
    }
}
