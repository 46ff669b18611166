//! A whole training run in memory, computed element by element with the scalar reference: an honest one, or one with a lie from
//! which everything after it follows.

use std::collections::BTreeMap;
use std::convert::Infallible;

use tiebreak_contract::arith::words::{bytes_from_words, bytes_of, word_from_bytes};
use tiebreak_contract::arith::{DType, float};
use tiebreak_contract::program::element::{self, Source};
use tiebreak_contract::program::graph::{Graph, TensorId};
use tiebreak_contract::program::init;
use tiebreak_contract::program::phase::{Phase, graph_of, phases};
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_dispute::evidence::binding::state_nodes;
use tiebreak_dispute::evidence::origin::{Origin, origin, scalar};
use tiebreak_dispute::verdict::Scalar;
use tiebreak_job::Granularity;
use tiebreak_job::data::{batch_digest, batch_leaves};
use tiebreak_job::identity::philox_key;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::{Record, StepRecord, gradient_leaf, gradients_root};
use tiebreak_record::commit::state::{StateRoots, state_digest, tensor_digests};
use tiebreak_record::commit::trace::{leaf_name, positions};
use tiebreak_record::commit::{merkle, table, tensor};
use tiebreak_record::rounding::Decision;
use tiebreak_record::rounding::codec::{BLOCK, encode};
use tiebreak_record::rounding::log::{self, Log};
use tiebreak_run::run::dir::Run;

/// The place of a run's lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lie {
    /// One element of a node's output in a step is changed.
    Node { step: u32, phase: Phase, node: usize, element: usize, mask: u32 },
    /// One element of the initial state is changed.
    Initial { index: usize, element: usize, mask: u32 },
    /// One element of a batch is changed.
    Batch { step: u32, micro: u32, tensor: usize, element: usize, mask: u32 },
    /// A field of a step's record is changed, whatever the step gave.
    Field { step: u32, field: FieldLie },
    /// The bytes of a step's log are changed.
    Log { step: u32, log: LogLie },
    /// The final record's state is changed.
    Final,
}

/// The defect of a log of few parts, which shows before any part is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLie {
    Version,
    Parts,
    Longer,
    Shorter,
    NoLengths,
    Empty,
    /// Longer than the log of a step can be.
    TooLong,
}

impl LogLie {
    fn plant(self, bytes: &mut Vec<u8>) {
        match self {
            LogLie::Version => bytes[13] += 1,
            LogLie::Parts => bytes[15] += 1,
            LogLie::Longer => bytes.push(0),
            LogLie::Shorter => bytes.truncate(bytes.len() - 1),
            LogLie::NoLengths => bytes.truncate(16),
            LogLie::Empty => bytes.clear(),
            LogLie::TooLong => bytes.resize(1 << 22, 0),
        }
    }
}

/// A field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldLie {
    Gradients,
    State,
    Clip,
    Loss,
    LearningRate,
    Cursor,
    Computation,
    Step,
    Log,
}

impl FieldLie {
    fn plant(self, computation: &mut Digest, record: &mut StepRecord) {
        match self {
            FieldLie::Gradients => {
                record.gradients = record.gradients.map(|digest| Digest([digest.0[0] ^ 1; 32]))
            }
            FieldLie::State => record.state.0[0] ^= 1,
            FieldLie::Clip => record.clip ^= 1,
            FieldLie::Loss => record.loss ^= 1,
            FieldLie::LearningRate => record.learning_rate ^= 1,
            FieldLie::Cursor => record.cursor += 1,
            FieldLie::Computation => computation.0[0] ^= 1,
            FieldLie::Step => record.step += 1,
            FieldLie::Log => record.log = record.log.map(|digest| Digest([digest.0[0] ^ 1; 32])),
        }
    }
}

/// The results of a step.
pub struct StepWorld {
    pub before: Vec<Vec<u8>>,
    pub batch: Vec<MicroBatch>,
    pub outputs: BTreeMap<(Phase, usize), Vec<u8>>,
    /// The leaves of the trace.
    pub leaves: Vec<Digest>,
    pub digests: BTreeMap<(Phase, usize), Digest>,
    /// The leaves of the micro-batches' gradients.
    pub gradients: Vec<Digest>,
    /// The bytes of the rounding log, in the logged profile.
    pub log: Option<Vec<u8>>,
}

/// A run.
pub struct World {
    pub steps: Vec<StepWorld>,
    pub records: Vec<Vec<u8>>,
    pub leaves: Vec<Digest>,
}

/// Whole tensors; an index that a lie moved outside of one reads as 0.
struct Tensors<'a> {
    graph: &'a Graph,
    bytes: &'a BTreeMap<TensorId, Vec<u8>>,
}

