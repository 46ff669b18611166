//! Tile verdicts: one tile of one operator's output against the result of the scalar reference for committed inputs.
//!
//! A trace commits to tiles, so anybody can recompute a whole tile without the trainer's help. But a wide product's
//! tile needs megabytes of operands. Once the trainer discloses the tile's bytes, one wrong element is enough, with
//! the operands of that element alone: [`Verdict::narrowed`].

use super::check::{Shown, not_a_step, shown};
use super::evidence::context::Context;
use super::evidence::leaf::{self, Slices, undecided};
use super::evidence::proven::wrong;
use super::evidence::tile::{agrees, check_disclosed, check_tile, check_within, first_wrong, narrowed_input};
use super::fact::{Fact, OutputPart};
use super::verdict::{Base64, Claim, Disclosed, TileClaim, Verdict};
use tiebreak_contract::program::graph::{Graph, TensorId};
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::trace::leaf_name;
use tiebreak_record::commit::{Malformed, tensor};

/// The subject of a tile claim, with everything in it verified.
struct VerifiedTile<'c> {
    graph: &'c Graph,
    phase: Phase,
    slices: Slices,
}

impl Context {
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
        let (right, part) = match &claim.disclosed {
            None => {
                let elements = leaf::tile_elements(ty, claim.tile);
                let words =
                    leaf::expected(tile.graph, claim.node, elements, &tile.slices).map_err(undecided)?;
                let expected = leaf::tile_bytes(ty, claim.tile, &words);
                steps.push(format!("the scalar reference computed the tile's {} elements", words.len()));
                let same = tensor::tile_value(&expected, claim.tile, count) == claim.value.0;
                (same, OutputPart::Tile { tile: claim.tile, count })
            }
            Some(Disclosed { bytes, element }) => {
                check_disclosed(ty, (claim.tile, claim.value), &bytes.0)?;
                steps.push("the disclosed bytes are the committed tile".into());
                check_within(ty, claim.tile, *element)?;
                let words = leaf::expected(tile.graph, claim.node, *element..element + 1, &tile.slices)
                    .map_err(undecided)?;
                steps.push(format!("the scalar reference computed element {element}"));
                let part = OutputPart::Element { element: *element, pattern: words[0] };
                (agrees(ty, claim.tile, &bytes.0, *element, words[0]), part)
            }
        };
        let (operator, primitive) = (node.operator.clone(), node.primitive.name().to_string());
        let fact = Fact::Operator { operator, primitive, phase: tile.phase, node: claim.node, part };
        Ok(shown(step.step, right, fact))
    }
}

impl Verdict {
    /// A tile verdict reduced to the first wrong element in the tile's committed bytes, which the trainer disclosed;
    /// `None` if every element is right.
    ///
    /// # Errors
    /// If the verdict is no tile verdict or contradicts itself, or the bytes are not the committed tile.
    #[doc(hidden)] // for the layers above
    pub fn narrowed(&self, disclosed: &[u8]) -> Result<Option<Verdict>, Malformed> {
        let (Claim::Tile(claim), Some(record)) = (&self.claim, &self.record) else {
            let kind = self.claim.kind();
            return Err(wrong(format!(
                "only a tile verdict can be narrowed, and this one is of kind {kind}"
            )));
        };
        if claim.disclosed.is_some() {
            return Err(wrong("it is about one element already"));
        }
        let context = self.context(None)?;
        let record = context.proven(record, &context.head)?;
        let Record::Step { step, .. } = record else {
            return Err(not_a_step("its record", &record));
        };
        let tile = context.verified(&step, claim)?;
        let ty = tile.graph.tensor(tile.graph.nodes[claim.node].output);
        check_disclosed(ty, (claim.tile, claim.value), disclosed)?;
        let elements = leaf::tile_elements(ty, claim.tile);
        let words = leaf::expected(tile.graph, claim.node, elements, &tile.slices).map_err(undecided)?;
        let Some(element) = first_wrong(ty, claim.tile, disclosed, &words) else { return Ok(None) };
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
