//! The evidence of a tile verdict: the first tile of an operator's output that differs, and what it is computed from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::checks::{self, Checked};
use super::replay::replay_to;
use super::report::{AuditError, Found, Outcome};
use crate::arith::words::bytes_from_words;
use crate::commit::digest::Digest;
use crate::commit::state::{self, tensor_digests};
use crate::commit::tensor::{Hash, SLICE_BYTES};
use crate::commit::trace::{Trace, leaf_name, leaf_place, positions};
use crate::commit::{merkle, multiproof, table, tensor};
use crate::dispute::check::state_nodes;
use crate::dispute::leaf::{self, Touched};
use crate::dispute::origin::{Origin, origin};
use crate::dispute::verdict::{Base64, Claim, Hashes, ProvenInput, ProvenTensor, TileClaim};
use crate::engine::cpu::Cpu;
use crate::engine::session::{Session, StepObserver};
use crate::engine::{Engine, EngineError, Inputs, Observer, Want};
use crate::job::data::batch_leaves;
use crate::observers::record::Rounder;
use crate::observers::replay::Replayer;
use crate::program::graph::{Graph, Node, TensorId};
use crate::program::phase::{Phase, graph_of};
use crate::program::step::MicroBatch;
use crate::run::checkpoint;
use crate::run::dir::Run;
use crate::step::{replayer, scalars};

/// Keeps the outputs of some nodes, with the log's decisions in place.
struct Keeper {
    wanted: BTreeSet<(Phase, usize)>,
    phase: Phase,
    kept: BTreeMap<(Phase, usize), Vec<u8>>,
    replayer: Option<Replayer>,
}

impl StepObserver for Keeper {
    fn phase(&mut self, phase: Phase, graph: &Graph) -> Option<&mut dyn Observer> {
        self.phase = phase;
        if let Some(replayer) = &mut self.replayer {
            replayer.begin(phase, graph);
        }
        (self.replayer.is_some() || self.wanted.iter().any(|(p, _)| *p == phase)).then_some(self)
    }
}

impl Keeper {
    fn rounds(&self, index: usize, node: &Node) -> bool {
        self.replayer.as_ref().is_some_and(|replayer| replayer.want(index, node).is_any())
    }
}

impl Observer for Keeper {
    fn want(&self, index: usize, node: &Node) -> Want {
        let wanted = self.rounds(index, node) || self.wanted.contains(&(self.phase, index));
        if wanted { Want::Bytes } else { Want::No }
    }

    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let mut changed = None;
        if self.rounds(index, node)
            && let Some(replayer) = &mut self.replayer
        {
            changed = replayer.node(index, node, bytes, inputs)?;
        }
        let place = (self.phase, index);
        if self.wanted.contains(&place) {
            self.kept.insert(place, changed.as_deref().unwrap_or(bytes).to_vec());
        }
        Ok(changed)
    }
}

/// The outputs of some nodes of a step, which a session plays from its state.
///
/// # Errors
/// If the engine fails, or the run's log cannot be read.
pub fn outputs(
    run: &Run,
    session: &mut Session,
    step: u32,
    batch: &[MicroBatch],
    wanted: BTreeSet<(Phase, usize)>,
) -> Result<BTreeMap<(Phase, usize), Vec<u8>>, AuditError> {
    let replayer = replayer(run, step)?;
    let mut keeper = Keeper { wanted, phase: Phase::Update, kept: BTreeMap::new(), replayer };
    session.step(scalars(run, step), batch, &mut keeper, |_, _, _| Ok(()))?;
    Ok(keeper.kept)
}

/// What a trainer answers to a tile verdict on step `step`: the bytes of the tile that the run committed, from a replay on
/// the engine that trained; `None` if this one computes something else.
///
/// # Errors
/// If the run does not pass the checks of its structure, a file of it cannot be read, or the engine fails.
pub fn disclosed_tile(
    run: &Run,
    engine: &mut dyn Engine,
    step: u32,
    claim: &TileClaim,
) -> Result<Option<Vec<u8>>, AuditError> {
    let checked = checks::structure(run, None)?;
    let mut session = Session::new(engine, Arc::new(run.program.clone()))?;
    if replay_to(run, &checked, &mut session, step)?.is_some() {
        return Ok(None);
    }
    let batch = run.batch(&mut run.dataset()?, step)?;
    let place = (Phase::from(claim.phase), claim.node);
    let kept = outputs(run, &mut session, step, &batch, [place].into())?;
    let output = kept.get(&place).map_or(&[][..], Vec::as_slice);
    let tile = output.get(tensor::tile_range(output.len(), claim.tile)).unwrap_or_default();
    let value = tensor::tile_value(tile, claim.tile, tensor::tile_count(output.len()));
    Ok((value == claim.value.0).then(|| tile.to_vec()))
}

