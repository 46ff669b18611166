//! From a step that differs to what differs in it, confirmed by the scalar reference.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::checks::Checked;
use super::{AuditError, Outcome, differences, reference_step};
use crate::commit::digest::Digest;
use crate::commit::record::StepRecord;
use crate::commit::{merkle, table, tensor};
use crate::dispute::leaf::{RecordedTile, recorded_tile};
use crate::dispute::origin::{Origin, origin};
use crate::dispute::verdict::{
    Base64, Claim, Outcome as VerdictOutcome, ProvenInput, ProvenTensor, ProvenTile, TileClaim, Verdict,
    state_nodes,
};
use crate::engine::cpu::Cpu;
use crate::engine::reference::bytes_from_words;
use crate::engine::session::{MicroBatch, Phase, Session, StepObserver};
use crate::engine::{EngineError, Observer};
use crate::program::graph::{Graph, Node, TensorId, TensorType};
use crate::program::step::Program;
use crate::run::RunError;
use crate::run::checkpoint::{state_digest, tensor_digests};
use crate::run::dir::Run;
use crate::run::traces::{Trace, graph_of, leaf_name, leaf_place, positions};
use crate::train::committed_step::{CommittedStep, scalars};

/// What was found.
pub struct Found {
    pub outcome: Outcome,
    pub verdict: Option<Verdict>,
}

/// Finds out what differs in `step`. `before` is the state that the step began from, `mine` the auditor's result.
pub fn localise(
    run: &Run,
    checked: &Checked,
    step: u32,
    before: Vec<Vec<u8>>,
    batch: &[MicroBatch],
    mine: &CommittedStep,
    engine: String,
) -> Result<Found, AuditError> {
    let theirs = checked.step(step);
    let Some(trace) = &mine.trace else { return whole_step(run, checked, step, before, mine, engine) };
    let Some(published) = published_trace(run, theirs) else {
        // A trainer who withholds a trace, or commits to one of another program, does not escape the step verdict.
        let mut found = whole_step(run, checked, step, before, mine, engine)?;
        if let Outcome::Diverges { what, .. } = &mut found.outcome {
            what.push_str("; no published trace is the one that the record commits");
        }
        return Ok(found);
    };
    let difference = published.nodes.iter().zip(&trace.nodes).position(|(a, b)| a.digest != b.digest);
    if let Some(index) = difference {
        // A verdict that does not stand alone is none: then the whole step is replayed by the reference.
        let stands = |verdict: &Verdict| matches!(verdict.check(None), Ok(VerdictOutcome::Convicts(_)));
        return match tile(run, checked, step, &before, batch, &published, (index, trace, &engine))? {
            Some(found) if found.verdict.as_ref().is_none_or(stands) => Ok(found),
            _ => whole_step(run, checked, step, before, mine, engine),
        };
    }
    let (outputs, implied) = state_outputs(&run.program, &published);
    if implied != theirs.state {
        let what = "the record's state is not the one that its own trace's update computed".to_string();
        let verdict = checked.verdict(run, step, Claim::Binding { outputs })?;
        return Ok(Found { outcome: Outcome::Diverges { step, what }, verdict: Some(verdict) });
    }
    whole_step(run, checked, step, before, mine, engine)
}

/// The outputs of a trace's update that are the state after the step, and the state digest that they imply.
pub fn state_outputs(program: &Program, published: &Trace) -> (Vec<ProvenTensor>, Digest) {
    let leaves = published.leaves(program);
    let first = leaves.len() - program.update.nodes.len();
    let output = |node: usize| ProvenTensor {
        digest: published.nodes[first + node].digest,
        proof: merkle::prove(&leaves, first + node),
    };
    let outputs: Vec<ProvenTensor> = state_nodes(program).into_iter().map(output).collect();
    let digests: Vec<Digest> = outputs.iter().map(|output| output.digest).collect();
    (outputs, state_digest(&program.state(), &digests))
}

/// The trace that the run publishes for a step, if it is the one that the step's record commits.
fn published_trace(run: &Run, theirs: &StepRecord) -> Option<Trace> {
    let trace = Trace::read(&run.program, &run.layout.trace(theirs.step)).ok()?;
    (Some(trace.root(&run.program)) == theirs.trace).then_some(trace)
}

