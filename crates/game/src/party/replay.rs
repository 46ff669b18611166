//! A party's replays, from its nearest checkpoint: the initial state, batches, and the operators of the disputed step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::error::PartyError;
use tiebreak_audit::operands::{Operands, nodes};
use tiebreak_contract::program::graph::{LoggedProduct, TensorId};
use tiebreak_contract::program::logged::native_graph;
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_dispute::evidence::cone;
use tiebreak_dispute::game::message::Subject;
use tiebreak_engine::Engine;
use tiebreak_engine::session::Session;
use tiebreak_job::data::{Dataset, batch_leaves};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::table;
use tiebreak_record::commit::trace::{Trace, leaf_count, leaf_place};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::transcript::Transcript;
use tiebreak_run::run::{initial, states};
use tiebreak_run::step::{
    CommittedStep, Outputs, Roundings, StepRequest, Watch, readable_log, replayer, scalars,
};
use tiebreak_train::conduct::Conduct;

/// A step whose operators are in dispute.
pub struct ReplayedStep {
    step: u32,
    /// The state that the step began from.
    pub before: Vec<Vec<u8>>,
    /// All operators.
    pub trace: Trace,
    /// The outputs of the disputed node, and of the nodes that it reads.
    pub outputs: Outputs,
}

/// A run, with the results of its replays.
pub struct Replays {
    /// The run.
    pub run: Run,
    /// All records of the run.
    pub transcript: Transcript,
    engine: Box<dyn Engine>,
    /// The trainer's conduct: a trainer who cheated computes the same values again.
    conduct: Box<dyn Conduct>,
    initial: Option<Vec<Vec<u8>>>,
    batch: Option<(u32, Vec<MicroBatch>)>,
    disputed: Option<ReplayedStep>,
}

impl Replays {
    /// Replays of a run, none of them computed yet.
    pub fn new(
        run: Run,
        transcript: Transcript,
        engine: Box<dyn Engine>,
        conduct: Box<dyn Conduct>,
    ) -> Replays {
        Replays { run, transcript, engine, conduct, initial: None, batch: None, disputed: None }
    }

    /// The record of a step, if the run has it.
    pub fn record(&self, step: u32) -> Option<&StepRecord> {
        match self.transcript.records.get(step as usize)? {
            Record::Step { step: record, .. } => Some(record).filter(|record| record.step == step),
            _ => None,
        }
    }

    /// The state that the run began from.
    ///
    /// # Errors
    /// If it cannot be read, or is not the state that record 0 commits.
    pub fn initial(&mut self) -> Result<&[Vec<u8>], PartyError> {
        let state = match self.initial.take() {
            Some(state) => state,
            None => {
                let mut state = initial::state(&self.run)?;
                for (index, tensor) in state.iter_mut().enumerate() {
                    self.conduct.initial(&self.run, index, tensor)?;
                }
                states::check(&self.run, &self.transcript.records, 0, &state)?;
                state
            }
        };
        Ok(self.initial.insert(state))
    }

    /// The batch that a step's record commits. The run must have the step.
    ///
    /// # Errors
    /// If the data cannot be read.
    pub fn batch(&mut self, step: u32) -> Result<&[MicroBatch], PartyError> {
        let batch = match self.batch.take().filter(|(of, _)| *of == step) {
            Some(batch) => batch,
            None => (step, self.run.batch(&mut self.run.dataset()?, step)?),
        };
        Ok(&self.batch.insert(batch).1)
    }

    /// The Merkle leaves of a step's batch. The run must have the step.
    ///
    /// # Errors
    /// As [`Replays::batch`].
    pub fn batch_leaves(&mut self, step: u32) -> Result<Vec<Digest>, PartyError> {
        self.batch(step)?;
        let batch = self.batch.as_ref().map_or(&[][..], |(_, batch)| batch);
        let named = batch_leaves(self.run.program(), batch);
        Ok(named.iter().map(|(name, digest)| table::leaf(name, digest)).collect())
    }

    /// A step's state and operators. The run must have the step.
    ///
    /// # Errors
    /// If a file of the run cannot be read, the engine fails, or the replay of a step gives another result than its record.
    pub fn disputed(&mut self, step: u32) -> Result<&ReplayedStep, PartyError> {
        let disputed = match self.disputed.take().filter(|disputed| disputed.step == step) {
            Some(disputed) => disputed,
            None => self.replayed(step)?,
        };
        Ok(self.disputed.insert(disputed))
    }

