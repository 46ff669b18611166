//! Receipts of answers: what answered, the settings, the tokens, and a root over them and their rows of logits, signed on request.
//! Layout: `docs/INFERENCE.md`, Receipts.

use serde::{Deserialize, Serialize};

use super::codec::Encoder;
use super::digest::{Digest, hash};
use super::keys::{PrivateKey, PublicKey};
use super::merkle::{self, Frontier};
use super::signature::SignedFile;
use super::tensor::VectorDigest;
use super::{Malformed, beginning};
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::sampling::Sampling;

/// The name and version of receipts.
const FORMAT: &str = "tiebreak receipt 1";
/// The name and version of receipts that commit the operators of their windows.
const TRACED: &str = "tiebreak receipt 2";
/// The most tokens of a prompt and its answer together.
pub const TOKENS_MAX: usize = 1 << 19;
/// The most bytes of a receipt's file.
pub const RECEIPT_MAX: u64 = (1 << 22) + 4096;

/// An answer, and all that it depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The digest of the model's keys and products ([`model_digest`]).
    pub model: Digest,
    /// The root of the parameters, as in a state digest.
    pub parameters: Digest,
    /// The digest of the tokenizer ([`tokenizer_digest`]); `None` over bytes.
    pub tokenizer: Option<Digest>,
    /// The settings of the draws.
    pub sampling: Sampling,
    /// The most tokens of the answer.
    pub length: u32,
    /// The ids of the prompt.
    pub prompt: Vec<u32>,
    /// The ids of the answer.
    pub answer: Vec<u32>,
    /// The root over the answer's tokens and their rows of logits ([`AnswerRoot`]).
    pub root: Digest,
    /// The root over the traces of the answer's windows ([`super::answer_trace`]), if the signer answers for each operator.
    pub traces: Option<Digest>,
}

/// The fields of a receipt's file, in their order.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    format: String,
    model: Digest,
    parameters: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokenizer: Option<Digest>,
    temperature: String,
    top_k: u32,
    top_p: String,
    seed: String,
    length: u32,
    prompt: Vec<u32>,
    answer: Vec<u32>,
    root: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    traces: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
}

impl SignedFile for Fields {
    const WHAT: &'static str = "receipt";
    const DOMAIN: &'static [u8] = b"tiebreak 2 receipt\n";

    fn by(&mut self) -> [&mut Option<String>; 2] {
        [&mut self.signer, &mut self.signature]
    }
}

fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid("receipt", why)
}

/// The number of so many hexadecimal digits.
fn number(name: &str, digits: usize, text: &str) -> Result<u64, Malformed> {
    let is_one =
        text.len() == digits && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let number = u64::from_str_radix(text, 16).ok().filter(|_| is_one);
    number.ok_or_else(|| {
        let found = beginning(text);
        wrong(format!("its {name} is {found:?}; {digits} lower-case hexadecimal digits are wanted"))
    })
}

impl Receipt {
    fn format(&self) -> &'static str {
        if self.traces.is_some() { TRACED } else { FORMAT }
    }

    fn fields(&self) -> Fields {
        let Sampling { temperature, top_k, top_p, seed } = self.sampling;
        Fields {
            format: self.format().into(),
            model: self.model,
            parameters: self.parameters,
            tokenizer: self.tokenizer,
            temperature: format!("{temperature:08x}"),
            top_k,
            top_p: format!("{top_p:08x}"),
            seed: format!("{seed:016x}"),
            length: self.length,
            prompt: self.prompt.clone(),
            answer: self.answer.clone(),
            root: self.root,
            traces: self.traces,
            signer: None,
            signature: None,
        }
    }

    /// The text of the receipt's file, signed if there is a key.
    pub fn to_text(&self, key: Option<&PrivateKey>) -> String {
        self.fields().signed_text(key)
    }

    /// Reads the text of a receipt's file, and checks the signature. Without a signature the second value is `None`, and anybody can
    /// have written the receipt.
    ///
    /// # Errors
    /// If the text is too long, is no receipt of this version in its one encoding, or has a signature that is not over it.
    pub fn from_text(text: &str) -> Result<(Receipt, Option<PublicKey>), Malformed> {
        if text.len() as u64 > RECEIPT_MAX {
            return Err(Malformed::TooLarge { what: "receipt", limit: RECEIPT_MAX });
        }
        let fields: Fields = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if ![FORMAT, TRACED].contains(&&fields.format[..]) {
            let found = beginning(&fields.format);
            return Err(wrong(format!("its format is {found:?}; {FORMAT:?} or {TRACED:?} is wanted")));
        }
        let word = |name, text: &str| number(name, 8, text).map(|word| word as u32);
        let receipt = Receipt {
            model: fields.model,
            parameters: fields.parameters,
            tokenizer: fields.tokenizer,
            sampling: Sampling {
                temperature: word("temperature", &fields.temperature)?,
                top_k: fields.top_k,
                top_p: word("top_p", &fields.top_p)?,
                seed: number("seed", 16, &fields.seed)?,
            },
            length: fields.length,
            prompt: fields.prompt,
            answer: fields.answer,
            root: fields.root,
            traces: fields.traces,
        };
        receipt.bounded()?;
        let again = Fields { signer: fields.signer, signature: fields.signature, ..receipt.fields() };
        let signer = again.signer_of(text)?;
        Ok((receipt, signer))
    }

    /// Checks numbers that have bounds for every model.
    fn bounded(&self) -> Result<(), Malformed> {
        let Sampling { temperature, top_p, .. } = self.sampling;
        if let Some(why) = self.sampling.error() {
            return Err(wrong(format!("its temperature is {temperature:08x}, its top_p {top_p:08x}: {why}")));
        }
        let (prompt, answer) = (self.prompt.len(), self.answer.len());
        if prompt == 0 {
            return Err(wrong("its prompt has no token"));
        }
        if prompt + answer > TOKENS_MAX {
            return Err(Malformed::TooLarge {
                what: "the prompt of a receipt with its answer",
                limit: TOKENS_MAX as u64,
            });
        }
        if answer > self.length as usize {
            let most = self.length;
            return Err(wrong(format!("its answer has {answer} tokens, and its length is {most} at most")));
        }
        Ok(())
    }
}