impl Source for Tensors<'_> {
    type Error = Infallible;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, Infallible> {
        let ty = self.graph.tensor(tensor);
        let size = ty.dtype.size();
        let bytes = self.bytes.get(&tensor).and_then(|bytes| bytes.get(index * size..(index + 1) * size));
        Ok(bytes.map_or(0, |bytes| word_from_bytes(ty.dtype, bytes)))
    }
}

/// Changes an element of a tensor.
fn change(bytes: &mut [u8], dtype: DType, element: usize, mask: u32) {
    let size = dtype.size();
    let mask = mask.to_le_bytes();
    let at = element * size % bytes.len();
    bytes[at..at + size].iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
}

impl World {
    /// [`World::of`], unless the lie gives values that an operator is not defined for: then nobody can continue.
    pub fn lying(run: &Run, lie: &Lie) -> Option<World> {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| World::of(run, Some(lie)))).ok()
    }

    /// The run's training again, with a lie if there is one.
    pub fn of(run: &Run, lie: Option<&Lie>) -> World {
        let program = run.program();
        let key = philox_key(&run.computation.seed);
        let table = program.state();
        let mut state: Vec<Vec<u8>> = init::state(program, key).iter().map(|words| bytes_of(words)).collect();
        if let Some(Lie::Initial { index, element, mask }) = lie {
            change(&mut state[*index], DType::F32, *element, *mask);
        }
        let digest = state_digest(&table, &tensor_digests(&table, &state));
        let mut records = vec![Record::Initial { computation: run.computation.id, state: digest }.encode()];
        let mut steps = Vec::new();
        let mut data = run.dataset().unwrap();
        for step in 1..=run.job().steps {
            let mut batch = data.batch(program, key, step).unwrap();
            if let Some(Lie::Batch { step: at, micro, tensor, element, mask }) = lie
                && *at == step
            {
                let dtype = program.batch[*tensor].dtype;
                change(&mut batch[*micro as usize].tensors[*tensor], dtype, *element, *mask);
            }
            let (made, record, after) = one_step(run, step, state, batch, lie);
            records.push(record);
            steps.push(made);
            state = after;
        }
        let mut digests = tensor_digests(&table, &state);
        if lie == Some(&Lie::Final) {
            digests[0].0[0] ^= 1;
        }
        let roots = StateRoots::of(&table, &digests);
        records
            .push(Record::Final { computation: run.computation.id, steps: run.job().steps, roots }.encode());
        let leaves = records.iter().map(|record| merkle::leaf(record)).collect();
        World { steps, records, leaves }
    }

    /// The root over all records.
    pub fn root(&self) -> Digest {
        merkle::root(&self.leaves)
    }
}

/// The outputs of all nodes of a step.
fn outputs(
    run: &Run,
    step: u32,
    before: &[Vec<u8>],
    batch: &[MicroBatch],
    lie: Option<&Lie>,
) -> BTreeMap<(Phase, usize), Vec<u8>> {
    let program = run.program();
    let mut outputs: BTreeMap<(Phase, usize), Vec<u8>> = BTreeMap::new();
    for phase in phases(program.micro_batches) {
        let graph = graph_of(program, phase);
        let mut tensors: BTreeMap<TensorId, Vec<u8>> = BTreeMap::new();
        for port in &graph.inputs {
            let bytes = match origin(program, run.job(), &run.computation.seed, step, phase, port.tensor) {
                Some(Origin::State { index }) => before[index].clone(),
                Some(Origin::Batch { micro, tensor }) => batch[micro as usize].tensors[tensor].clone(),
                Some(Origin::Words(words)) => bytes_of(&words),
                Some(Origin::Node { phase, node }) => outputs[&(phase, node)].clone(),
                None => Vec::new(),
            };
            tensors.insert(port.tensor, bytes);
        }
        for (index, node) in graph.nodes.iter().enumerate() {
            let ty = graph.tensor(node.output);
            let mut source = Tensors { graph, bytes: &tensors };
            let Ok(words) = element::range(graph, node, 0..ty.len(), &mut source);
            let mut bytes = bytes_from_words(ty.dtype, &words);
            if let Some(Lie::Node { step: at, phase: of, node: lying, element, mask }) = lie
                && (*at, *of, *lying) == (step, phase, index)
            {
                change(&mut bytes, ty.dtype, *element, *mask);
            }
            outputs.insert((phase, index), bytes.clone());
            tensors.insert(node.output, bytes);
        }
    }
    outputs
}

