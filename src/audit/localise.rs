//! From a step that differs to what differs in it, confirmed by the scalar reference.

use super::checks::Checked;
use super::evidence::Disputed;
use super::replay::reference_step;
use super::report::{AuditError, Found, Outcome, differences};
use super::rounding::{may_lack_a_decision, missing};
use crate::commit::digest::Digest;
use crate::commit::record::StepRecord;
use crate::commit::state::{prove, state_digest, tensor_digests};
use crate::commit::tensor::Hash;
use crate::commit::trace::{Trace, leaf_place, positions};
use crate::commit::{merkle, multiproof};
use crate::dispute::check::state_nodes;
use crate::dispute::origin::{self, Origin};
use crate::dispute::verdict::{
    Claim, Hashes, Outcome as VerdictOutcome, ProvenRecord, ProvenTensor, Scalar, Verdict,
};
use crate::program::phase::{Phase, graph_of};
use crate::program::step::{MicroBatch, Program};
use crate::rounding::legal::Illegal;
use crate::run::dir::Run;
use crate::run::{RunError, traces};
use crate::step::CommittedStep;

/// Finds out what differs in `step`. `before` is the state that the step began from, `mine` the auditor's result.
///
/// # Errors
/// If an engine fails, or a file of the run cannot be read.
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
        // A trainer who withholds a trace, or commits to one of another program, does not escape the step verdict; but in the logged
        // profile only a trace tells a missing decision from a cheat.
        let withheld = "no published trace is the one that the record commits";
        let mut found = if run.job.rounding.is_some() && may_lack_a_decision(&mine.record, theirs) {
            Found { outcome: missing(step, &mine.record, theirs), verdict: None }
        } else {
            whole_step(run, checked, step, before, mine, engine)?
        };
        if let Outcome::Diverges { what, .. } | Outcome::MissingDecision { what, .. } = &mut found.outcome {
            what.push_str("; ");
            what.push_str(withheld);
        }
        return Ok(found);
    };
    let difference = published.nodes.iter().zip(&trace.nodes).position(|(a, b)| a.digest != b.digest);
    if let Some(index) = difference {
        // A verdict that does not stand alone is none: then the whole step is replayed by the reference.
        let stands = |verdict: &Verdict| matches!(verdict.check(None), Ok(VerdictOutcome::Convicts(_)));
        let disputed = Disputed { run, checked, step, before: &before, batch, published: &published };
        let (phase, node) = positions(&run.program)[index];
        let output = graph_of(&run.program, phase).nodes[node].output;
        let logged = graph_of(&run.program, phase).logged.iter().position(|l| l.output == output);
        if let (Phase::Micro(micro), Some(number)) = (phase, logged) {
            return disputed.rounding(micro, number, node, index);
        }
        return match disputed.tile(index, trace, &engine)? {
            Some(found) if found.verdict.as_ref().is_none_or(stands) => Ok(found),
            _ => whole_step(run, checked, step, before, mine, engine),
        };
    }
    let digests = tensor_digests(&run.program.state(), &before);
    let (claim, implied) = binding(&run.program, &published, &digests, || checked.proven(step - 1));
    if implied != theirs.state {
        let what = "the record's state is not the one that its own trace's update computed".to_string();
        let verdict = checked.verdict(run, step, claim);
        return Ok(Found { outcome: Outcome::Diverges { step, what }, verdict: Some(verdict) });
    }
    for (scalar, same) in
        [(Scalar::Clip, theirs.clip == mine.record.clip), (Scalar::Loss, theirs.loss == mine.record.loss)]
    {
        if same {
            continue;
        }
        let what = format!("the record's {} is not the one that its own trace computed", scalar.name());
        let output = scalar_output(&run.program, &published, scalar);
        let verdict = checked.verdict(run, step, Claim::Scalar { scalar, output });
        return Ok(Found { outcome: Outcome::Diverges { step, what }, verdict: Some(verdict) });
    }
    whole_step(run, checked, step, before, mine, engine)
}

