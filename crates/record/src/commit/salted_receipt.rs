//! Salted receipts: a digest of a receipt with 32 random bytes, signed on request, and the opening that whoever holds the text keeps.
//! Layout: `docs/INFERENCE.md`, Salted receipts.

use serde::{Deserialize, Serialize};

use super::digest::{Digest, hash};
use super::keys::{PrivateKey, PublicKey};
use super::predictions::{PREDICTIONS_MAX, Predictions, is_of_predictions};
use super::receipt::Receipt;
use super::salts::salted;
use super::signature::SignedFile;
use super::{Malformed, beginning, other_encoding};

/// The name and version of salted receipts.
const FORMAT: &str = "tiebreak salted receipt 1";
/// The name and version of openings.
const OPENING: &str = "tiebreak receipt opening 1";
/// The most bytes of an opening: those of the longest receipt with its escapes.
pub const OPENING_MAX: u64 = 2 * PREDICTIONS_MAX;
/// The most bytes of a salted receipt.
const SALTED_MAX: u64 = 4096;

/// A receipt of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnyReceipt {
    /// Of an answer.
    Answer(Receipt),
    /// Of predictions.
    Predictions(Predictions),
}

/// The fields of a salted receipt, in their order.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    format: String,
    model: Digest,
    parameters: Digest,
    salted: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
}

impl SignedFile for Fields {
    const WHAT: &'static str = "receipt";
    const DOMAIN: &'static [u8] = b"tiebreak 2 salted receipt\n";

    fn by(&mut self) -> [&mut Option<String>; 2] {
        [&mut self.signer, &mut self.signature]
    }
}

/// The fields of an opening, in their order.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Opening {
    format: String,
    salt: Digest,
    receipt: String,
}

fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid("receipt", why)
}

fn wrong_opening(why: impl Into<String>) -> Malformed {
    Malformed::invalid("opening", why)
}

/// True if the text is a salted receipt, which needs an opening.
pub fn is_salted(text: &str) -> bool {
    text.starts_with("{\"format\":\"tiebreak salted receipt ")
}

/// The digests of model and parameters.
fn model_of(receipt: &AnyReceipt) -> [Digest; 2] {
    match receipt {
        AnyReceipt::Answer(receipt) => [receipt.model, receipt.parameters],
        AnyReceipt::Predictions(receipt) => [receipt.model.model, receipt.model.state[0]],
    }
}

/// The salted digest of a receipt's text.
fn salted_digest(salt: &Digest, text: &str) -> Digest {
    salted(&salt.0, &hash("tiebreak 2 hidden receipt", text.as_bytes()))
}

/// The texts of a salted receipt, signed if there is a key, and of its opening. The salt is 32 bytes of the system's randomness.
pub fn salted_texts(receipt: &AnyReceipt, salt: [u8; 32], key: Option<&PrivateKey>) -> [String; 2] {
    let text = match receipt {
        AnyReceipt::Answer(receipt) => receipt.to_text(None),
        AnyReceipt::Predictions(receipt) => receipt.to_text(None),
    };
    let salt = Digest(salt);
    let [model, parameters] = model_of(receipt);
    let salted = salted_digest(&salt, &text);
    let fields = Fields { format: FORMAT.into(), model, parameters, salted, signer: None, signature: None };
    [fields.signed_text(key), opening_text(&Opening { format: OPENING.into(), salt, receipt: text })]
}

fn opening_text(opening: &Opening) -> String {
    serde_json::to_string(opening).expect("an opening has no maps with keys that are no text") + "\n"
}

/// A receipt without a salt, and its signer.
fn plain(text: &str) -> Result<(AnyReceipt, Option<PublicKey>), Malformed> {
    if is_of_predictions(text) {
        return Predictions::from_text(text).map(|(receipt, key)| (AnyReceipt::Predictions(receipt), key));
    }
    Receipt::from_text(text).map(|(receipt, key)| (AnyReceipt::Answer(receipt), key))
}

