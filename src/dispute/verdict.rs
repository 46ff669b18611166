//! Verdicts: files that show, to anybody, that a run is not what its trainer signed for.
//!
//! A verdict carries the job, the signed head, the step's record with its inclusion proof, and a claim. A *tile*
//! verdict is decided by the leaf checker from the file alone, as are contradictions inside the record. A *step*
//! verdict names the step and is checked by replaying it from the run.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::leaf::{self, Tiles};
use super::origin::{Origin, origin};
use crate::commit::checkpoint::{Head, Signed};
use crate::commit::digest::Digest;
use crate::commit::keys::PublicKey;
use crate::commit::record::{Record, StepRecord};
use crate::commit::{Malformed, merkle, table, tensor};
use crate::engine::session::Phase;
use crate::program::graph::{TensorId, TensorType};
use crate::program::init;
use crate::program::step::{Program, StateTensor};
use crate::run::checkpoint::{state_digest, state_type};
use crate::run::dir::{CONTRACT, RunFile, program_digest};
use crate::run::job::{self, Granularity, Job, philox_key};
use crate::run::traces::{graph_of, leaf_count, leaf_name, leaf_place};

/// The most bytes of a verdict file.
pub const VERDICT_MAX: u64 = 1 << 28;
const FORMAT: u32 = 1;

/// Bytes as base64 text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Base64(pub Vec<u8>);

impl From<Base64> for String {
    fn from(bytes: Base64) -> String {
        STANDARD.encode(bytes.0)
    }
}

impl TryFrom<String> for Base64 {
    type Error = base64::DecodeError;

    fn try_from(text: String) -> Result<Base64, base64::DecodeError> {
        Ok(Base64(STANDARD.decode(text)?))
    }
}

/// A record that the head covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvenRecord {
    pub index: u64,
    pub record: Base64,
    pub proof: Vec<Digest>,
}

/// A leaf of a trace, state or batch root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvenTensor {
    pub digest: Digest,
    pub proof: Vec<Digest>,
}

/// A tile of an input tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvenTile {
    pub tile: usize,
    pub bytes: Base64,
    pub siblings: Vec<Digest>,
}

/// The tiles of one input tensor of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvenInput {
    /// The tensor in the graph of the node's phase.
    pub tensor: u32,
    pub commitment: ProvenTensor,
    pub tiles: Vec<ProvenTile>,
}

/// The phase of a node, as files write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseName {
    Micro(u32),
    Accumulate(u32),
    Update,
}

impl From<Phase> for PhaseName {
    fn from(phase: Phase) -> PhaseName {
        match phase {
            Phase::Micro(i) => PhaseName::Micro(i),
            Phase::Accumulate(i) => PhaseName::Accumulate(i),
            Phase::Update => PhaseName::Update,
        }
    }
}

impl From<PhaseName> for Phase {
    fn from(name: PhaseName) -> Phase {
        match name {
            PhaseName::Micro(i) => Phase::Micro(i),
            PhaseName::Accumulate(i) => Phase::Accumulate(i),
            PhaseName::Update => Phase::Update,
        }
    }
}

/// One tile of one operator's output is not what the operator makes of its committed inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TileClaim {
    /// The record before the step's: it commits to the state that the step began from.
    pub before: ProvenRecord,
    pub phase: PhaseName,
    pub node: usize,
    pub output: ProvenTensor,
    pub tile: usize,
    /// What the committed tree says of the tile, and the siblings that prove it.
    pub value: Digest,
    pub siblings: Vec<Digest>,
    pub inputs: Vec<ProvenInput>,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Claim {
    Tile(Box<TileClaim>),
    /// The state that the record commits is not the one that its own trace's update computed. `outputs`: the nodes of
    /// the update that make the state tensors, in the order of the state's table.
    Binding {
        outputs: Vec<ProvenTensor>,
    },
    /// Record 0 does not commit the initial state that the job and seed give.
    Initial,
    /// The record's learning rate is not the schedule's.
    LearningRate,
    /// Replaying the step gives other tensors; checked against the run.
    Step {
        micro_batches: Vec<u32>,
        tensors: Vec<String>,
    },
}

