//! Heads of any append-only log: C2SP tlog-checkpoints (origin, size, root) in C2SP signed notes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::digest::Digest;
use super::keys::{PrivateKey, PublicKey};
use super::{Malformed, beginning, other_encoding};

/// The most bytes of a note.
pub const NOTE_MAX: usize = 16 * 1024;

/// The head of an append-only log: the log's name, size and root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedHead {
    /// The note's first line, which tells logs apart.
    pub origin: String,
    /// Leaves that the head covers.
    pub size: u64,
    /// The Merkle root over these leaves.
    pub root: Digest,
}

impl NamedHead {
    /// The note's text: origin line, size, base64 root.
    fn text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, STANDARD.encode(self.root.0))
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
    /// beside the signer's. `signer` names the owner of the key in errors. The second result is true if the key signed.
    ///
    /// # Errors
    /// If the note is too long or has another form, or `key` did not sign it.
    pub fn from_note(
        note: &str,
        key: Option<&PublicKey>,
        signer: &str,
    ) -> Result<(NamedHead, bool), Malformed> {
        if note.len() > NOTE_MAX {
            return Err(Malformed::TooLarge { what: "head", limit: NOTE_MAX as u64 });
        }
        let (text, signatures) = note.split_once("\n\n").ok_or_else(|| wrong("there is no blank line"))?;
        let text = format!("{text}\n");
        let [origin, size, root] = text.lines().collect::<Vec<_>>()[..] else {
            let count = text.lines().count();
            return Err(wrong(format!("it has {count} lines; three are wanted: origin, size, root")));
        };
        let root: [u8; 32] =
            STANDARD.decode(root).ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
                wrong(format!("the root is {:?}; 32 bytes as base64 are wanted", beginning(root)))
            })?;
        let size = size
            .parse()
            .map_err(|_| wrong(format!("the size is {:?}; a whole number is wanted", beginning(size))))?;
        let head = NamedHead { origin: origin.to_string(), size, root: Digest(root) };
        let right = head.text();
        if right != text {
            return Err(wrong(other_encoding(text.as_bytes(), right.as_bytes())));
        }
        let signed = signed(&text, signatures, key, signer)?;
        Ok((head, signed))
    }
}

/// The error for a head.
fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid("head", why)
}

/// The name and the bytes of a signature's line.
///
/// # Errors
/// If the line has another form.
pub fn signature_line(line: &str) -> Result<(&str, Vec<u8>), Malformed> {
    let parts = line.strip_prefix("\u{2014} ").and_then(|rest| rest.split_once(' '));
    let (name, blob) = parts.ok_or_else(|| {
        wrong(format!("a signature's line is {:?}; a dash, a name and base64 are wanted", beginning(line)))
    })?;
    let blob = STANDARD.decode(blob).map_err(|error| wrong(format!("a signature is not base64: {error}")))?;
    Ok((name, blob))
}

/// Looks for a key's signature among the lines of a note, and checks it.
fn signed(text: &str, signatures: &str, key: Option<&PublicKey>, signer: &str) -> Result<bool, Malformed> {
    let mut signed = false;
    let lines = match signatures {
        "" => Vec::new(),
        some => {
            some.strip_suffix('\n').ok_or_else(|| wrong("the last line has no end"))?.split('\n').collect()
        }
    };
    for line in lines {
        let (name, blob) = signature_line(line)?;
        let Some(key) = key else { continue };
        let Some((hash, signature)) = blob.split_at_checked(4) else {
            let found = blob.len();
            return Err(wrong(format!("a signature has {found} bytes; the key's hash alone has 4")));
        };
        if name != key.name() || hash != key.hash() {
            continue;
        }
        let signature = signature.try_into().map_err(|_| {
            wrong(format!("an Ed25519 signature has 64 bytes, this one has {}", signature.len()))
        })?;
        if !key.verifies(text.as_bytes(), signature) {
            return Err(wrong(format!("the {signer}'s signature does not verify by {}", key.to_text())));
        }
        signed = true;
    }
    if let (Some(key), false) = (key, signed) {
        return Err(wrong(format!("it is not signed by the {signer}'s key, {}", key.to_text())));
    }
    Ok(signed)
}
