//! The evidence of a tile verdict: the first differing tile of an operator's output, and that tile's operands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::checks::{self, Checked};
use super::ground::{Ground, NodeTile};
use super::operands::{Operands, Tensors, nodes};
use super::replay::replay_to;
use super::report::{AuditError, Found, Outcome};
use tiebreak_contract::program::graph::TensorId;
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_dispute::evidence::binding::state_nodes;
use tiebreak_dispute::evidence::leaf;
use tiebreak_dispute::evidence::origin::Origin;
use tiebreak_dispute::verdict::{Claim, Hashes, TileClaim};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::recompute;
use tiebreak_engine::session::Session;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::tensor::Hash;
use tiebreak_record::commit::trace::{Trace, positions};
use tiebreak_record::commit::{multiproof, tensor};
use tiebreak_run::observers::record::Rounder;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::states;
use tiebreak_run::step::{Outputs, Tracer, replayer, scalars};

/// The outputs of some nodes of a step, which a session computes from its state.
///
/// # Errors
/// If the engine fails, or the run's log cannot be read.
pub(crate) fn outputs(
    run: &Run,
    session: &mut Session,
    step: u32,
    batch: &[MicroBatch],
    wanted: BTreeSet<(Phase, usize)>,
) -> Result<Outputs, AuditError> {
    let mut replayer = replayer(run, step)?;
    let rounder = replayer.as_mut().map(|replayer| replayer as &mut dyn Rounder);
    let mut tracer = Tracer::new(false, None, rounder).keeping(wanted);
    session.step(scalars(&run.computation, step), batch, &mut tracer, |_, _, _| Ok(()))?;
    Ok(tracer.kept)
}

/// A trainer's answer to a tile verdict on step `step`: the bytes of the committed tile, from a replay on the engine that
/// trained. `None` if this engine computes another tile.
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
    let mut session = Session::new(engine, Arc::new(run.program().clone()))?;
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

/// A step whose trace differs from the auditor's, with the sources of its evidence.
pub struct DisputedStep<'a> {
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
    /// True if the auditor's engine computes tensors again instead of keeping them.
    pub recomputes: bool,
    /// The time at which the auditor's limit ends.
    pub end: Option<Instant>,
}

impl DisputedStep<'_> {
    /// Whole tensors of a phase: state and batch are available, outputs of nodes are computed again.
    ///
    /// # Errors
    /// If the CPU engine fails, or the run's log cannot be read.
    pub fn tensors(
        &self,
        phase: Phase,
        ids: impl IntoIterator<Item = TensorId>,
    ) -> Result<Tensors, AuditError> {
        let DisputedStep { run, step, before, batch, .. } = *self;
        let operands = self.operands();
        let origins = operands.origins(phase, ids);
        let cpu = recompute::engine(Cpu::new(0)?, self.recomputes);
        let mut session = Session::new(cpu, Arc::new(run.program().clone()))?;
        session.stop_at(self.end);
        session.load(before)?;
        let kept = outputs(run, &mut session, step, batch, nodes(&origins))?;
        Ok(operands.whole(origins, &kept))
    }

    /// The commitments to the operands of the step's operators.
    pub fn operands(&self) -> Operands<'_> {
        let DisputedStep { run, step, before, batch, published, .. } = *self;
        Operands { run, step, before, batch, trace: published }
    }

    /// A verdict on the first differing tile of the trace's node `index`, narrowed to one element if the trainer's bytes are
    /// available; `None` if the leaf checker cannot decide the tile.
    ///
    /// # Errors
    /// If the CPU engine fails, or a file of the run cannot be read.
    pub fn tile(&self, index: usize, mine: &Trace, engine: &str) -> Result<Option<Found>, AuditError> {
        let DisputedStep { run, checked, step, published, .. } = *self;
        let program = run.program();
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
        let count = tensor::tile_count(ty.bytes());
        let (operator, primitive) = (node.operator.clone(), node.primitive.name().to_string());
        let place = NodeTile { operator, primitive, phase, node: node_index, tile, count };
        if tensor::tile_value(&bytes, tile, count) == theirs.tiles[tile] {
            let what = Ground::FaultyTile(place);
            let engine = engine.to_string();
            return Ok(Some(Found { outcome: Outcome::EngineFaulty { step, engine, what }, verdict: None }));
        }
        let leaves = published.leaves(program);
        let claim = TileClaim {
            before: checked.proven(step - 1),
            phase: phase.into(),
            node: node_index,
            output: self.operands().commitment(&Origin::Node { phase, node: node_index }, &leaves),
            tile,
            value: Digest(theirs.tiles[tile]),
            siblings: Hashes(multiproof::prove(multiproof::blake3, &theirs.tiles, &[tile])),
            disclosed: None,
            inputs: self.operands().proven(&inputs, &touched, &leaves),
        };
        let mut verdict = checked.verdict(run, step, Claim::Tile(Box::new(claim)));
        let disclosed = match self.published_tile(phase, node_index, tile, theirs.tiles[tile]) {
            Some(published) => Some(published),
            None => one_bit_off(bytes, tile, count, theirs.tiles[tile]),
        };
        if let Some(narrowed) = disclosed.and_then(|bytes| verdict.narrowed(&bytes).ok()?) {
            verdict = narrowed;
        }
        let what = Ground::Operator(place);
        Ok(Some(Found { outcome: Outcome::Diverges { step, what }, verdict: Some(verdict) }))
    }

    /// The committed tile from the checkpoint after the step, if the node computes a state tensor and the checkpoint exists.
    fn published_tile(&self, phase: Phase, node: usize, tile: usize, value: Hash) -> Option<Vec<u8>> {
        let program = self.run.program();
        let place = state_nodes(program).iter().position(|&n| phase == Phase::Update && n == Some(node))?;
        let state = states::read(self.run, self.step).ok()?;
        let bytes = state[place].get(tensor::tile_range(state[place].len(), tile))?;
        let count = tensor::tile_count(state[place].len());
        (tensor::tile_value(bytes, tile, count) == value).then(|| bytes.to_vec())
    }
}

/// The committed tile, if it is `right` with one bit flipped. A fault in memory or a register leaves such a tile, and trying is
/// cheap.
pub(crate) fn one_bit_off(mut right: Vec<u8>, tile: usize, count: usize, value: Hash) -> Option<Vec<u8>> {
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