    fn replayed(&mut self, step: u32) -> Result<ReplayedStep, PartyError> {
        let near = states::nearest_checkpoint(&self.run, &self.transcript.records, step)?;
        let (from, state) = match near {
            Some(near) => near,
            None => (0, self.initial()?.to_vec()),
        };
        let mut dataset = self.run.dataset()?;
        let (mut player, mut session) = self.player()?;
        session.load(&state)?;
        drop(state);
        for between in from + 1..step {
            player.play(&mut session, &mut dataset, between, &Watch::default())?;
        }
        let before = session.download_state()?;
        let watch = Watch { trace: true, ..Watch::default() };
        let done = player.play(&mut session, &mut dataset, step, &watch)?;
        let trace = done.trace.filter(|trace| trace.nodes.len() == leaf_count(player.run.program()));
        let trace = trace.ok_or_else(|| player.not_reproduced(step, &session))?;
        Ok(ReplayedStep { step, before, trace, outputs: Outputs::new() })
    }

    /// A step with the output of one of its nodes, and of the nodes that it reads. The run must have the step, and traces must
    /// hold the node.
    ///
    /// # Errors
    /// As [`Replays::disputed`].
    pub(crate) fn with_outputs(
        &mut self,
        step: u32,
        phase: Phase,
        node: usize,
    ) -> Result<&ReplayedStep, PartyError> {
        self.disputed(step)?;
        let mut wanted = self.read_by(step, phase, node)?;
        wanted.insert((phase, node));
        if let Some(disputed) = &mut self.disputed
            && wanted.iter().any(|place| !disputed.outputs.contains_key(place))
        {
            let before = std::mem::take(&mut disputed.before);
            let played = self.outputs(step, &before, wanted);
            if let Some(disputed) = &mut self.disputed {
                disputed.before = before;
                disputed.outputs = played?;
            }
        }
        self.disputed(step)
    }

    /// The nodes that a node reads. For a logged product, these are the nearest nodes that traces hold.
    fn read_by(
        &mut self,
        step: u32,
        phase: Phase,
        node: usize,
    ) -> Result<BTreeSet<(Phase, usize)>, PartyError> {
        let ids = operands_of(&self.run, phase, node);
        self.operands(step, |operands, _| nodes(&operands.origins(phase, ids)))
    }

    fn outputs(
        &mut self,
        step: u32,
        before: &[Vec<u8>],
        outputs: BTreeSet<(Phase, usize)>,
    ) -> Result<Outputs, PartyError> {
        let mut dataset = self.run.dataset()?;
        let (mut player, mut session) = self.player()?;
        session.load(before)?;
        let watch = Watch { outputs, ..Watch::default() };
        Ok(player.play(&mut session, &mut dataset, step, &watch)?.outputs)
    }

    /// Calls `of` with the commitments to the operands of the step's operators, and the outputs that are in memory.
    ///
    /// # Errors
    /// As [`Replays::disputed`].
    pub fn operands<T>(
        &mut self,
        step: u32,
        of: impl FnOnce(&Operands, &Outputs) -> T,
    ) -> Result<T, PartyError> {
        self.disputed(step)?;
        self.batch(step)?;
        let (Some(disputed), Some((_, batch))) = (&self.disputed, &self.batch) else {
            return Err(PartyError::Refused(format!("step {step} was not replayed")));
        };
        let ReplayedStep { before, trace, outputs, .. } = disputed;
        Ok(of(&Operands { run: &self.run, step, before, batch, trace }, outputs))
    }

    /// The canonical bytes of a tensor; `None` if the computation does not have it, or traces do not hold it.
    ///
    /// # Errors
    /// As [`Replays::disputed`].
    pub fn tensor(&mut self, subject: Subject) -> Result<Option<&[u8]>, PartyError> {
        let bytes = match subject {
            Subject::Pass { .. } | Subject::Row { .. } => None,
            Subject::Batch { step, .. } | Subject::Node { step, .. } if self.record(step).is_none() => None,
            Subject::Batch { step, micro, tensor } => {
                self.batch(step)?.get(micro as usize).and_then(|batch| batch.tensors.get(tensor))
            }
            Subject::Node { step, phase, node } => {
                let phase = Phase::from(phase);
                if leaf_place(self.run.program(), phase, node).is_none() {
                    return Ok(None);
                }
                self.with_outputs(step, phase, node)?.outputs.get(&(phase, node))
            }
        };
        Ok(bytes.map(Vec::as_slice))
    }

