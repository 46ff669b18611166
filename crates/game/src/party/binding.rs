//! The outputs of operators that make up a field of a record.

use std::collections::BTreeSet;

use super::error::PartyError;
use super::replay::Replays;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::step::Program;
use tiebreak_dispute::evidence::binding::Binding;
use tiebreak_dispute::evidence::origin::{self, Origin};
use tiebreak_dispute::game::message::{Answer, Field};
use tiebreak_dispute::verdict::Scalar;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::multiproof;
use tiebreak_record::commit::proven::Hashes;
use tiebreak_record::commit::record::gradient_leaf;
use tiebreak_record::commit::state::tensor_digests;
use tiebreak_record::commit::table;
use tiebreak_record::commit::tensor::Hash;
use tiebreak_record::commit::trace::{Places, Trace, leaf_place};

/// The evidence that binds a field of a step's record to the step's operators. The run must have the step.
///
/// # Errors
/// As [`Replays::disputed`].
pub(crate) fn answer(replays: &mut Replays, step: u32, field: Field) -> Result<Option<Answer>, PartyError> {
    if field == Field::State {
        return Ok(Some(state(replays, step)?));
    }
    let Some(places) = places(replays.run.program(), field) else { return Ok(None) };
    replays.operands(step, |operands, _| {
        let leaves: Vec<Hash> =
            operands.trace.leaves(operands.run.program()).into_iter().map(|leaf| leaf.0).collect();
        let outputs = places.iter().map(|&place| operands.trace.nodes[place].digest).collect();
        let ascending: Vec<usize> = places.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        let siblings = Hashes(multiproof::prove(multiproof::rfc6962, &leaves, &ascending));
        Some(Answer::Binding { outputs, siblings, kept: Vec::new() })
    })
}

/// The state after the step: the update's outputs, and frozen parameters under the state before.
fn state(replays: &mut Replays, step: u32) -> Result<Answer, PartyError> {
    let table = replays.run.program().state();
    replays.operands(step, |operands, _| {
        let before = tensor_digests(&table, operands.before);
        let Binding { outputs, siblings, kept } =
            Binding::of(operands.run.program(), operands.trace, &before);
        Answer::Binding { outputs, siblings, kept }
    })
}

/// The indices in the trace of the outputs that make up a field, in the field's order.
fn places(program: &Program, field: Field) -> Option<Vec<usize>> {
    let scalar = |scalar| match origin::scalar(program, scalar)? {
        Origin::Node { phase, node } => leaf_place(program, phase, node).map(|place| vec![place]),
        _ => None,
    };
    match field {
        Field::State => None,
        Field::Clip => scalar(Scalar::Clip),
        Field::Loss => scalar(Scalar::Loss),
        Field::Gradient { micro } => gradient(program, micro),
    }
}

/// The leaves of a step's gradients, a micro-batch each.
pub(crate) fn gradient_leaves(program: &Program, trace: &Trace) -> Vec<Digest> {
    let (table, nodes, all) = (program.gradients(), gradient_nodes(program), Places::of(program));
    let leaf = |micro: u32| {
        let digest = |&node: &usize| Some(&trace.nodes[all.place(Phase::Micro(micro), node)?].digest);
        let digests: Vec<&Digest> = nodes.as_ref()?.iter().map(digest).collect::<Option<_>>()?;
        Some(gradient_leaf(micro, &table::root(table.iter().map(|t| t.name.as_str()).zip(digests))))
    };
    (0..program.micro_batches).filter_map(leaf).collect()
}

/// The nodes of a micro-batch that compute its gradients and loss.
fn gradient_nodes(program: &Program) -> Option<Vec<usize>> {
    let makers = program.micro.makers();
    program.gradients().iter().map(|tensor| makers.output(&tensor.name)).collect()
}

/// The indices in the trace of a micro-batch's gradients and loss.
fn gradient(program: &Program, micro: u32) -> Option<Vec<usize>> {
    let (nodes, all) = (gradient_nodes(program)?, Places::of(program));
    nodes.iter().map(|&node| all.place(Phase::Micro(micro), node)).collect()
}
