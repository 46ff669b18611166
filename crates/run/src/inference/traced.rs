//! The trace of an answer: each operator of each window that the answer needs, and the rows of logits. Contract: `docs/INFERENCE.md`,
//! Traces of answers.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::{bytes_of, words_from_bytes};
use tiebreak_contract::program::graph::{Graph, Node, TensorType};
use tiebreak_contract::program::inference::inference_step;
use tiebreak_engine::{Engine, EngineError, Inputs, Observer, Want};
use tiebreak_record::commit::answer_trace::AnswerTrace;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::receipt::{Receipt, answer_leaf, row_digest};
use tiebreak_record::commit::tensor::{self, Hash};
use tiebreak_record::commit::trace::TracedNode;

use super::replay::{Answerer, Pass};

/// Changes the output of a node of a window. Arguments: the window, the node, its output. Behind the last node come the logits, as
/// the signer commits rows of them.
pub type Change<'a> = dyn FnMut(usize, usize, &[u8]) -> Option<Vec<u8>> + Send + 'a;
/// A change of outputs; an honest signer makes none.
pub type Tamper<'a> = Option<&'a mut Change<'a>>;

impl Answerer<'_> {
    /// The graph of each window that the answer needs; none if the model is no decoder.
    pub fn window_graphs(&self, receipt: &Receipt) -> Vec<Arc<Graph>> {
        let mut made: BTreeMap<u32, Arc<Graph>> = BTreeMap::new();
        let mut graph = |[_, size]: [u32; 2]| match made.entry(size) {
            Entry::Occupied(graph) => Some(graph.get().clone()),
            Entry::Vacant(place) => {
                let graph = inference_step(self.model, [1, size])?;
                Some(place.insert(Arc::new(graph)).clone())
            }
        };
        self.windows(receipt).into_iter().map_while(&mut graph).collect()
    }

    /// The leaves of an answer's windows under its receipt's root over traces.
    pub fn window_leaves(&self, receipt: &Receipt, trace: &AnswerTrace) -> Vec<Digest> {
        trace.window_leaves(&self.windows(receipt))
    }

    /// The root over an answer's traces, as its receipt has it.
    pub fn traces_root(&self, receipt: &Receipt, trace: &AnswerTrace) -> Digest {
        merkle::root(&self.window_leaves(receipt, trace))
    }

    /// The trace of an answer, which its receipt's tokens are read for.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn trace(
        &self,
        engine: &mut dyn Engine,
        receipt: &Receipt,
        tamper: Tamper,
        progress: &mut dyn FnMut(u64),
    ) -> Result<AnswerTrace, EngineError> {
        let mut trace = AnswerTrace::default();
        self.trace_windows(engine, receipt, tamper, &mut |nodes, rows| {
            trace.windows.push(nodes);
            for row in rows {
                trace.rows.push(row);
                progress(trace.rows.len() as u64);
            }
        })?;
        Ok(trace)
    }

    /// Passes the nodes of each window, and the digests of the rows that its pass gives, to `take`.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn trace_windows(
        &self,
        engine: &mut dyn Engine,
        receipt: &Receipt,
        mut tamper: Tamper,
        take: &mut dyn FnMut(Vec<TracedNode>, Vec<Digest>),
    ) -> Result<(), EngineError> {
        let text = [&receipt.prompt[..], &receipt.answer].concat();
        let mut pass: Option<(u32, Pass)> = None;
        for (window, (first, numbers)) in
            self.passes(receipt, 0..receipt.answer.len()).into_iter().enumerate()
        {
            let tokens = &text[first..receipt.prompt.len() + numbers.end - 1];
            let size = tokens.len() as u32;
            if pass.as_ref().is_none_or(|(of, _)| *of != size) {
                pass = Pass::new(engine, self, size)?.map(|pass| (size, pass));
            }
            let Some((_, pass)) = &mut pass else { break };
            let mut hashing = Hashing::new(pass.graph(), window, tamper.as_deref_mut());
            let rows = pass.rows(engine, tokens, Some(&mut hashing))?;
            let nodes = hashing.nodes;
            let changed = tamper.as_deref_mut().and_then(|of| of(window, nodes.len(), &bytes_of(&rows)));
            let rows = changed.map_or(rows, |logits| words_from_bytes(DType::F32, &logits));
            let row = |number: usize| {
                let place = receipt.prompt.len() + number - first - 1;
                row_digest(&rows[place * self.known.len()..][..self.known.len()])
            };
            take(nodes, numbers.map(row).collect());
        }
        Ok(())
    }

    /// The outputs of some nodes of a window.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn outputs(
        &self,
        engine: &mut dyn Engine,
        receipt: &Receipt,
        window: usize,
        wanted: BTreeSet<usize>,
    ) -> Result<BTreeMap<usize, Vec<u8>>, EngineError> {
        self.tampered_outputs(engine, receipt, window, wanted, None)
    }

    /// [`Answerer::outputs`] of a signer who changes them.
    ///
    /// # Errors
    /// As [`Answerer::outputs`].
    pub fn tampered_outputs(
        &self,
        engine: &mut dyn Engine,
        receipt: &Receipt,
        window: usize,
        wanted: BTreeSet<usize>,
        tamper: Tamper,
    ) -> Result<BTreeMap<usize, Vec<u8>>, EngineError> {
        let text = [&receipt.prompt[..], &receipt.answer].concat();
        let Some((first, numbers)) = self.passes(receipt, 0..receipt.answer.len()).into_iter().nth(window)
        else {
            return Ok(BTreeMap::new());
        };
        let tokens = &text[first..receipt.prompt.len() + numbers.end - 1];
        let Some(mut pass) = Pass::new(engine, self, tokens.len() as u32)? else {
            return Ok(BTreeMap::new());
        };
        let mut keeping = Keeping { window, wanted, kept: BTreeMap::new(), tamper };
        pass.rows(engine, tokens, Some(&mut keeping))?;
        Ok(keeping.kept)
    }

    /// The windows of an answer: the number of the first token, and the number of tokens.
    pub fn windows(&self, receipt: &Receipt) -> Vec<[u32; 2]> {
        let windows = self.passes(receipt, 0..receipt.answer.len()).into_iter();
        let of = |(first, numbers): (usize, std::ops::Range<usize>)| {
            [first as u32, (receipt.prompt.len() + numbers.end - 1 - first) as u32]
        };
        windows.map(of).collect()
    }
}