    fn player(&mut self) -> Result<(Player<'_>, Session<'_>), PartyError> {
        let program = Arc::new(self.conduct.program(&self.run));
        let session = match self.conduct.hides_decisions() {
            true => Session::native(self.engine.as_mut(), program)?,
            false => Session::new(self.engine.as_mut(), program)?,
        };
        let records = &self.transcript.records;
        Ok((Player { run: &self.run, records, conduct: self.conduct.as_mut() }, session))
    }
}

/// The tensors that decide a node's output: its inputs, or the operands of a logged product that traces hold.
pub(crate) fn operands_of(run: &Run, phase: Phase, node: usize) -> BTreeSet<TensorId> {
    let graph = graph_of(run.program(), phase);
    match logged_product(run, phase, node) {
        Some((_, logged)) => cone::operands(graph, logged),
        None => graph.nodes[node].primitive.inputs().into_iter().collect(),
    }
}

/// The logged product whose rounded output a node computes, with the product's number.
pub(crate) fn logged_product(run: &Run, phase: Phase, node: usize) -> Option<(usize, &LoggedProduct)> {
    let graph = graph_of(run.program(), phase);
    let output = graph.nodes.get(node)?.output;
    graph.logged.iter().enumerate().find(|(_, logged)| logged.output == output)
}

/// Runs steps of a run with its trainer's conduct.
struct Player<'a> {
    run: &'a Run,
    records: &'a [Record],
    conduct: &'a mut dyn Conduct,
}

impl Player<'_> {
    /// Runs a step on the session's state, and checks that the result is the run's record.
    fn play(
        &mut self,
        session: &mut Session,
        dataset: &mut Dataset,
        step: u32,
        watch: &Watch,
    ) -> Result<CommittedStep, PartyError> {
        let run = self.run;
        let batch = run.batch(dataset, step)?;
        let native = self.conduct.hides_decisions();
        let mut names = NativeNames::default();
        let watch = &if native { names.watch(run, watch) } else { watch.clone() };
        let mut replayer = replayer(run, step)?.filter(|_| !native);
        let mut run_step = |session: &mut Session, request: StepRequest| {
            let roundings = replayer.as_mut().map_or(Roundings::Logged, Roundings::Replayed);
            request.run(session, roundings, watch)
        };
        let done =
            self.conduct.step(run, session, scalars(&run.computation, step), batch, dataset, &mut run_step);
        if let Some(replayer) = &replayer {
            readable_log(run, step, replayer)?;
        }
        let done = done?;
        match self.records.get(step as usize) {
            Some(Record::Step { step: record, .. }) if *record == done.record => {
                let outputs =
                    done.outputs.into_iter().map(|(place, bytes)| (names.of(place), bytes)).collect();
                Ok(CommittedStep { outputs, ..done })
            }
            _ => Err(self.not_reproduced(step, session)),
        }
    }

    fn not_reproduced(&self, step: u32, session: &Session) -> PartyError {
        PartyError::NotReproduced { step, device: session.engine().describe() }
    }
}

/// The program's node for each node of a native trainer's graphs, where a logged product is one node.
#[derive(Default)]
struct NativeNames(BTreeMap<(Phase, usize), (Phase, usize)>);

impl NativeNames {
    /// The watch for a native trainer's step that corresponds to `watch` for the program's step.
    fn watch(&mut self, run: &Run, watch: &Watch) -> Watch {
        let native = native_graph(&run.program().micro);
        for &(phase, node) in &watch.outputs {
            let place = match phase {
                // Tensors keep their ids.
                Phase::Micro(_) => {
                    let output = run.program().micro.nodes[node].output;
                    native.nodes.iter().position(|other| other.output == output)
                }
                Phase::Accumulate(_) | Phase::Update => Some(node),
            };
            self.0.extend(place.map(|place| ((phase, place), (phase, node))));
        }
        Watch { outputs: self.0.keys().copied().collect(), ..watch.clone() }
    }

    /// The program's node that a native trainer's node represents.
    fn of(&self, place: (Phase, usize)) -> (Phase, usize) {
        self.0.get(&place).copied().unwrap_or(place)
    }
}
