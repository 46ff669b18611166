//! The referee's questions and the parties' answers, in one encoding: JSON without white space.
//!
//! A question names a position in the party's commitments. An answer opens that position and nothing else. The party signs the
//! answer together with game, turn and question, so that an answer to one question is worth nothing as an answer to another.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use super::statement::Statement;
use crate::evidence::proven::{DataSlices, LogSlices, PhaseName, ProvenInput, ProvenTensor, Scalar};
pub use crate::one_encoding::{from_bytes, to_bytes};
use tiebreak_job::manifest::FileManifest;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::proven::{Base64, Hashes, ProvenRecord};

/// A tensor that a computation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub enum Subject {
    /// Tensor `tensor` of micro-batch `micro` of a step's batch.
    Batch {
        /// The step, from 1.
        step: u32,
        /// The micro-batch.
        micro: u32,
        /// The index in the model's batch.
        tensor: usize,
    },
    /// The output of a node of a step's graphs.
    Node {
        /// The step, from 1.
        step: u32,
        /// The phase that runs the node.
        phase: PhaseName,
        /// The node's index in the phase's graph.
        node: usize,
    },
    /// The output of a node of a pass of a receipt.
    Pass {
        /// The pass: a window of an answer, or a sample of predictions.
        pass: u32,
        /// The node's index in the pass's graph.
        node: usize,
    },
    /// The row of logits of a token of an answer, or the logits of a sample of predictions.
    Row {
        /// The number of the token in the answer, or of the sample in the receipt, from 0.
        number: u32,
    },
}

/// The fold of an element that is made of many terms: the element is the root of a tree over the terms, in the shape of RFC
/// 6962's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fold {
    /// The integer sum of a product over its block of K, 16 bytes.
    Product,
    /// The tree sum of a segment's rows in one column, a binary32 pattern.
    Segment,
    /// The number of positions before `position` in a grouping, 8 bytes: positions of a lower class, and earlier ones of the same
    /// class.
    Rank {
        /// The position.
        position: u64,
    },
    /// The number of positions whose class is below an offset's class, 8 bytes.
    Count,
    /// One of the absmaxes that the integers of a logged product's element depend on, 4 bytes.
    Absmax {
        /// The absmax's number among them, from 0.
        number: u8,
    },
    /// The integer sums of a logged product's element ([`tiebreak_record::rounding::legal::IntegerSums`]), 16 bytes each.
    Sums {
        /// The number of parts of a row: one or two.
        parts: u8,
    },
}

/// A tree whose nodes a party has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "tree", rename_all = "snake_case")]
pub enum Tree {
    /// The records: RFC 6962 over their leaves.
    Transcript,
    /// A step's batch: RFC 6962 over its tensors.
    Batch {
        /// The step, from 1.
        step: u32,
    },
    /// A step's gradients: RFC 6962 over its micro-batches.
    Gradients {
        /// The step, from 1.
        step: u32,
    },
    /// A step's operators: RFC 6962 over the outputs of its nodes.
    Trace {
        /// The step, from 1.
        step: u32,
    },
    /// The two roots of a receipt, which take the place of leaves: over its passes, and over its tokens with rows, or its
    /// samples with logits.
    Receipt,
    /// The tokens of an answer with their rows, or the samples of predictions with their logits: RFC 6962.
    Rows,
    /// The passes of a receipt: RFC 6962 over an answer's windows, or over samples.
    Passes,
    /// A pass of a receipt: RFC 6962 over the outputs of its nodes.
    Pass {
        /// The pass: a window of an answer, or a sample of predictions.
        pass: u32,
    },
    /// A tensor's bytes: BLAKE3 over slices of 1024 bytes.
    Tensor {
        /// The tensor.
        subject: Subject,
    },
    /// The terms of an element.
    Terms {
        /// The tensor.
        subject: Subject,
        /// The element, row-major.
        element: u64,
        /// The element's fold.
        fold: Fold,
    },
}

