//! A trainer who changes one element of one operator's output, and what the operator reads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tiebreak::arith::DType;
use tiebreak::arith::words::bytes_from_words;
use tiebreak::dispute::origin::{Origin, origin};
use tiebreak::engine::session::{Session, StepScalars};
use tiebreak::job::data::Dataset;
use tiebreak::program::graph::{Node, TensorId};
use tiebreak::program::phase::Phase;
use tiebreak::program::step::MicroBatch;
use tiebreak::run::dir::Run;
use tiebreak::step::{CommittedStep, RunStep};
use tiebreak::train::TrainError;
use tiebreak::train::conduct::Conduct;

/// The operands of the operator, and its output, canonical bytes.
pub type Taken = Arc<Mutex<BTreeMap<TensorId, Vec<u8>>>>;

/// The phase whose output is changed.
pub const PHASE: Phase = Phase::Micro(0);

/// A trainer who lies about a node of the first micro-batch.
pub struct Liar {
    step: u32,
    node: usize,
    taken: Option<Taken>,
}

impl Liar {
    /// One who lies at a step. `taken` takes what the node reads and gives.
    pub fn new(step: u32, node: usize, taken: Option<Taken>) -> Liar {
        Liar { step, node, taken }
    }
}

/// Changes the element of the greatest size by an eighth or so.
fn changed(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let finite = |word: &[u8]| {
        let word = u32::from_le_bytes(word.try_into().unwrap_or_default()) & 0x7fff_ffff;
        if word < 0x7f80_0000 { word } else { 0 }
    };
    let place = bytes.chunks_exact(4).enumerate().max_by_key(|(_, word)| finite(word)).map(|(i, _)| i);
    bytes[4 * place.unwrap_or(0) + 2] ^= 0x10;
    bytes
}

impl Conduct for Liar {
    fn step(
        &mut self,
        run: &Run,
        session: &mut Session,
        scalars: StepScalars,
        batch: Vec<MicroBatch>,
        _dataset: &mut Dataset,
        run_step: &mut RunStep,
    ) -> Result<CommittedStep, TrainError> {
        if scalars.step != self.step {
            return Ok(run_step(session, scalars, &batch, None, None)?);
        }
        let graph = &run.program.micro;
        let output = graph.nodes[self.node].output;
        let reads = graph.nodes[self.node].primitive.inputs();
        let keep = |id: TensorId, bytes: Vec<u8>| {
            if let Some(taken) = &self.taken {
                taken.lock().unwrap_or_else(PoisonError::into_inner).insert(id, bytes);
            }
        };
        if self.taken.is_some() {
            let origins = reads
                .iter()
                .map(|&id| (id, origin(&run.program, &run.job, &run.seed, scalars.step, PHASE, id)));
            let mut state = None;
            for (id, from) in origins {
                match from {
                    Some(Origin::State { index }) => {
                        let state = match &mut state {
                            Some(state) => state,
                            None => state.insert(session.download_state()?),
                        };
                        keep(id, std::mem::take(&mut state[index]));
                    }
                    Some(Origin::Batch { tensor, .. }) => keep(id, batch[0].tensors[tensor].clone()),
                    Some(Origin::Words(words)) => keep(id, bytes_from_words(DType::U32, &words)),
                    Some(Origin::Node { .. }) | None => {}
                }
            }
        }
        let mut change = |phase: Phase, _: usize, node: &Node, bytes: &[u8]| {
            if phase == PHASE && reads.contains(&node.output) {
                keep(node.output, bytes.to_vec());
            }
            if phase != PHASE || node.output != output {
                return None;
            }
            keep(output, bytes.to_vec());
            Some(changed(bytes))
        };
        Ok(run_step(session, scalars, &batch, Some(&mut change), None)?)
    }
}
