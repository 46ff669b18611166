//! Verdict files: their contents, in one encoding. [`super::check`] decides what a file shows.
//!
//! A verdict carries the job, a signed head, the record in question with its inclusion proof, and a claim. Every kind of claim
//! but *step* is decided from the file alone. A *step* verdict names the step, and a replay of that step checks it.

use serde::{Deserialize, Serialize};

pub use super::evidence::proven::{DataSlices, LogSlices, PhaseName, ProvenInput, ProvenTensor, Scalar};
use super::fact::{Right, Wrong};
use super::one_encoding::other_from;
use tiebreak_job::identity::{RunSummary, other_contract};
use tiebreak_job::manifest::FileManifest;
use tiebreak_record::commit::digest::Digest;
pub use tiebreak_record::commit::proven::{Base64, Hashes, ProvenRecord};
use tiebreak_record::commit::tree_head::Signed;
use tiebreak_record::commit::{Malformed, other_encoding_at};

/// The most bytes of a verdict file.
pub const VERDICT_MAX: u64 = 1 << 28;
/// The version of verdict files.
pub const FORMAT: u32 = 2;

/// The bytes of a tile that the trainer disclosed: with them, one wrong element suffices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disclosed {
    /// The committed tile's bytes.
    pub bytes: Base64,
    /// The element of the output, row-major, that is wrong in the disclosed bytes.
    pub element: usize,
}

/// One tile of one operator's output is not what the operator makes of its committed inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TileClaim {
    /// The record before the step's, which commits to the state at the step's begin.
    pub before: ProvenRecord,
    /// The phase that ran the node.
    pub phase: PhaseName,
    /// The node's index in the phase's graph.
    pub node: usize,
    /// The output's digest, and the proof that the step's trace has it.
    pub output: ProvenTensor,
    /// The tile's number: tiles have 4096 bytes.
    pub tile: usize,
    /// The tile's value in the committed tree.
    pub value: Digest,
    /// The BLAKE3 hashes that prove `value` in the output's digest.
    pub siblings: Hashes,
    /// Without the committed bytes, the verdict carries the inputs of every element of the tile. With them, it carries the inputs
    /// of one element.
    pub disclosed: Option<Disclosed>,
    /// The slices of the node's inputs that the elements read.
    pub inputs: Vec<ProvenInput>,
}

/// The source of a trainer's value of a logged product's element.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounded {
    /// The step's log has a decision about the element.
    Logged {
        /// The block of the product's part of the log that holds the decision.
        block: u64,
        /// The slices of the log that prove the block.
        log: LogSlices,
    },
    /// The committed tile of the rounded output contains the element, with or without a decision in the log.
    Committed {
        /// The rounded output's digest, and the proof that the step's trace has it.
        output: ProvenTensor,
        /// The tile's bytes.
        bytes: Base64,
        /// The BLAKE3 hashes that prove the tile in the output's digest.
        siblings: Hashes,
    },
}

/// A logged product's element was rounded to a value that no honest kernel rounds to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundingClaim {
    /// The record before the step's, which commits to the state at the step's begin.
    pub before: ProvenRecord,
    /// The micro-batch of the product.
    pub micro_batch: u32,
    /// The product's number among the program's logged products.
    pub product: usize,
    /// The element of the product's output, row-major.
    pub element: usize,
    /// The source of the trainer's value.
    pub rounded: Rounded,
    /// The element's row and column of the operands.
    pub inputs: Vec<ProvenInput>,
}

/// An element of the initial state differs from the files of weights that the run names, or from the seed where the job draws it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightsClaim {
    /// The element of the tensor, row-major.
    pub element: usize,
    /// The slice of the state's tensor that holds the element; `tensor` is the index in the state's table.
    pub state: ProvenInput,
    /// The slices of the file (its index among those that the run names) that hold its header and the element. `None` exactly for
    /// a tensor that the job draws from the seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<DataSlices>,
}

/// The evidence that two heads belong to different histories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fork {
    /// The records of the larger head's tree that the smaller head should cover have another root.
    Prefix {
        /// The proof, from which both roots follow.
        proof: Vec<Digest>,
    },
    /// The other head has another record at the verdict's index.
    Record {
        /// The other head's record, with its proof.
        record: ProvenRecord,
    },
}

/// The claim of a verdict: a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Claim {
    /// A tile of an operator's output is wrong.
    Tile(Box<TileClaim>),
    /// A rounding of the logged profile is illegal.
    Rounding(Box<RoundingClaim>),
    /// The state that the record commits is not the one that its own trace's update computed. `outputs` are the digests of the
    /// update's nodes that make the state tensors, in the order of the state's table, proven together. Frozen parameters, which
    /// no node makes, are those of the record before.
    Binding {
        /// Digests of the outputs, in the order of the state table.
        outputs: Vec<Digest>,
        /// The hashes that prove the outputs together in the trace root.
        siblings: Hashes,
        /// The record before the step's, if the program has frozen parameters.
        #[serde(skip_serializing_if = "Option::is_none")]
        before: Option<Box<ProvenRecord>>,
        /// The frozen parameters, in the order of the state table, each under the state of the record before.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        kept: Vec<ProvenTensor>,
    },
    /// A scalar of the record is not the one that its own trace computed. Without `output`, it is not the one that the job gives
    /// (the clip factor of a job without clipping).
    Scalar {
        /// The scalar of the record.
        scalar: Scalar,
        /// The digest of the output that gives the scalar, and the proof that the trace has it.
        output: Option<ProvenTensor>,
    },
    /// Record 0 does not commit the initial state that job and seed give.
    Initial,
    /// Record 0 commits a state with another element than the weights that the run names.
    Weights(Box<WeightsClaim>),
    /// The record's learning rate is not the schedule's.
    LearningRate,
    /// The record's cursor is not the number of samples drawn.
    Cursor,
    /// The record's batch is not the one that seed and data give.
    Batch {
        /// The manifests of the run's data files.
        files: Vec<FileManifest>,
        /// The slices that contain the batch's samples, by ascending file.
        slices: Vec<DataSlices>,
    },
    /// The final record does not commit the state of the last step's record, `last`.
    Final {
        /// The record of the last step.
        last: ProvenRecord,
    },
    /// The trainer signed two histories of one run.
    Fork {
        /// The other head's signed note.
        other: String,
        /// The difference of the two histories.
        evidence: Fork,
    },
    /// A replay of the step gives other tensors; the run is needed to check it.
    Step {
        /// Micro-batches whose gradients have another root.
        micro_batches: Vec<u32>,
        /// State tensors with another result, by name.
        tensors: Vec<String>,
    },
}

