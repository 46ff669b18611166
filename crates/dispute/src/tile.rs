//! Tile verdicts: one tile of one operator's output against what the scalar reference makes of committed inputs.
//!
//! A trace commits to tiles, so whoever recomputes a whole tile needs nothing from the trainer; a wide product's tile
//! needs megabytes of operands, though. Once the trainer discloses the tile's bytes one wrong element is enough, with
//! the operands of that element alone: [`Verdict::narrowed`].

use std::collections::{BTreeMap, BTreeSet};

use super::check::{Context, Shown, wrong};
use super::leaf::{self, LeafError, Slices, Touched};
use super::origin::{Origin, origin};
use super::verdict::{
    Base64, Claim, Disclosed, Hashes, ProvenInput, ProvenRecord, ProvenTensor, TileClaim, Verdict,
};
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::program::graph::{Graph, TensorId, TensorType};
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::tensor::{Hash, SLICE_BYTES};
use tiebreak_record::commit::trace::{batch_leaf_name, leaf_name};
use tiebreak_record::commit::{Malformed, multiproof, tensor};

/// What a tile claim is about, with everything in it verified.
struct VerifiedTile<'c> {
    graph: &'c Graph,
    phase: Phase,
    slices: Slices,
}

pub(super) fn undecided(error: LeafError) -> Malformed {
    wrong(error.to_string())
}

/// The slices of an input as (place, value), after checking their lengths.
fn pieces(ty: &TensorType, input: &ProvenInput) -> Result<Vec<(usize, Hash)>, Malformed> {
    let (len, count) = (ty.bytes(), tensor::piece_count(ty.bytes(), SLICE_BYTES));
    let mut rest = input.bytes.0.as_slice();
    let mut pieces = Vec::new();
    for &slice in &input.slices {
        let wrong_place = || wrong("an input slice has the wrong place or length");
        if slice >= count {
            return Err(wrong_place());
        }
        let range = tensor::piece_range(len, SLICE_BYTES, slice);
        let bytes = rest.split_off(..range.len()).ok_or_else(wrong_place)?;
        pieces.push((slice, tensor::piece_value(bytes, SLICE_BYTES, slice, count)));
    }
    if rest.is_empty() { Ok(pieces) } else { Err(wrong("an input has bytes of no slice")) }
}

/// Checks that slices are of the tensor whose digest stands beside them.
pub(super) fn check_slices(ty: &TensorType, input: &ProvenInput) -> Result<(), Malformed> {
    let count = tensor::piece_count(ty.bytes(), SLICE_BYTES);
    let root = multiproof::root(multiproof::blake3, count, &pieces(ty, input)?, &input.siblings.0)?;
    if tensor::digest_from_root(ty, &root) != input.commitment.digest {
        return Err(wrong("an input slice is not what the run committed to"));
    }
    Ok(())
}

impl Context {
    fn origin(&self, step: &StepRecord, phase: Phase, id: TensorId) -> Option<Origin> {
        origin(&self.computation.program, &self.computation.job, &self.computation.seed, step.step, phase, id)
    }

    /// Checks the commitment of a tensor of the node's phase.
    fn input_commitment(
        &self,
        step: &StepRecord,
        before: &Digest,
        from: &Origin,
        tensor: &ProvenTensor,
    ) -> Result<(), Malformed> {
        match from {
            Origin::State { index } => {
                let table = self.computation.program.state();
                self.state_commitment(before, &table, *index, tensor)
            }
            Origin::Batch { micro, tensor: number } => {
                let names = &self.computation.program.batch;
                let index = *micro as usize * names.len() + number;
                let size = self.computation.program.micro_batches as usize * names.len();
                let name = batch_leaf_name(*micro, &names[*number].name);
                self.committed(&step.batch, (index, size), &name, tensor)
            }
            Origin::Node { phase, node } => self.trace_commitment(step, *phase, *node, tensor),
            Origin::Words(_) => Err(wrong("it carries a tensor that follows from the job")),
        }
    }