/// Reads a receipt of any kind, and checks its signature. A salted one is read by its opening, and no other one has an opening.
/// Without a signature the second value is `None`, and anybody can have written the receipt.
///
/// # Errors
/// If a text is too long, is none of its version in its one encoding, or has a signature that is not over it. Also if an opening is
/// missing, or is not the receipt's.
pub fn read(text: &str, opening: Option<&str>) -> Result<(AnyReceipt, Option<PublicKey>), Malformed> {
    let opening = match (is_salted(text), opening) {
        (false, None) => return plain(text),
        (false, Some(_)) => {
            return Err(wrong("an opening is given to a receipt without a salt: leave it out"));
        }
        (true, None) => {
            return Err(wrong("it is salted, and no opening is given: ask whoever holds the text"));
        }
        (true, Some(opening)) => opening,
    };
    let (fields, signer) = salted_fields(text)?;
    let Opening { salt, receipt, .. } = opening_of(opening)?;
    let found = salted_digest(&salt, &receipt);
    if found != fields.salted {
        let why =
            format!("its salt and its receipt give {found}, and the salted receipt has {}", fields.salted);
        return Err(wrong_opening(why));
    }
    let (receipt, inner) = plain(&receipt)?;
    if let Some(inner) = inner {
        let by = inner.identified();
        return Err(wrong_opening(format!(
            "its receipt is signed by {by}; the salted receipt alone is signed"
        )));
    }
    let names = ["model", "parameters"].into_iter().zip([fields.model, fields.parameters]);
    for ((name, said), found) in names.zip(model_of(&receipt)) {
        if said != found {
            return Err(wrong(format!("its {name} is {said}, and the hidden receipt has {found}")));
        }
    }
    Ok((receipt, signer))
}

/// The fields of a salted receipt, and its signer.
fn salted_fields(text: &str) -> Result<(Fields, Option<PublicKey>), Malformed> {
    if text.len() as u64 > SALTED_MAX {
        return Err(Malformed::TooLarge { what: "salted receipt", limit: SALTED_MAX });
    }
    let fields: Fields = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if fields.format != FORMAT {
        let found = beginning(&fields.format);
        return Err(wrong(format!("its format is {found:?}; {FORMAT:?} is wanted")));
    }
    let signer = fields.clone().signer_of(text)?;
    Ok((fields, signer))
}

