//! Rounding verdicts: one element of a logged product against the proved bound on the results of honest
//! kernels.

use super::check::{Shown, shown};
use super::evidence::cone::{judged_from_slices, operands};
use super::evidence::context::Context;
use super::evidence::leaf::undecided;
use super::evidence::proven::{ProvenTensor, wrong};
use super::evidence::tile::check_tile;
use super::fact::Fact;
use super::verdict::{Rounded, RoundingClaim};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::word_from_bytes;
use tiebreak_contract::program::graph::{Graph, TensorId};
use tiebreak_contract::program::phase::Phase;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::record::StepRecord;
use tiebreak_record::commit::tensor::{self, Hash};
use tiebreak_record::commit::trace::leaf_name;
use tiebreak_record::rounding::legal::Illegal;

impl Context {
    pub fn rounding(
        &self,
        step: &StepRecord,
        claim: &RoundingClaim,
        steps: &mut Vec<String>,
    ) -> Result<Shown, Malformed> {
        let rounding =
            self.computation.job.rounding.as_ref().ok_or_else(|| wrong("the job's products are exact"))?;
        let graph = &self.computation.program.micro;
        let logged = graph.logged.get(claim.product).ok_or_else(|| {
            let count = graph.logged.len();
            wrong(format!("it names product {}; the program logs {count}, from 0 on", claim.product))
        })?;
        let micro_batches = self.computation.program.micro_batches;
        if claim.micro_batch >= micro_batches || claim.element >= logged.elements() {
            return Err(wrong(format!(
                "it names element {} of micro-batch {}; the product has {} elements, the step {micro_batches} micro-batches",
                claim.element,
                claim.micro_batch,
                logged.elements()
            )));
        }
        self.trace_root(step)?; // before nodes of the step are listed
        let phase = Phase::Micro(claim.micro_batch);
        let slices = self.inputs(step, &claim.before, phase, &operands(graph, logged), &claim.inputs)?;
        let bytes: usize = claim.inputs.iter().map(|input| input.bytes.0.len()).sum();
        steps.push(format!(
            "{bytes} bytes of {} operands are under the trace, the batch or the state before",
            claim.inputs.len()
        ));
        let accumulation = rounding.accumulation();
        let judged =
            judged_from_slices(graph, logged, claim.element, accumulation, &slices).map_err(undecided)?;
        let operator = graph.nodes[node_of(graph, logged.product)].operator.clone();
        steps.push(format!(
            "the scalar reference computed element {} of {operator}: exact product {:e}, bound {:e}, legal {:e} to {:e}",
            claim.element, judged.exact.value, judged.bound, judged.range()[0], judged.range()[1]
        ));
        let (pattern, legal, logged) = match &claim.rounded {
            Rounded::Logged { block, log } => {
                let place = (claim.micro_batch, claim.product, claim.element);
                let decision = self.logged_decision(step, place, (*block, log), steps)?;
                let decision = decision.ok_or_else(|| {
                    wrong(format!("block {block} of the log has no decision about element {}", claim.element))
                })?;
                let pattern = judged.grid.pattern(decision.index(judged.grid, judged.exact.value));
                (pattern, decision.is_of(judged.legal), true)
            }
            Rounded::Committed { output, bytes, siblings } => {
                let pattern = self.committed_value(step, claim, output, &bytes.0, &siblings.0, steps)?;
                (pattern, judged.allows(pattern), false)
            }
        };
        let rounding = Illegal {
            micro_batch: claim.micro_batch,
            operator,
            product: claim.product,
            element: claim.element as u64,
            exact: judged.exact.value,
            bound: judged.bound,
            value: f32::from_bits(pattern),
            legal: judged.range(),
        };
        Ok(shown(step.step, legal, Fact::Rounding { logged, rounding }))
    }

    /// The element's value in the tile that the trace commits to, a binary32 pattern.
    fn committed_value(
        &self,
        step: &StepRecord,
        claim: &RoundingClaim,
        output: &ProvenTensor,
        bytes: &[u8],
        siblings: &[Hash],
        steps: &mut Vec<String>,
    ) -> Result<u32, Malformed> {
        let (graph, phase) = (&self.computation.program.micro, Phase::Micro(claim.micro_batch));
        let logged = &graph.logged[claim.product];
        let node = node_of(graph, logged.output);
        self.trace_commitment(step, phase, node, output)?;
        let ty = graph.tensor(logged.output);
        let tile = 4 * claim.element / tensor::TILE_BYTES;
        let (range, count) = (tensor::tile_range(ty.bytes(), tile), tensor::tile_count(ty.bytes()));
        if bytes.len() != range.len() {
            let (found, due) = (bytes.len(), range.len());
            return Err(wrong(format!("it carries {found} bytes of tile {tile}, which has {due}")));
        }
        let value = tensor::tile_value(bytes, tile, count);
        check_tile(ty, tile, value, siblings, output)?;
        let name = leaf_name(phase, node);
        steps.push(format!("tile {tile} of {count} of {name} is under the record's trace root"));
        let at = 4 * claim.element - range.start;
        Ok(word_from_bytes(DType::F32, &bytes[at..at + 4]))
    }
}

/// The node that makes a tensor of a logged product.
fn node_of(graph: &Graph, tensor: TensorId) -> usize {
    let place = graph.nodes.iter().position(|node| node.output == tensor);
    place.expect("a graph has the products that it logs")
}
