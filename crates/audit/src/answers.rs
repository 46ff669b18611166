//! The evidence against a receipt that a replay contradicts: a verdict that anybody checks without the model.
//!
//! A receipt of format 1 commits its rows of logits and nothing below them. So evidence exists for a token that does not follow from
//! a row that both sides have. Below a row, evidence needs the signer's trace (`docs/INFERENCE.md`, Verdicts on receipts).

use std::collections::{BTreeMap, BTreeSet};

use crate::disputed_step::one_bit_off;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::{bytes_from_words, bytes_of};
use tiebreak_contract::program::graph::{TensorId, TensorType};
use tiebreak_contract::program::step::StateTensor;
use tiebreak_dispute::answer::{
    AnswerClaim, AnswerRuling, AnswerTile, AnswerVerdict, Origin, Pass, RowClaim, TokenizerParts,
    TracedWindow,
};
use tiebreak_dispute::evidence::leaf;
use tiebreak_dispute::verdict::{Base64, Disclosed, Hashes, ProvenInput, ProvenTensor, VERDICT_MAX};
use tiebreak_engine::{Engine, EngineError};
use tiebreak_record::commit::answer_trace::{AnswerTrace, node_leaves};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::receipt::{Receipt, row_digest};
use tiebreak_record::commit::state::tensor_digests;
use tiebreak_record::commit::tensor::{Hash, SLICE_BYTES};
use tiebreak_record::commit::trace::TracedNode;
use tiebreak_record::commit::{merkle, multiproof, table, tensor};
use tiebreak_run::inference::replay::{Answerer, Difference};
use tiebreak_run::inference::traced::row_leaves;

/// What an accuser has.
pub struct Accuser<'a> {
    /// The model, which is the receipt's.
    pub answerer: &'a Answerer<'a>,
    /// The text of its run's job.
    pub job: &'a str,
    /// The receipt, and its file's text.
    pub receipt: (&'a Receipt, &'a str),
    /// The tokenizer, if the model has one: what its digest is made of.
    pub tokenizer: Option<&'a TokenizerParts>,
    /// The text of the opening, if the receipt is salted.
    pub opening: Option<&'a str>,
    /// The trace that the receipt commits, if the signer gave it.
    pub trace: Option<&'a AnswerTrace>,
}

