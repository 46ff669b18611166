//! The binding of the state after a step to the step's operators: the update's outputs, and parameters that no node
//! makes.

use super::context::Context;
use super::proven::{ProvenTensor, wrong};
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::step::Program;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::proven::Hashes;
use tiebreak_record::commit::state::{prove_each, state_digest};
use tiebreak_record::commit::tensor::Hash;
use tiebreak_record::commit::trace::{Trace, leaf_name};
use tiebreak_record::commit::{Malformed, multiproof, table};

/// The nodes of the update that make the state tensors, in the order of [`Program::state`]; none for frozen parameters.
pub fn state_nodes(program: &Program) -> Vec<Option<usize>> {
    let makers = program.update.makers();
    program.state().into_iter().map(|tensor| makers.output(&tensor.name)).collect()
}

/// The binding of a state to the trace of the step that made it.
pub struct Binding {
    /// Digests of the update's outputs that make state tensors, in the order of the state table.
    pub outputs: Vec<Digest>,
    /// The hashes that prove them together in the trace root.
    pub siblings: Hashes,
    /// The frozen parameters, in the order of the state table, each under the state before the step.
    pub kept: Vec<ProvenTensor>,
}

impl Binding {
    /// The binding of a step with this trace. `before` are the digests of the state at the step's begin.
    pub fn of(program: &Program, trace: &Trace, before: &[Digest]) -> Binding {
        let leaves: Vec<Hash> = trace.leaves(program).iter().map(|leaf| leaf.0).collect();
        let first = leaves.len() - program.update.nodes.len();
        let nodes = state_nodes(program);
        let outputs = nodes.iter().flatten().map(|node| trace.nodes[first + node].digest).collect();
        let frozen: Vec<usize> = (0..nodes.len()).filter(|&index| nodes[index].is_none()).collect();
        let proofs = prove_each(&program.state(), before, &frozen);
        let kept = frozen
            .into_iter()
            .zip(proofs)
            .map(|(index, proof)| ProvenTensor { digest: before[index], proof })
            .collect();
        let mut places: Vec<usize> = nodes.iter().flatten().map(|node| first + node).collect();
        places.sort_unstable();
        let siblings = Hashes(multiproof::prove(multiproof::rfc6962, &leaves, &places));
        Binding { outputs, siblings, kept }
    }

    /// The digest of the state that the step made by this binding.
    ///
    /// # Errors
    /// If the binding has too few tensors.
    pub fn state(&self, program: &Program) -> Result<Digest, Malformed> {
        state(program, &self.outputs, &self.kept)
    }
}

/// The digest of the state that these outputs of the update make, with the parameters that no node makes.
///
/// # Errors
/// If there are too few outputs or parameters.
pub(crate) fn state(
    program: &Program,
    outputs: &[Digest],
    kept: &[ProvenTensor],
) -> Result<Digest, Malformed> {
    let (mut made, mut kept) = (outputs.iter(), kept.iter().map(|tensor| &tensor.digest));
    let digest = |node: &Option<usize>| if node.is_some() { made.next() } else { kept.next() };
    let digests: Option<Vec<Digest>> =
        state_nodes(program).iter().map(digest).map(Option::<&Digest>::copied).collect();
    let digests = digests.ok_or_else(|| wrong("it lists too few tensors"))?;
    Ok(state_digest(&program.state(), &digests))
}

impl Context {
    /// The root of the trace that has these outputs of nodes.
    ///
    /// # Errors
    /// If the trace has no such node, or a node occurs twice.
    pub fn traced<'o>(
        &self,
        outputs: impl Iterator<Item = ((Phase, usize), &'o Digest)>,
        siblings: &[Hash],
    ) -> Result<Digest, Malformed> {
        let leaf = |((phase, node), output): ((Phase, usize), &Digest)| {
            let place = self.places().place(phase, node).ok_or_else(|| wrong("there is no such node"))?;
            Ok((place, table::leaf(&leaf_name(phase, node), output).0))
        };
        let mut leaves: Vec<(usize, Hash)> = outputs.map(leaf).collect::<Result<_, Malformed>>()?;
        leaves.sort_unstable();
        multiproof::root(multiproof::rfc6962, self.places().count(), &leaves, siblings).map(Digest)
    }
}
