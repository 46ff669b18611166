//! Rounding verdicts: one element of a logged product against the proved bound on what honest kernels compute.

use super::check::{Context, Shown, wrong};
use super::cone::{judged_from_slices, operands};
use super::tile::{check_tile, undecided};
use super::verdict::{Rounded, RoundingClaim};
use crate::commit::record::StepRecord;
use crate::commit::trace::leaf_name;
use crate::commit::{Malformed, tensor};
use crate::program::phase::Phase;
use crate::rounding::codec::decode;
use crate::rounding::legal::Illegal;
use crate::rounding::log::PartProof;

/// The most bytes of a log that a verdict may carry: its decisions are a hundred times as many bytes in memory. Beyond it the
/// committed value is the evidence.
pub const PART_MAX: usize = 1 << 23;

impl Context {
    pub fn rounding(
        &self,
        step: &StepRecord,
        claim: &RoundingClaim,
        steps: &mut Vec<String>,
    ) -> Result<Shown, Malformed> {
        let rounding = self.job.rounding.as_ref().ok_or_else(|| wrong("the job's products are exact"))?;
        let graph = &self.program.micro;
        let logged =
            graph.logged.get(claim.product).ok_or_else(|| wrong("the program has no such product"))?;
        if claim.micro_batch >= self.program.spec.micro_batches || claim.element >= logged.elements() {
            return Err(wrong("the step has no such micro-batch, or the product no such element"));
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
        let node_of = |tensor| graph.nodes.iter().position(|node| node.output == tensor);
        let node_of = |tensor| node_of(tensor).expect("a graph has the products that it logs");
        let operator = graph.nodes[node_of(logged.product)].operator.clone();
        steps.push(format!(
            "the scalar reference computed element {} of {operator}: exact product {:e}, bound {:e}, legal {:e} to {:e}",
            claim.element, judged.exact.value, judged.bound, judged.range()[0], judged.range()[1]
        ));
        let (pattern, legal, subject) = match &claim.rounded {
            Rounded::Logged { len, slices, bytes, siblings } => {
                if bytes.0.len() > PART_MAX {
                    return Err(Malformed::TooLarge {
                        what: "part of a rounding log",
                        limit: PART_MAX as u64,
                    });
                }
                let (slices, bytes) = (slices.clone(), bytes.0.clone());
                let proof = PartProof { len: *len, slices, bytes, siblings: siblings.0.clone() };
                let root = step.log.as_ref().ok_or_else(|| wrong("the record commits no rounding log"))?;
                let products = graph.logged.len();
                let parts = products * self.program.spec.micro_batches as usize;
                let number = claim.micro_batch as usize * products + claim.product;
                let part = proof.part(root, parts, number)?;
                steps.push(format!(
                    "part {number} of {parts} of the step's log is under the record's log root"
                ));
                let decisions = decode(&part, logged.elements() as u64)?;
                let place =
                    decisions.binary_search_by_key(&(claim.element as u64), |decision| decision.place);
                let place = place.map_err(|_| wrong("the log has no decision about the element"))?;
                steps.push(format!("decision {place} of {} is about the element", decisions.len()));
                let decision = decisions[place];
                let pattern = judged.grid.pattern(decision.index(judged.grid, judged.exact.value));
                (pattern, decision.is_of(judged.legal), "by the rounding log, ")
            }
            Rounded::Committed { output, bytes, siblings } => {
                let node = node_of(logged.output);
                self.trace_commitment(step, phase, node, output)?;
                let ty = graph.tensor(logged.output);
                let tile = 4 * claim.element / tensor::TILE_BYTES;
                let (range, count) = (tensor::tile_range(ty.bytes(), tile), tensor::tile_count(ty.bytes()));
                if bytes.0.len() != range.len() {
                    return Err(wrong("the committed tile has another length"));
                }
                let value = tensor::tile_value(&bytes.0, tile, count);
                check_tile(ty, tile, value, &siblings.0, output)?;
                let name = leaf_name(phase, node);
                steps.push(format!("tile {tile} of {count} of {name} is under the record's trace root"));
                let at = 4 * claim.element - range.start;
                let word = bytes.0[at..at + 4].try_into().expect("tiles hold whole words");
                let pattern = u32::from_le_bytes(word);
                (pattern, judged.allows(pattern), "as committed, ")
            }
        };
        if legal {
            return Ok(Shown::Right(format!(
                "element {} of {operator} has a value that an honest kernel may round to",
                claim.element
            )));
        }
        let illegal = Illegal {
            micro_batch: claim.micro_batch,
            operator,
            product: claim.product,
            element: claim.element as u64,
            exact: judged.exact.value,
            bound: judged.bound,
            value: f32::from_bits(pattern),
            legal: judged.range(),
        };
        Ok(Shown::Wrong { step: step.step, what: format!("{subject}{illegal}") })
    }
}