/// A verdict on a whole step: what differs by name, after the scalar reference agreed.
fn whole_step(
    run: &Run,
    checked: &Checked,
    step: u32,
    before: Vec<Vec<u8>>,
    mine: &CommittedStep,
    engine: String,
) -> Result<Found, AuditError> {
    let theirs = checked.step(step);
    let reference = reference_step(run, step, &before)?;
    let different = differences(&mine.record, theirs);
    if reference == *theirs {
        let what = format!("{} differ from the scalar reference too", different.join(", "));
        return Ok(Found { outcome: Outcome::EngineFaulty { step, engine, what }, verdict: None });
    }
    let micro_batches = (0..)
        .zip(reference.micro_batches.iter().zip(&theirs.micro_batches))
        .filter(|(_, (a, b))| a != b)
        .map(|(i, _)| i)
        .collect();
    let tensors = state_differences(run, step, &mine.state)?;
    let named = match tensors.len() {
        0 => String::new(),
        n => format!("; {n} state tensors differ, first {}", tensors[0]),
    };
    let what = format!("{}{named}", differences(&reference, theirs).join(", "));
    let verdict = checked.verdict(run, step, Claim::Step { micro_batches, tensors })?;
    Ok(Found { outcome: Outcome::Diverges { step, what }, verdict: Some(verdict) })
}

/// The state tensors that differ, if the trainer published the state after this step.
fn state_differences(run: &Run, step: u32, mine: &[Digest]) -> Result<Vec<String>, RunError> {
    let path = run.layout.checkpoint(step);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let table = run.program.state();
    let theirs = tensor_digests(&table, &crate::run::checkpoint::read(&path, &table)?);
    Ok(table
        .iter()
        .zip(mine.iter().zip(&theirs))
        .filter(|(_, (a, b))| a != b)
        .map(|(t, _)| t.name.clone())
        .collect())
}

/// Keeps the outputs of some nodes.
struct Keeper {
    wanted: BTreeSet<(Phase, usize)>,
    phase: Phase,
    kept: BTreeMap<(Phase, usize), Vec<u8>>,
}

impl StepObserver for Keeper {
    fn phase(&mut self, phase: Phase, _: &Graph) -> Option<&mut dyn Observer> {
        self.phase = phase;
        self.wanted.iter().any(|(p, _)| *p == phase).then_some(self)
    }
}

impl Observer for Keeper {
    fn node(&mut self, index: usize, _: &Node, bytes: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        let place = (self.phase, index);
        if self.wanted.contains(&place) {
            self.kept.insert(place, bytes.to_vec());
        }
        Ok(None)
    }
}

