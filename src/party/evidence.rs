//! Committed operands of an element, on which both parties agree.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::error::PartyError;
use super::replay::{Replays, operands_of};
use crate::audit::weights;
use crate::dispute::game::message::{Answer, Need, Subject};
use crate::dispute::leaf;
use crate::dispute::verdict::DataSlices;
use crate::program::graph::TensorId;
use crate::program::phase::{Phase, graph_of};
use crate::run::RunError;
use crate::run::dir::Run;

/// The operands of an element that a question asks for; `None` if the computation has no such element, or it has not these operands.
///
/// # Errors
/// If a file cannot be read, the engine fails, or a step comes out differently than its record says.
pub fn answer(
    replays: &mut Replays,
    files: &[PathBuf],
    subject: Subject,
    element: u64,
    need: Need,
) -> Result<Option<Answer>, PartyError> {
    match subject {
        Subject::Initial { index } if need == Need::All => initial(&replays.run, files, index, element),
        Subject::Batch { step, micro, tensor } if need == Need::All && replays.record(step).is_some() => {
            samples(&replays.run, step, micro, tensor, element)
        }
        Subject::Node { step, phase, node } => {
            if replays.tensor(subject)?.is_none() {
                return Ok(None);
            }
            operands(replays, step, Phase::from(phase), node, element, need)
        }
        _ => Ok(None),
    }
}

/// What a file of weights has of an element.
fn initial(run: &Run, files: &[PathBuf], index: usize, element: u64) -> Result<Option<Answer>, PartyError> {
    let table = run.program.state();
    let Some(tensor) = table.get(index).filter(|tensor| element < tensor.ty().len() as u64) else {
        return Ok(None);
    };
    let slices = weights::slices(run, files, tensor, element)?;
    Ok(slices.map(|file| Answer::Weights { file }))
}

/// The sample that holds an element of a batch. The run has the step.
fn samples(
    run: &Run,
    step: u32,
    micro: u32,
    tensor: usize,
    element: u64,
) -> Result<Option<Answer>, PartyError> {
    let program = &run.program;
    let Some(len) = program.batch.get(tensor).map(|tensor| tensor.ty().len() as u64) else { return Ok(None) };
    if micro >= program.micro_batches || element >= len {
        return Ok(None);
    }
    let of_sample = len / u64::from(program.micro_batch);
    let place = micro * program.micro_batch + (element / of_sample) as u32;
    let mut dataset = run.dataset()?;
    dataset.sample_of(program, run.key(), step, place).map_err(RunError::from)?;
    let slices = dataset.slices_read().map_err(RunError::from)?;
    let slices = slices.into_iter().map(DataSlices::from).collect();
    Ok(Some(Answer::Samples { files: run.file.data.clone(), slices }))
}

/// The slices that an element of a node's output reads. Traces hold the node.
fn operands(
    replays: &mut Replays,
    step: u32,
    phase: Phase,
    node: usize,
    element: u64,
    need: Need,
) -> Result<Option<Answer>, PartyError> {
    let graph = graph_of(&replays.run.program, phase);
    if element >= graph.tensor(graph.nodes[node].output).len() as u64 || need != Need::All {
        return Ok(None);
    }
    let ids = operands_of(&replays.run, phase, node);
    replays.operands(step, |operands, outputs| {
        let graph = graph_of(&operands.run.program, phase);
        let inputs = operands.whole(operands.origins(phase, ids), outputs);
        let whole: BTreeMap<TensorId, Vec<u8>> =
            inputs.iter().map(|(id, (_, bytes))| (*id, bytes.clone())).collect();
        let element = element as usize;
        let read = leaf::recorded_from_tensors(graph, node, element..element + 1, &whole);
        let (_, touched) = read.ok()?;
        let leaves = operands.trace.leaves(&operands.run.program);
        Some(Answer::Operands { inputs: operands.proven(&inputs, &touched, &leaves) })
    })
}
