//! Verdict files: what they carry, in one encoding. What a file shows is decided in [`super::check`].
//!
//! A verdict carries the job, a signed head, the record it is about with its inclusion proof, and a claim. Every kind
//! but *step* is decided from the file alone; a *step* verdict names the step and is checked by replaying it.

use serde::{Deserialize, Serialize};

pub use super::evidence::proven::{DataSlices, LogSlices, PhaseName, ProvenInput, ProvenTensor, Scalar};
use super::fact::{Right, Wrong};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
pub use tiebreak_record::commit::proven::{Base64, Hashes, ProvenRecord};
use tiebreak_record::commit::tree_head::Signed;
use tiebreak_record::job::identity::{RunSummary, other_contract};
use tiebreak_record::job::manifest::FileManifest;

/// The most bytes of a verdict file.
pub const VERDICT_MAX: u64 = 1 << 28;
const FORMAT: u32 = 2;

/// What the trainer disclosed of a tile: with it, one wrong element suffices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disclosed {
    /// The committed tile's bytes.
    pub bytes: Base64,
    /// The element of the output, row-major, that is wrong in them.
    pub element: usize,
}

/// One tile of one operator's output is not what the operator makes of its committed inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TileClaim {
    /// The record before the step's: it commits to the state that the step began from.
    pub before: ProvenRecord,
    /// The phase that ran the node.
    pub phase: PhaseName,
    /// The node's place in the phase's graph.
    pub node: usize,
    /// The output's digest, and the proof that the step's trace has it.
    pub output: ProvenTensor,
    /// The tile's number: tiles have 4096 bytes.
    pub tile: usize,
    /// What the committed tree says of the tile.
    pub value: Digest,
    /// The BLAKE3 hashes that prove `value` in the output's digest.
    pub siblings: Hashes,
    /// Without the committed bytes the inputs of every element of the tile are carried, with them those of one.
    pub disclosed: Option<Disclosed>,
    /// The slices of the node's inputs that the elements read.
    pub inputs: Vec<ProvenInput>,
}

/// How a trainer's value of a logged product's element is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounded {
    /// The step's log has a decision about it.
    Logged {
        /// The block of the product's part of the log that holds the decision.
        block: u64,
        /// The slices of the log that prove it.
        log: LogSlices,
    },
    /// The committed tile of the rounded output that it lies in, whatever the log says.
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
    /// The record before the step's: it commits to the state that the step began from.
    pub before: ProvenRecord,
    /// The micro-batch that the product is of.
    pub micro_batch: u32,
    /// The product's number among those of the program that are logged.
    pub product: usize,
    /// The element of its output, row-major.
    pub element: usize,
    /// How the trainer's value is known.
    pub rounded: Rounded,
    /// The element's row and column of the operands.
    pub inputs: Vec<ProvenInput>,
}

/// An element of the initial state is not the one in the files of weights that the run names, or that the seed gives where the job draws it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightsClaim {
    /// The element of the tensor, row-major.
    pub element: usize,
    /// The slice of the state's tensor that holds it; `tensor` is the place in the state's table.
    pub state: ProvenInput,
    /// The slices of the file (its place among those that the run names) that hold its header and the element. None of a tensor that the job draws from the
    /// seed, and of no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<DataSlices>,
}

/// What shows that two heads are of different histories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fork {
    /// From the larger head's tree: the records that the smaller head should be over have another root.
    Prefix {
        /// The proof, from which both roots follow.
        proof: Vec<Digest>,
    },
    /// The other head has another record at the place of the verdict's.
    Record {
        /// The other head's record, with its proof.
        record: ProvenRecord,
    },
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Claim {
    /// A tile of an operator's output is wrong.
    Tile(Box<TileClaim>),
    /// A rounding of the logged profile is illegal.
    Rounding(Box<RoundingClaim>),
    /// The state that the record commits is not the one that its own trace's update computed. `outputs`: the digests
    /// of the update's nodes that make the state tensors, in the order of the state's table, proven together. Frozen parameters, which
    /// no node makes, are those of the record before.
    Binding {
        /// Digests of the outputs, in the order of the state table.
        outputs: Vec<Digest>,
        /// The hashes that prove them together in the trace root.
        siblings: Hashes,
        /// The record before the step's, if the program has frozen parameters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<Box<ProvenRecord>>,
        /// The frozen parameters, in the order of the state table, each under the state of the record before.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        kept: Vec<ProvenTensor>,
    },
    /// A scalar of the record is not the one that its own trace computed; without `output`, not the one that the job
    /// gives (the clip factor of a job without clipping).
    Scalar {
        /// Which scalar of the record.
        scalar: Scalar,
        /// The digest of the output that gives the scalar, and the proof that the trace has it.
        output: Option<ProvenTensor>,
    },
    /// Record 0 does not commit the initial state that the job and seed give.
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
        /// The slices that the batch's samples lie in, by ascending file.
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
        /// How the two histories differ.
        evidence: Fork,
    },
    /// Replaying the step gives other tensors; checked against the run.
    Step {
        /// Micro-batches whose gradients have another root.
        micro_batches: Vec<u32>,
        /// State tensors that come out differently, by name.
        tensors: Vec<String>,
    },
}

impl Claim {
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
    /// The run's identity; its id follows from it and the job.
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
    /// What is wrong with the record.
    pub claim: Claim,
}

/// What a verdict of any contract begins with.
#[derive(Deserialize)]
struct Preamble {
    run: PreambleRun,
}

#[derive(Deserialize)]
struct PreambleRun {
    contract: String,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq)]
pub enum Ruling {
    /// The evidence shows it, whoever wrote the file.
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
    /// Whether the trainer's signature was seen.
    pub signed: Signed,
    /// The step, 0 for the initial state and for a fork.
    pub step: u32,
    /// What the trainer signed that no honest one signs.
    pub what: Wrong,
}

impl Verdict {
    /// A verdict in the current format, with the text of the job and the bytes of the program file if it names one. It is not
    /// checked.
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
    /// If the bytes are too many, of another version of the format, or not the one encoding of a verdict.
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
            // A file of another contract has other fields: say that, rather than which field it lacks.
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
        if verdict.to_bytes() != bytes {
            return Err(wrong("it is not in the canonical encoding".into()));
        }
        Ok(verdict)
    }
}
