//! Signed files of JSON in one encoding. Their last two fields are the key of a signer, and the signature over the file without that
//! field.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use serde::Serialize;

use super::keys::{PrivateKey, PublicKey};
use super::{Malformed, beginning, other_encoding};

/// The fields of a signed file, in their order.
pub(super) trait SignedFile: Serialize + Sized {
    /// The file's kind, for errors.
    const WHAT: &'static str;
    /// The prefix of the bytes that are signed, which separates them from all other texts that a key signs.
    const DOMAIN: &'static [u8];

    /// The last two fields: the signer's key, and the signature.
    fn by(&mut self) -> [&mut Option<String>; 2];

    /// The file's one encoding.
    ///
    /// # Panics
    /// Never: a file has no maps with keys that are no text.
    fn text(&self) -> String {
        serde_json::to_string(self).expect("a file has no maps with keys that are no text") + "\n"
    }

    /// The bytes that a signer signs.
    fn signed(&mut self) -> Vec<u8> {
        let signature = self.by()[1].take();
        let bytes = [Self::DOMAIN, self.text().as_bytes()].concat();
        *self.by()[1] = signature;
        bytes
    }

    /// The text of fields that nobody signed, signed if there is a key.
    fn signed_text(mut self, key: Option<&PrivateKey>) -> String {
        if let Some(key) = key {
            *self.by()[0] = Some(key.public().to_text());
            let signature = key.sign(&self.signed());
            *self.by()[1] = Some(STANDARD.encode(signature));
        }
        self.text()
    }

    /// The signer of a text with these fields; `None` if nobody signed it.
    ///
    /// # Errors
    /// If the text is another than the one encoding, or the last two fields do not hold together.
    fn signer_of(mut self, text: &str) -> Result<Option<PublicKey>, Malformed> {
        let [key, signature] = self.by();
        let (key, bytes) = (key.clone(), bytes(Self::WHAT, signature.as_deref())?);
        *signature = bytes.map(|bytes| STANDARD.encode(bytes));
        let right = self.text();
        if right != text {
            return Err(Malformed::invalid(Self::WHAT, other_encoding(text.as_bytes(), right.as_bytes())));
        }
        signer(Self::WHAT, key.as_deref(), bytes, || self.signed())
    }
}

/// The bytes of a signature's text.
///
/// # Errors
/// If it is not the base64 of 64 bytes. `what` names the file's kind.
fn bytes(what: &'static str, text: Option<&str>) -> Result<Option<[u8; 64]>, Malformed> {
    let Some(text) = text else { return Ok(None) };
    let bytes = STANDARD.decode(text).ok().and_then(|bytes| <[u8; 64]>::try_from(bytes).ok());
    bytes.map(Some).ok_or_else(|| {
        let found = beginning(text);
        Malformed::invalid(
            what,
            format!("its signature begins with {found:?}; the base64 of 64 bytes is wanted"),
        )
    })
}

/// The signer of a file, whose signature has to be over these bytes; `None` if nobody signed it.
///
/// # Errors
/// If only one of the two fields is there, the key is malformed, or the signature is not over the bytes.
fn signer(
    what: &'static str,
    signer: Option<&str>,
    signature: Option<[u8; 64]>,
    signed: impl FnOnce() -> Vec<u8>,
) -> Result<Option<PublicKey>, Malformed> {
    let wrong = |why: String| Malformed::invalid(what, why);
    match (signer, signature) {
        (None, None) => Ok(None),
        (Some(key), Some(signature)) => {
            let public = PublicKey::from_text(key)?;
            if public.to_text() != key {
                let found = beginning(key);
                return Err(wrong(format!(
                    "its signer begins with {found:?}, another encoding than a key has"
                )));
            }
            if !public.verifies(&signed(), &signature) {
                let by = public.identified();
                return Err(wrong(format!("the signature of {by} is not over this text")));
            }
            Ok(Some(public))
        }
        (Some(_), None) => Err(wrong("it names a signer, and carries no signature".into())),
        (None, Some(_)) => Err(wrong("it carries a signature, and names no signer".into())),
    }
}
