//! Reads questions, answers and what they name as their fields come: the kind is the first of them in the one encoding.

use super::message::{Answer, Field, Fold, LogBlock, LogPlace, Need, Question, Subject, Tree};
use crate::evidence::proven::{DataSlices, PhaseName, ProvenInput, ProvenTensor};
use crate::tag_first::tag_first;
use tiebreak_job::manifest::FileManifest;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::proven::{Base64, Hashes, ProvenRecord};

tag_first!(Subject, "of", {
    "batch" => Batch { step: u32, micro: u32, tensor: usize },
    "node" => Node { step: u32, phase: PhaseName, node: usize },
    "pass" => Pass { pass: u32, node: usize },
    "row" => Row { number: u32 },
});

tag_first!(Fold, "kind", {
    "product" => Product {},
    "segment" => Segment {},
    "rank" => Rank { position: u64 },
    "count" => Count {},
    "absmax" => Absmax { number: u8 },
    "sums" => Sums { parts: u8 },
});

tag_first!(Tree, "tree", {
    "transcript" => Transcript {},
    "batch" => Batch { step: u32 },
    "gradients" => Gradients { step: u32 },
    "trace" => Trace { step: u32 },
    "receipt" => Receipt {},
    "rows" => Rows {},
    "passes" => Passes {},
    "pass" => Pass { pass: u32 },
    "tensor" => Tensor { subject: Subject },
    "terms" => Terms { subject: Subject, element: u64, fold: Fold },
});

tag_first!(Need, "need", {
    "all" => All {},
    "frame" => Frame { fold: Fold },
    "terms" => Terms { fold: Fold, first: u64, count: u64 },
    "decision" => Decision {},
});

tag_first!(Question, "ask", {
    "commit" => Commit {},
    "reveal" => Reveal {},
    "logs" => Logs { supplied: Option<Digest> },
    "supply" => Supply { place: LogPlace },
    "log_block" => LogBlock { step: u32, part: u32, block: u64 },
    "children" => Children { tree: Tree, first: u64, count: u64 },
    "record" => Record { index: u64 },
    "statement" => Statement { step: u32 },
    "pass" => Pass { pass: u32 },
    "root" => Root { subject: Subject },
    "slice" => Slice { subject: Subject, slice: u64 },
    "total" => Total { subject: Subject, element: u64, fold: Fold },
    "evidence" => Evidence { subject: Subject, element: u64, need: Need },
    "binding" => Binding { step: u32, field: Field },
});

tag_first!(Answer, "is", {
    "commit" => Commit { commitment: Digest },
    "reveal" => Reveal { salt: Digest, root: Digest },
    "children" => Children { values: Base64 },
    "record" => Record { record: Base64, before: Option<ProvenRecord> },
    "statement" => Statement(_),
    "root" => Root { root: Digest },
    "slice" => Slice { bytes: Base64 },
    "total" => Total { value: Base64 },
    "operands" => Operands { inputs: Vec<ProvenInput> },
    "logits" => Logits { pass: u32, root: Digest, proof: Vec<Digest>, logits: ProvenInput },
    "samples" => Samples { files: Vec<FileManifest>, slices: Vec<DataSlices> },
    "rounding" => Rounding { inputs: Vec<ProvenInput>, log: Option<LogBlock> },
    "binding" => Binding { outputs: Vec<Digest>, siblings: Hashes, kept: Vec<ProvenTensor> },
    "logs" => Logs { lacks: Option<LogPlace> },
    "unreadable" => Unreadable { step: u32, part: u32, block: u64 },
    "supplied" => Supplied(_),
    "decline" => Decline {},
});
