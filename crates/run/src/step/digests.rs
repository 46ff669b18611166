//! The digests of gradients and of states, from roots that the engine computes or from bytes that it shows.

use tiebreak_contract::program::step::StateTensor;
use tiebreak_engine::EngineError;
use tiebreak_engine::session::{Gradients, Session};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::{table, tensor};

/// The digests of tensors with these roots.
pub(super) fn of_roots(table: &[StateTensor], roots: &[[u8; 32]]) -> Vec<Digest> {
    table.iter().zip(roots).map(|(entry, root)| tensor::digest_from_root(&entry.ty(), root)).collect()
}

/// The root over digests of a micro-batch's gradients and loss.
pub(super) fn root_of(gradients: &[StateTensor], digests: &[Digest]) -> Digest {
    table::root(gradients.iter().map(|tensor| tensor.name.as_str()).zip(digests))
}

/// The root over a micro-batch's gradients and loss.
///
/// # Errors
/// If the engine cannot read the gradients.
pub fn gradient_root(session: &mut Session, gradients: &Gradients) -> Result<Digest, EngineError> {
    let table = session.program().gradients();
    if let Some(roots) = session.gradient_roots(gradients)? {
        return Ok(root_of(&table, &of_roots(&table, &roots)));
    }
    let mut digests = Vec::with_capacity(table.len());
    session.visit_gradients(gradients, |i, bytes| digests.push(tensor::digest(&table[i].ty(), bytes)))?;
    Ok(root_of(&table, &digests))
}

/// The digests of a session's state tensors.
///
/// # Errors
/// If the engine cannot read the state.
pub fn state_digests(session: &mut Session) -> Result<Vec<Digest>, EngineError> {
    let state = session.program().state();
    if let Some(roots) = session.state_roots()? {
        return Ok(of_roots(&state, &roots));
    }
    let mut digests = Vec::with_capacity(state.len());
    session.visit_state(|i, bytes| digests.push(tensor::digest(&state[i].ty(), bytes)))?;
    Ok(digests)
}