fn opening_of(text: &str) -> Result<Opening, Malformed> {
    if text.len() as u64 > OPENING_MAX {
        return Err(Malformed::TooLarge { what: "opening", limit: OPENING_MAX });
    }
    let opening: Opening = serde_json::from_str(text).map_err(|error| wrong_opening(error.to_string()))?;
    if opening.format != OPENING {
        let found = beginning(&opening.format);
        return Err(wrong_opening(format!("its format is {found:?}; {OPENING:?} is wanted")));
    }
    let right = opening_text(&opening);
    if right != text {
        return Err(wrong_opening(other_encoding(text.as_bytes(), right.as_bytes())));
    }
    Ok(opening)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts that a script made from the page alone (`assets/vectors/predictions.py`).
    fn golden(name: &str) -> String {
        let all: serde_json::Value =
            serde_json::from_str(include_str!("../../../../assets/vectors/predictions.json")).unwrap();
        all[name].as_str().unwrap().to_string()
    }

    #[test]
    fn salted_receipts_are_those_of_the_page_and_hide_the_receipt() {
        let [text, opening, hidden] = ["salted", "opening", "receipt"].map(golden);
        let (receipt, signer) = read(&text, Some(&opening)).unwrap();
        assert_eq!(read(&hidden, None), Ok((receipt.clone(), None)));
        let key = PrivateKey::generate("classifier.example", [4; 32]).unwrap();
        assert_eq!(signer, Some(key.public()));
        assert_eq!(salted_texts(&receipt, [9; 32], Some(&key)), [text.clone(), opening]);
        // Another salt gives another digest: no guess of the receipt can be tested without the salt.
        let [other, _] = salted_texts(&receipt, [8; 32], Some(&key));
        assert_ne!(other, text);
        let AnyReceipt::Predictions(said) = receipt else { panic!("it is of predictions") };
        for digest in
            said.samples.iter().flat_map(|sample| [sample.input, sample.logits]).chain([said.root()])
        {
            assert!(!text.contains(&digest.to_string()));
        }
    }

    #[test]
    fn every_change_of_a_salted_receipt_or_its_opening_is_refused() {
        let [text, opening, hidden, signed] = ["salted", "opening", "receipt", "signed"].map(golden);
        for (of, is_text) in [(&text, true), (&opening, false)] {
            for place in (0..of.len()).step_by(3) {
                for other in [of.as_bytes()[place] ^ 1, b' ', b'0', b'9'] {
                    let mut changed = of.clone().into_bytes();
                    if std::mem::replace(&mut changed[place], other) == other {
                        continue;
                    }
                    let Ok(changed) = String::from_utf8(changed) else { continue };
                    let pair = if is_text { [&changed, &opening] } else { [&text, &changed] };
                    assert!(read(pair[0], Some(pair[1])).is_err(), "byte {place}");
                }
            }
            for cut in (0..of.len()).step_by(17) {
                let pair = if is_text { [&of[..cut], &opening] } else { [&text, &of[..cut]] };
                assert!(read(pair[0], Some(pair[1])).is_err(), "{cut} bytes");
            }
        }
        let key = PrivateKey::generate("classifier.example", [4; 32]).unwrap();
        let (receipt, _) = read(&hidden, None).unwrap();
        let [others, other] = salted_texts(&receipt, [8; 32], Some(&key));
        let salt = format!("\"salt\":\"{}\"", Digest([9; 32]));
        let of_signed = |text: &str| {
            let opening = Opening { format: OPENING.into(), salt: Digest([9; 32]), receipt: text.into() };
            let mut fields = salted_fields(&golden("salted")).unwrap().0;
            fields.salted = salted_digest(&opening.salt, text);
            (fields.signer, fields.signature) = (None, None);
            [fields.text(), opening_text(&opening)]
        };
        let mut fields = salted_fields(&text).unwrap().0;
        (fields.signer, fields.signature, fields.model) = (None, None, Digest([1; 32]));
        let other_model = fields.text();
        let [inner_signed, of_inner] = of_signed(&signed);
        let [inner_salted, of_salted] = of_signed(&text);
        for (text, opening, why) in [
            (&text, None, "it is salted, and no opening is given"),
            (&hidden, Some(&opening), "an opening is given to a receipt without a salt"),
            (&text, Some(&(opening.clone() + "\n")), "differs from its one encoding"),
            (&text, Some(&opening.replacen(',', ", ", 1)), "differs from its one encoding"),
            (&text, Some(&other), "its salt and its receipt give"),
            (&others, Some(&opening), "its salt and its receipt give"),
            (&text, Some(&opening.replace(&salt, &salt.replace('9', "8"))), "its salt and its receipt give"),
            (&text, Some(&hidden), "unknown field `model`"),
            (&text, Some(&" ".repeat(OPENING_MAX as usize + 1)), "opening is larger than the limit"),
            (&(text.clone() + &" ".repeat(4096)), Some(&opening), "salted receipt is larger than the limit"),
            (&text.replace("receipt 1", "receipt 2"), Some(&opening), "its format is"),
            (&text, Some(&opening.replace("opening 1", "opening 2")), "its format is"),
            (&other_model, Some(&opening), "its model is"),
            (&inner_signed, Some(&of_inner), "the salted receipt alone is signed"),
            (&inner_salted, Some(&of_salted), "format"),
        ] {
            let error = read(text, opening.map(String::as_str)).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