impl Accuser<'_> {
    /// A verdict about a difference that the replay found; `None` if no evidence stands without the model.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn verdict(
        &self,
        engine: &mut dyn Engine,
        found: &Difference,
    ) -> Result<Option<AnswerVerdict>, EngineError> {
        let claim = match found {
            Difference::Ended { number } => {
                let of = |tokenizer: &TokenizerParts| (*number, tokenizer.clone());
                self.tokenizer.map(of).map(|(number, tokenizer)| AnswerClaim::Ended { number, tokenizer })
            }
            Difference::Stopped { .. } => Some(AnswerClaim::Stopped { tokenizer: self.tokenizer.cloned() }),
            Difference::Token { .. } | Difference::Root { .. } | Difference::Traces { .. } => {
                let below = self.below_tokens(engine)?;
                match (below, found) {
                    (None, Difference::Token { number, .. }) => self.token_claim(engine, *number)?,
                    (below, _) => below,
                }
            }
        };
        Ok(claim
            .map(|claim| AnswerVerdict::new(self.receipt.1.into(), claim).with_opening(self.opening))
            .filter(|verdict| self.stands(verdict)))
    }

    /// True if a referee convicts.
    fn stands(&self, verdict: &AnswerVerdict) -> bool {
        let known = |_| self.answerer.known.to_vec();
        let tokenizer =
            self.tokenizer.map(|tokenizer| (tokenizer.digest(), &known as &dyn Fn(u32) -> Vec<bool>));
        matches!(verdict.examine(tokenizer).outcome, Ok(AnswerRuling::Convicts(_)))
            && verdict.to_bytes().len() as u64 <= VERDICT_MAX
    }

    /// A claim about a token by its row, if the receipt commits the rows of the replay.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn token_claim(
        &self,
        engine: &mut dyn Engine,
        number: u32,
    ) -> Result<Option<AnswerClaim>, EngineError> {
        let (receipt, _) = self.receipt;
        let (mut rows, mut own) = (Vec::new(), Vec::new());
        let all = 0..receipt.answer.len();
        let none: Option<()> = self.answerer.rows(engine, receipt, all, |place, row| {
            rows.push(row_digest(row));
            if place == number as usize {
                own = bytes_of(row);
            }
            None
        })?;
        debug_assert!(none.is_none(), "nothing stops the replay");
        // The signer's trace shows rows that differ behind the token.
        let rows = self.trace.map_or(&rows, |trace| &trace.rows);
        let leaves = row_leaves(receipt, rows);
        if merkle::root(&leaves) != receipt.root || number as usize >= leaves.len() {
            return Ok(None);
        }
        let proof = merkle::prove(&leaves, number as usize);
        Ok(Some(AnswerClaim::Token { number, row: Base64(own), proof }))
    }

    /// The first operator of the signer's trace that differs, or else the first row that is not the trace's.
    fn below_tokens(&self, engine: &mut dyn Engine) -> Result<Option<AnswerClaim>, EngineError> {
        let (Some(theirs), (receipt, _)) = (self.trace, self.receipt) else { return Ok(None) };
        let mine = self.answerer.trace(engine, receipt, None, &mut |_| {})?;
        for (window, (theirs, mine)) in theirs.windows.iter().zip(&mine.windows).enumerate() {
            if let Some(node) = theirs.iter().zip(mine).position(|(a, b)| a.digest != b.digest) {
                let differs = |(a, b): (&tensor::Hash, &tensor::Hash)| a != b;
                let tile = theirs[node].tiles.iter().zip(&mine[node].tiles).position(differs);
                return self.tile_claim(engine, (window, node, tile.unwrap_or(0)));
            }
        }
        match theirs.rows.iter().zip(&mine.rows).position(|(a, b)| a != b) {
            Some(number) => self.row_claim(engine, number),
            None => Ok(None),
        }
    }

    /// A window of the receipt, and the signer's trace of it.
    fn window(&self, number: usize) -> Option<(Pass, TracedWindow, Vec<Digest>)> {
        let ((receipt, _), trace) = (self.receipt, self.trace?);
        let pass = Pass::of(receipt, self.job, number).ok()?;
        let leaves = node_leaves(trace.windows.get(number)?);
        let roots = self.answerer.window_leaves(receipt, trace);
        let window =
            TracedWindow { number, root: merkle::root(&leaves), proof: merkle::prove(&roots, number) };
        Some((pass, window, leaves))
    }

    /// A claim about a tile of a node of a window.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn tile_claim(
        &self,
        engine: &mut dyn Engine,
        (window, node, tile): (usize, usize, usize),
    ) -> Result<Option<AnswerClaim>, EngineError> {
        let (Some((pass, named, leaves)), (receipt, _)) = (self.window(window), self.receipt) else {
            return Ok(None);
        };
        let Some(trace) = self.trace else { return Ok(None) };
        let outputs = self.answerer.outputs(engine, receipt, window, read_by(&pass, node))?;
        let (nodes, model) = (&trace.windows[window], self.answerer.parameters);
        let (digests, tensors) = (node_digests(nodes), tensor_digests(model.0, model.1));
        let operands = PassOperands {
            pass: &pass,
            digests: &digests,
            leaves: &leaves,
            model,
            tensors: &tensors,
            outputs: &outputs,
            sample: None,
        };
        Ok(TileEvidence { operands, theirs: &nodes[node], window: named, job: self.job }.claim(node, tile))
    }

    /// A claim about the row of a token and the signer's own logits, which are the replay's.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn row_claim(
        &self,
        engine: &mut dyn Engine,
        number: usize,
    ) -> Result<Option<AnswerClaim>, EngineError> {
        let ((receipt, _), Some(trace)) = (self.receipt, self.trace) else { return Ok(None) };
        let holds = |window: &usize| {
            let pass = Pass::of(receipt, self.job, *window);
            pass.is_ok_and(|pass| pass.numbers.contains(&number))
        };
        let Some(window) = (0..trace.windows.len()).find(holds) else { return Ok(None) };
        let Some((pass, named, leaves)) = self.window(window) else { return Ok(None) };
        let Some(id) = pass.graph.output("logits") else { return Ok(None) };
        let Some(Origin::Node(node)) = pass.origin(id) else { return Ok(None) };
        let mut outputs = self.answerer.outputs(engine, receipt, window, [*node].into())?;
        let Some(bytes) = outputs.remove(node) else { return Ok(None) };
        let digest = trace.windows[window][*node].digest;
        let commitment = ProvenTensor { digest, proof: merkle::prove(&leaves, *node) };
        let len = self.answerer.known.len() * DType::F32.size();
        let first = pass.row_place(receipt, number) * len;
        let slices = (first / SLICE_BYTES..(first + len).div_ceil(SLICE_BYTES)).collect();
        let rows = row_leaves(receipt, &trace.rows);
        let row = ProvenTensor { digest: trace.rows[number], proof: merkle::prove(&rows, number) };
        let logits = proven(id, commitment, &bytes, slices);
        let claim = RowClaim { job: self.job.into(), window: named, number: number as u32, row, logits };
        Ok(Some(AnswerClaim::Row(Box::new(claim))))
    }
}