impl Tree {
    /// The kind of the leaves, in words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Tree::Transcript => "records",
            Tree::Batch { .. } => "batch",
            Tree::Gradients { .. } => "gradients",
            Tree::Trace { .. } | Tree::Pass { .. } => "operators",
            Tree::Receipt => "roots",
            Tree::Rows => "rows",
            Tree::Passes => "passes",
            Tree::Tensor { .. } => "slices",
            Tree::Terms { .. } => "terms",
        }
    }
}

/// The operands of an element that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "need", rename_all = "snake_case")]
pub enum Need {
    /// All operands that the element reads.
    All,
    /// The words that an element of many terms reads beside them: a product's absmaxes, a segment's begin and end, or the class
    /// of a position.
    Frame {
        /// The element's fold.
        fold: Fold,
    },
    /// Some terms of the element, and the operands that they read.
    Terms {
        /// The element's fold.
        fold: Fold,
        /// The first term.
        first: u64,
        /// The number of terms.
        count: u64,
    },
    /// The decision alone, for a rounding of the logged profile whose operands are known.
    Decision,
}

/// A field of a step's record that follows from its operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// The gradient of a micro-batch, under the root over all.
    Gradient {
        /// The micro-batch.
        micro: u32,
    },
    /// The state after the step.
    State,
    /// The clip factor.
    Clip,
    /// The loss.
    Loss,
}

impl Field {
    /// In words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Field::Gradient { .. } => "gradient",
            Field::State => "state",
            Field::Clip => Scalar::Clip.name(),
            Field::Loss => Scalar::Loss.name(),
        }
    }
}

/// A question of the referee.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Question {
    /// H(key, salt, root) of the party's records, or of a receipt's two roots.
    Commit,
    /// Salt and root.
    Reveal,
    /// The part of the trainer's logs that a challenger of the logged profile lacks next. The question carries the part that the
    /// challenger asked for before ([`Asked::carried`]).
    Logs {
        /// [`Supplied::digest`] of the carried part.
        supplied: Option<Digest>,
    },
    /// A part of a log that a challenger lacks, asked of the trainer.
    Supply {
        /// The begin of the part, which has at most [`SUPPLY_SLICES`] slices.
        place: LogPlace,
    },
    /// A block of the decisions of one product, asked of the trainer because a challenger says that it cannot be read.
    LogBlock {
        /// The step, from 1.
        step: u32,
        /// The part of the step's log.
        part: u32,
        /// The part's block.
        block: u64,
    },
    /// The values of the subtrees below a node, [`super::search::children`].
    Children {
        /// The tree.
        tree: Tree,
        /// The node's first leaf.
        first: u64,
        /// The number of the node's leaves.
        count: u64,
    },
    /// A record, and the one before it with its proof.
    Record {
        /// The record's leaf number.
        index: u64,
    },
    /// The root over all operators of a step.
    Statement {
        /// The step, from 1.
        step: u32,
    },
    /// The root over the operators of a pass of a receipt.
    Pass {
        /// The pass: a window of an answer, or a sample of predictions.
        pass: u32,
    },
    /// The BLAKE3 root of a tensor's bytes.
    Root {
        /// The tensor.
        subject: Subject,
    },
    /// A slice of a tensor.
    Slice {
        /// The tensor.
        subject: Subject,
        /// The slice's number.
        slice: u64,
    },
    /// The root of an element's terms.
    Total {
        /// The tensor.
        subject: Subject,
        /// The element, row-major.
        element: u64,
        /// The element's fold.
        fold: Fold,
    },
    /// Committed operands on which both parties agree.
    Evidence {
        /// The tensor.
        subject: Subject,
        /// The element, row-major.
        element: u64,
        /// The operands that are needed.
        need: Need,
    },
    /// The outputs of operators that a field of a record is made of, on which both parties agree.
    Binding {
        /// The step, from 1.
        step: u32,
        /// The field.
        field: Field,
    },
}

