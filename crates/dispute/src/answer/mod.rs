//! Verdicts on receipts of answers and of predictions: their file ([`AnswerVerdict`]), and the check that derives them again without the model.
//!
//! Layout and rules: `docs/INFERENCE.md`, Verdicts on receipts.

mod check;
mod pass;
mod predicted;
mod ruling;
mod tile;

use serde::{Deserialize, Serialize};

pub use check::AnswerExamination;
#[doc(hidden)] // for the layers above
pub use pass::{Answering, predicting};
pub use pass::{Derived, Origin, Pass};
pub use ruling::AnswerRuling;

use super::evidence::proven::{ProvenInput, ProvenTensor};
use super::one_encoding::{from_bytes, to_bytes};
use super::tag_first::tag_first;
use super::verdict::{Disclosed, VERDICT_MAX};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::proven::{Base64, Hashes};
use tiebreak_record::commit::receipt::tokenizer_digest;

/// The version of these files.
pub const FORMAT: u32 = 1;

/// What a receipt's digest of a tokenizer is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerParts {
    /// The tokenizer's files by ascending name: names, and the BLAKE3 roots of their bytes.
    pub files: Vec<(String, Digest)>,
    /// The ids that end texts.
    pub ends: Vec<u32>,
}

impl TokenizerParts {
    /// The digest that a receipt has.
    pub fn digest(&self) -> Digest {
        let files: Vec<(&str, Digest)> =
            self.files.iter().map(|(name, root)| (name.as_str(), *root)).collect();
        tokenizer_digest(&files, &self.ends)
    }
}

/// A window of the answer, or a sample of predictions, with the root over its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracedWindow {
    /// The window's number among those that the answer needs, or the sample's in the receipt.
    pub number: usize,
    /// The root over its nodes.
    pub root: Digest,
    /// The inclusion proof of the window's leaf under the receipt's root over traces.
    pub proof: Vec<Digest>,
}

/// The row of a token is not the one in the logits that the signer's own trace has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowClaim {
    /// The text of a job with the receipt's model.
    pub job: String,
    /// The window that gives the row.
    pub window: TracedWindow,
    /// The token's number.
    pub number: u32,
    /// The row's digest, and the proof that the receipt's root has it.
    pub row: ProvenTensor,
    /// The slices of the window's logits that hold the row.
    pub logits: ProvenInput,
}

/// A tile of an operator's output is not what the operator makes of its committed inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerTile {
    /// The text of a job with the receipt's model.
    pub job: String,
    /// The window whose pass has the node.
    pub window: TracedWindow,
    /// The node's number in the graph of the window's step.
    pub node: usize,
    /// The output's digest, and the proof that the window's root has it.
    pub output: ProvenTensor,
    /// The tile's number: tiles have 4096 bytes.
    pub tile: usize,
    /// The tile's value in the committed tree.
    pub value: Digest,
    /// The BLAKE3 hashes that prove `value` in the output's digest.
    pub siblings: Hashes,
    /// The committed bytes, if they are known: the verdict carries the inputs of one element then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disclosed: Option<Disclosed>,
    /// The slices of parameters and of other outputs that the elements read.
    pub inputs: Vec<ProvenInput>,
}

/// A row predicts another class than the logits that the receipt commits for its sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassClaim {
    /// The sample's number in the receipt.
    pub sample: u32,
    /// The row of the sample.
    pub row: u32,
    /// The numbers of the slices of the sample's logits that hold the row, ascending.
    pub slices: Vec<usize>,
    /// The slices' bytes, one after another.
    pub bytes: Base64,
    /// The hashes that prove the slices together in the digest of the logits.
    pub siblings: Hashes,
}

/// The logits of a sample are not those of the signer's own trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogitsClaim {
    /// The text of a job with the receipt's model.
    pub job: String,
    /// The sample: its number in the receipt stands for that of a window.
    pub window: TracedWindow,
    /// The digest of the logits, and the proof that the window's root has it.
    pub logits: ProvenTensor,
}

/// What is wrong with a receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AnswerClaim {
    /// A token does not follow from the row of logits that the receipt commits for it.
    Token {
        /// The token's number.
        number: u32,
        /// The row, F32.
        row: Base64,
        /// The inclusion proof of the token's leaf under the receipt's root.
        proof: Vec<Digest>,
    },
    /// A token comes after one that ends the text.
    Ended {
        /// The token's number.
        number: u32,
        /// The tokenizer, which says what ends texts.
        tokenizer: TokenizerParts,
    },
    /// The answer has room for more tokens, and its last one ends no text.
    Stopped {
        /// The tokenizer, if the receipt names one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokenizer: Option<TokenizerParts>,
    },
    /// A row is not the one of the signer's trace.
    Row(Box<RowClaim>),
    /// A tile of the signer's trace is wrong.
    Tile(Box<AnswerTile>),
    /// A prediction is not that of its logits.
    Class(Box<ClassClaim>),
    /// The logits of a sample are not those of the signer's trace.
    Logits(Box<LogitsClaim>),
}

tag_first!(AnswerClaim, "kind", {
    "token" => Token { number: u32, row: Base64, proof: Vec<Digest> },
    "ended" => Ended { number: u32, tokenizer: TokenizerParts },
    "stopped" => Stopped {
        #[serde(default)]
        tokenizer: Option<TokenizerParts>,
    },
    "row" => Row(_),
    "tile" => Tile(_),
    "class" => Class(_),
    "logits" => Logits(_),
});

impl AnswerClaim {
    /// The kind, as files write it.
    pub fn kind(&self) -> &'static str {
        match self {
            AnswerClaim::Token { .. } => "token",
            AnswerClaim::Ended { .. } => "ended",
            AnswerClaim::Stopped { .. } => "stopped",
            AnswerClaim::Row(_) => "row",
            AnswerClaim::Tile(_) => "tile",
            AnswerClaim::Class(_) => "class",
            AnswerClaim::Logits(_) => "logits",
        }
    }
}

/// A verdict on a receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerVerdict {
    /// The version of the format, 1.
    pub answer: u32,
    /// The text of the receipt's file.
    pub receipt: String,
    /// The text of its opening, if it is salted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opening: Option<String>,
    /// The fault of the receipt.
    pub claim: AnswerClaim,
}

impl AnswerVerdict {
    /// A verdict in the current format, which is not checked.
    pub fn new(receipt: String, claim: AnswerClaim) -> AnswerVerdict {
        AnswerVerdict { answer: FORMAT, receipt, opening: None, claim }
    }

    /// The verdict with the opening of its receipt, which is salted if there is one.
    #[must_use]
    pub fn with_opening(self, opening: Option<&str>) -> AnswerVerdict {
        AnswerVerdict { opening: opening.map(Into::into), ..self }
    }

    /// The verdict's one encoding: JSON without white space.
    pub fn to_bytes(&self) -> Vec<u8> {
        to_bytes(self)
    }

    /// Parses the one encoding.
    ///
    /// # Errors
    /// If the bytes are another encoding, too many, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<AnswerVerdict, Malformed> {
        let verdict: AnswerVerdict = from_bytes("verdict", bytes, VERDICT_MAX)?;
        if verdict.answer != FORMAT {
            let why = format!("it has format {}, and this program reads format {FORMAT}", verdict.answer);
            return Err(Malformed::invalid("verdict", why));
        }
        Ok(verdict)
    }
}