impl Claim {
    /// True if records and job alone decide the claim, so that also a run whose commitments hide is convicted without its salts.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Claim::LearningRate | Claim::Cursor | Claim::Final { .. } | Claim::Fork { .. })
    }

    /// The kind, as files write it.
    pub fn kind(&self) -> &'static str {
        match self {
            Claim::Tile(_) => "tile",
            Claim::Rounding(_) => "rounding",
            Claim::Binding { .. } => "binding",
            Claim::Scalar { .. } => "scalar",
            Claim::Initial => "initial",
            Claim::Weights(_) => "weights",
            Claim::LearningRate => "learning_rate",
            Claim::Cursor => "cursor",
            Claim::Batch { .. } => "batch",
            Claim::Final { .. } => "final",
            Claim::Fork { .. } => "fork",
            Claim::Step { .. } => "step",
        }
    }
}

/// A verdict file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// The version of the format, 2.
    pub format: u32,
    /// The run's identity; its id follows from the identity and the job.
    pub run: RunSummary,
    /// The job file's text.
    pub job: String,
    /// The bytes of the program file, for a job that names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Base64>,
    /// The signed note of the head.
    pub head: String,
    /// The record in question; a fork of two heads needs none.
    pub record: Option<ProvenRecord>,
    /// The fault of the record.
    pub claim: Claim,
}

/// The beginning of a verdict of any contract.
#[derive(Deserialize)]
struct Preamble {
    run: PreambleRun,
}

#[derive(Deserialize)]
struct PreambleRun {
    contract: String,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq)]
pub enum Ruling {
    /// The evidence shows the fault, whoever wrote the file.
    Convicts(Finding),
    /// The evidence is consistent with an honest trainer.
    DoesNotConvict(Right),
    /// The claim can only be checked by replaying the step from the run.
    NeedsReplay {
        /// The step to replay.
        step: u32,
        /// The run id.
        run: Digest,
    },
}

/// A conviction.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The run id.
    pub run: Digest,
    /// The result of looking for the trainer's signature.
    pub signed: Signed,
    /// The step, 0 for the initial state and for a fork.
    pub step: u32,
    /// The fact that no honest trainer signs, which this trainer signed.
    pub what: Wrong,
}

impl Verdict {
    /// A verdict in the current format, with the text of the job and the bytes of the program file if it names one. The verdict
    /// is not checked.
    #[doc(hidden)] // for the layers above
    pub fn new(
        run: RunSummary,
        (job, program): (String, Option<Vec<u8>>),
        head: String,
        record: Option<ProvenRecord>,
        claim: Claim,
    ) -> Verdict {
        Verdict { format: FORMAT, run, job, program: program.map(Base64), head, record, claim }
    }

    /// The verdict's one encoding: JSON without white space.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a verdict is plain data")
    }

    /// Parses strictly: a verdict has one encoding, that of [`Verdict::to_bytes`].
    ///
    /// # Errors
    /// If the bytes are too many, have another version of the format, or are not the only encoding of a verdict.
    ///
    /// ```
    /// use tiebreak_dispute::verdict::Verdict;
    ///
    /// let bytes = std::fs::read("../../assets/verdicts/operator.json")?;
    /// let verdict = Verdict::from_bytes(&bytes)?;
    /// assert_eq!(verdict.to_bytes(), bytes);
    /// // One encoding: not even a blank may be added.
    /// assert!(Verdict::from_bytes(&[b" ", &bytes[..]].concat()).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_bytes(bytes: &[u8]) -> Result<Verdict, Malformed> {
        let wrong = |why: String| Malformed::invalid("verdict", why);
        if bytes.len() as u64 > VERDICT_MAX {
            return Err(Malformed::TooLarge { what: "verdict", limit: VERDICT_MAX });
        }
        let verdict: Verdict = serde_json::from_slice(bytes).map_err(|error| {
            // A file of another contract has other fields: the error names the contract, rather than a missing field.
            let other = serde_json::from_slice::<Preamble>(bytes).ok();
            let other = other.and_then(|preamble| other_contract("verdict", &preamble.run.contract));
            other.unwrap_or_else(|| wrong(error.to_string()))
        })?;
        if verdict.format != FORMAT {
            return Err(wrong(format!(
                "it has format {}, and this program reads format {FORMAT}",
                verdict.format
            )));
        }
        if let Some(byte) = other_from(&verdict, bytes) {
            return Err(wrong(other_encoding_at(byte)));
        }
        Ok(verdict)
    }
}