/// An answer of a party.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Answer {
    /// The answer to [`Question::Commit`].
    Commit {
        /// H(key, salt, root), [`commitment`].
        commitment: Digest,
    },
    /// The answer to [`Question::Reveal`].
    Reveal {
        /// 32 bytes that nobody could guess.
        salt: Digest,
        /// The root over all records, or over a receipt's two roots.
        root: Digest,
    },
    /// The answer to [`Question::Children`].
    Children {
        /// The values, of one length, from the first leaf on, one after another.
        values: Base64,
    },
    /// The answer to [`Question::Record`].
    Record {
        /// The record's canonical bytes.
        record: Base64,
        /// The record before, unless it is the first.
        before: Option<ProvenRecord>,
    },
    /// The answer to [`Question::Statement`].
    Statement(Statement),
    /// The answer to [`Question::Root`] and to [`Question::Pass`].
    Root {
        /// The BLAKE3 root of a tensor, or the root over a pass's operators.
        root: Digest,
    },
    /// The answer to [`Question::Slice`].
    Slice {
        /// The slice's bytes.
        bytes: Base64,
    },
    /// The answer to [`Question::Total`].
    Total {
        /// The value of the tree's root.
        value: Base64,
    },
    /// The answer to [`Question::Evidence`] about a node.
    Operands {
        /// Slices of the tensors that the element reads, by ascending tensor.
        inputs: Vec<ProvenInput>,
    },
    /// The answer to [`Question::Evidence`] about a row of a receipt.
    Logits {
        /// The pass that gives the row: a window of an answer, or a sample of predictions.
        pass: u32,
        /// The root over its nodes.
        root: Digest,
        /// The inclusion proof of its leaf under the root over passes.
        proof: Vec<Digest>,
        /// The slice of its logits that has the element.
        logits: ProvenInput,
    },
    /// The answer to [`Question::Evidence`] about a batch.
    Samples {
        /// The manifests of the data's files.
        files: Vec<FileManifest>,
        /// The slices that contain headers and the sample, by ascending file.
        slices: Vec<DataSlices>,
    },
    /// The answer to [`Question::Evidence`] about a rounding of the logged profile: operands, and the decision, if the log has
    /// one.
    Rounding {
        /// Slices of the operands, by ascending tensor.
        inputs: Vec<ProvenInput>,
        /// The block of the step's log that covers the element.
        log: Option<LogBlock>,
    },
    /// The answer to [`Question::Binding`].
    Binding {
        /// The digests of the outputs, in the field's order.
        outputs: Vec<Digest>,
        /// The hashes that prove the outputs together under the step's operators.
        siblings: Hashes,
        /// Frozen parameters, each under the state of the record before.
        kept: Vec<ProvenTensor>,
    },
    /// The answer to [`Question::Logs`].
    Logs {
        /// The next part that the challenger lacks, behind all parts that it asked for before; `None` if it has them all.
        lacks: Option<LogPlace>,
    },
    /// Another answer to [`Question::Logs`]: decisions that were supplied cannot be read, so nobody can replay the step.
    Unreadable {
        /// The step, from 1.
        step: u32,
        /// The part of the step's log.
        part: u32,
        /// The part's first block that cannot be read. The number is also 0 if the part's beginning, or its group of parts, cannot be
        /// read.
        block: u64,
    },
    /// The answer to [`Question::Supply`] and to [`Question::LogBlock`].
    Supplied(Supplied),
    /// The party cannot answer, or does not want to.
    Decline,
}

/// The most slices of a log that one answer supplies.
pub const SUPPLY_SLICES: u64 = 64;

/// A position in the trainer's logs, which are supplied in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogPlace {
    /// The step, from 1.
    pub step: u32,
    /// The first slice of its log, a multiple of [`SUPPLY_SLICES`].
    pub first: u64,
}

/// A part of one of the trainer's logs, with its proof under the root of the terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Supplied {
    /// The step's record, which has the log's root.
    pub record: ProvenRecord,
    /// The slices.
    pub log: LogSlices,
}

impl Supplied {
    /// The digest by which a question names the part that it carries.
    #[doc(hidden)] // for the layers above
    pub fn digest(&self) -> Digest {
        hash("tiebreak 2 supplied", &to_bytes(self))
    }
}

/// A block of the decisions of one product.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogBlock {
    /// The block of the product's part of the log.
    pub block: u64,
    /// The slices of the log that prove the block.
    pub log: LogSlices,
}

/// A question as it is sent, with its game and turn. The referee signs it, so that parties work for nobody else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// The game.
    pub game: Digest,
    /// The turn, from 0.
    pub turn: u32,
    /// The question.
    pub question: Question,
    /// The part of a log that [`Question::Logs`] carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<Supplied>,
}