/// The leaves of an answer's tokens under its receipt's root, with these digests of rows.
pub fn row_leaves(receipt: &Receipt, rows: &[Digest]) -> Vec<Digest> {
    let tokens = (0..).zip(&receipt.answer).zip(rows);
    tokens.map(|((number, token), row)| answer_leaf(number, *token, row)).collect()
}

/// Hashes each node's output.
pub(crate) struct Hashing<'a, 't> {
    window: usize,
    types: Vec<TensorType>,
    pub(crate) nodes: Vec<TracedNode>,
    tamper: Option<&'a mut Change<'t>>,
}

impl<'a, 't> Hashing<'a, 't> {
    /// For the nodes of a window's graph.
    pub(crate) fn new(graph: &Graph, window: usize, tamper: Option<&'a mut Change<'t>>) -> Hashing<'a, 't> {
        let types = graph.nodes.iter().map(|node| graph.tensor(node.output).clone()).collect();
        Hashing { window, types, nodes: Vec::new(), tamper }
    }
}

impl Observer for Hashing<'_, '_> {
    fn want(&self, _: usize, _: &Node) -> Want {
        if self.tamper.is_some() { Want::Bytes } else { Want::Tiles }
    }

    fn tiles(&mut self, index: usize, _: &Node, tiles: Vec<Hash>) -> Result<(), EngineError> {
        self.nodes.push(TracedNode::new(&self.types[index], tiles));
        Ok(())
    }

    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        _: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let changed = self.tamper.as_mut().and_then(|tamper| tamper(self.window, index, bytes));
        self.tiles(index, node, tensor::tile_values(changed.as_deref().unwrap_or(bytes)))?;
        Ok(changed)
    }
}

/// Keeps the outputs of some nodes.
pub(crate) struct Keeping<'a, 't> {
    pub(crate) window: usize,
    pub(crate) wanted: BTreeSet<usize>,
    pub(crate) kept: BTreeMap<usize, Vec<u8>>,
    pub(crate) tamper: Option<&'a mut Change<'t>>,
}

impl Observer for Keeping<'_, '_> {
    fn want(&self, index: usize, _: &Node) -> Want {
        if self.tamper.is_some() || self.wanted.contains(&index) { Want::Bytes } else { Want::No }
    }

    fn node(
        &mut self,
        index: usize,
        _: &Node,
        bytes: &[u8],
        _: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let changed = self.tamper.as_mut().and_then(|tamper| tamper(self.window, index, bytes));
        if self.wanted.contains(&index) {
            self.kept.insert(index, changed.clone().unwrap_or_else(|| bytes.to_vec()));
        }
        Ok(changed)
    }
}