/// A verdict file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    pub format: u32,
    pub run: RunFile,
    pub job: String,
    pub head: String,
    pub record: ProvenRecord,
    pub claim: Claim,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The evidence shows it, whoever wrote the file.
    Convicts(Finding),
    /// The evidence is consistent with an honest trainer.
    DoesNotConvict(String),
    /// The claim can only be checked by replaying the step from the run.
    NeedsReplay { step: u32, run: Digest },
}

/// A conviction in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub run: Digest,
    pub signed: Signed,
    /// The step, 0 for the initial state.
    pub step: u32,
    pub what: String,
}

/// What every check establishes first.
struct Context {
    job: Job,
    program: Program,
    seed: Digest,
    run: Digest,
    signed: Signed,
    head: Head,
}

fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid("verdict", why)
}

impl Verdict {
    pub fn new(run: RunFile, job: String, head: String, record: ProvenRecord, claim: Claim) -> Verdict {
        Verdict { format: FORMAT, run, job, head, record, claim }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a verdict is plain data")
    }

    /// Parses strictly: a verdict has one encoding, that of [`Verdict::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Verdict, Malformed> {
        if bytes.len() as u64 > VERDICT_MAX {
            return Err(Malformed::TooLarge { what: "verdict", limit: VERDICT_MAX });
        }
        let verdict: Verdict = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        if verdict.format != FORMAT {
            return Err(wrong(format!("format {} is not known here", verdict.format)));
        }
        if verdict.to_bytes() != bytes {
            return Err(wrong("it is not in the canonical encoding"));
        }
        Ok(verdict)
    }

    fn context(&self, key: Option<&PublicKey>) -> Result<Context, Malformed> {
        if self.run.contract != CONTRACT {
            return Err(wrong(format!("it is about contract {:?}", self.run.contract)));
        }
        let job = Job::parse("job", &self.job).map_err(|error| wrong(error.to_string()))?;
        let program = job.program();
        if program_digest(&program) != self.run.program {
            return Err(wrong("the program digest is not that of the job"));
        }
        let identity = self.run.identity(&self.job).map_err(wrong)?;
        let run = identity.run_id();
        if key.is_some_and(|key| identity.trainer_key != key.bytes()) {
            return Err(wrong("the run names another trainer key"));
        }
        let (head, signed) = Head::from_note(&self.head, key)?;
        if head.run != run {
            return Err(wrong("the head is of another run"));
        }
        let seed = job::seed(&self.job, self.run.challenge.as_ref());
        Ok(Context { job, program, seed, run, signed, head })
    }

    /// Checks the verdict with the scalar reference alone.
    ///
    /// # Errors
    /// If the file does not hold together: then it says nothing about the trainer.
    pub fn check(&self, key: Option<&PublicKey>) -> Result<Outcome, Malformed> {
        let context = self.context(key)?;
        let record = context.proven(&self.record)?;
        let finding = |step: u32, what: String| {
            Outcome::Convicts(Finding { run: context.run, signed: context.signed, step, what })
        };
        let honest = |why: &str| Ok(Outcome::DoesNotConvict(why.to_string()));
        if let (Claim::Initial, Record::Initial { state, .. }) = (&self.claim, &record) {
            if *state == initial_digest(&context.program, &context.seed) {
                return honest("record 0 commits the initial state that the seed gives");
            }
            return Ok(finding(0, "record 0 does not commit the initial state that the seed gives".into()));
        }
        let Record::Step { step, .. } = record else { return Err(wrong("the record is not a step's")) };
        if u64::from(step.step) != self.record.index {
            return Err(wrong("the record is not at its step's place"));
        }
        match &self.claim {
            Claim::Tile(claim) => match context.tile(&step, claim)? {
                Some(what) => Ok(finding(step.step, what)),
                None => honest("the committed tile is what the operator makes of its inputs"),
            },
            Claim::Binding { outputs } => match context.binding(&step, outputs)? {
                Some(what) => Ok(finding(step.step, what)),
                None => honest("the record's state is the one that its trace's update computed"),
            },
            Claim::LearningRate => {
                let rate = context.job.schedule.learning_rate(step.step, context.job.steps);
                if step.learning_rate == rate {
                    return honest("the record's learning rate is the schedule's");
                }
                Ok(finding(step.step, "the record's learning rate is not the schedule's".into()))
            }
            Claim::Step { .. } => Ok(Outcome::NeedsReplay { step: step.step, run: context.run }),
            Claim::Initial => Err(wrong("the record is not record 0")),
        }
    }
}