/// The gradient root of each micro-batch.
fn gradient_roots(run: &Run, digests: &BTreeMap<(Phase, usize), Digest>) -> Vec<Digest> {
    let (program, graph) = (run.program(), &run.program().micro);
    let node = |name: &str| {
        let tensor = graph.output(name).unwrap();
        graph.nodes.iter().position(|node| node.output == tensor).unwrap()
    };
    let gradients = program.gradients();
    let root = |micro: u32| {
        let of = |name: &str| &digests[&(Phase::Micro(micro), node(name))];
        table::root(gradients.iter().map(|t| (t.name.as_str(), of(&t.name))))
    };
    (0..program.micro_batches).map(root).collect()
}

/// The log of a step of a world in which every product is rounded to the nearest. The log's first part is long and holds no
/// decisions. A large last product has decisions in two blocks, for games that do not come so far that they count.
fn step_log(run: &Run, step: u32, lie: Option<&Lie>) -> Option<Vec<u8>> {
    run.job().rounding.as_ref()?;
    let (products, micro_batches) = (&run.program().micro.logged, run.program().micro_batches);
    let len = log::bytes_max(products, micro_batches) / u64::from(run.job().steps + 1) * u64::from(step);
    let mut parts = vec![Vec::new(); products.len() * micro_batches as usize];
    parts[0] = (0..len).map(|i| (i % 251) as u8).collect();
    let elements = products.last().map_or(0, |product| product.elements() as u64);
    if elements > 2 * BLOCK as u64 {
        let decision = |i: u64| Decision { place: 2 * i, bits: 1, residue: 0 };
        let decisions: Vec<Decision> = (0..BLOCK as u64 + 9).map(decision).collect();
        *parts.last_mut().unwrap() = encode(&decisions, elements);
    }
    let mut bytes = Log::new(&parts).bytes().to_vec();
    if let Some(Lie::Log { step: at, log }) = lie
        && *at == step
    {
        log.plant(&mut bytes);
    }
    Some(bytes)
}

/// A step, its record, and the state after it.
fn one_step(
    run: &Run,
    step: u32,
    before: Vec<Vec<u8>>,
    batch: Vec<MicroBatch>,
    lie: Option<&Lie>,
) -> (StepWorld, Vec<u8>, Vec<Vec<u8>>) {
    let program = run.program();
    let outputs = outputs(run, step, &before, &batch, lie);
    let digests: BTreeMap<(Phase, usize), Digest> = positions(program)
        .into_iter()
        .map(|(phase, node)| {
            let graph = graph_of(program, phase);
            let ty = graph.tensor(graph.nodes[node].output);
            ((phase, node), tensor::digest(ty, &outputs[&(phase, node)]))
        })
        .collect();
    let leaves: Vec<Digest> = positions(program)
        .into_iter()
        .map(|(phase, node)| table::leaf(&leaf_name(phase, node), &digests[&(phase, node)]))
        .collect();
    let nodes = state_nodes(program);
    let after: Vec<Vec<u8>> = nodes
        .iter()
        .zip(&before)
        .map(|(node, before)| node.map_or(before.clone(), |node| outputs[&(Phase::Update, node)].clone()))
        .collect();
    let table = program.state();
    let word = |which: Scalar| match scalar(program, which) {
        Some(Origin::Node { phase, node }) => word_from_bytes(DType::F32, &outputs[&(phase, node)]),
        _ => float::ONE,
    };
    let roots = gradient_roots(run, &digests);
    let log = step_log(run, step, lie);
    let granularity = run.job().commit.granularity;
    let mut record = StepRecord {
        step,
        state: state_digest(&table, &tensor_digests(&table, &after)),
        batch: batch_digest(program, &batch),
        gradients: (granularity != Granularity::Step).then(|| gradients_root(&roots)),
        trace: (granularity == Granularity::Operator).then(|| merkle::root(&leaves)),
        log: log.as_deref().map(log::root),
        learning_rate: run.job().schedule.learning_rate(step, run.job().steps),
        clip: if run.job().never_clips() { float::ONE } else { word(Scalar::Clip) },
        loss: word(Scalar::Loss),
        cursor: u64::from(step) * u64::from(program.samples()),
    };
    let mut computation = run.computation.id;
    if let Some(Lie::Field { step: at, field }) = lie
        && *at == step
    {
        field.plant(&mut computation, &mut record);
    }
    let record = Record::Step { computation, step: record }.encode();
    let gradients = (0..).zip(&roots).map(|(micro, root)| gradient_leaf(micro, root)).collect();
    (StepWorld { before, batch, outputs, leaves, digests, gradients, log }, record, after)
}

/// The leaves of a step's batch.
pub fn leaves_of_batch(run: &Run, batch: &[MicroBatch]) -> Vec<Digest> {
    batch_leaves(run.program(), batch).iter().map(|(name, digest)| table::leaf(name, digest)).collect()
}