/// The root over an answer's tokens, as they come: RFC 6962 over a leaf for each token, with its number, its id and the digest of its
/// row of logits.
#[derive(Clone, Debug, Default)]
pub struct AnswerRoot(Frontier);

impl AnswerRoot {
    /// Adds the next token, which was chosen from this row of logits.
    pub fn push(&mut self, token: u32, row: &[u32]) {
        self.0.push(answer_leaf(self.0.size() as u32, token, &row_digest(row)));
    }

    /// The root.
    pub fn root(&self) -> Digest {
        self.0.root()
    }
}

/// The digest of a row of logits.
pub fn row_digest(row: &[u32]) -> Digest {
    let mut digest = VectorDigest::default();
    digest.extend(row);
    digest.finish(DType::F32)
}

/// The leaf of an answer's token in [`Receipt::root`].
pub fn answer_leaf(number: u32, token: u32, row: &Digest) -> Digest {
    let mut e = Encoder::default();
    e.u32(number).u32(token).digest(row);
    merkle::leaf(&e.0)
}

/// The digest of a model's keys and products, the settings of `tiebreak_contract::program::inference`.
pub fn model_digest(settings: &[(String, String)]) -> Digest {
    let mut e = Encoder::default();
    e.list(settings, |e, (key, value)| {
        e.bytes(key.as_bytes()).bytes(value.as_bytes());
    });
    hash("tiebreak 2 answering model", &e.0)
}

/// The digest of a tokenizer: the names of its files, by ascending name, with their bytes' BLAKE3 roots; the ids that end texts.
pub fn tokenizer_digest(files: &[(&str, Digest)], ends: &[u32]) -> Digest {
    let mut e = Encoder::default();
    e.list(files, |e, (name, root)| {
        e.bytes(name.as_bytes()).digest(root);
    });
    e.list(ends, |e, id| {
        e.u32(*id);
    });
    hash("tiebreak 2 tokenizer", &e.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt() -> Receipt {
        let [model, parameters, root] = [1, 2, 3].map(|byte| Digest([byte; 32]));
        Receipt {
            model,
            parameters,
            tokenizer: Some(Digest([4; 32])),
            sampling: Sampling {
                temperature: 0x3f4c_cccd,
                top_k: u32::MAX,
                top_p: 0x3f80_0000,
                seed: u64::MAX,
            },
            length: u32::MAX,
            prompt: vec![84],
            answer: vec![101, 7],
            root,
            traces: None,
        }
    }

    #[test]
    fn receipts_have_one_encoding_and_every_change_of_a_signed_one_is_seen() {
        let receipt = receipt();
        let key = PrivateKey::generate(&"n".repeat(128), [6; 32]).unwrap();
        for key in [None, Some(&key)] {
            let text = receipt.to_text(key);
            // The longest of all: less than a KiB beside the tokens.
            assert!(text.len() - "84101,7".len() <= 1024, "{}", text.len());
            assert_eq!(Receipt::from_text(&text), Ok((receipt.clone(), key.map(PrivateKey::public))));
            for (place, byte) in text.bytes().enumerate() {
                for other in [byte ^ 1, b' ', b'0', b'9'] {
                    let mut changed = text.clone().into_bytes();
                    changed[place] = other;
                    let found =
                        String::from_utf8(changed).ok().and_then(|text| Receipt::from_text(&text).ok());
                    // An unsigned receipt may become another one, and never the same.
                    let is_other = found.is_none_or(|(found, _)| key.is_none() && found != receipt);
                    assert!(other == byte || is_other, "byte {place}");
                }
            }
            for cut in 0..text.len() {
                assert!(Receipt::from_text(&text[..cut]).is_err(), "{cut} bytes");
            }
            for spaced in [format!("{text}\n"), format!(" {text}"), text.replace("[84]", "[ 84]")] {
                assert!(Receipt::from_text(&spaced).is_err());
            }
        }
        let (signed, plain) = (receipt.to_text(Some(&key)), receipt.to_text(None));
        let (head, tail) = signed.split_once(",\"signature\"").unwrap();
        for (text, why) in [
            (format!("{head}}}\n"), "carries no signature"),
            (plain.replace("}\n", &format!(",\"signature\"{tail}")), "names no signer"),
            (plain.replace("\"prompt\":[84]", "\"prompt\":[]"), "its prompt has no token"),
            (plain.replace("4294967295,\"prompt\"", "1,\"prompt\""), "2 tokens, and its length is 1"),
            (plain.replace("receipt 1", "receipt 3"), "its format is"),
            // Without traces.
            (plain.replace("receipt 1", "receipt 2"), "differs from its one encoding"),
            (
                plain.replace("3f4ccccd", "7f800000"),
                "is 7f800000, its top_p 3f800000: a temperature is a finite number",
            ),
            (plain.replace("3f4ccccd", "3F4CCCCD"), "8 lower-case hexadecimal digits"),
            (plain.replace("\"top_p\":\"3f800000\"", "\"top_p\":\"3f800001\""), "the share of top-p"),
            (plain.replace("[84]", &format!("[{}1]", "1,".repeat(TOKENS_MAX))), "larger than the limit"),
        ] {
            let error = Receipt::from_text(&text).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