/// The state digest of init(seed), one tensor in memory at a time.
pub fn initial_digest(program: &Program, seed: &Digest) -> Digest {
    let table = program.state();
    let digests: Vec<Digest> = (0..table.len())
        .map(|i| {
            let words = init::state_tensor(program, philox_key(seed), i);
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            tensor::digest(&state_type(&table[i]), &bytes)
        })
        .collect();
    state_digest(&table, &digests)
}

/// The nodes of the update that make the state tensors, in the order of [`Program::state`].
pub fn state_nodes(program: &Program) -> Vec<usize> {
    let update = &program.update;
    let node = |t: StateTensor| {
        let output = update.output(&t.name);
        update
            .nodes
            .iter()
            .position(|n| Some(n.output) == output)
            .expect("the update makes every state tensor")
    };
    program.state().into_iter().map(node).collect()
}

impl Context {
    /// A record, after checking that the head covers it.
    fn proven(&self, proven: &ProvenRecord) -> Result<Record, Malformed> {
        let leaf = merkle::leaf(&proven.record.0);
        if merkle::root_from_proof(leaf, proven.index, self.head.size, &proven.proof)? != self.head.root {
            return Err(wrong("the head does not cover the record"));
        }
        let record = Record::decode(&proven.record.0)?;
        if *record.run() != self.run {
            return Err(wrong("the record is of another run"));
        }
        Ok(record)
    }

    /// Checks that `root` over `size` leaves commits to a named tensor at `index`.
    fn committed(
        &self,
        root: &Digest,
        (index, size): (usize, usize),
        name: &str,
        tensor: &ProvenTensor,
    ) -> Result<(), Malformed> {
        let leaf = table::leaf(name, &tensor.digest);
        if merkle::root_from_proof(leaf, index as u64, size as u64, &tensor.proof)? != *root {
            return Err(wrong(format!("{name} is not what the run committed to")));
        }
        Ok(())
    }

    /// Checks the commitment of a tensor of the node's phase; `None` for words that follow from the job.
    fn input_commitment(
        &self,
        step: &StepRecord,
        before: &Digest,
        from: &Origin,
        tensor: &ProvenTensor,
    ) -> Result<(), Malformed> {
        match from {
            Origin::State { index } => {
                let table = self.program.state();
                self.committed(before, (*index, table.len()), &table[*index].name, tensor)
            }
            Origin::Batch { micro, tensor: number } => {
                let names = self.program.spec.model.batch(self.program.spec.micro_batch);
                let index = *micro as usize * names.len() + number;
                let size = self.program.spec.micro_batches as usize * names.len();
                self.committed(
                    &step.batch,
                    (index, size),
                    &format!("micro{micro}/{}", names[*number].name),
                    tensor,
                )
            }
            Origin::Node { phase, node } => self.trace_commitment(step, *phase, *node, tensor),
            Origin::Words(_) => Ok(()),
        }
    }

