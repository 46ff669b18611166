//! The records of a transcript. Records name the computation, not its trainer, so that two honest trainers of one computation
//! have the same records. Layouts: `docs/RUN-FORMAT.md`.

use super::codec::{Decoder, Encoder};
use super::digest::Digest;
use super::state::StateRoots;
use super::{Malformed, merkle, table};

/// The most bytes of an encoded record, for any job.
pub const RECORD_BYTES_MAX: usize = 256;

/// A trainer's promise about one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// The step's number, from 1.
    pub step: u32,
    /// The state after the step: root over [`tiebreak_contract::program::step::Program::state`].
    pub state: Digest,
    /// The batch: root over its tensors, micro-batch by micro-batch.
    pub batch: Digest,
    /// Root over the gradient roots of the micro-batches ([`gradients_root`]); absent for jobs that commit states only.
    pub gradients: Option<Digest>,
    /// Root over every node's output, for jobs that commit operators.
    pub trace: Option<Digest>,
    /// The rounding log's root; absent in the exact profile.
    pub log: Option<Digest>,
    /// The learning rate, a binary32 pattern.
    pub learning_rate: u32,
    /// The clip factor, a binary32 pattern: 1 without clipping.
    pub clip: u32,
    /// The mean loss of the step's batch, a binary32 pattern.
    pub loss: u32,
    /// Samples drawn so far, this step's included.
    pub cursor: u64,
}

/// A leaf of the transcript.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Leaf 0: the state before the first step.
    Initial {
        /// The computation.
        computation: Digest,
        /// The state's digest.
        state: Digest,
    },
    /// Leaf n: step n.
    Step {
        /// The computation.
        computation: Digest,
        /// The promise about the step.
        step: StepRecord,
    },
    /// The last leaf: the run is complete after `steps` steps.
    Final {
        /// The computation.
        computation: Digest,
        /// Steps of the run.
        steps: u32,
        /// The roots that the last state's digest is made of. With them the released parameters can be checked without the rest
        /// of the state.
        roots: StateRoots,
    },
}

impl Record {
    /// The computation that the record belongs to.
    #[doc(hidden)] // for the layers above
    pub fn computation(&self) -> &Digest {
        match self {
            Record::Initial { computation, .. }
            | Record::Step { computation, .. }
            | Record::Final { computation, .. } => computation,
        }
    }

    /// The same record of another computation.
    #[doc(hidden)] // for the layers above
    pub fn of_computation(self, computation: Digest) -> Record {
        match self {
            Record::Initial { state, .. } => Record::Initial { computation, state },
            Record::Step { step, .. } => Record::Step { computation, step },
            Record::Final { steps, roots, .. } => Record::Final { computation, steps, roots },
        }
    }

    /// The state after this record.
    #[doc(hidden)] // for the layers above
    pub fn state(&self) -> Digest {
        match self {
            Record::Initial { state, .. } => *state,
            Record::Step { step, .. } => step.state,
            Record::Final { roots, .. } => roots.digest(),
        }
    }

    /// The kind of the record, in words.
    #[doc(hidden)] // for the layers above
    pub fn name(&self) -> &'static str {
        match self {
            Record::Initial { .. } => "the first record",
            Record::Step { .. } => "a step's record",
            Record::Final { .. } => "the final record",
        }
    }

    /// The record's canonical bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        match self {
            Record::Initial { computation, state } => {
                e.u8(0).digest(computation).digest(state);
            }
            Record::Step { computation, step } => {
                e.u8(1).digest(computation).u32(step.step).digest(&step.state).digest(&step.batch);
                e.option(step.gradients.as_ref()).option(step.trace.as_ref()).option(step.log.as_ref());
                e.u32(step.learning_rate).u32(step.clip).u32(step.loss).u64(step.cursor);
            }
            Record::Final { computation, steps, roots } => {
                e.u8(2).digest(computation).u32(*steps);
                roots.0.iter().for_each(|root| {
                    e.digest(root);
                });
            }
        }
        e.0
    }

    /// Decodes the bytes of [`Record::encode`].
    ///
    /// # Errors
    /// If the bytes are not the canonical bytes of a record.
    pub fn decode(bytes: &[u8]) -> Result<Record, Malformed> {
        let mut d = Decoder::new("record", bytes);
        let kind = d.u8()?;
        let computation = d.digest()?;
        let record = match kind {
            0 => Record::Initial { computation, state: d.digest()? },
            1 => {
                let step = StepRecord {
                    step: d.u32()?,
                    state: d.digest()?,
                    batch: d.digest()?,
                    gradients: d.option()?,
                    trace: d.option()?,
                    log: d.option()?,
                    learning_rate: d.u32()?,
                    clip: d.u32()?,
                    loss: d.u32()?,
                    cursor: d.u64()?,
                };
                Record::Step { computation, step }
            }
            2 => {
                let steps = d.u32()?;
                let roots = StateRoots([d.digest()?, d.digest()?, d.digest()?]);
                Record::Final { computation, steps, roots }
            }
            _ => return Err(Malformed::invalid("record", format!("unknown kind {kind}"))),
        };
        d.finish()?;
        Ok(record)
    }
}

/// The leaf of micro-batch `micro` in the tree over a step's gradients, from its gradient root.
pub fn gradient_leaf(micro: u32, root: &Digest) -> Digest {
    table::leaf(&format!("micro{micro}"), root)
}

/// The root over the gradient roots of a step's micro-batches, in order.
pub fn gradients_root(micro_batches: &[Digest]) -> Digest {
    let leaves: Vec<Digest> =
        (0..).zip(micro_batches).map(|(micro, root)| gradient_leaf(micro, root)).collect();
    merkle::root(&leaves)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_record_is_within_its_limit() {
        let digest = Digest([7; 32]);
        let step = StepRecord {
            step: u32::MAX,
            state: digest,
            batch: digest,
            gradients: Some(digest),
            trace: Some(digest),
            log: Some(digest),
            learning_rate: 0,
            clip: 0,
            loss: 0,
            cursor: u64::MAX,
        };
        let record = Record::Step { computation: digest, step };
        let bytes = record.encode();
        assert_eq!(bytes.len(), 220);
        assert!(bytes.len() <= RECORD_BYTES_MAX);
        assert_eq!(Record::decode(&bytes), Ok(record));
    }
}