/// A verdict on one tile of one operator; `None` if the leaf checker cannot decide the tile.
fn tile(
    run: &Run,
    checked: &Checked,
    step: u32,
    before: &[Vec<u8>],
    batch: &[MicroBatch],
    published: &Trace,
    (index, mine, engine): (usize, &Trace, &str),
) -> Result<Option<Found>, AuditError> {
    let program = &run.program;
    let positions = positions(program);
    let (phase, node_index) = positions[index];
    let graph = graph_of(program, phase);
    let node = &graph.nodes[node_index];
    let differing = |(a, b): (&[u8; 32], &[u8; 32])| a != b;
    let theirs = &published.nodes[index];
    let tile = theirs.tiles.iter().zip(&mine.nodes[index].tiles).position(differing).unwrap_or(0);

    // The inputs, whole: state and batch are at hand, outputs of earlier nodes are computed again.
    let origins: BTreeMap<TensorId, Origin> = node
        .primitive
        .inputs()
        .into_iter()
        .filter_map(|id| Some((id, origin(program, &run.job, &run.seed, step, phase, id)?)))
        .collect();
    let wanted = origins.values().filter_map(|o| match o {
        Origin::Node { phase, node } => Some((*phase, *node)),
        _ => None,
    });
    let mut keeper = Keeper { wanted: wanted.collect(), phase, kept: BTreeMap::new() };
    let mut cpu = Cpu::new(0)?;
    let mut session = Session::new(&mut cpu, Arc::new(program.clone()))?;
    session.load(before)?;
    session.step(scalars(run, step), batch, &mut keeper, |_, _, _| Ok(()))?;
    let whole = |origin: &Origin| match origin {
        Origin::State { index } => before[*index].clone(),
        Origin::Batch { micro, tensor } => batch[*micro as usize].tensors[*tensor].clone(),
        Origin::Words(words) => bytes_from_words(crate::arith::DType::U32, words),
        Origin::Node { phase, node } => keeper.kept.get(&(*phase, *node)).cloned().unwrap_or_default(),
    };
    let tensors: BTreeMap<TensorId, Vec<u8>> = origins.iter().map(|(id, o)| (*id, whole(o))).collect();
    let Ok(RecordedTile { bytes, touched }) = recorded_tile(graph, node_index, tile, &tensors) else {
        return Ok(None);
    };

    let ty = graph.tensor(node.output);
    let name = format!("{} ({})", node.operator, node.primitive.name());
    let count = tensor::tile_count(ty.bytes());
    if tensor::tile_value(&bytes, tile, count) == theirs.tiles[tile] {
        let what = format!("{name}, tile {tile} of {count}");
        let engine = engine.to_string();
        return Ok(Some(Found { outcome: Outcome::EngineFaulty { step, engine, what }, verdict: None }));
    }
    let evidence = Evidence { run, published, before, batch };
    let leaves = published.leaves(program);
    let mut inputs = Vec::new();
    for (id, origin) in &origins {
        if matches!(origin, Origin::Words(_)) {
            continue;
        }
        let values = tensor::tile_values(&tensors[id]);
        let input_type = graph.tensor(*id);
        let tiles = touched.iter().filter(|(t, _)| t == id).map(|&(_, tile)| ProvenTile {
            tile,
            bytes: Base64(tensors[id][tensor::tile_range(input_type.bytes(), tile)].to_vec()),
            siblings: tensor::prove_tile(&values, tile).into_iter().map(Digest).collect(),
        });
        inputs.push(ProvenInput {
            tensor: id.0,
            tiles: tiles.collect(),
            commitment: evidence.commitment(origin, &leaves),
        });
    }
    let claim = TileClaim {
        before: checked.proven(step - 1),
        phase: phase.into(),
        node: node_index,
        output: evidence.commitment(&Origin::Node { phase, node: node_index }, &leaves),
        tile,
        value: Digest(theirs.tiles[tile]),
        siblings: tensor::prove_tile(&theirs.tiles, tile).into_iter().map(Digest).collect(),
        inputs,
    };
    let verdict = checked.verdict(run, step, Claim::Tile(Box::new(claim)))?;
    let what =
        format!("operator {name}, {}: first differing tile {tile} of {count}", leaf_name(phase, node_index));
    Ok(Some(Found { outcome: Outcome::Diverges { step, what }, verdict: Some(verdict) }))
}

/// What proofs are made from.
struct Evidence<'a> {
    run: &'a Run,
    published: &'a Trace,
    before: &'a [Vec<u8>],
    batch: &'a [MicroBatch],
}

impl Evidence<'_> {
    /// A tensor's digest and its place under the root that commits to it.
    fn commitment(&self, origin: &Origin, trace_leaves: &[Digest]) -> ProvenTensor {
        let program = &self.run.program;
        match origin {
            Origin::State { index } => {
                let table = program.state();
                let digests = tensor_digests(&table, self.before);
                let leaves: Vec<Digest> =
                    table.iter().zip(&digests).map(|(t, d)| table::leaf(&t.name, d)).collect();
                ProvenTensor { digest: digests[*index], proof: merkle::prove(&leaves, *index) }
            }
            Origin::Batch { micro, tensor: number } => {
                let types = program.spec.model.batch(program.spec.micro_batch);
                let mut leaves = Vec::new();
                let mut digests = Vec::new();
                for (m, tensors) in self.batch.iter().enumerate() {
                    for (t, bytes) in types.iter().zip(&tensors.tensors) {
                        let ty = TensorType { dtype: t.dtype, shape: t.shape.clone() };
                        let digest = tensor::digest(&ty, bytes);
                        leaves.push(table::leaf(&format!("micro{m}/{}", t.name), &digest));
                        digests.push(digest);
                    }
                }
                let index = *micro as usize * types.len() + number;
                ProvenTensor { digest: digests[index], proof: merkle::prove(&leaves, index) }
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
