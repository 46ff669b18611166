//! The rules that the referee derives from the terms before it asks anything: program, sizes and names of everything that can be
//! disputed.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use super::message::{Field, Fold, Subject, Tree};
use super::record_fault::RecordFault;
use super::search::{self, Join};
use super::terms::{Claim, Terms};
use crate::evidence::context::{Context, underivable};
use crate::evidence::fold;
use crate::evidence::origin::{self, Origin};
use crate::evidence::proven::Scalar;
use tiebreak_contract::program::graph::{Graph, Makers, TensorType};
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_contract::program::step::Program;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::multiproof::proof_len;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::tensor::{self, Hash, SLICE_BYTES, piece_count};
use tiebreak_record::commit::trace::{Places, batch_leaf_name, leaf_name, positions};
use tiebreak_record::commit::tree_head::Head;
use tiebreak_record::commit::{Malformed, table};
use tiebreak_record::job::computation::Computation;
use tiebreak_record::job::initial::{Expected, InitialOrigin};
use tiebreak_record::job::{Granularity, Job};
use tiebreak_record::rounding::log;

/// The most leaves of a step's operators, and of its batch; a program with more is refused before they are listed.
const LEAVES_MAX: u64 = 1 << 22;

/// A check that a referee omits, so that tests show that they would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The check that the values of a level give the value above.
    Levels,
    /// The check that a slice is the committed one.
    Slices,
    /// The decision which element is wrong; without it, always the first party's.
    Blame,
}

/// A computation, and the parties that dispute it.
pub struct Rules {
    /// The game's name.
    pub game: Digest,
    /// The parties' keys.
    pub parties: Vec<PublicKey>,
    /// The referee's key.
    pub referee: PublicKey,
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
    /// The omitted check; only tests set it.
    #[cfg(feature = "faults")]
    fault: Option<Fault>,
}

fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid("terms", why)
}

/// Milliseconds that a party has for all its replays of a game, if the job fixes them. The time is four times the duration of the
/// steps from a checkpoint to the disputed step.
pub fn replay_clock(job: &Job) -> Option<u64> {
    Some(replay_of_steps(job, u64::from(job.dispute?.step_seconds) * 1000))
}

/// The clock of replays for steps of this number of milliseconds.
pub fn replay_of_steps(job: &Job, step: u64) -> u64 {
    let steps = u64::from(job.checkpoint.every.min(job.steps)) + 1;
    steps.saturating_mul(step).saturating_mul(4)
}

/// Milliseconds that a challenger of the logged profile has to replay the whole run: the time of one step, as the clock of
/// replays implies it, times all steps.
pub(crate) fn run_clock(job: &Job, replay: u64) -> u64 {
    let steps = u64::from(job.checkpoint.every.min(job.steps)) + 1;
    replay.div_ceil(steps).saturating_mul(u64::from(job.steps))
}

impl Rules {
    /// The rules of terms.
    ///
    /// # Errors
    /// If the terms contradict themselves.
    pub fn new(terms: &Terms) -> Result<Rules, Malformed> {
        let (parties, referee) = terms.keys()?;
        let program = terms.program.as_ref().map(|program| program.0.as_slice());
        let derived = Computation::derive("job", &terms.job, program, terms.computation.clone());
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
        let game = terms.game();
        let makers =
            [&context.computation.program.micro, &context.computation.program.update].map(Graph::makers);
        Ok(Rules {
            game,
            parties,
            referee,
            context,
            claim,
            granularity,
            positions,
            makers,
            #[cfg(feature = "faults")]
            fault: None,
        })
    }

    /// Checks that the initial state is the one that job and terms give: from a seed, or from the earlier run that a trainer
    /// claims to continue. The time grows with the size of the state; one piece of a tensor is in memory at a time. For files of
    /// weights, and for an earlier run in the exact profile, only parties can tell.
    ///
    /// # Errors
    /// If the initial state is another one.
    pub fn check_initial(&self) -> Result<(), Malformed> {
        self.check_initial_watched(&mut |_, _| {})
    }

