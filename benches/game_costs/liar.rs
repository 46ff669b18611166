//! A trainer who changes one element of one operator's output, and records the operator's operands.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::program::graph::{Graph, Node, TensorId};
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_dispute::evidence::origin::{Origin, origin};
use tiebreak_engine::session::{Session, StepScalars};
use tiebreak_job::data::Dataset;
use tiebreak_run::run::dir::Run;
use tiebreak_run::step::{CommittedStep, RunStep, StepRequest};
use tiebreak_train::TrainError;
use tiebreak_train::conduct::Conduct;

use crate::clever::{Tensors, longest, raised_element};

/// The operands of the operator, and its output, canonical bytes.
pub type Taken = Arc<Mutex<Tensors>>;

/// The phase whose output is changed.
pub const PHASE: Phase = Phase::Micro(0);

/// A trainer who lies about a node of the first micro-batch.
pub struct Liar {
    step: u32,
    node: usize,
    taken: Option<Taken>,
    /// True if the wrong element is one that terms can give.
    clever: bool,
}

impl Liar {
    /// A trainer who lies at a step. `taken` receives the node's operands and output; a clever one needs it.
    pub fn new(step: u32, node: usize, taken: Option<Taken>, clever: bool) -> Liar {
        let taken = taken.or_else(|| clever.then(Taken::default));
        Liar { step, node, taken, clever }
    }

    /// Changes the element of the greatest magnitude by about an eighth.
    fn changed(&self, graph: &Graph, bytes: &[u8]) -> Vec<u8> {
        let Some(taken) = self.taken.as_ref().filter(|_| self.clever) else {
            return flipped(bytes, 0..bytes.len() / 4);
        };
        let taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        let places = longest(graph, self.node, &taken);
        let place = greatest(bytes, places.clone());
        match raised_element(graph, self.node, place, &taken) {
            Some(word) => {
                let mut bytes = bytes.to_vec();
                bytes[4 * place..4 * place + 4].copy_from_slice(&word.to_le_bytes());
                bytes
            }
            None => flipped(bytes, places),
        }
    }
}

/// The element of the greatest magnitude in a range.
fn greatest(bytes: &[u8], places: Range<usize>) -> usize {
    let finite = |word: &[u8]| {
        let word = u32::from_le_bytes(word.try_into().unwrap_or_default()) & 0x7fff_ffff;
        if word < 0x7f80_0000 { word } else { 0 }
    };
    let words = places.clone().zip(bytes[4 * places.start..4 * places.end].chunks_exact(4));
    words.max_by_key(|(_, word)| finite(word)).map_or(places.start, |(place, _)| place)
}

/// The bytes with one bit of that element changed.
fn flipped(bytes: &[u8], places: Range<usize>) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    changed[4 * greatest(bytes, places) + 2] ^= 0x10;
    changed
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
            return Ok(run_step(session, StepRequest::new(&run.computation, scalars, &batch))?);
        }
        let graph = &run.program().micro;
        let output = graph.nodes[self.node].output;
        let reads = graph.nodes[self.node].primitive.inputs();
        let keep = |id: TensorId, bytes: Vec<u8>| {
            if let Some(taken) = &self.taken {
                taken.lock().unwrap_or_else(PoisonError::into_inner).insert(id, bytes);
            }
        };
        if self.taken.is_some() {
            let origins = reads.iter().map(|&id| {
                (id, origin(run.program(), run.job(), &run.computation.seed, scalars.step, PHASE, id))
            });
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
            Some(self.changed(graph, bytes))
        };
        let request = StepRequest::new(&run.computation, scalars, &batch).tampered(Some(&mut change));
        Ok(run_step(session, request)?)
    }
}
