//! The digests of gradients and of states, from roots that the engine computes or from bytes that it shows.

use tiebreak_contract::program::step::StateTensor;
use tiebreak_engine::session::{Gradients, Session};
use tiebreak_engine::{EngineError, Tensor};
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

/// [`state_digests`] that hash each tensor of the engine once: a frozen parameter is the same tensor in every step.
///
/// # Errors
/// If the engine cannot read the state.
pub fn noted_digests(session: &mut Session) -> Result<Vec<Digest>, EngineError> {
    let table = session.held();
    let (engine, state) = session.engine_and_state();
    let unknown = without_root(state);
    // A device is asked for nothing if all roots are known.
    let roots = if unknown.is_empty() { Some(Vec::new()) } else { engine.roots(&unknown)? };
    match roots {
        Some(roots) => note(&unknown, &roots),
        None => {
            for tensor in &unknown {
                // Two entries of the state may be one tensor.
                if tensor.noted().is_none() {
                    engine.read(tensor, &mut |bytes| tensor.note(tensor::root(bytes)))?;
                }
            }
        }
    }
    Ok(of_noted(&table, state))
}

/// The tensors whose roots nobody noted.
pub(super) fn without_root(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().filter(|tensor| tensor.noted().is_none()).cloned().collect()
}

/// Notes the roots of tensors.
pub(super) fn note(tensors: &[Tensor], roots: &[[u8; 32]]) {
    tensors.iter().zip(roots).for_each(|(tensor, root)| tensor.note(*root));
}

/// The digests of tensors whose roots are noted. Type and shape are the table's: two entries may be one tensor.
pub(super) fn of_noted(table: &[StateTensor], tensors: &[Tensor]) -> Vec<Digest> {
    let roots = tensors.iter().map(|tensor| tensor.noted().expect("each root was noted")).collect::<Vec<_>>();
    of_roots(table, &roots)
}

/// The digests of the tensors of the state that a session holds, from the engine's memory as it is now.
///
/// # Errors
/// If the engine cannot read the state.
pub fn state_digests(session: &mut Session) -> Result<Vec<Digest>, EngineError> {
    if let Some(roots) = session.state_roots()? {
        return Ok(of_roots(&session.held(), &roots));
    }
    let table = session.program().state();
    let mut digests = Vec::with_capacity(table.len());
    session.visit_state(|place, bytes| digests.push(tensor::digest(&table[place].ty(), bytes)))?;
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program's output may be two entries of the state, which differ in their shapes.
    #[test]
    fn a_tensor_that_is_two_entries_has_a_digest_for_each_shape() {
        let entry = |name: &str, shape: &[u32]| StateTensor { name: name.into(), shape: shape.into() };
        let tensor = Tensor::new(());
        let table = [entry("a", &[2, 3]), entry("b", &[6])];
        let both = [tensor.clone(), tensor];
        let bytes = [7; 24];
        let unknown = without_root(&both);
        note(&unknown, &[tensor::root(&bytes), tensor::root(&bytes)]);
        assert!(without_root(&both).is_empty());
        let due = table.each_ref().map(|entry| tensor::digest(&entry.ty(), &bytes));
        assert_eq!(of_noted(&table, &both), due);
    }
}