/// The nodes whose outputs a node reads.
pub fn read_by(pass: &Pass, node: usize) -> BTreeSet<usize> {
    let nodes =
        pass.graph.nodes[node].primitive.inputs().into_iter().filter_map(|id| match pass.origin(id) {
            Some(Origin::Node(node)) => Some(*node),
            _ => None,
        });
    nodes.collect()
}

/// The digests of the outputs of a trace's nodes.
pub(crate) fn node_digests(nodes: &[TracedNode]) -> Vec<Digest> {
    nodes.iter().map(|node| node.digest).collect()
}

/// The operands of the nodes of a pass.
pub struct PassOperands<'a> {
    /// The pass, as the receipt commits it.
    pub pass: &'a Pass,
    /// The digests of its nodes' outputs.
    pub digests: &'a [Digest],
    /// The leaves of its nodes.
    pub leaves: &'a [Digest],
    /// The names and the bytes of parameters and buffers.
    pub model: (&'a [StateTensor], &'a [Vec<u8>]),
    /// The digests of parameters and buffers, which take a pass over the whole model.
    pub tensors: &'a [Digest],
    /// The outputs that the node reads.
    pub outputs: &'a BTreeMap<usize, Vec<u8>>,
    /// A sample's inputs, with their digest.
    pub sample: Option<(&'a [u8], Digest)>,
}

/// What a claim about a tile of a pass is made of.
pub(crate) struct TileEvidence<'a> {
    pub operands: PassOperands<'a>,
    /// The node of the signer's trace.
    pub theirs: &'a TracedNode,
    pub window: TracedWindow,
    /// The text of the job.
    pub job: &'a str,
}

impl TileEvidence<'_> {
    /// A claim about a tile of a node; `None` if the tile cannot be computed from the outputs.
    pub fn claim(self, node: usize, tile: usize) -> Option<AnswerClaim> {
        let PassOperands { pass, leaves, .. } = self.operands;
        let theirs = self.theirs;
        let tensors = self.operands.tensors(node);
        let recorded = |elements| leaf::recorded_from_tensors(&pass.graph, node, elements, &tensors).ok();
        let ty = pass.graph.tensor(pass.graph.nodes[node].output);
        let (words, mut touched) = recorded(leaf::tile_elements(ty, tile))?;
        let disclosed = guessed(ty, tile, &words, theirs.tiles[tile]);
        if let Some(Disclosed { element, .. }) = disclosed {
            (_, touched) = recorded(element..element + 1)?;
        }
        let claim = AnswerTile {
            job: self.job.into(),
            inputs: self.operands.proven(&tensors, &touched),
            node,
            output: ProvenTensor { digest: theirs.digest, proof: merkle::prove(leaves, node) },
            tile,
            value: Digest(theirs.tiles[tile]),
            siblings: Hashes(multiproof::prove(multiproof::blake3, &theirs.tiles, &[tile])),
            disclosed,
            window: self.window,
        };
        Some(AnswerClaim::Tile(Box::new(claim)))
    }
}