impl Asked {
    /// A question that carries no part.
    pub fn new(game: Digest, turn: u32, question: Question) -> Asked {
        Asked { game, turn, question, carried: None }
    }

    /// The question of `referee` in a game, as it came.
    ///
    /// # Errors
    /// If there are more than `limit` bytes, the referee did not seal the question, or its game is another. Also if it carries
    /// another part than it names.
    pub fn read(sealed: &[u8], limit: u64, referee: &PublicKey, game: &Digest) -> Result<Asked, Malformed> {
        let wrong = |why: String| Malformed::invalid("question", why);
        let asked = Sealed::<Asked>::from_bytes(sealed, limit, referee)?.body;
        if asked.game != *game {
            let [found, own] = [asked.game, *game].map(|game| game.short());
            return Err(wrong(format!("it is of another game, {found} and not {own}")));
        }
        let named = match asked.question {
            Question::Logs { supplied } => supplied,
            _ => None,
        };
        // An answer names the question without the carried part, so the question has to name the part by its digest.
        let carried = asked.carried.as_ref().map(Supplied::digest);
        if named != carried {
            let [named, carried] =
                [named, carried].map(|part| part.map_or("none".into(), |part| part.short()));
            return Err(wrong(format!(
                "it carries another part of a log than it names: {carried}, and not {named}"
            )));
        }
        Ok(asked)
    }

    /// The digest that an answer refers to: the question without its carried part, whose digest the question has.
    #[doc(hidden)] // for the layers above
    pub fn digest(&self) -> Digest {
        hash("tiebreak 2 question", &to_bytes(&Asked::new(self.game, self.turn, self.question.clone())))
    }
}

/// An answer with the question that it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answered {
    /// The game.
    pub game: Digest,
    /// The turn.
    pub turn: u32,
    /// [`Asked::digest`] of the question.
    pub question: Digest,
    /// The answer.
    pub answer: Answer,
}

/// A body with a signature of its canonical bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sealed<T> {
    /// The signed body.
    pub body: T,
    /// The Ed25519 signature of the domain, a line end and the body's bytes.
    pub signature: Base64,
}

/// A body that may be sealed; its domain separates its signatures from all others.
pub trait Seal: Serialize + DeserializeOwned {
    /// The domain.
    const DOMAIN: &'static str;
}

impl Seal for Asked {
    const DOMAIN: &'static str = "tiebreak 2 game question";
}

impl Seal for Answered {
    const DOMAIN: &'static str = "tiebreak 2 game answer";
}

fn signed<T: Seal>(body: &T) -> Vec<u8> {
    [T::DOMAIN.as_bytes(), b"\n", &to_bytes(body)].concat()
}

impl<T: Seal> Sealed<T> {
    /// Signs `body`.
    pub fn new(body: T, key: &PrivateKey) -> Sealed<T> {
        let signature = Base64(key.sign(&signed(&body)).to_vec());
        Sealed { body, signature }
    }

    /// The message's only encoding.
    pub fn to_bytes(&self) -> Vec<u8> {
        to_bytes(self)
    }

    /// Parses strictly and checks the signature.
    ///
    /// # Errors
    /// If there are more than `limit` bytes, they are not the only encoding of such a message, or `key` did not sign it.
    pub fn from_bytes(bytes: &[u8], limit: u64, key: &PublicKey) -> Result<Sealed<T>, Malformed> {
        let what = "message";
        let sealed: Sealed<T> = from_bytes(what, bytes, limit)?;
        let signature = sealed.signature.0.as_slice().try_into();
        if !signature.is_ok_and(|signature| key.verifies(&signed(&sealed.body), signature)) {
            return Err(Malformed::invalid(what, format!("it is not signed by {}", key.to_text())));
        }
        Ok(sealed)
    }
}

/// H(key, salt, root): a party's commitment before it sees the others' roots.
pub fn commitment(key: &PublicKey, salt: &Digest, root: &Digest) -> Digest {
    hash("tiebreak 2 game commitment", &[key.bytes(), salt.0, root.0].concat())
}
