//! The rules of a game about a run: records, steps, and the names of everything in them that can be disputed.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use super::message::{Field, Fold, Subject, Tree};
use super::record_fault::RecordFault;
use super::search::Join;
use super::terms::{Claim, Terms, replay_clock, wrong};
use crate::evidence::context::{Context, underivable};
use crate::evidence::fold;
use crate::evidence::origin::{self, Origin};
use crate::evidence::proven::Scalar;
use crate::size;
use tiebreak_contract::program::graph::{Graph, Makers, TensorType};
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_contract::program::step::Program;
use tiebreak_job::Granularity;
use tiebreak_job::computation::Computation;
use tiebreak_job::identity::ComputationSummary;
use tiebreak_job::initial::{Expected, InitialOrigin};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::multiproof::proof_len;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::tensor::{SLICE_BYTES, piece_count};
use tiebreak_record::commit::trace::{Places, batch_leaf_name, leaf_name, positions};
use tiebreak_record::commit::tree_head::Head;
use tiebreak_record::rounding::log;

/// The most leaves of a step's operators, and of its batch; a program with more is refused before they are listed.
const LEAVES_MAX: u64 = 1 << 22;

/// A computation whose records are disputed.
pub struct RunRules {
    /// Job, program and seed; the head is that of the party under examination.
    pub(crate) context: Context,
    /// The claim of the trainer of the logged profile.
    pub(super) claim: Option<Claim>,
    /// The commitments of records beside the state, by the job.
    granularity: Granularity,
    /// The nodes that a step's trace holds, in order.
    positions: Vec<(Phase, usize)>,
    /// The nodes that make the outputs of a micro-batch, and of the update.
    makers: [Makers; 2],
}

impl RunRules {
    /// The rules of terms about this computation.
    pub(super) fn new(terms: &Terms, summary: ComputationSummary) -> Result<RunRules, Malformed> {
        let program = terms.program.as_ref().map(|program| program.0.as_slice());
        let derived = Computation::derive("job", &terms.job, program, summary);
        let mut computation = derived.map_err(underivable("terms"))?;
        let (job, program) = (&computation.job, &computation.program);
        let (found, due) = (terms.clocks.replay, replay_clock(job));
        if let Some(due) = due.filter(|due| *due != found) {
            return Err(wrong(format!("the clock of replays is {found} ms; the job fixes {due} ms")));
        }
        let claim = terms.claim_about(job)?.cloned();
        let nodes =
            [&program.micro, &program.accumulate, &program.update].map(|graph| graph.nodes.len() as u64);
        let leaves = u64::from(program.micro_batches) * (nodes[0] + nodes[1]) + nodes[2];
        if leaves > LEAVES_MAX {
            return Err(wrong(format!(
                "a step has {leaves} operators, and a game takes at most {LEAVES_MAX}"
            )));
        }
        let granularity = job.commit.granularity;
        let positions = positions(program);
        let places = OnceLock::from(Places::of(program));
        // In a game every party commits to operators when it is asked.
        computation.job.commit.granularity = Granularity::Operator;
        // Records are proved under the roots that parties reveal, and no question is about a party's run.
        let run = Digest([0; 32]);
        let head = Head { run, size: u64::from(computation.job.steps) + 2, root: Digest([0; 32]) };
        let context = Context {
            computation,
            run,
            origin: claim.as_ref().map_or(InitialOrigin::Seed, |claim| claim.run.origin.clone()),
            head,
            key: None,
            places,
        };
        let makers =
            [&context.computation.program.micro, &context.computation.program.update].map(Graph::makers);
        Ok(RunRules { context, claim, granularity, positions, makers })
    }

    /// [`super::rules::Rules::check_initial_watched`].
    pub(super) fn check_initial(&self, watch: &mut dyn FnMut(u64, u64)) -> Result<(), Malformed> {
        let Context { computation, origin, .. } = &self.context;
        let Computation { job, summary, .. } = computation;
        if self.claim.is_none() && (job.init.run.is_some() || !job.init.weights.is_empty()) {
            return Ok(());
        }
        match self.context.expected_state(watch)? {
            Expected::State(expected) if expected != summary.initial => {
                let [found, due] = [summary.initial, expected].map(|state| state.short());
                Err(wrong(format!(
                    "the initial state is not the one that {} gives: it is {found}, and {due} is due",
                    origin.source()
                )))
            }
            Expected::State(_) | Expected::InFiles => Ok(()),
        }
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.context.computation.program
    }

    /// The computation that all parties claim to have carried out.
    pub fn computation(&self) -> &Digest {
        &self.context.computation.id
    }

    /// The number of records of a whole run.
    pub fn records(&self) -> u64 {
        u64::from(self.context.computation.job.steps) + 2
    }

    /// True if products are rounded by a log, so that the first party is the trainer.
    pub fn is_logged(&self) -> bool {
        self.context.computation.job.rounding.is_some()
    }

    /// The context with the records of a party that has this root.
    pub(crate) fn under(&mut self, root: &Digest) -> &Context {
        self.context.head.root = *root;
        &self.context
    }

