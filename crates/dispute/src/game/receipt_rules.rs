//! The rules of a game about a receipt: the passes of an answer's windows or of samples, whose operators are disputed, and the rows of
//! logits.
//!
//! Everything that a pass reads beside its own operators follows from the receipt, or is under a root that the receipt has.

use std::ops::Range;
use std::sync::OnceLock;

use super::message::{Subject, Tree};
use super::terms::{DisputedReceipt, Terms, wrong};
use crate::answer::{Answering, Pass, TracedWindow};
use crate::evidence::proven::{ProvenInput, wrong as unproven};
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::element::Source;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::inference::windows;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::answer_trace::claimed_root;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::predictions::Predictions;
use tiebreak_record::commit::receipt::{Receipt, answer_leaf};
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

/// What a receipt says.
enum Said {
    /// An answer. Each pass gives the rows of the tokens with these numbers.
    Answer { receipt: Receipt, numbers: Vec<Range<usize>> },
    /// Predictions. Each sample has a pass, and the pass gives the sample's logits.
    Predictions(Predictions),
}

/// A receipt whose passes are disputed.
pub(super) struct ReceiptRules {
    said: Said,
    job: String,
    /// The root over the passes, which the signer signed.
    pub traces: Digest,
    /// The root over its two roots.
    pub claimed: Digest,
    /// The type of a token's row of logits, or of a sample's logits.
    row: TensorType,
    /// The passes. One is made when it is first asked for, so a game makes one for each two parties.
    passes: Vec<OnceLock<Option<Box<Pass>>>>,
    pub most: Most,
}

/// Passes that are not made yet.
fn unmade(count: usize) -> Vec<OnceLock<Option<Box<Pass>>>> {
    (0..count).map(|_| OnceLock::new()).collect()
}