/// A step whose trace differs from the auditor's, and what its evidence is made from.
pub struct Disputed<'a> {
    /// The run that is audited.
    pub run: &'a Run,
    /// The result of the checks without a replay.
    pub checked: &'a Checked,
    /// The step, from 1.
    pub step: u32,
    /// The state that the step began from.
    pub before: &'a [Vec<u8>],
    /// The step's micro-batches, in order.
    pub batch: &'a [MicroBatch],
    /// The trace that the trainer published for the step.
    pub published: &'a Trace,
    /// When the auditor has no more time.
    pub end: Option<Instant>,
}

impl Disputed<'_> {
    /// Tensors of a phase, whole: state and batch are at hand, outputs of nodes are computed again.
    ///
    /// # Errors
    /// If the CPU engine fails, or the run's log cannot be read.
    pub fn tensors(
        &self,
        phase: Phase,
        ids: impl IntoIterator<Item = TensorId>,
    ) -> Result<BTreeMap<TensorId, (Origin, Vec<u8>)>, AuditError> {
        let Disputed { run, step, before, batch, .. } = *self;
        let origins: BTreeMap<TensorId, Origin> = ids
            .into_iter()
            .filter_map(|id| Some((id, origin(&run.program, &run.job, &run.seed, step, phase, id)?)))
            .collect();
        let wanted = origins.values().filter_map(|o| match o {
            Origin::Node { phase, node } => Some((*phase, *node)),
            _ => None,
        });
        let wanted = wanted.collect();
        let mut cpu = Cpu::new(0)?;
        let mut session = Session::new(&mut cpu, Arc::new(run.program.clone()))?;
        session.stop_at(self.end);
        session.load(before)?;
        let kept = outputs(run, &mut session, step, batch, wanted)?;
        drop(session);
        let whole = |origin: &Origin| match origin {
            Origin::State { index } => before[*index].clone(),
            Origin::Batch { micro, tensor } => batch[*micro as usize].tensors[*tensor].clone(),
            Origin::Words(words) => bytes_from_words(crate::arith::DType::U32, words),
            Origin::Node { phase, node } => kept.get(&(*phase, *node)).cloned().unwrap_or_default(),
        };
        Ok(origins
            .into_iter()
            .map(|(id, origin)| {
                let bytes = whole(&origin);
                (id, (origin, bytes))
            })
            .collect())
    }

    /// A verdict on the first differing tile of the trace's node `index`, narrowed to one element if the trainer's bytes
    /// can be had; `None` if the leaf checker cannot decide the tile.
    ///
    /// # Errors
    /// If the CPU engine fails, or a file of the run cannot be read.
    pub fn tile(&self, index: usize, mine: &Trace, engine: &str) -> Result<Option<Found>, AuditError> {
        let Disputed { run, checked, step, published, .. } = *self;
        let program = &run.program;
        let (phase, node_index) = positions(program)[index];
        let graph = graph_of(program, phase);
        let node = &graph.nodes[node_index];
        let theirs = &published.nodes[index];
        let differing = |(a, b): (&Hash, &Hash)| a != b;
        let tile = theirs.tiles.iter().zip(&mine.nodes[index].tiles).position(differing).unwrap_or(0);

        let inputs = self.tensors(phase, node.primitive.inputs())?;
        let tensors: BTreeMap<TensorId, Vec<u8>> =
            inputs.iter().map(|(id, (_, bytes))| (*id, bytes.clone())).collect();
        let ty = graph.tensor(node.output);
        let elements = leaf::tile_elements(ty, tile);
        let Ok((words, touched)) = leaf::recorded_from_tensors(graph, node_index, elements, &tensors) else {
            return Ok(None);
        };
        let bytes = leaf::tile_bytes(ty, tile, &words);
        let name = format!("{} ({})", node.operator, node.primitive.name());
        let count = tensor::tile_count(ty.bytes());
        if tensor::tile_value(&bytes, tile, count) == theirs.tiles[tile] {
            let what = format!("{name}, tile {tile} of {count}");
            let engine = engine.to_string();
            return Ok(Some(Found { outcome: Outcome::EngineFaulty { step, engine, what }, verdict: None }));
        }
        let leaves = published.leaves(program);
        let claim = TileClaim {
            before: checked.proven(step - 1),
            phase: phase.into(),
            node: node_index,
            output: self.commitment(&Origin::Node { phase, node: node_index }, &leaves),
            tile,
            value: Digest(theirs.tiles[tile]),
            siblings: Hashes(multiproof::prove(multiproof::blake3, &theirs.tiles, &[tile])),
            disclosed: None,
            inputs: self.proven(&inputs, &touched, &leaves),
        };
        let mut verdict = checked.verdict(run, step, Claim::Tile(Box::new(claim)));
        let disclosed = match self.published_tile(phase, node_index, tile, theirs.tiles[tile]) {
            Some(published) => Some(published),
            None => one_bit_off(bytes, tile, count, theirs.tiles[tile]),
        };
        if let Some(narrowed) = disclosed.and_then(|bytes| verdict.narrowed(&bytes).ok()?) {
            verdict = narrowed;
        }
        let what = format!(
            "operator {name}, {}: first differing tile {tile} of {count}",
            leaf_name(phase, node_index)
        );
        Ok(Some(Found { outcome: Outcome::Diverges { step, what }, verdict: Some(verdict) }))
    }

    /// The slices of tensors that were read, with what commits to each. `leaves`: those of the published trace.
    pub fn proven(
        &self,
        tensors: &BTreeMap<TensorId, (Origin, Vec<u8>)>,
        touched: &Touched,
        leaves: &[Digest],
    ) -> Vec<ProvenInput> {
        let mut proven = Vec::new();
        for (id, (origin, bytes)) in tensors {
            let slices: Vec<usize> =
                touched.iter().filter(|(t, _)| t == id).map(|(_, slice)| *slice).collect();
            if matches!(origin, Origin::Words(_)) || slices.is_empty() {
                continue;
            }
            let values = tensor::piece_values(bytes, SLICE_BYTES);
            let slice = |&slice: &usize| &bytes[tensor::piece_range(bytes.len(), SLICE_BYTES, slice)];
            proven.push(ProvenInput {
                tensor: id.0,
                commitment: self.commitment(origin, leaves),
                bytes: Base64(slices.iter().map(slice).collect::<Vec<_>>().concat()),
                siblings: Hashes(multiproof::prove(multiproof::blake3, &values, &slices)),
                slices,
            });
        }
        proven
    }

    /// The committed tile from the checkpoint after the step, if the node makes a state tensor and there is one.
    fn published_tile(&self, phase: Phase, node: usize, tile: usize, value: Hash) -> Option<Vec<u8>> {
        let program = &self.run.program;
        let place = state_nodes(program).iter().position(|&n| phase == Phase::Update && n == Some(node))?;
        let path = self.run.layout.checkpoint(self.step);
        let state = checkpoint::read(&path, &program.state()).ok()?;
        let bytes = state[place].get(tensor::tile_range(state[place].len(), tile))?;
        let count = tensor::tile_count(state[place].len());
        (tensor::tile_value(bytes, tile, count) == value).then(|| bytes.to_vec())
    }

    /// A tensor's digest and its place under the root that commits to it.
    pub fn commitment(&self, origin: &Origin, trace_leaves: &[Digest]) -> ProvenTensor {
        let program = &self.run.program;
        match origin {
            Origin::State { index } => {
                let table = program.state();
                let digests = tensor_digests(&table, self.before);
                ProvenTensor { digest: digests[*index], proof: state::prove(&table, &digests, *index) }
            }
            Origin::Batch { micro, tensor: number } => {
                let tensors = batch_leaves(program, self.batch);
                let index = tensors.len() / self.batch.len() * *micro as usize + number;
                let leaves: Vec<Digest> = tensors.iter().map(|(name, d)| table::leaf(name, d)).collect();
                ProvenTensor { digest: tensors[index].1, proof: merkle::prove(&leaves, index) }
            }
            Origin::Node { phase, node } => {
                let index = leaf_place(program, *phase, *node).unwrap_or(0);
                ProvenTensor {
                    digest: self.published.nodes[index].digest,
                    proof: merkle::prove(trace_leaves, index),
                }
            }
            Origin::Words(_) => ProvenTensor { digest: Digest([0; 32]), proof: Vec::new() },
        }
    }
}

/// The committed tile, if it is `right` with one bit flipped: what a fault in memory or a register leaves, and cheap to
/// try.
fn one_bit_off(mut right: Vec<u8>, tile: usize, count: usize, value: Hash) -> Option<Vec<u8>> {
    for byte in 0..right.len() {
        for bit in 0..8 {
            right[byte] ^= 1 << bit;
            if tensor::tile_value(&right, tile, count) == value {
                return Some(right);
            }
            right[byte] ^= 1 << bit;
        }
    }
    None
}
