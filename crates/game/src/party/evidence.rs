//! Committed operands of an element, on which both parties agree.

use std::collections::BTreeMap;

use super::error::PartyError;
use super::replay::{Replays, logged_product, operands_of};
use tiebreak_audit::operands::Tensors;
use tiebreak_contract::program::graph::{Graph, TensorId};
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_dispute::evidence::cone;
use tiebreak_dispute::game::element;
use tiebreak_dispute::game::message::{Answer, Fold, LogBlock, Need, Subject};
use tiebreak_dispute::game::search;
use tiebreak_dispute::verdict::DataSlices;
use tiebreak_job::data::{Place, Within};
use tiebreak_record::commit::proven::Base64;
use tiebreak_record::rounding::thresholds::Rounding;
use tiebreak_run::run::RunError;
use tiebreak_run::run::dir::Run;

/// The operands of an element that a question asks for; `None` if the computation has no such element, or the element has no such
/// operands.
///
/// # Errors
/// If a file cannot be read, the engine fails, or the replay of a step gives another result than its record.
pub(crate) fn answer(
    replays: &mut Replays,
    subject: Subject,
    element: u64,
    need: Need,
) -> Result<Option<Answer>, PartyError> {
    match subject {
        Subject::Batch { step, micro, tensor } if need == Need::All && replays.record(step).is_some() => {
            samples(&replays.run, step, micro, tensor, element)
        }
        Subject::Node { .. } => operands(replays, subject, element, need),
        _ => Ok(None),
    }
}

/// The slices of the data that an element of a batch is drawn from. The run must have the step.
fn samples(
    run: &Run,
    step: u32,
    micro: u32,
    tensor: usize,
    element: u64,
) -> Result<Option<Answer>, PartyError> {
    let program = run.program();
    let Some(len) = program.batch.get(tensor).map(|tensor| tensor.ty().len() as u64) else { return Ok(None) };
    if micro >= program.micro_batches || element >= len {
        return Ok(None);
    }
    let of_sample = len / u64::from(program.micro_batch);
    let place = micro * program.micro_batch + (element / of_sample) as u32;
    let mut dataset = run.dataset()?;
    let at = Place { step, batch: program.samples(), place };
    let within = Within { tensor, element: element % of_sample };
    dataset.element_of(run.key(), at, within).map_err(RunError::from)?;
    let slices = dataset.slices_read().map_err(RunError::from)?;
    let slices = slices.into_iter().map(DataSlices::from).collect();
    Ok(Some(Answer::Samples { files: run.file.data.clone(), slices }))
}

/// An element of a node's output that is in dispute, with all tensors that it reads.
struct Element {
    phase: Phase,
    node: usize,
    element: usize,
    inputs: Tensors,
    /// The same tensors in the form that the leaf checker takes.
    whole: BTreeMap<TensorId, Vec<u8>>,
}

impl Element {
    /// The element and its tensors; `None` if traces hold no such element.
    fn of(replays: &mut Replays, subject: Subject, element: u64) -> Result<Option<Element>, PartyError> {
        let Subject::Node { step, phase, node } = subject else { return Ok(None) };
        if replays.tensor(subject)?.is_none() {
            return Ok(None);
        }
        let phase = Phase::from(phase);
        let graph = graph_of(replays.run.program(), phase);
        if element >= graph.tensor(graph.nodes[node].output).len() as u64 {
            return Ok(None);
        }
        let ids = operands_of(&replays.run, phase, node);
        let inputs = replays
            .operands(step, |operands, outputs| operands.whole(operands.origins(phase, ids), outputs))?;
        let whole = inputs.iter().map(|(id, (_, bytes))| (*id, bytes.clone())).collect();
        Ok(Some(Element { phase, node, element: element as usize, inputs, whole }))
    }

    /// The number of terms that a fold of the element has.
    fn terms(&self, graph: &Graph, fold: Fold) -> Option<u64> {
        element::terms(graph, self.node, self.element, fold, &self.whole).ok()
    }
}

/// The slices that an element of a node's output reads.
fn operands(
    replays: &mut Replays,
    subject: Subject,
    element: u64,
    need: Need,
) -> Result<Option<Answer>, PartyError> {
    let (Some(of), Subject::Node { step, .. }) = (Element::of(replays, subject, element)?, subject) else {
        return Ok(None);
    };
    let graph = graph_of(replays.run.program(), of.phase);
    let logged = logged_product(&replays.run, of.phase, of.node);
    let accumulation = replays.run.job().rounding.as_ref().map(Rounding::accumulation);
    let touched = match (logged, accumulation) {
        (Some((_, logged)), Some(accumulation)) if need == Need::All => {
            cone::slices_read(graph, logged, of.element, accumulation, &of.whole)
        }
        (None, _) if need == Need::Decision => return Ok(None),
        _ => element::slices_read(graph, of.node, of.element, need, &of.whole),
    };
    let Ok(touched) = touched else { return Ok(None) };
    let number = logged.map(|(number, _)| number).filter(|_| matches!(need, Need::All | Need::Decision));
    let inputs = replays.operands(step, |operands, _| {
        operands.proven(&of.inputs, &touched, &operands.trace.leaves(operands.run.program()))
    })?;
    let (Some(number), Phase::Micro(micro)) = (number, of.phase) else {
        return Ok(Some(Answer::Operands { inputs }));
    };
    let run = &replays.run;
    let part = micro as usize * run.program().micro.logged.len() + number;
    let elements = run.program().micro.logged[number].elements() as u64;
    let log = run.rounding_log(step)?;
    let block = log.block_of(part, elements, element);
    let log = LogBlock { block, log: log.prove(part, elements, block).into() };
    Ok(Some(Answer::Rounding { inputs, log: Some(log) }))
}

/// The value of the root of an element's terms.
///
/// # Errors
/// As [`answer`].
pub(crate) fn total(
    replays: &mut Replays,
    subject: Subject,
    element: u64,
    fold: Fold,
) -> Result<Option<Base64>, PartyError> {
    let Some(of) = Element::of(replays, subject, element)? else { return Ok(None) };
    let graph = graph_of(replays.run.program(), of.phase);
    Ok(element::total(graph, of.node, of.element, fold, &of.whole).ok().map(Base64))
}

/// The values of the subtrees below a node of the tree of an element's terms.
///
/// # Errors
/// As [`answer`].
pub(crate) fn terms(
    replays: &mut Replays,
    subject: Subject,
    element: u64,
    fold: Fold,
    first: u64,
    count: u64,
) -> Result<Option<Base64>, PartyError> {
    let Some(of) = Element::of(replays, subject, element)? else { return Ok(None) };
    let graph = graph_of(replays.run.program(), of.phase);
    let end = first.checked_add(count).filter(|_| count > 0);
    if of.terms(graph, fold).is_none_or(|terms| end.is_none_or(|end| end > terms)) {
        return Ok(None);
    }
    let ranges = search::children(first, count, fold.terms_max());
    Ok(subtotals(graph, &of, fold, &ranges))
}

fn subtotals(graph: &Graph, of: &Element, fold: Fold, ranges: &[(u64, u64)]) -> Option<Base64> {
    let values = element::subtotals(graph, of.node, of.element, fold, ranges, &of.whole);
    Some(Base64(values.ok()?.concat()))
}
