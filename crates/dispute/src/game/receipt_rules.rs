//! The rules of a game about a receipt: the passes of the answer's windows, whose operators are disputed.
//!
//! Everything that a pass reads beside its own operators follows from the receipt, or is under a root that the receipt has.

use std::sync::OnceLock;

use super::message::{Subject, Tree};
use super::terms::{DisputedReceipt, Terms, wrong};
use crate::answer::Pass;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_record::commit::salted_receipt::{self, AnyReceipt};
use tiebreak_record::commit::tensor::{SLICE_BYTES, piece_count};

/// The most of everything that bounds a game.
#[derive(Clone, Copy, Default)]
pub(super) struct Most {
    /// Operators of a pass.
    pub operators: u64,
    /// Elements of a tensor.
    pub elements: u64,
    /// Slices of an output.
    pub slices: u64,
}

impl Most {
    fn take(&mut self, pass: &Pass) {
        let graph = &pass.graph;
        self.operators = self.operators.max(graph.nodes.len() as u64);
        for tensor in &graph.tensors {
            self.elements = self.elements.max(tensor.len() as u64);
        }
        for node in &graph.nodes {
            let slices = piece_count(graph.tensor(node.output).bytes(), SLICE_BYTES);
            self.slices = self.slices.max(slices as u64);
        }
    }
}

/// The same error, of the terms that have the receipt and its model.
fn of_terms(error: Malformed) -> Malformed {
    match error {
        Malformed::Invalid { why, .. } => wrong(why),
        error => error,
    }
}

/// A receipt whose passes are disputed.
pub(super) struct ReceiptRules {
    receipt: Receipt,
    job: String,
    /// The root over the passes, which the signer signed.
    pub traces: Digest,
    /// The passes. One is made when it is first asked for, so a game makes one for each two parties.
    passes: Vec<OnceLock<Option<Box<Pass>>>>,
    pub most: Most,
}

impl ReceiptRules {
    /// The rules of terms about a receipt, which has to be signed by the first party.
    pub fn new(
        terms: &Terms,
        disputed: &DisputedReceipt,
        first: Option<&PublicKey>,
    ) -> Result<ReceiptRules, Malformed> {
        if terms.program.is_some() || terms.claim.is_some() {
            return Err(wrong("a game about a receipt has no program file and no claim"));
        }
        let (receipt, signer) = salted_receipt::read(&disputed.text, disputed.opening.as_deref())?;
        let signer = signer.ok_or_else(|| wrong("nobody signed the receipt, so that it accuses nobody"))?;
        if first.is_none_or(|first| first.to_text() != signer.to_text()) {
            let signer = signer.to_text();
            return Err(wrong(format!("the first party is not {signer}, who signed the receipt")));
        }
        let AnyReceipt::Answer(receipt) = receipt else {
            return Err(wrong("the receipt is of predictions, and a game is about a receipt of an answer"));
        };
        let none = || wrong("the receipt commits no traces, so that there is nothing to search");
        let traces = receipt.traces.ok_or_else(none)?;
        if receipt.answer.is_empty() {
            return Err(wrong("the receipt's answer is empty, so that there is nothing to search"));
        }
        let first = Pass::of(&receipt, &terms.job, 0).map_err(of_terms)?;
        let count = first.passes();
        let classes = first.logits().map_or(0, |ty| ty.shape.last().copied().unwrap_or(0));
        if let Some(id) = receipt.prompt.iter().chain(&receipt.answer).find(|id| **id >= classes) {
            return Err(wrong(format!(
                "the receipt has a token {id}, and those of its model are below {classes}"
            )));
        }
        let mut most = Most::default();
        most.take(&first);
        // All windows but the last have the first one's size.
        if count > 1 {
            most.take(&Pass::of(&receipt, &terms.job, count - 1).map_err(of_terms)?);
        }
        let passes: Vec<OnceLock<Option<Box<Pass>>>> = (0..count).map(|_| OnceLock::new()).collect();
        Ok(ReceiptRules { receipt, job: terms.job.clone(), traces, passes, most })
    }

    /// The pass with this number.
    pub fn pass(&self, number: u32) -> Option<&Pass> {
        let made = || Pass::of(&self.receipt, &self.job, number as usize).ok().map(Box::new);
        self.passes.get(number as usize)?.get_or_init(made).as_deref()
    }

    /// The number of leaves of a tree over passes or operators; `None` for other trees.
    pub fn leaves(&self, tree: Tree) -> Option<u64> {
        match tree {
            Tree::Passes => Some(self.passes.len() as u64),
            Tree::Pass { pass } => Some(self.pass(pass)?.graph.nodes.len() as u64),
            _ => None,
        }
    }

    /// The name and type of a node's output.
    pub fn tensor(&self, subject: Subject) -> Option<(String, TensorType)> {
        let Subject::Pass { pass, node } = subject else { return None };
        let graph = &self.pass(pass)?.graph;
        let output = graph.nodes.get(node)?.output;
        Some((format!("step/{node}"), graph.tensor(output).clone()))
    }
}
