//! The records of a transcript, and the identity of a run. Layouts: `docs/RUN-FORMAT.md`.

use super::Malformed;
use super::codec::{Decoder, Encoder};
use super::digest::{Digest, hash};

/// The most micro-batches a record may list.
pub const MICRO_BATCHES_MAX: usize = 1 << 16;
/// The most bytes of an encoded record.
pub const RECORD_BYTES_MAX: usize = 64 + 32 * (MICRO_BATCHES_MAX + 16);

/// What a run is the run of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunIdentity {
    /// The contract's name, so that no run can be read under another one.
    pub contract: String,
    /// The job file's text.
    pub job: Digest,
    /// The contract's versioned operators that the program uses, and the program.
    pub program: Digest,
    /// The digest of the data's manifest.
    pub data: Digest,
    /// The trainer's public key, zeros for an unsigned run.
    pub trainer_key: [u8; 32],
    /// Random bytes, so that no two runs share an id.
    pub nonce: [u8; 16],
}

impl RunIdentity {
    /// The run id: the hash of all fields.
    pub fn run_id(&self) -> Digest {
        let mut e = Encoder::default();
        e.bytes(self.contract.as_bytes()).digest(&self.job).digest(&self.program).digest(&self.data);
        e.0.extend(self.trainer_key);
        e.0.extend(self.nonce);
        hash("tiebreak 1 run-id", &e.0)
    }
}

/// What a trainer promises about one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// From 1.
    pub step: u32,
    /// The state after the step: root over [`crate::program::step::Program::state`].
    pub state: Digest,
    /// The batch: root over its tensors, micro-batch by micro-batch.
    pub batch: Digest,
    /// Of each micro-batch: root over its gradients and loss.
    pub micro_batches: Vec<Digest>,
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
        /// The run id.
        run: Digest,
        /// The state's digest.
        state: Digest,
    },
    /// Leaf n: step n.
    Step {
        /// The run id.
        run: Digest,
        /// What the step promises.
        step: StepRecord,
    },
    /// The last leaf: the run is complete after `steps` steps.
    Final {
        /// The run id.
        run: Digest,
        /// Steps of the run.
        steps: u32,
        /// The last state's digest.
        state: Digest,
    },
}

impl Record {
    /// The run id.
    pub fn run(&self) -> &Digest {
        match self {
            Record::Initial { run, .. } | Record::Step { run, .. } | Record::Final { run, .. } => run,
        }
    }

    /// The state after this record.
    pub fn state(&self) -> &Digest {
        match self {
            Record::Initial { state, .. } | Record::Final { state, .. } => state,
            Record::Step { step, .. } => &step.state,
        }
    }

    /// The record's canonical bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        match self {
            Record::Initial { run, state } => {
                e.u8(0).digest(run).digest(state);
            }
            Record::Step { run, step } => {
                e.u8(1).digest(run).u32(step.step).digest(&step.state).digest(&step.batch);
                e.list(&step.micro_batches, |e, root| {
                    e.digest(root);
                });
                e.option(step.trace.as_ref()).option(step.log.as_ref());
                e.u32(step.learning_rate).u32(step.clip).u32(step.loss).u64(step.cursor);
            }
            Record::Final { run, steps, state } => {
                e.u8(2).digest(run).u32(*steps).digest(state);
            }
        }
        e.0
    }

    /// Decodes the bytes of [`Record::encode`].
    ///
    /// # Errors
    /// If they are not the canonical bytes of a record, or list more than [`MICRO_BATCHES_MAX`] micro-batches.
    pub fn decode(bytes: &[u8]) -> Result<Record, Malformed> {
        let mut d = Decoder::new("record", bytes);
        let kind = d.u8()?;
        let run = d.digest()?;
        let record = match kind {
            0 => Record::Initial { run, state: d.digest()? },
            1 => {
                let step = StepRecord {
                    step: d.u32()?,
                    state: d.digest()?,
                    batch: d.digest()?,
                    micro_batches: d.list(MICRO_BATCHES_MAX, Decoder::digest)?,
                    trace: d.option()?,
                    log: d.option()?,
                    learning_rate: d.u32()?,
                    clip: d.u32()?,
                    loss: d.u32()?,
                    cursor: d.u64()?,
                };
                Record::Step { run, step }
            }
            2 => Record::Final { run, steps: d.u32()?, state: d.digest()? },
            _ => return Err(Malformed::invalid("record", format!("unknown kind {kind}"))),
        };
        d.finish()?;
        Ok(record)
    }
}