/// A decision that is outside the proved bound, in a step whose record is the auditor's. The step is replayed by the scalar
/// reference before anybody is accused. Runs with operator traces get a verdict that stands alone.
///
/// # Errors
/// If the scalar reference or the CPU engine fails, or a file of the run cannot be read.
pub fn illegal(
    run: &Run,
    checked: &Checked,
    before: &[Vec<u8>],
    batch: &[MicroBatch],
    mine: &CommittedStep,
    found: &Illegal,
    engine: &str,
) -> Result<Found, AuditError> {
    let step = mine.record.step;
    let (_, tally) = reference_step(run, before, checked.step(step))?;
    let what = format!("by the rounding log, {found}");
    if tally.first_illegal.as_ref() != Some(found) {
        let engine = engine.to_string();
        return Ok(Found { outcome: Outcome::EngineFaulty { step, engine, what }, verdict: None });
    }
    let alone = match &mine.trace {
        // The records agree, so this is the committed trace, published or not.
        Some(published) => {
            Disputed { run, checked, step, before, batch, published }.decision_verdict(found)?
        }
        None => None,
    };
    let whole = || Claim::Step { micro_batches: vec![found.micro_batch], tensors: Vec::new() };
    let verdict = alone.unwrap_or_else(|| checked.verdict(run, step, whole()));
    Ok(Found { outcome: Outcome::Diverges { step, what }, verdict: Some(verdict) })
}

/// The output of a trace that a scalar of the record must be.
pub fn scalar_output(program: &Program, published: &Trace, scalar: Scalar) -> Option<ProvenTensor> {
    let Some(Origin::Node { phase, node }) = origin::scalar(program, scalar) else { return None };
    let index = leaf_place(program, phase, node)?;
    let proof = merkle::prove(&published.leaves(program), index);
    Some(ProvenTensor { digest: published.nodes[index].digest, proof })
}

/// The claim that a trace's update computed another state than the record commits, and the state digest that it implies. `before`:
/// the digests of the state that the step began from; `record_before`: the record that commits it.
pub fn binding(
    program: &Program,
    published: &Trace,
    before: &[Digest],
    record_before: impl FnOnce() -> ProvenRecord,
) -> (Claim, Digest) {
    let leaves: Vec<Hash> = published.leaves(program).iter().map(|leaf| leaf.0).collect();
    let first = leaves.len() - program.update.nodes.len();
    let nodes = state_nodes(program);
    let state = program.state();
    let made = |(node, before): (&Option<usize>, &Digest)| {
        node.map_or(*before, |n| published.nodes[first + n].digest)
    };
    let digests: Vec<Digest> = nodes.iter().zip(before).map(made).collect();
    let implied = state_digest(&state, &digests);
    let outputs = nodes.iter().zip(&digests).filter(|(node, _)| node.is_some()).map(|(_, d)| *d).collect();
    let frozen = (0..nodes.len()).filter(|&index| nodes[index].is_none());
    let kept: Vec<ProvenTensor> = frozen
        .map(|index| ProvenTensor { digest: before[index], proof: prove(&state, before, index) })
        .collect();
    let before = (!kept.is_empty()).then(|| Box::new(record_before()));
    let mut places: Vec<usize> = nodes.iter().flatten().map(|node| first + node).collect();
    places.sort_unstable();
    let siblings = Hashes(multiproof::prove(multiproof::rfc6962, &leaves, &places));
    (Claim::Binding { outputs, siblings, before, kept }, implied)
}

/// The trace that the run publishes for a step, if it is the one that the step's record commits.
fn published_trace(run: &Run, theirs: &StepRecord) -> Option<Trace> {
    let trace = traces::read(&run.program, &run.layout.trace(theirs.step)).ok()?;
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
    let (reference, _) = reference_step(run, &before, theirs)?;
    let different = differences(&mine.record, theirs);
    if reference.record == *theirs {
        let what = format!("{} differ from the scalar reference too", different.join(", "));
        return Ok(Found { outcome: Outcome::EngineFaulty { step, engine, what }, verdict: None });
    }
    // Without the trainer's roots a verdict names no micro-batch: what convicts is the record.
    let published = run.gradient_roots(theirs).unwrap_or_default();
    let micro_batches: Vec<u32> = (0..)
        .zip(reference.gradients.iter().zip(&published))
        .filter(|(_, (a, b))| a != b)
        .map(|(i, _)| i)
        .collect();
    let micros = match micro_batches.len() {
        0 => String::new(),
        count => {
            let few: Vec<String> = micro_batches.iter().take(8).map(u32::to_string).collect();
            let more =
                if count > few.len() { format!(" and {} more", count - few.len()) } else { String::new() };
            format!("; gradients of micro-batches {}{more} differ", few.join(", "))
        }
    };
    let tensors = state_differences(run, step, &mine.state)?;
    let named = match tensors.len() {
        0 => String::new(),
        n => format!("; {n} state tensors differ, first {}", tensors[0]),
    };
    let what = format!("{}{micros}{named}", differences(&reference.record, theirs).join(", "));
    let verdict = checked.verdict(run, step, Claim::Step { micro_batches, tensors });
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
