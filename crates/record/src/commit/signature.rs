//! The last two fields of a signed file of JSON: the key of a signer, and their signature over the file without that field.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::keys::PublicKey;
use super::{Malformed, beginning};

/// The text of a signature.
pub(super) fn text(signature: [u8; 64]) -> String {
    STANDARD.encode(signature)
}

/// The bytes of a signature's text.
///
/// # Errors
/// If it is not the base64 of 64 bytes. `what` names the file's kind.
pub(super) fn bytes(what: &'static str, text: Option<&str>) -> Result<Option<[u8; 64]>, Malformed> {
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
pub(super) fn signer(
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
