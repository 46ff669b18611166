//! DSSE 1.0.2 envelopes with one Ed25519 signature. Source: github.com/secure-systems-lab/dsse, protocol.md and envelope.md.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};

/// The most bytes of an envelope.
pub const ENVELOPE_MAX: usize = 1 << 26;
const WHAT: &str = "DSSE envelope";

/// The bytes that are signed: PAE("DSSEv1", type, body).
///
/// ```
/// // The example of DSSE's protocol.md.
/// let bytes = tiebreak_monitor::statement::dsse::pae("http://example.com/HelloWorld", b"hello world");
/// assert_eq!(bytes, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
/// ```
pub fn pae(payload_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), body.len());
    [head.as_bytes(), body].concat()
}

/// A signature of an envelope. Unknown fields are ignored, as the standard wants.
#[derive(Serialize, Deserialize)]
struct Signature {
    #[serde(default)]
    keyid: String,
    sig: String,
}

/// An envelope, as JSON has it.
#[derive(Serialize, Deserialize)]
struct Envelope {
    payload: String,
    #[serde(rename = "payloadType")]
    payload_type: String,
    signatures: Vec<Signature>,
}

/// Signs a payload. The text is JSON with a line end; the key is named by its fingerprint.
pub fn sign(payload_type: &str, body: &[u8], key: &PrivateKey) -> String {
    let sig = STANDARD.encode(key.sign(&pae(payload_type, body)));
    let envelope = Envelope {
        payload: STANDARD.encode(body),
        payload_type: payload_type.into(),
        signatures: vec![Signature { keyid: key.public().fingerprint(), sig }],
    };
    let text = serde_json::to_string_pretty(&envelope).expect("an envelope has no maps");
    format!("{text}\n")
}

/// The payload of an envelope that `key` signed. Signatures of others may stand beside that of the key, whose hint says nothing.
///
/// # Errors
/// If the text is no envelope, its payload is of another type, or the key did not sign it.
pub fn open(text: &str, payload_type: &str, key: &PublicKey) -> Result<Vec<u8>, Malformed> {
    if text.len() > ENVELOPE_MAX {
        return Err(Malformed::TooLarge { what: WHAT, limit: ENVELOPE_MAX as u64 });
    }
    let wrong = |why: String| Malformed::invalid(WHAT, why);
    let envelope: Envelope = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if envelope.payload_type != payload_type {
        return Err(wrong(format!(
            "its payload is of type {:?}, and {payload_type:?} is expected",
            envelope.payload_type
        )));
    }
    let body = STANDARD.decode(&envelope.payload).map_err(|error| wrong(format!("payload: {error}")))?;
    let message = pae(payload_type, &body);
    let is_signed = |signature: &Signature| {
        let bytes = STANDARD.decode(&signature.sig).ok();
        let bytes: Option<[u8; 64]> = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.is_some_and(|bytes| key.verifies(&message, &bytes))
    };
    match envelope.signatures.iter().any(is_signed) {
        true => Ok(body),
        false => Err(wrong(format!("it carries no signature of {} over this payload", key.identified()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_opens_with_its_key_and_every_changed_byte_of_what_is_signed_is_seen() {
        let [key, other] = [1, 2].map(|byte| PrivateKey::generate("a", [byte; 32]).unwrap());
        let (kind, body) = ("application/vnd.in-toto+json", b"{\"a\": 1}");
        let text = sign(kind, body, &key);
        assert_eq!(open(&text, kind, &key.public()).unwrap(), body);
        assert!(open(&text, kind, &other.public()).is_err());
        // A signature of one type is none of another: CVE-2022-35929.
        assert!(open(&text, "application/json", &key.public()).is_err());
        let retyped = text.replace("in-toto+json", "in-tutu+json");
        assert!(open(&retyped, "application/vnd.in-tutu+json", &key.public()).is_err());
        for (from, to) in [("payload\": \"e", "payload\": \"f"), ("sig\": \"", "sig\": \"A")] {
            assert!(text.contains(from), "{text}");
            assert!(open(&text.replacen(from, to, 1), kind, &key.public()).is_err(), "{from}");
        }
        for text in [
            "",
            "{}",
            "[]",
            "{\"payload\": \"\", \"payloadType\": \"application/vnd.in-toto+json\", \"signatures\": []}",
        ] {
            assert!(open(text, kind, &key.public()).is_err(), "{text}");
        }
    }
}