impl PassOperands<'_> {
    /// The tensors that a node reads, as far as they are there.
    pub fn tensors(&self, node: usize) -> BTreeMap<TensorId, Vec<u8>> {
        let reads = self.pass.graph.nodes[node].primitive.inputs().into_iter();
        reads.filter_map(|id| Some((id, self.bytes(id)?))).collect()
    }

    /// These slices of tensors, with their proofs. What follows from the receipt is left out.
    pub fn proven(&self, tensors: &BTreeMap<TensorId, Vec<u8>>, touched: &leaf::Touched) -> Vec<ProvenInput> {
        let inputs = tensors.iter().filter_map(|(id, bytes)| {
            let slices: Vec<usize> =
                touched.iter().filter(|(of, _)| of == id).map(|(_, slice)| *slice).collect();
            if slices.is_empty() {
                return None;
            }
            Some(proven(*id, self.commitment(self.pass.origin(*id)?)?, bytes, slices))
        });
        inputs.collect()
    }

    /// The bytes of a tensor that a node reads.
    fn bytes(&self, id: TensorId) -> Option<Vec<u8>> {
        match self.pass.origin(id)? {
            Origin::Parameter(place) => self.of_model("param/").nth(*place).map(|(_, bytes)| bytes.clone()),
            Origin::Buffer(place) => self.of_model("buffer/").nth(*place).map(|(_, bytes)| bytes.clone()),
            Origin::Sample => self.sample.map(|(bytes, _)| bytes.to_vec()),
            Origin::Node(node) => self.outputs.get(node).cloned(),
            Origin::Derived(derived) => {
                let ty = self.pass.graph.tensor(id);
                let words: Vec<u32> = (0..ty.len()).map_while(|index| derived.word(index)).collect();
                Some(bytes_from_words(ty.dtype, &words))
            }
        }
    }

    /// The parameters or the buffers.
    fn of_model(&self, part: &'static str) -> impl Iterator<Item = (&StateTensor, &Vec<u8>)> {
        let (table, bytes) = self.model;
        table.iter().zip(bytes).filter(move |(tensor, _)| tensor.name.starts_with(part))
    }

    /// A tensor's digest, with its proof under the root that commits it; `None` for what follows from the receipt.
    fn commitment(&self, origin: &Origin) -> Option<ProvenTensor> {
        let of_model = |part, place: usize| {
            let (table, _) = self.model;
            let tensors = table.iter().zip(self.tensors).filter(|(tensor, _)| tensor.name.starts_with(part));
            let (digests, leaves): (Vec<Digest>, Vec<Digest>) =
                tensors.map(|(tensor, digest)| (*digest, table::leaf(&tensor.name, digest))).unzip();
            ProvenTensor { digest: digests[place], proof: merkle::prove(&leaves, place) }
        };
        match origin {
            Origin::Parameter(place) => Some(of_model("param/", *place)),
            Origin::Buffer(place) => Some(of_model("buffer/", *place)),
            Origin::Sample => self.sample.map(|(_, digest)| ProvenTensor { digest, proof: Vec::new() }),
            Origin::Node(node) => {
                let digest = self.digests[*node];
                Some(ProvenTensor { digest, proof: merkle::prove(self.leaves, *node) })
            }
            Origin::Derived(_) => None,
        }
    }
}

/// The signer's bytes of a tile, if they differ in one bit from the right ones, whose elements these are.
fn guessed(ty: &TensorType, tile: usize, words: &[u32], value: Hash) -> Option<Disclosed> {
    let (right, count) = (leaf::tile_bytes(ty, tile, words), tensor::tile_count(ty.bytes()));
    if tensor::tile_value(&right, tile, count) == value {
        return None;
    }
    let bytes = one_bit_off(right.clone(), tile, count, value)?;
    let byte = right.iter().zip(&bytes).position(|(right, committed)| right != committed)?;
    let element = (tensor::tile_range(ty.bytes(), tile).start + byte) / ty.dtype.size();
    Some(Disclosed { bytes: Base64(bytes), element })
}

/// Slices of a tensor, with their proof.
pub fn proven(id: TensorId, commitment: ProvenTensor, bytes: &[u8], slices: Vec<usize>) -> ProvenInput {
    let values = tensor::piece_values(bytes, SLICE_BYTES);
    let slice = |&slice: &usize| &bytes[tensor::piece_range(bytes.len(), SLICE_BYTES, slice)];
    ProvenInput {
        tensor: id.0,
        commitment,
        bytes: Base64(slices.iter().map(slice).collect::<Vec<_>>().concat()),
        siblings: Hashes(multiproof::prove(multiproof::blake3, &values, &slices)),
        slices,
    }
}