    /// The slices of tensors of a phase, `reads` and no others, after checking each against what commits to it. `before` is the
    /// record that commits to the state.
    pub fn inputs(
        &self,
        step: &StepRecord,
        before: &ProvenRecord,
        phase: Phase,
        reads: &BTreeSet<TensorId>,
        inputs: &[ProvenInput],
    ) -> Result<Slices, Malformed> {
        let graph = graph_of(&self.computation.program, phase);
        let state = self.proven(before, &self.head)?;
        if before.index + 1 != u64::from(step.step) {
            return Err(wrong("the record before the step is another step's"));
        }
        let mut carried = BTreeSet::new();
        let mut slices = Slices::default();
        for &id in reads {
            if let Some(Origin::Words(words)) = self.origin(step, phase, id) {
                slices.insert_words(id, &words);
            }
        }
        for input in inputs {
            let id = TensorId(input.tensor);
            if !reads.contains(&id) || !carried.insert(id) {
                return Err(wrong("it carries a tensor twice, or one that the operator does not read"));
            }
            let from = self.origin(step, phase, id).ok_or_else(|| wrong("an input has no origin"))?;
            self.input_commitment(step, &state.state(), &from, &input.commitment)?;
            check_slices(graph.tensor(id), input)?;
            for (&slice, bytes) in input.slices.iter().zip(input.bytes.0.chunks(SLICE_BYTES)) {
                slices.insert(id, slice, bytes.to_vec());
            }
        }
        Ok(slices)
    }

    fn verified(&self, step: &StepRecord, claim: &TileClaim) -> Result<VerifiedTile<'_>, Malformed> {
        let phase = Phase::from(claim.phase);
        self.trace_commitment(step, phase, claim.node, &claim.output)?;
        let graph = graph_of(&self.computation.program, phase);
        let node = &graph.nodes[claim.node];
        let ty = graph.tensor(node.output);
        check_tile(ty, claim.tile, claim.value.0, &claim.siblings.0, &claim.output)?;
        let reads = node.primitive.inputs().into_iter().collect();
        let slices = self.inputs(step, &claim.before, phase, &reads, &claim.inputs)?;
        Ok(VerifiedTile { graph, phase, slices })
    }

    pub fn tile(
        &self,
        step: &StepRecord,
        claim: &TileClaim,
        steps: &mut Vec<String>,
    ) -> Result<Shown, Malformed> {
        let tile = self.verified(step, claim)?;
        let node = &tile.graph.nodes[claim.node];
        let ty = tile.graph.tensor(node.output);
        let count = tensor::tile_count(ty.bytes());
        let name = leaf_name(tile.phase, claim.node);
        steps.push(format!("tile {} of {count} of {name} is under the record's trace root", claim.tile));
        let slices: usize = claim.inputs.iter().map(|input| input.slices.len()).sum();
        let bytes: usize = claim.inputs.iter().map(|input| input.bytes.0.len()).sum();
        steps.push(format!(
            "{slices} slices ({bytes} bytes) of {} inputs are under the trace, the batch or the state before",
            claim.inputs.len()
        ));
        let (right, what) = match &claim.disclosed {
            None => {
                let elements = leaf::tile_elements(ty, claim.tile);
                let words =
                    leaf::expected(tile.graph, claim.node, elements, &tile.slices).map_err(undecided)?;
                let expected = leaf::tile_bytes(ty, claim.tile, &words);
                steps.push(format!("the scalar reference computed the tile's {} elements", words.len()));
                let same = tensor::tile_value(&expected, claim.tile, count) == claim.value.0;
                (same, format!("tile {} of {count}", claim.tile))
            }
            Some(Disclosed { bytes, element }) => {
                check_disclosed(ty, claim, &bytes.0)?;
                steps.push("the disclosed bytes are the committed tile".into());
                if !leaf::tile_elements(ty, claim.tile).contains(element) {
                    return Err(wrong("the element is not in the tile"));
                }
                let words = leaf::expected(tile.graph, claim.node, *element..element + 1, &tile.slices)
                    .map_err(undecided)?;
                steps.push(format!("the scalar reference computed element {element}"));
                (agrees(ty, claim.tile, &bytes.0, *element, words[0]), format!("element {element}"))
            }
        };
        if right {
            return Ok(Shown::Right(format!(
                "the committed {what} is what the operator makes of its inputs"
            )));
        }
        let what = format!(
            "{} ({}) of {name}: {what} is not what the operator makes of its committed inputs",
            node.operator,
            node.primitive.name(),
        );
        Ok(Shown::Wrong { step: step.step, what })
    }
}

/// Checks that a tensor's digest says this of one of its tiles.
pub(super) fn check_tile(
    ty: &TensorType,
    tile: usize,
    value: Hash,
    siblings: &[Hash],
    output: &ProvenTensor,
) -> Result<(), Malformed> {
    let count = tensor::tile_count(ty.bytes());
    let root = multiproof::root(multiproof::blake3, count, &[(tile, value)], siblings)?;
    if tensor::digest_from_root(ty, &root) != output.digest {
        return Err(wrong("the tile's value is not what the run committed to"));
    }
    Ok(())
}

