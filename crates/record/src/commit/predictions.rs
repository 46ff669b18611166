//! Receipts of predictions: a model, its inputs, the classes that it predicts, and the digests of their logits, signed on request.
//! Layout: `docs/INFERENCE.md`, Receipts of predictions.

use serde::{Deserialize, Serialize};
use tiebreak_contract::arith::{DType, float};
use tiebreak_contract::program::graph::TensorType;

use super::codec::Encoder;
use super::digest::{Digest, hash};
use super::keys::{PrivateKey, PublicKey};
use super::merkle::Frontier;
use super::signature::SignedFile;
use super::{Malformed, beginning, merkle, tensor};

/// The name and version of these receipts.
const FORMAT: &str = "tiebreak predictions 1";
/// The name and version of receipts that commit the operators of their samples.
const TRACED: &str = "tiebreak predictions 2";
/// The most samples of a receipt.
pub const SAMPLES_MAX: usize = 1 << 16;
/// The most predictions of a receipt: those of all rows of all samples.
pub const ROWS_MAX: usize = 1 << 19;
/// The most bytes of a receipt's file.
pub const PREDICTIONS_MAX: u64 = 1 << 24;

/// What a model predicts of samples, and all that it depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predictions {
    /// The model.
    pub model: PredictingModel,
    /// The number of the first sample in the data's order. The others follow it.
    pub first: u32,
    /// What the model predicts of each sample.
    pub samples: Vec<PredictedSample>,
    /// The root over the traces of the samples ([`super::answer_trace`]), if the signer answers for each operator.
    pub traces: Option<Digest>,
}

/// The digests by which a receipt names a model, and the sizes of its logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictingModel {
    /// The digest of the model's keys and products ([`model_digest`]).
    pub model: Digest,
    /// The roots of parameters and of buffers, as in a state digest.
    pub state: [Digest; 2],
    /// Classes: the logits of a row.
    pub classes: u32,
    /// Rows of logits that a sample has: the positions of a text, and else one.
    pub rows: u32,
}

/// What a model predicts of one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PredictedSample {
    /// The digest of the sample's inputs.
    pub input: Digest,
    /// The class of each row.
    pub predicted: Vec<u32>,
    /// The digest of the logits, F32 [rows, classes].
    pub logits: Digest,
}

impl PredictedSample {
    /// The sample's leaf under its receipt's root, with this digest of its logits.
    #[doc(hidden)] // for the layers above
    pub fn leaf(&self, number: u32, logits: &Digest) -> Digest {
        let mut e = Encoder::default();
        e.u32(number).digest(&self.input).list(&self.predicted, |e, class| {
            e.u32(*class);
        });
        e.digest(logits);
        merkle::leaf(&e.0)
    }
}

/// The fields of a receipt's file, in their order.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    format: String,
    model: Digest,
    parameters: Digest,
    buffers: Digest,
    classes: u32,
    rows: u32,
    first: u32,
    inputs: Vec<Digest>,
    predicted: Vec<u32>,
    logits: Vec<Digest>,
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
    const DOMAIN: &'static [u8] = b"tiebreak 2 predictions\n";

    fn by(&mut self) -> [&mut Option<String>; 2] {
        [&mut self.signer, &mut self.signature]
    }
}

impl Fields {
    /// The samples of the lists, whose lengths and numbers have to fit each other.
    fn samples(&self) -> Result<Vec<PredictedSample>, Malformed> {
        let (count, rows) = (self.inputs.len(), self.rows as usize);
        if count == 0 || self.classes == 0 || rows == 0 {
            return Err(wrong("a receipt has at least one sample, one class and one row of logits"));
        }
        if count > SAMPLES_MAX || count.saturating_mul(rows) > ROWS_MAX {
            return Err(Malformed::TooLarge {
                what: "the predictions of a receipt",
                limit: if count > SAMPLES_MAX { SAMPLES_MAX } else { ROWS_MAX } as u64,
            });
        }
        if self.logits.len() != count || self.predicted.len() != count * rows {
            let (predicted, logits) = (self.predicted.len(), self.logits.len());
            return Err(wrong(format!(
                "its {count} samples of {rows} rows have {predicted} predictions and {logits} digests of logits"
            )));
        }
        if let Some(class) = self.predicted.iter().find(|&&class| class >= self.classes) {
            return Err(wrong(format!("it predicts class {class}, and there are {}", self.classes)));
        }
        let parts = self.inputs.iter().zip(self.predicted.chunks(rows)).zip(&self.logits);
        let sample = |((&input, predicted), &logits): ((&Digest, &[u32]), &Digest)| PredictedSample {
            input,
            predicted: predicted.to_vec(),
            logits,
        };
        Ok(parts.map(sample).collect())
    }
}

fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid("receipt", why)
}

impl Predictions {
    /// The root over the samples: RFC 6962 over a leaf for each, with its number, its input, its classes and its logits.
    pub fn root(&self) -> Digest {
        let mut root = Frontier::default();
        for (number, sample) in (0..).zip(&self.samples) {
            root.push(sample.leaf(number, &sample.logits));
        }
        root.root()
    }

    fn fields(&self) -> Fields {
        let PredictingModel { model, state: [parameters, buffers], classes, rows } = self.model;
        Fields {
            format: if self.traces.is_some() { TRACED } else { FORMAT }.into(),
            model,
            parameters,
            buffers,
            classes,
            rows,
            first: self.first,
            inputs: self.samples.iter().map(|sample| sample.input).collect(),
            predicted: self.samples.iter().flat_map(|sample| sample.predicted.clone()).collect(),
            logits: self.samples.iter().map(|sample| sample.logits).collect(),
            root: self.root(),
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
    pub fn from_text(text: &str) -> Result<(Predictions, Option<PublicKey>), Malformed> {
        if text.len() as u64 > PREDICTIONS_MAX {
            return Err(Malformed::TooLarge { what: "receipt", limit: PREDICTIONS_MAX });
        }
        let fields: Fields = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if ![FORMAT, TRACED].contains(&&fields.format[..]) {
            let found = beginning(&fields.format);
            return Err(wrong(format!("its format is {found:?}; {FORMAT:?} or {TRACED:?} is wanted")));
        }
        let predictions = Predictions {
            model: PredictingModel {
                model: fields.model,
                state: [fields.parameters, fields.buffers],
                classes: fields.classes,
                rows: fields.rows,
            },
            first: fields.first,
            samples: fields.samples()?,
            traces: fields.traces,
        };
        let root = predictions.root();
        if fields.root != root {
            return Err(wrong(format!("its root is {}, and its samples have {root}", fields.root)));
        }
        let again = Fields { signer: fields.signer, signature: fields.signature, ..predictions.fields() };
        let signer = again.signer_of(text)?;
        Ok((predictions, signer))
    }
}

/// True if the text is a receipt of predictions, and not one of an answer.
pub fn is_of_predictions(text: &str) -> bool {
    text.starts_with("{\"format\":\"tiebreak predictions ")
}

/// The digest of the keys and products that decide a model's logits in an evaluation.
pub fn model_digest(settings: &[(String, String)]) -> Digest {
    let mut e = Encoder::default();
    e.list(settings, |e, (key, value)| {
        e.bytes(key.as_bytes()).bytes(value.as_bytes());
    });
    hash("tiebreak 2 predicting model", &e.0)
}

/// The digest of a sample's logits: so many rows, one behind another.
pub fn logits_digest(rows: u32, logits: &[u32]) -> Digest {
    let ty = TensorType { dtype: DType::F32, shape: vec![rows, logits.len() as u32 / rows.max(1)] };
    tensor::digest(&ty, &tiebreak_contract::arith::words::bytes_of(logits))
}

/// The class that a row of logits predicts: the first of the greatest logits, where both zeros are equal. A row with a NaN, or without
/// logits, predicts none.
pub fn predicted(row: &[u32]) -> Option<u32> {
    ranked(row, 1).first().copied()
}

/// The first classes of a row of logits: the greatest first, and of equal ones the smallest class first. A row with a NaN has none.
pub fn ranked(row: &[u32], most: usize) -> Vec<u32> {
    if row.iter().any(|&logit| f32::from_bits(logit).is_nan()) {
        return Vec::new();
    }
    // Adding +0 makes -0 the same word as +0.
    let value = |class: &u32| f32::from_bits(float::add(row[*class as usize], 0));
    let mut classes: Vec<u32> = (0..row.len() as u32).collect();
    let order = |a: &u32, b: &u32| value(b).total_cmp(&value(a)).then(a.cmp(b));
    if most < classes.len() && most > 0 {
        classes.select_nth_unstable_by(most - 1, order);
    }
    classes.truncate(most);
    classes.sort_unstable_by(order);
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predictions() -> Predictions {
        let digest = |byte| Digest([byte; 32]);
        let sample = |number: u8| PredictedSample {
            input: digest(10 + number),
            predicted: vec![u32::from(number), 0],
            logits: digest(20 + number),
        };
        Predictions {
            model: PredictingModel { model: digest(1), state: [digest(2), digest(3)], classes: 5, rows: 2 },
            first: u32::MAX,
            samples: vec![sample(0), sample(4)],
            traces: None,
        }
    }

    #[test]
    fn receipts_have_one_encoding_and_every_change_of_a_signed_one_is_seen() {
        let receipt = predictions();
        let traced = Predictions { traces: Some(Digest([5; 32])), ..predictions() };
        let key = PrivateKey::generate(&"n".repeat(128), [6; 32]).unwrap();
        for (receipt, key) in [(&receipt, None), (&receipt, Some(&key)), (&traced, Some(&key))] {
            let text = receipt.to_text(key);
            assert!(is_of_predictions(&text) && !is_of_predictions(&text[1..]));
            assert_eq!(Predictions::from_text(&text), Ok((receipt.clone(), key.map(PrivateKey::public))));
            for (place, byte) in text.bytes().enumerate() {
                for other in [byte ^ 1, b' ', b'0', b'9'] {
                    let mut changed = text.clone().into_bytes();
                    changed[place] = other;
                    let found =
                        String::from_utf8(changed).ok().and_then(|text| Predictions::from_text(&text).ok());
                    // An unsigned receipt may become another one, and never the same.
                    let is_other = found.is_none_or(|(found, _)| key.is_none() && found != *receipt);
                    assert!(other == byte || is_other, "byte {place}");
                }
            }
            for cut in 0..text.len() {
                assert!(Predictions::from_text(&text[..cut]).is_err(), "{cut} bytes");
            }
            for spaced in [format!("{text}\n"), format!(" {text}"), text.replace("[0,", "[ 0,")] {
                assert!(Predictions::from_text(&spaced).is_err());
            }
        }
        let (signed, plain) = (receipt.to_text(Some(&key)), receipt.to_text(None));
        let (head, tail) = signed.split_once(",\"signature\"").unwrap();
        let first = format!("\"{}\",", Digest([10; 32]));
        for (text, why) in [
            (format!("{head}}}\n"), "carries no signature"),
            (plain.replace("}\n", &format!(",\"signature\"{tail}")), "names no signer"),
            (plain.replace("predictions 1", "predictions 3"), "its format is"),
            // Without traces, and with traces that the format has not.
            (plain.replace("predictions 1", "predictions 2"), "differs from its one encoding"),
            (traced.to_text(None).replace("predictions 2", "predictions 1"), "differs from its one encoding"),
            (plain.replace("[0,0,4,0]", "[0,0,4]"), "have 3 predictions and 2 digests"),
            (plain.replace("[0,0,4,0]", "[0,0,5,0]"), "it predicts class 5, and there are 5"),
            (plain.replace("[0,0,4,0]", "[0,0,3,0]"), "its root is"),
            (plain.replace("\"rows\":2", "\"rows\":0"), "at least one sample"),
            (plain.replace("\"rows\":2", "\"rows\":4294967295"), "larger than the limit"),
            (plain.replace(&first, &first.repeat(2)), "its 3 samples of 2 rows have"),
            (plain.replace(&first, &first.repeat(SAMPLES_MAX)), "larger than the limit"),
            (" ".repeat(PREDICTIONS_MAX as usize + 1), "larger than the limit"),
        ] {
            let error = Predictions::from_text(&text).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }

    #[test]
    fn the_largest_receipt_is_below_the_limit() {
        // The longest texts: a class of ten digits in each row, and two digests in each sample.
        let [digest, class] = [67, 11];
        let most = 1024 + 2 * digest * SAMPLES_MAX + class * ROWS_MAX;
        assert!(most as u64 <= PREDICTIONS_MAX, "{most}");
    }

    #[test]
    fn the_first_greatest_logit_is_predicted() {
        let words = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for (row, ranking) in [
            (&[1.0, 3.0, 3.0, -2.0][..], &[1, 2, 0, 3][..]),
            (&[-0.0, 0.0], &[0, 1]),
            (&[0.0, -0.0, 1e-45], &[2, 0, 1]),
            (&[f32::NEG_INFINITY, f32::INFINITY, 7.0], &[1, 2, 0]),
            (&[1.0, f32::NAN], &[]),
            (&[], &[]),
        ] {
            let row = words(row);
            assert_eq!(ranked(&row, 9), ranking);
            for most in 0..4 {
                assert_eq!(ranked(&row, most), &ranking[..most.min(ranking.len())], "{row:?}");
            }
            assert_eq!(predicted(&row), ranking.first().copied());
        }
    }
}