fn no_traces() -> Malformed {
    wrong(
        "the receipt commits no traces, so that there is nothing to search: ask its signer for one with --trace",
    )
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
        match receipt {
            AnyReceipt::Answer(receipt) => ReceiptRules::of_answer(receipt, terms.job.clone()),
            AnyReceipt::Predictions(receipt) => ReceiptRules::of_predictions(receipt, terms.job.clone()),
        }
    }

    fn of_answer(receipt: Receipt, job: String) -> Result<ReceiptRules, Malformed> {
        let traces = receipt.traces.ok_or_else(no_traces)?;
        if receipt.answer.is_empty() {
            return Err(wrong("the receipt's answer is empty, so that there is nothing to search"));
        }
        let first = Pass::of(&receipt, &job, 0).map_err(of_terms)?;
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
            most.take(&Pass::of(&receipt, &job, count - 1).map_err(of_terms)?);
        }
        let context = Answering::of(&job, receipt.model).map_err(of_terms)?.writer().context();
        let numbers = windows(receipt.prompt.len(), 0..receipt.answer.len(), context);
        let numbers = numbers.into_iter().map(|(_, numbers)| numbers).collect();
        let claimed = claimed_root(&traces, &receipt.root);
        let row = TensorType { dtype: DType::F32, shape: vec![classes] };
        let said = Said::Answer { receipt, numbers };
        Ok(ReceiptRules { said, job, traces, claimed, row, passes: unmade(count), most })
    }

    fn of_predictions(receipt: Predictions, job: String) -> Result<ReceiptRules, Malformed> {
        let traces = receipt.traces.ok_or_else(no_traces)?;
        let first = Pass::of_sample(&receipt, &job, 0).map_err(of_terms)?;
        let row = first.logits().cloned().ok_or_else(|| wrong("the receipt's model has no logits"))?;
        // All samples have one graph.
        let mut most = Most::default();
        most.take(&first);
        let claimed = claimed_root(&traces, &receipt.root());
        let passes = unmade(first.passes());
        Ok(ReceiptRules { said: Said::Predictions(receipt), job, traces, claimed, row, passes, most })
    }

    pub fn is_of_predictions(&self) -> bool {
        matches!(self.said, Said::Predictions(_))
    }

    /// The pass with this number.
    pub fn pass(&self, number: u32) -> Option<&Pass> {
        let (place, job) = (number as usize, &self.job);
        let made = || {
            let pass = match &self.said {
                Said::Answer { receipt, .. } => Pass::of(receipt, job, place),
                Said::Predictions(receipt) => Pass::of_sample(receipt, job, place),
            };
            pass.ok().map(Box::new)
        };
        self.passes.get(place)?.get_or_init(made).as_deref()
    }

    /// The number of tokens with their rows, or of samples with their logits.
    fn rows(&self) -> usize {
        match &self.said {
            Said::Answer { receipt, .. } => receipt.answer.len(),
            Said::Predictions(receipt) => receipt.samples.len(),
        }
    }

    /// The number of leaves of a tree over roots, rows, passes or operators; `None` for other trees.
    pub fn leaves(&self, tree: Tree) -> Option<u64> {
        match tree {
            Tree::Receipt => Some(2),
            Tree::Rows => Some(self.rows() as u64),
            Tree::Passes => Some(self.passes.len() as u64),
            Tree::Pass { pass } => Some(self.pass(pass)?.graph.nodes.len() as u64),
            _ => None,
        }
    }

    /// In words, what the receipt commits.
    pub fn whole(&self) -> String {
        let (passes, rows) = (self.passes.len(), self.rows());
        match &self.said {
            Said::Answer { .. } => format!("{passes} passes and {rows} rows"),
            Said::Predictions(_) => format!("{passes} passes and the logits of {rows} samples"),
        }
    }

    /// In a word, what a pass is of.
    pub fn pass_is_of(&self) -> &'static str {
        if self.is_of_predictions() { "sample" } else { "window" }
    }

    /// A pass in words, which is the first that differs.
    pub fn differing(&self, number: u32, pass: &Pass) -> String {
        match &self.said {
            Said::Answer { .. } => format!("window that differs: {number}, from token {} on", pass.first),
            Said::Predictions(_) => format!("pass that differs: {number} ({})", pass.what),
        }
    }

    /// A row in words.
    pub fn row_in_words(&self, number: u32) -> String {
        match &self.said {
            Said::Answer { .. } => format!("the row of token {number}"),
            Said::Predictions(receipt) => {
                format!("the logits of sample {}", u64::from(receipt.first) + u64::from(number))
            }
        }
    }

    /// The name and type of a node's output, or of a row.
    pub fn tensor(&self, subject: Subject) -> Option<(String, TensorType)> {
        match subject {
            Subject::Pass { pass, node } => {
                let graph = &self.pass(pass)?.graph;
                let output = graph.nodes.get(node)?.output;
                Some((format!("step/{node}"), graph.tensor(output).clone()))
            }
            Subject::Row { number } => {
                ((number as usize) < self.rows()).then(|| (format!("row/{number}"), self.row.clone()))
            }
            Subject::Batch { .. } | Subject::Node { .. } => None,
        }
    }

    /// The leaf of a token with this digest of its row, or of a sample with this digest of its logits. All else in it is the receipt's.
    pub fn row_leaf(&self, number: u32, row: &Digest) -> Option<Digest> {
        let place = number as usize;
        match &self.said {
            Said::Answer { receipt, .. } => Some(answer_leaf(number, *receipt.answer.get(place)?, row)),
            Said::Predictions(receipt) => Some(receipt.samples.get(place)?.leaf(number, row)),
        }
    }

    /// True if the pass gives this row.
    fn gives(&self, pass: usize, number: usize) -> bool {
        match &self.said {
            Said::Answer { numbers, .. } => {
                numbers.get(pass).is_some_and(|numbers| numbers.contains(&number))
            }
            Said::Predictions(_) => pass == number,
        }
    }

    /// The error about a pass that does not give a row.
    fn gives_none(&self, pass: usize, number: u32) -> String {
        match &self.said {
            Said::Answer { .. } => format!("window {pass} gives no row of token {number}"),
            Said::Predictions(receipt) => {
                let sample = u64::from(receipt.first) + pass as u64;
                format!("pass {pass} (sample {sample}) does not give {}", self.row_in_words(number))
            }
        }
    }

    /// An element of the row of a token or of a sample's logits, from the logits of its pass under a root over passes.
    ///
    /// # Errors
    /// If the root does not commit to these logits, or they do not hold the element.
    pub fn logit(
        &self,
        traces: &Digest,
        (number, element): (u32, usize),
        window: &TracedWindow,
        logits: ProvenInput,
    ) -> Result<u32, Malformed> {
        // The number is compared before the pass is made: a party chooses it.
        let gives = self.gives(window.number, number as usize);
        let pass = gives.then(|| self.pass(window.number as u32)).flatten();
        let pass = pass.ok_or_else(|| unproven(self.gives_none(window.number, number)))?;
        pass.under(traces, window)?;
        let id = pass.graph.output("logits").ok_or_else(|| unproven("its graph has no logits"))?;
        let slices = pass.inputs(&window.root, &[id], &[logits])?;
        let first = match &self.said {
            Said::Answer { receipt, .. } => pass.row_place(receipt, number as usize) * self.row.len(),
            Said::Predictions(_) => 0,
        };
        pass.known(&slices).get(id, first + element).map_err(|error| unproven(error.to_string()))
    }
}
