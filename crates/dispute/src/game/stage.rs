//! The state of a game of two, as data.

use super::breach::Leeway;
use super::element;
use super::message::{Field, Fold, Need, Subject, Tree};
use super::result::Loss;
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::proven::ProvenRecord;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::tensor::SLICE_BYTES;

/// A party of the game.
pub(super) struct Side {
    /// The party's index in the terms.
    pub party: usize,
    /// The root over the party's records.
    pub root: Digest,
    /// The disputed record, and its leaf.
    pub record: Option<(Record, Digest)>,
    /// The record before it.
    pub before: Option<ProvenRecord>,
    /// The root over the passes of a receipt.
    pub passes: Option<Digest>,
    /// The root over the operators of the disputed step or pass.
    pub trace: Option<Digest>,
}

impl Side {
    /// The step's record, with the root over operators that the party stated.
    pub fn step(&self) -> Option<StepRecord> {
        match &self.record {
            Some((Record::Step { step, .. }, _)) => Some(StepRecord { trace: self.trace, ..step.clone() }),
            _ => None,
        }
    }
}

/// A node of a tree for which the parties claim different values.
#[derive(Clone)]
pub(super) struct Walk {
    pub tree: Tree,
    pub first: u64,
    pub count: u64,
    /// The leaves of the whole tree.
    pub total: u64,
    pub values: [Vec<u8>; 2],
}

/// An element for which the parties claim different values, and the bytes of the slice that contains it.
#[derive(Clone)]
pub(super) struct DisputedElement {
    pub subject: Subject,
    pub element: usize,
    pub ty: TensorType,
    pub slice: usize,
    pub bytes: [Vec<u8>; 2],
}

impl DisputedElement {
    /// True if a side's bytes are those of this element, as far as it is in the slice.
    pub fn agrees(&self, side: usize, word: u32) -> bool {
        let first = self.element * self.ty.dtype.size();
        let start = self.slice * SLICE_BYTES;
        bytes_from_words(self.ty.dtype, &[word]).iter().enumerate().all(|(i, byte)| {
            let place = (first + i).checked_sub(start);
            place.and_then(|at| self.bytes[side].get(at)).is_none_or(|claimed| claimed == byte)
        })
    }

    /// The claimed element of a side, if it is in one slice.
    pub fn claimed(&self, side: usize) -> u32 {
        let size = self.ty.dtype.size();
        let first = (self.element * size).saturating_sub(self.slice * SLICE_BYTES);
        let bytes = self.bytes[side].get(first..first + size).unwrap_or_default();
        bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte))
    }
}

/// The known facts about an element of many terms.
#[derive(Clone)]
pub(super) struct Folded {
    pub fold: Fold,
    pub frame: element::Frame,
    /// The total of all terms, if both parties claim the same.
    pub total: Option<Vec<u8>>,
}

/// The stage of a game.
#[derive(Clone)]
pub(super) enum Stage {
    /// A level of a tree is open.
    Walk(Walk),
    /// The record with this index; its leaves.
    Record { index: u64, leaves: [Digest; 2] },
    /// The operators of a step.
    Statement { step: u32 },
    /// A pass of a receipt; its leaves.
    Pass { pass: u32, leaves: [Vec<u8>; 2] },
    /// A tensor; its Merkle leaves.
    Root { subject: Subject, leaves: [Vec<u8>; 2] },
    /// A slice; its values.
    Slice { subject: Subject, slice: usize, values: [Vec<u8>; 2] },
    /// Operands on which both agree, asked of one side; `declined` says that the other side did not supply them.
    Evidence { need: Need, asked: usize, declined: bool, claims: Option<[Vec<u8>; 2]> },
    /// The root of an element's terms.
    Total,
    /// The outputs that a field is made of.
    Binding { step: u32, field: Field, asked: usize, declined: bool, claims: Option<[Vec<u8>; 2]> },
}

/// The continuation of a game.
pub(super) enum Next {
    /// Another question.
    Ask,
    /// The end: the losers, at least one.
    Lost(Vec<Loss>),
    /// The trainer's log lacks the decision that would show who is right.
    IncompleteLog(Leeway),
    /// The operator of this name is not defined for a number of the sample, and the game has no signer.
    Sample(String),
    /// An impossible result of two checked answers, in words. Nobody loses by it, since it shows a collision of hashes or a fault
    /// of this program.
    Impossible(&'static str),
}

/// The first bytes of a value, for people.
pub(super) fn short(bytes: &[u8]) -> String {
    bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}