/// Checks that disclosed bytes are the committed tile.
fn check_disclosed(ty: &TensorType, claim: &TileClaim, bytes: &[u8]) -> Result<(), Malformed> {
    let count = tensor::tile_count(ty.bytes());
    if bytes.len() != tensor::tile_range(ty.bytes(), claim.tile).len()
        || tensor::tile_value(bytes, claim.tile, count) != claim.value.0
    {
        return Err(wrong("the disclosed bytes are not the committed tile"));
    }
    Ok(())
}

/// Whether an element of a tile's bytes is `word`, as far as the element lies in the tile.
fn agrees(ty: &TensorType, tile: usize, bytes: &[u8], element: usize, word: u32) -> bool {
    let right = bytes_from_words(ty.dtype, &[word]);
    let range = tensor::tile_range(ty.bytes(), tile);
    let first = element * ty.dtype.size();
    let in_tile =
        |(i, byte): (usize, &u8)| !range.contains(&(first + i)) || bytes[first + i - range.start] == *byte;
    right.iter().enumerate().all(in_tile)
}

/// An input with the slices `touched` alone.
fn narrowed_input(
    ty: &TensorType,
    input: &ProvenInput,
    touched: &Touched,
) -> Result<Option<ProvenInput>, Malformed> {
    let id = TensorId(input.tensor);
    let wanted: Vec<usize> = touched.iter().filter(|(t, _)| *t == id).map(|(_, slice)| *slice).collect();
    if wanted.is_empty() {
        return Ok(None);
    }
    let count = tensor::piece_count(ty.bytes(), SLICE_BYTES);
    let siblings =
        multiproof::narrow(multiproof::blake3, count, &pieces(ty, input)?, &input.siblings.0, &wanted)?;
    let have: BTreeMap<usize, &[u8]> =
        input.slices.iter().copied().zip(input.bytes.0.chunks(SLICE_BYTES)).collect();
    let bytes = wanted.iter().filter_map(|slice| have.get(slice)).copied().collect::<Vec<_>>().concat();
    Ok(Some(ProvenInput {
        tensor: input.tensor,
        commitment: input.commitment.clone(),
        slices: wanted,
        bytes: Base64(bytes),
        siblings: Hashes(siblings),
    }))
}

impl Verdict {
    /// A tile verdict cut down to the first element that is wrong in the tile's committed bytes, which the trainer
    /// disclosed; `None` if every element is right.
    ///
    /// # Errors
    /// If it is not a tile verdict, does not hold together, or the bytes are not the committed tile.
    pub fn narrowed(&self, disclosed: &[u8]) -> Result<Option<Verdict>, Malformed> {
        let (Claim::Tile(claim), Some(record)) = (&self.claim, &self.record) else {
            return Err(wrong("only a tile verdict can be narrowed"));
        };
        if claim.disclosed.is_some() {
            return Err(wrong("it is about one element already"));
        }
        let context = self.context(None)?;
        let Record::Step { step, .. } = context.proven(record, &context.head)? else {
            return Err(wrong("the record is not a step's"));
        };
        let tile = context.verified(&step, claim)?;
        let ty = tile.graph.tensor(tile.graph.nodes[claim.node].output);
        check_disclosed(ty, claim, disclosed)?;
        let elements = leaf::tile_elements(ty, claim.tile);
        let words =
            leaf::expected(tile.graph, claim.node, elements.clone(), &tile.slices).map_err(undecided)?;
        let differs = |(element, word): &(usize, u32)| !agrees(ty, claim.tile, disclosed, *element, *word);
        let Some((element, _)) = elements.zip(words).find(differs) else { return Ok(None) };
        let (_, touched) =
            leaf::recorded_from_slices(tile.graph, claim.node, element..element + 1, &tile.slices)
                .map_err(undecided)?;
        let mut inputs = Vec::new();
        for input in &claim.inputs {
            inputs.extend(narrowed_input(tile.graph.tensor(TensorId(input.tensor)), input, &touched)?);
        }
        let disclosed = Some(Disclosed { bytes: Base64(disclosed.to_vec()), element });
        let claim = TileClaim { disclosed, inputs, ..(**claim).clone() };
        Ok(Some(Verdict { claim: Claim::Tile(Box::new(claim)), ..self.clone() }))
    }
}