    /// The record's trace root. Jobs that commit operators have a bound on their micro-batches, so listing the
    /// nodes of a step is possible only after this.
    fn trace_root<'s>(&self, step: &'s StepRecord) -> Result<&'s Digest, Malformed> {
        let operators = self.job.commit.granularity == Granularity::Operator;
        step.trace.as_ref().filter(|_| operators).ok_or_else(|| wrong("the record commits to no operators"))
    }

    fn trace_commitment(
        &self,
        step: &StepRecord,
        phase: Phase,
        node: usize,
        tensor: &ProvenTensor,
    ) -> Result<(), Malformed> {
        let trace = self.trace_root(step)?;
        let index = leaf_place(&self.program, phase, node).ok_or_else(|| wrong("there is no such node"))?;
        self.committed(trace, (index, leaf_count(&self.program)), &leaf_name(phase, node), tensor)
    }

    /// What a tile claim shows, `None` if the committed tile is right.
    fn tile(&self, step: &StepRecord, claim: &TileClaim) -> Result<Option<String>, Malformed> {
        let phase = Phase::from(claim.phase);
        self.trace_commitment(step, phase, claim.node, &claim.output)?;
        let graph = graph_of(&self.program, phase);
        let node = &graph.nodes[claim.node];
        let ty = graph.tensor(node.output);
        let siblings: Vec<[u8; 32]> = claim.siblings.iter().map(|d| d.0).collect();
        if tensor::digest_from_tile(ty, claim.tile, &claim.value.0, &siblings)? != claim.output.digest {
            return Err(wrong("the tile's value is not what the run committed to"));
        }
        let before = self.proven(&claim.before)?;
        if claim.before.index + 1 != u64::from(step.step) {
            return Err(wrong("the record before the step is another step's"));
        }
        let reads: BTreeSet<TensorId> = node.primitive.inputs().into_iter().collect();
        let mut carried = BTreeSet::new();
        let mut tiles = Tiles::default();
        for &id in &reads {
            if let Some(Origin::Words(words)) = self.origin(step, phase, id) {
                tiles.insert_words(id, &words);
            }
        }
        for input in &claim.inputs {
            let id = TensorId(input.tensor);
            if !reads.contains(&id) || !carried.insert(id) {
                return Err(wrong("it carries a tensor twice, or one that the node does not read"));
            }
            let from = self.origin(step, phase, id).ok_or_else(|| wrong("an input has no origin"))?;
            if matches!(from, Origin::Words(_)) {
                return Err(wrong("it carries a tensor that follows from the job"));
            }
            self.input_commitment(step, before.state(), &from, &input.commitment)?;
            for tile in &input.tiles {
                tiles.insert(id, tile.tile, verified_tile(graph.tensor(id), &input.commitment.digest, tile)?);
            }
        }
        let bytes = leaf::expected_tile(graph, claim.node, claim.tile, &tiles)
            .map_err(|error| wrong(error.to_string()))?;
        let count = tensor::tile_count(ty.bytes());
        if tensor::tile_value(&bytes, claim.tile, count) == claim.value.0 {
            return Ok(None);
        }
        Ok(Some(format!(
            "{} ({}) of {}: tile {} of {count} is not what the operator makes of its committed inputs",
            node.operator,
            node.primitive.name(),
            leaf_name(phase, claim.node),
            claim.tile
        )))
    }

    fn origin(&self, step: &StepRecord, phase: Phase, id: TensorId) -> Option<Origin> {
        origin(&self.program, &self.job, &self.seed, step.step, phase, id)
    }

    /// What a binding claim shows, `None` if state and trace agree.
    fn binding(&self, step: &StepRecord, outputs: &[ProvenTensor]) -> Result<Option<String>, Malformed> {
        let nodes = state_nodes(&self.program);
        if outputs.len() != nodes.len() {
            return Err(wrong("it lists another number of tensors than the state has"));
        }
        for (node, output) in nodes.into_iter().zip(outputs) {
            self.trace_commitment(step, Phase::Update, node, output)?;
        }
        let digests: Vec<Digest> = outputs.iter().map(|output| output.digest).collect();
        Ok((state_digest(&self.program.state(), &digests) != step.state)
            .then(|| "the record's state is not the one that its own trace's update computed".to_string()))
    }
}

/// A tile's bytes, after checking them against the tensor's digest.
fn verified_tile(ty: &TensorType, digest: &Digest, tile: &ProvenTile) -> Result<Vec<u8>, Malformed> {
    let count = tensor::tile_count(ty.bytes());
    if tile.tile >= count || tile.bytes.0.len() != tensor::tile_range(ty.bytes(), tile.tile).len() {
        return Err(wrong("an input tile has the wrong place or length"));
    }
    let siblings: Vec<[u8; 32]> = tile.siblings.iter().map(|d| d.0).collect();
    let value = tensor::tile_value(&tile.bytes.0, tile.tile, count);
    if tensor::digest_from_tile(ty, tile.tile, &value, &siblings)? != *digest {
        return Err(wrong("an input tile is not what the run committed to"));
    }
    Ok(tile.bytes.0.clone())
}
