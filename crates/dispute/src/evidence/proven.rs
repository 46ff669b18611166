//! The contents of verdicts and of answers in games: tensors, slices and outputs, each with its proof.

use serde::{Deserialize, Serialize};

use tiebreak_contract::program::phase::Phase;
use tiebreak_job::manifest::FileSlices;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::proven::{Base64, Hashes};
use tiebreak_record::rounding::log::SliceProof;

/// The error for evidence that contradicts itself.
pub(crate) fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid("verdict", why)
}

/// A leaf of a trace, state or batch root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvenTensor {
    /// The tensor's digest.
    pub digest: Digest,
    /// The inclusion proof of the leaf, in the tree of the root.
    pub proof: Vec<Digest>,
}

/// The slices of one input tensor that the elements in question need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvenInput {
    /// The tensor in the graph of the node's phase.
    pub tensor: u32,
    /// The tensor's digest, and the proof that the run commits to it.
    pub commitment: ProvenTensor,
    /// The numbers of the slices, ascending.
    pub slices: Vec<usize>,
    /// The slices' bytes, one after another.
    pub bytes: Base64,
    /// The hashes that prove the slices together ([`tiebreak_record::commit::multiproof`]).
    pub siblings: Hashes,
}

/// The phase of a node, as files write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseName {
    /// The gradient of micro-batch i.
    Micro(u32),
    /// The i-th addition of the accumulation tree.
    Accumulate(u32),
    /// The update of the state.
    Update,
}

impl From<Phase> for PhaseName {
    fn from(phase: Phase) -> PhaseName {
        match phase {
            Phase::Micro(i) => PhaseName::Micro(i),
            Phase::Accumulate(i) => PhaseName::Accumulate(i),
            Phase::Update => PhaseName::Update,
        }
    }
}

impl From<PhaseName> for Phase {
    fn from(name: PhaseName) -> Phase {
        match name {
            PhaseName::Micro(i) => Phase::Micro(i),
            PhaseName::Accumulate(i) => Phase::Accumulate(i),
            PhaseName::Update => Phase::Update,
        }
    }
}

/// Slices of a rounding log: those of its index, and of a block of decisions with the entries that give its
/// position ([`SliceProof`]); or those that a challenger lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSlices {
    /// Bytes of the log.
    pub len: u32,
    /// The slices that are carried, ascending.
    pub slices: Vec<usize>,
    /// The slices' bytes, one after another.
    pub bytes: Base64,
    /// The BLAKE3 hashes that prove the slices in the log's root.
    pub siblings: Hashes,
}

impl From<SliceProof> for LogSlices {
    fn from(proof: SliceProof) -> LogSlices {
        let SliceProof { len, slices, bytes, siblings } = proof;
        LogSlices { len, slices, bytes: Base64(bytes), siblings: Hashes(siblings) }
    }
}

impl From<&LogSlices> for SliceProof {
    fn from(log: &LogSlices) -> SliceProof {
        let LogSlices { len, slices, bytes, siblings } = log.clone();
        SliceProof { len, slices, bytes: bytes.0, siblings: siblings.0 }
    }
}

/// A scalar of a record that an output of the step's graphs gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scalar {
    /// The clip factor.
    Clip,
    /// The mean loss.
    Loss,
}

impl Scalar {
    /// The name in reports.
    #[doc(hidden)] // for the layers above
    pub fn name(self) -> &'static str {
        match self {
            Scalar::Clip => "clip factor",
            Scalar::Loss => "loss",
        }
    }
}

/// Slices of a file of the run's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSlices {
    /// The file's index in the run's manifest.
    pub file: usize,
    /// The numbers of the slices of 1024 bytes, ascending.
    pub slices: Vec<usize>,
    /// The slices' bytes, one after another.
    pub bytes: Base64,
    /// The hashes that prove the slices together under the file's root ([`tiebreak_record::commit::multiproof`]).
    pub siblings: Hashes,
}

impl DataSlices {
    /// The file's index, and its slices.
    #[doc(hidden)] // for the layers above
    pub fn parts(&self) -> (usize, FileSlices) {
        let DataSlices { file, slices, bytes, siblings } = self.clone();
        (file, FileSlices { slices, bytes: bytes.0, siblings: siblings.0 })
    }
}

impl From<(usize, FileSlices)> for DataSlices {
    fn from((file, FileSlices { slices, bytes, siblings }): (usize, FileSlices)) -> DataSlices {
        DataSlices { file, slices, bytes: Base64(bytes), siblings: Hashes(siblings) }
    }
}
