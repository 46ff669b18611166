//! Where an initial state comes from, and what its digest must be if that follows from what a run declares.

use serde::{Deserialize, Serialize};

use super::Job;
use super::identity::philox_key;
use super::manifest::{self, FileManifest};
use crate::arith::words::bytes_of;
use crate::commit::codec::Encoder;
use crate::commit::digest::{Digest, hash};
use crate::commit::proven::ProvenRecord;
use crate::commit::record::Record;
use crate::commit::state::{StateRoots, state_digest};
use crate::commit::tree_head::Head;
use crate::commit::{Malformed, tensor};
use crate::program::init;
use crate::program::step::Program;

/// The `[init]` table of a job: from what the initial state is made. Absent, or empty: from the seed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitSpec {
    /// Safetensors files of the parameters (and buffers), relative to the job file. Optimizer slots begin at zero.
    #[serde(default)]
    pub weights: Vec<String>,
    /// The folder of a finished run of the same parameters, relative to the job file: its final state.
    #[serde(default)]
    pub run: Option<String>,
    /// With `run`: also its optimizer slots, not zeros.
    #[serde(default)]
    pub optimizer_state: bool,
}

impl InitSpec {
    /// What is wrong, if anything: (key, why).
    pub fn error(&self) -> Option<(&'static str, String)> {
        if self.optimizer_state && self.run.is_none() {
            return Some((
                "optimizer_state",
                "only a run has an optimizer state: name one with init.run".into(),
            ));
        }
        None
    }
}

/// A finished run that another one goes on from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlierRun {
    /// Its head's signed note; the origin line names the run.
    pub head: String,
    /// Its final record, which names the computation, with its proof under the head.
    pub record: ProvenRecord,
    /// Whether the optimizer's slots are taken too; if not they begin at zero.
    pub optimizer_state: bool,
}

/// What `run.json` says of the initial state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum InitialOrigin {
    /// It follows from the seed.
    #[default]
    Seed,
    /// It is in files of weights, which are not part of the run.
    Weights {
        /// A manifest for each file, in the job's order.
        files: Vec<FileManifest>,
    },
    /// It is another run's final state.
    Run(Box<EarlierRun>),
}

/// What an initial state must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The state of this digest.
    State(Digest),
    /// What the weights' files hold: only who has them knows.
    InFiles,
}

impl EarlierRun {
    /// The run's id, its computation, and the roots of its final state.
    ///
    /// # Errors
    /// If the head does not cover a final record.
    pub fn finish(&self) -> Result<(Digest, Digest, StateRoots), Malformed> {
        // Whose key signed the head is for an audit of that run.
        let (head, _) = Head::from_note(&self.head, None)?;
        match self.record.under(&head)? {
            Record::Final { computation, roots, .. } => Ok((head.run, computation, roots)),
            _ => Err(Malformed::invalid("earlier run", "the record is not its final one")),
        }
    }
}

impl InitialOrigin {
    /// Checks what was read against the job.
    ///
    /// # Errors
    /// If the job says another origin, or what is there does not hold together.
    pub fn check(&self, job: &Job) -> Result<(), Malformed> {
        let fits = match self {
            InitialOrigin::Seed => job.init.run.is_none() && job.init.weights.is_empty(),
            InitialOrigin::Weights { files } => {
                manifest::check(files)?;
                !files.is_empty() && files.len() == job.init.weights.len()
            }
            InitialOrigin::Run(earlier) => {
                earlier.finish()?;
                job.init.run.is_some() && job.init.optimizer_state == earlier.optimizer_state
            }
        };
        if fits {
            return Ok(());
        }
        Err(Malformed::invalid("initial state", "it comes from somewhere else than the job's [init] says"))
    }

    /// Where it comes from, in words.
    pub fn source(&self) -> &'static str {
        match self {
            InitialOrigin::Seed => "the seed",
            InitialOrigin::Weights { .. } => "the weights' files",
            InitialOrigin::Run(_) => "the earlier run's final state",
        }
    }

    /// The digest that a run id covers.
    pub fn digest(&self) -> Digest {
        let mut e = Encoder::default();
        match self {
            InitialOrigin::Seed => {
                e.u8(0);
            }
            InitialOrigin::Weights { files } => {
                e.u8(1).list(files, |e, file| {
                    e.u64(file.bytes).digest(&file.root);
                });
            }
            InitialOrigin::Run(earlier) => {
                e.u8(2).bytes(earlier.head.as_bytes()).u64(earlier.record.index);
                e.bytes(&earlier.record.record.0).list(&earlier.record.proof, |e, hash| {
                    e.digest(hash);
                });
                e.u8(u8::from(earlier.optimizer_state));
            }
        }
        hash("tiebreak 2 initial-origin", &e.0)
    }

    /// What the initial state must be.
    ///
    /// # Errors
    /// If an earlier run's record does not hold together.
    pub fn expected(&self, program: &Program, seed: &Digest) -> Result<Expected, Malformed> {
        Ok(match self {
            InitialOrigin::Seed => Expected::State(seeded_digest(program, seed)),
            InitialOrigin::Weights { .. } => Expected::InFiles,
            InitialOrigin::Run(earlier) => {
                let (_, _, StateRoots([parameters, buffers, slots])) = earlier.finish()?;
                let slots = if earlier.optimizer_state { slots } else { zero_slots(program) };
                Expected::State(StateRoots([parameters, buffers, slots]).digest())
            }
        })
    }
}

/// The state digest of init(seed), one tensor in memory at a time.
pub fn seeded_digest(program: &Program, seed: &Digest) -> Digest {
    let table = program.state();
    let digests: Vec<Digest> = (0..table.len())
        .map(|i| {
            let words = init::state_tensor(program, philox_key(seed), i);
            tensor::digest(&table[i].ty(), &bytes_of(&words))
        })
        .collect();
    state_digest(&table, &digests)
}

/// The root of an optimizer's slots before the first step.
fn zero_slots(program: &Program) -> Digest {
    let table = program.state();
    let digests: Vec<Digest> =
        table.iter().map(|tensor| tensor::digest(&tensor.ty(), &vec![0; tensor.ty().bytes()])).collect();
    StateRoots::of(&table, &digests).0[2]
}