    /// The graph of a phase.
    pub(super) fn graph(&self, phase: Phase) -> &Graph {
        graph_of(&self.context.computation.program, phase)
    }

    /// The number of tensors of the batch.
    fn batch_tensors(&self) -> usize {
        self.program().batch.len()
    }

    /// The number of leaves of a tree over tensors or records, and the join of its nodes; `None` for other trees.
    pub(super) fn leaves(&self, tree: Tree) -> Option<u64> {
        let micro_batches = u64::from(self.program().micro_batches);
        match tree {
            Tree::Transcript => Some(self.records()),
            Tree::Batch { .. } => Some(self.batch_tensors() as u64 * micro_batches),
            Tree::Gradients { .. } => Some(micro_batches),
            Tree::Trace { .. } => Some(self.operators()),
            Tree::Receipt
            | Tree::Rows
            | Tree::Passes
            | Tree::Pass { .. }
            | Tree::Tensor { .. }
            | Tree::Terms { .. } => None,
        }
    }

    /// The number of operators of a step.
    pub(super) fn operators(&self) -> u64 {
        self.positions.len() as u64
    }

    /// The object that the leaf of a tree of tensors of a step commits to.
    pub(super) fn leaf(&self, tree: Tree, index: u64) -> Option<Subject> {
        let index = index as usize;
        match tree {
            Tree::Batch { step } => {
                let (micro, tensor) = (index / self.batch_tensors(), index % self.batch_tensors());
                Some(Subject::Batch { step, micro: micro as u32, tensor })
            }
            Tree::Trace { step } => {
                let &(phase, node) = self.positions.get(index)?;
                Some(Subject::Node { step, phase: phase.into(), node })
            }
            _ => None,
        }
    }

    /// The name and type of a tensor; `None` if the computation has no such tensor.
    pub(super) fn tensor(&self, subject: Subject) -> Option<(String, TensorType)> {
        let program = self.program();
        match subject {
            Subject::Batch { micro, tensor, .. } => {
                let tensor = program.batch.get(tensor).filter(|_| micro < program.micro_batches)?;
                Some((batch_leaf_name(micro, &tensor.name), tensor.ty()))
            }
            Subject::Node { phase, node, .. } => {
                let phase = Phase::from(phase);
                let graph = graph_of(program, phase);
                let output = graph.nodes.get(node)?.output;
                Some((leaf_name(phase, node), graph.tensor(output).clone()))
            }
            Subject::Pass { .. } | Subject::Row { .. } => None,
        }
    }

    /// The outputs that a field of a step's record is made of, in the field's order, as nodes of the trace. State tensors that no
    /// node makes are left out.
    pub fn outputs(&self, field: Field) -> Vec<(Phase, usize)> {
        let program = self.program();
        let [micro_batch, update] = &self.makers;
        let scalar = |scalar| match origin::scalar(program, scalar) {
            Some(Origin::Node { phase, node }) => vec![(phase, node)],
            _ => Vec::new(),
        };
        match field {
            Field::Clip => scalar(Scalar::Clip),
            Field::Loss => scalar(Scalar::Loss),
            Field::State => {
                let made = |name: &str| Some((Phase::Update, update.output(name)?));
                program.state().iter().filter_map(|tensor| made(&tensor.name)).collect()
            }
            Field::Gradient { micro } => {
                let made = |name: &str| Some((Phase::Micro(micro), micro_batch.output(name)?));
                program.gradients().iter().filter_map(|tensor| made(&tensor.name)).collect()
            }
        }
    }

    /// The fault of a record, if there is one: it lacks fields that the job promises, or contradicts job or step.
    pub(crate) fn record_fault(&self, index: u64, record: &Record) -> Option<RecordFault> {
        let job = &self.context.computation.job;
        if record.computation() != self.computation() {
            return Some(RecordFault::OtherComputation);
        }
        match record {
            Record::Initial { .. } if index != 0 => Some(RecordFault::FirstElsewhere),
            // The computation names the state, and every player has derived it, so no element of it has to be shown.
            Record::Initial { state, .. } => {
                (*state != self.context.computation.summary.initial).then_some(RecordFault::InitialState)
            }
            Record::Final { steps, .. } => {
                let there = index + 1 == self.records() && *steps == job.steps;
                (!there).then_some(RecordFault::FinalElsewhere)
            }
            Record::Step { step, .. } => self.step_fault(index, step),
        }
    }

    fn step_fault(&self, index: u64, record: &StepRecord) -> Option<RecordFault> {
        let job = &self.context.computation.job;
        if u64::from(record.step) != index || record.step == 0 || record.step > job.steps {
            return Some(RecordFault::StepElsewhere);
        }
        let due = job.schedule.learning_rate(record.step, job.steps);
        if record.learning_rate != due {
            return Some(RecordFault::LearningRate { committed: record.learning_rate, due });
        }
        let drawn = u64::from(record.step) * u64::from(self.program().samples());
        if record.cursor != drawn {
            return Some(RecordFault::Cursor { cursor: record.cursor, drawn });
        }
        if job.never_clips() && record.clip != tiebreak_contract::arith::float::ONE {
            return Some(RecordFault::Clip);
        }
        let promised = [
            ("gradients", record.gradients.is_some(), self.granularity != Granularity::Step),
            ("operators", record.trace.is_some(), self.granularity == Granularity::Operator),
            ("rounding log", record.log.is_some(), job.rounding.is_some()),
        ];
        let broken = promised.into_iter().find(|(_, is, should)| is != should);
        broken.map(|(part, _, promised)| RecordFault::Promise { part, promised })
    }

