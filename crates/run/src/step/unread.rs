//! The parts of a step's record that are still on the engine. They are read together when the step has ended, so that the host
//! waits for a device once, and not after each micro-batch.

use super::digests::{gradient_root, note, noted_digests, of_roots, root_of, without_root};
use tiebreak_engine::session::{Gradients, Session, StepOutcome, UnreadOutcome};
use tiebreak_engine::{EngineError, Tensor};
use tiebreak_record::commit::digest::Digest;

/// Roots of micro-batches' gradients: known, or as a tensor of roots on the engine.
#[derive(Default)]
pub(super) struct Unread {
    micro_batches: Vec<MicroRoot>,
}

enum MicroRoot {
    Known(Digest),
    OnEngine(Tensor),
}

/// The parts that were read.
pub(super) struct Read {
    pub outcome: StepOutcome,
    pub state: Vec<Digest>,
    pub micro_batches: Vec<Digest>,
}

impl Unread {
    /// Takes the root of a micro-batch's gradients.
    pub(super) fn push(&mut self, session: &mut Session, gradients: &Gradients) -> Result<(), EngineError> {
        let root = match session.engine_mut().roots_later(gradients.tensors())? {
            Some(roots) => MicroRoot::OnEngine(roots),
            None => MicroRoot::Known(gradient_root(session, gradients)?),
        };
        self.micro_batches.push(root);
        Ok(())
    }

    /// Reads all roots, with the state's and with the scalars of the update.
    pub(super) fn read(self, session: &mut Session, outcome: &UnreadOutcome) -> Result<Read, EngineError> {
        let (engine, tensors) = session.engine_and_state();
        let unknown = without_root(tensors);
        let state = engine.roots_later(&unknown)?;
        let scalars = outcome.tensors();
        let mut wanted = scalars.to_vec();
        wanted.extend(state.clone());
        let known = self.micro_batches.iter();
        wanted.extend(known.filter_map(|root| match root {
            MicroRoot::OnEngine(roots) => Some(roots.clone()),
            MicroRoot::Known(_) => None,
        }));
        let mut words = [0; 3];
        let mut roots: Vec<Vec<[u8; 32]>> = Vec::new();
        engine.read_each(&wanted, &mut |i, bytes| match words.get_mut(i) {
            Some(word) => *word = u32::from_le_bytes(bytes.try_into().expect("a scalar has four bytes")),
            None => roots.push(bytes.as_chunks::<32>().0.to_vec()),
        })?;
        let mut roots = roots.into_iter();
        let mut next = || roots.next().expect("every tensor was read");
        let program = session.program().clone();
        if state.is_some() {
            note(&unknown, &next());
        }
        let gradients = program.gradients();
        let micro_batches = self.micro_batches.into_iter().map(|root| match root {
            MicroRoot::Known(root) => root,
            MicroRoot::OnEngine(_) => root_of(&gradients, &of_roots(&gradients, &next())),
        });
        let micro_batches = micro_batches.collect();
        Ok(Read { outcome: StepOutcome::of(words), state: noted_digests(session)?, micro_batches })
    }
}
