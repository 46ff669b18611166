//! Reads a claim's fields as they come: its kind is the first of them in the one encoding.

use super::evidence::proven::{DataSlices, ProvenTensor, Scalar};
use super::tag_first::tag_first;
use super::verdict::{Claim, Fork};
use tiebreak_job::manifest::FileManifest;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::proven::{Hashes, ProvenRecord};

tag_first!(Claim, "kind", {
    "tile" => Tile(_),
    "rounding" => Rounding(_),
    "binding" => Binding {
        outputs: Vec<Digest>,
        siblings: Hashes,
        #[serde(default)]
        before: Option<Box<ProvenRecord>>,
        #[serde(default)]
        kept: Vec<ProvenTensor>,
    },
    "scalar" => Scalar { scalar: Scalar, output: Option<ProvenTensor> },
    "initial" => Initial {},
    "weights" => Weights(_),
    "learning_rate" => LearningRate {},
    "cursor" => Cursor {},
    "batch" => Batch { files: Vec<FileManifest>, slices: Vec<DataSlices> },
    "final" => Final { last: ProvenRecord },
    "fork" => Fork { other: String, evidence: Fork },
    "step" => Step { micro_batches: Vec<u32>, tensors: Vec<String> },
});