    /// The most bytes of a step's rounding log.
    pub fn log_max(&self) -> u64 {
        let program = self.program();
        log::bytes_max(&program.micro.logged, program.micro_batches).min(u64::from(u32::MAX))
    }

    /// The most bytes of a block of a rounding log with its proof, as text; 0 in the exact profile.
    pub(super) fn log_bytes(&self) -> u64 {
        if self.is_logged() { shown_log_bytes(self.log_max()) } else { 0 }
    }

    /// The most bytes of the evidence about an element of a batch.
    pub(super) fn samples_bytes(&self) -> u64 {
        size::samples_bytes(&self.context.computation.job.data.files)
    }

    /// The most bytes of the value of a subtree over terms.
    pub(super) fn subtotal_bytes(&self) -> u64 {
        let parts = self.program().micro.logged.iter().map(|logged| fold::parts(logged) as u8).max();
        parts.map_or(16, |parts| Join::Terms(Fold::Sums { parts }).bytes() as u64)
    }

    /// The most bytes of an answer that lists the outputs that a field is made of, with their proof.
    pub(super) fn binding_bytes(&self) -> u64 {
        // A digest takes 67 bytes of text, and a sibling 43.
        let proven = |field: Field| {
            let outputs = self.outputs(field);
            let places: BTreeSet<usize> =
                outputs.iter().filter_map(|&(phase, node)| Some(self.place(phase, node)?.0)).collect();
            let places: Vec<usize> = places.into_iter().collect();
            let siblings = if places.is_empty() { 0 } else { proof_len(self.positions.len(), &places) };
            (outputs.len() * 67 + siblings * 43 + 256) as u64
        };
        let state = self.program().state().len();
        let frozen = (state - self.outputs(Field::State).len()) as u64;
        let proof = u64::from(state.max(1).ilog2()) + 4;
        let fields = [Field::State, Field::Clip, Field::Loss];
        let most = fields.map(proven).into_iter().max().unwrap_or(0);
        // The number of siblings of a gradient's outputs depends on the micro-batch's position: at most one for each level and
        // output.
        let levels = u64::from(self.positions.len().max(1).ilog2()) + 1;
        let gradient = self.outputs(Field::Gradient { micro: 0 }).len() as u64 * (67 + 43 * levels) + 256;
        most.max(gradient) + frozen * (128 + 67 * proof)
    }

    /// The most terms of a fold of any element.
    pub(super) fn terms_most(&self) -> u64 {
        let graphs = [&self.program().micro, &self.program().accumulate, &self.program().update];
        let len = |graph: &Graph| graph.tensors.iter().map(|t| t.len() as u64).max().unwrap_or(1);
        graphs.map(len).into_iter().max().unwrap_or(1)
    }

    /// The most slices of any tensor that can be disputed.
    pub(super) fn slices_most(&self) -> u64 {
        let program = self.program();
        let state = program.state();
        let graphs = [&program.micro, &program.accumulate, &program.update].into_iter();
        let bytes = graphs
            .flat_map(|graph| graph.nodes.iter().map(|n| graph.tensor(n.output).bytes()))
            .chain(state.iter().map(|t| t.ty().bytes()))
            .chain(program.batch.iter().map(|t| t.ty().bytes()));
        piece_count(bytes.max().unwrap_or(1), SLICE_BYTES) as u64
    }

    /// The index of an output's leaf in a step's trace, and the number of leaves.
    pub fn place(&self, phase: Phase, node: usize) -> Option<(usize, usize)> {
        let places = self.context.places();
        Some((places.place(phase, node)?, places.count()))
    }
}

/// The most bytes of a block, with its proof, of a log of `log` bytes, as text.
fn shown_log_bytes(log: u64) -> u64 {
    // A slice has a number. Each end of a range of slices has a sibling of 43 bytes for every level of the log's tree.
    let bytes = log::BLOCK_PROOF_BYTES_MAX as u64;
    let slices = bytes.div_ceil(SLICE_BYTES as u64);
    let levels = u64::from((log / SLICE_BYTES as u64).max(1).ilog2()) + 1;
    bytes.div_ceil(3) * 4 + 9 * slices + log::BLOCK_PROOF_ENDS as u64 * 44 * levels + 256
}

#[cfg(test)]
mod tests {
    use super::super::moves::LEAF_MAX;
    use super::*;

    #[test]
    fn a_decision_of_the_longest_log_fits_a_leaf() {
        assert!(shown_log_bytes(u64::from(u32::MAX)) + 2048 <= LEAF_MAX);
    }
}
