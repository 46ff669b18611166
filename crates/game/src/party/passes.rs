//! The passes of a receipt as a party computes them, whether they read an answer or samples.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::error::PartyError;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_dispute::answer::Pass;
use tiebreak_engine::Engine;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::state::{StateRoots, tensor_digests};
use tiebreak_record::commit::trace::TracedNode;
use tiebreak_run::inference::traced::Tamper;

/// Parameters and buffers.
pub(super) struct Weights {
    pub table: Vec<StateTensor>,
    pub bytes: Vec<Vec<u8>>,
    pub digests: Vec<Digest>,
}

impl Weights {
    /// Tensors with these names and types, which have to have the receipt's roots over parameters and over buffers.
    pub fn of(
        table: Vec<StateTensor>,
        bytes: Vec<Vec<u8>>,
        [parameters, buffers]: [Option<Digest>; 2],
    ) -> Result<Weights, PartyError> {
        let lengths = table.iter().map(|tensor| tensor.ty().bytes());
        if !lengths.eq(bytes.iter().map(Vec::len)) {
            let (found, own) = (bytes.len(), table.len());
            return Err(PartyError::Refused(format!(
                "{found} tensors are given, and the receipt's model has {own}, or others: give the model that the receipt is of"
            )));
        }
        let digests = tensor_digests(&table, &bytes);
        let roots = StateRoots::of(&table, &digests).0;
        let wanted = [("parameters", parameters), ("buffers", buffers)].into_iter();
        let of_receipt = wanted.zip(roots).filter_map(|((what, wanted), root)| Some((what, wanted?, root)));
        match { of_receipt }.find(|(_, wanted, root)| wanted != root) {
            Some((what, wanted, root)) => Err(PartyError::Refused(format!(
                "the root over the {what} is {}, which the receipt has: give the model that the receipt is of",
                root.not(&wanted)
            ))),
            None => Ok(Weights { table, bytes, digests }),
        }
    }
}

/// Tensors of a pass.
pub(super) struct PassTensors {
    /// Outputs of nodes, by the node's number.
    pub outputs: BTreeMap<usize, Vec<u8>>,
    /// A sample's inputs.
    pub sample: Option<Vec<u8>>,
}

/// Where a pass has a row.
pub(super) struct RowPlace {
    pub pass: usize,
    /// The elements of the pass's logits.
    pub elements: Range<usize>,
}

/// Takes the nodes of a pass, and the digests of the rows that it gives.
pub(super) type TakePass<'a> = &'a mut dyn FnMut(Vec<TracedNode>, Vec<Digest>);

/// The passes of a receipt, by a model with its weights. A row is that of a token of an answer, or all logits of a sample.
pub(super) trait Passes {
    /// The parameters and buffers.
    fn weights(&self) -> &Weights;

    /// In words, what the receipt's roots are of.
    fn words(&self) -> [&'static str; 2];

    /// The receipt's roots: over passes, and over rows.
    fn signed(&self) -> [Digest; 2];

    /// The digest of a sample's inputs, as the receipt has it; none of a window.
    fn input(&self, pass: usize) -> Option<Digest>;

    /// The numbers of nodes of all passes.
    fn nodes(&self) -> Vec<usize>;

    /// The number of rows.
    fn rows(&self) -> usize;

    /// The pass with this number.
    fn pass(&self, number: usize) -> Result<Pass, PartyError>;

    /// The leaves of the passes, with these roots over their nodes.
    fn pass_leaves(&self, roots: &[Digest]) -> Vec<Digest>;

    /// The leaves of the rows, with these digests of them.
    fn row_leaves(&self, rows: &[Digest]) -> Vec<Digest>;

    /// Where a pass has the row with this number; `None` if there is none.
    fn row(&self, number: u32) -> Result<Option<RowPlace>, PartyError>;

    /// Checks that the data are those of the receipt.
    fn check_data(&mut self) -> Result<(), PartyError>;

    /// Computes all passes. Without a change the data have to be those of the receipt.
    fn trace(&mut self, engine: &mut dyn Engine, tamper: Tamper, take: TakePass) -> Result<(), PartyError>;

    /// Computes a pass, and keeps the outputs of some nodes.
    fn outputs(
        &mut self,
        engine: &mut dyn Engine,
        number: usize,
        wanted: BTreeSet<usize>,
        tamper: Tamper,
    ) -> Result<PassTensors, PartyError>;
}