    /// Checks that the initial state is the one that job and terms give: from a seed, or from the earlier run that a trainer
    /// claims to continue. `watch`: bytes of the state that were made, and their total.
    ///
    /// # Errors
    /// As [`Rules::check_initial`].
    pub fn check_initial_watched(&self, watch: &mut dyn FnMut(u64, u64)) -> Result<(), Malformed> {
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

    /// Omits a check.
    #[cfg(feature = "faults")]
    pub fn plant(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }

    /// True if a check is made.
    #[cfg(feature = "faults")]
    pub(super) fn checks(&self, what: Fault) -> bool {
        self.fault != Some(what)
    }

    /// True: every check is made.
    #[cfg(not(feature = "faults"))]
    pub(super) fn checks(&self, _: Fault) -> bool {
        true
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

    /// The graph of a phase, and the node of a subject.
    pub fn node(&self, phase: Phase, node: usize) -> (&Graph, usize) {
        (graph_of(&self.context.computation.program, phase), node)
    }

    /// The number of tensors of the batch.
    fn batch_tensors(&self) -> usize {
        self.program().batch.len()
    }

    /// The number of leaves of a tree, the number of leaves that one answer carries, and the join of its nodes.
    pub fn shape(&self, tree: Tree) -> (u64, u64, Join) {
        match tree {
            Tree::Transcript => (self.records(), 1, Join::Rfc6962),
            Tree::Batch { .. } => {
                let leaves = self.batch_tensors() as u64 * u64::from(self.program().micro_batches);
                (leaves, 1, Join::Rfc6962)
            }
            Tree::Gradients { .. } => (u64::from(self.program().micro_batches), 1, Join::Rfc6962),
            Tree::Trace { .. } => (self.positions.len() as u64, 1, Join::Rfc6962),
            Tree::Tensor { subject } => {
                let bytes = self.tensor(subject).map_or(0, |(_, ty)| ty.bytes());
                (piece_count(bytes, SLICE_BYTES) as u64, 1, Join::Blake3)
            }
            // The frame gives the number of terms.
            Tree::Terms { fold, .. } => (0, fold.terms_max(), Join::Terms(fold)),
        }
    }

    /// The object that the leaf of a tree of tensors commits to.
    pub fn leaf(&self, tree: Tree, index: u64) -> Option<Subject> {
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
    pub fn tensor(&self, subject: Subject) -> Option<(String, TensorType)> {
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
        }
    }

    /// A subject in words.
    pub fn describe(&self, subject: Subject) -> String {
        let name = self.tensor(subject).map_or_else(|| "no tensor".to_string(), |(name, _)| name);
        match subject {
            Subject::Batch { step, .. } => format!("{name} of step {step}'s batch"),
            Subject::Node { step, phase, node } => {
                let node = &graph_of(self.program(), Phase::from(phase)).nodes[node];
                format!("{} ({}), {name} of step {step}", node.operator, node.primitive.name())
            }
        }
    }

    /// The Merkle leaf of a tensor with this BLAKE3 root.
    pub fn tensor_leaf(&self, subject: Subject, root: &Hash) -> Option<Digest> {
        let (name, ty) = self.tensor(subject)?;
        Some(table::leaf(&name, &tensor::digest_from_root(&ty, root)))
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
    pub fn log_bytes(&self) -> u64 {
        if self.is_logged() { shown_log_bytes(self.log_max()) } else { 0 }
    }

    /// The most bytes of the value of a subtree over terms.
    pub(crate) fn subtotal_bytes(&self) -> u64 {
        let parts = self.program().micro.logged.iter().map(|logged| fold::parts(logged) as u8).max();
        parts.map_or(16, |parts| Join::Terms(Fold::Sums { parts }).bytes() as u64)
    }

    /// The most bytes of an answer that lists the outputs that a field is made of, with their proof.
    pub(crate) fn binding_bytes(&self) -> u64 {
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
    pub(crate) fn terms_most(&self) -> u64 {
        let graphs = [&self.program().micro, &self.program().accumulate, &self.program().update];
        let len = |graph: &Graph| graph.tensors.iter().map(|t| t.len() as u64).max().unwrap_or(1);
        graphs.map(len).into_iter().max().unwrap_or(1)
    }

    /// The most slices of any tensor that can be disputed.
    pub(crate) fn slices_most(&self) -> u64 {
        let program = self.program();
        let state = program.state();
        let graphs = [&program.micro, &program.accumulate, &program.update].into_iter();
        let bytes = graphs
            .flat_map(|graph| graph.nodes.iter().map(|n| graph.tensor(n.output).bytes()))
            .chain(state.iter().map(|t| t.ty().bytes()))
            .chain(program.batch.iter().map(|t| t.ty().bytes()));
        piece_count(bytes.max().unwrap_or(1), SLICE_BYTES) as u64
    }

    /// The most questions about a tree.
    pub fn depth(&self, tree: Tree) -> u32 {
        let (leaves, leaf, _) = self.shape(tree);
        search::depth(leaves, leaf)
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

/// The digest of a tensor of one element, from its word.
pub(super) fn scalar_digest(word: u32) -> Digest {
    let ty = TensorType { dtype: tiebreak_contract::arith::DType::F32, shape: vec![1] };
    tensor::digest(&ty, &word.to_le_bytes())
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
