//! The errors that stop training.

use tiebreak_engine::EngineError;
use tiebreak_record::commit::Malformed;
use tiebreak_run::run::RunError;
use tiebreak_run::step::StepError;
use tiebreak_run::step::finite::{FirstValue, NotFinite};

/// The reasons why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The run's files are malformed, cannot be read or written, or refuse the command.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Something went wrong between ranks.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// A step that was done before gave another result now.
    #[error(
        "step {step} came out differently than before the interruption: this machine or {device} is faulty"
    )]
    NotReproduced {
        /// The step.
        step: u32,
        /// The engine's device.
        device: String,
    },
    /// The loss of a step is not finite, and the trainer is set to stop then. That step's record is the last one, and a head
    /// covers it.
    #[error("step {step}: {found}")]
    NotFinite {
        /// The step.
        step: u32,
        /// The first value that is not finite.
        found: Box<NotFinite>,
    },
    /// The last state holds a value that is not finite, and the trainer is set to stop then: there is no final record.
    #[error("after the last step, {step}, the state holds a value that is not finite: {first}")]
    LastStateNotFinite {
        /// The last step.
        step: u32,
        /// The value.
        first: Box<FirstValue>,
    },
    /// Somebody asked training to stop. The state after the last step that was done has a checkpoint.
    #[error("stopped after step {step}, as was asked")]
    Asked {
        /// The last step that was done.
        step: u32,
    },
}

impl TrainError {
    /// True if training ended as requested, and everything up to there is written.
    #[doc(hidden)] // for the layers above
    pub fn is_an_end(&self) -> bool {
        matches!(
            self,
            TrainError::NotFinite { .. } | TrainError::LastStateNotFinite { .. } | TrainError::Asked { .. }
        )
    }
}

impl From<StepError> for TrainError {
    fn from(error: StepError) -> TrainError {
        match error {
            StepError::Run(error) => TrainError::Run(error),
            StepError::Engine(error) => TrainError::Engine(error),
        }
    }
}

/// Errors between ranks, by the rank that is to blame.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// A mistake of the user, who has to mend it.
    #[error("{0}")]
    Refused(String),
    /// The connection to a rank is closed.
    #[error(
        "rank {rank} is gone ({why}); the run can be resumed from its last checkpoint, with any number of ranks"
    )]
    Lost {
        /// The rank.
        rank: u32,
        /// The symptom, in words.
        why: String,
    },
    /// A rank did nothing for too long.
    #[error(
        "rank {rank} did nothing for {seconds} s (--rank-timeout); the run can be resumed from its last checkpoint, with any number of ranks"
    )]
    Hung {
        /// The rank.
        rank: u32,
        /// The seconds that were waited.
        seconds: u64,
    },
    /// A rank sent bytes that do not follow the protocol.
    #[error("rank {rank} sent what has no place in the protocol: {source}")]
    Malformed {
        /// The rank.
        rank: u32,
        /// The defect of the bytes.
        source: Malformed,
    },
    /// A rank derives another run from the job.
    #[error(
        "rank {rank} derives another run or program from the job: {differs}; it runs another version of tiebreak"
    )]
    OtherProgram {
        /// The rank.
        rank: u32,
        /// The run and the program of both ranks, in words.
        differs: String,
    },
    /// The message of a rank that stopped.
    #[error("rank {rank} reports: {why}")]
    Stopped {
        /// The rank.
        rank: u32,
        /// The rank's message.
        why: String,
    },
    /// Gradients could not be sent from GPU to GPU, and no other rank is known to be the reason.
    #[error(
        "{why}; the run can be resumed from its last checkpoint, with any number of ranks, and --transport tcp does without NCCL"
    )]
    Nccl {
        /// The reason, in words.
        why: String,
    },
    /// Gradients could not be sent over MPI, and no other rank is known to be the reason.
    #[error(
        "{why}; the run can be resumed from its last checkpoint, with any number of ranks, and --transport tcp does without MPI"
    )]
    Mpi {
        /// The reason, in words.
        why: String,
    },
    /// Ranks whose state differs from the others'; step 0 is the beginning. `outvoted`: true if more than half of all ranks agree
    /// on another state.
    #[error("{}", diverged(*step, ranks, *outvoted))]
    Diverged {
        /// The step after which the states differ.
        step: u32,
        /// The ranks in question.
        ranks: Vec<u32>,
        /// True if more than half of all ranks agree on another state.
        outvoted: bool,
    },
    /// Two ranks computed different gradients of a micro-batch, when ranks checked each other.
    #[error("{}", gradients_differ(*step, differing))]
    GradientsDiffer {
        /// The step.
        step: u32,
        /// The micro-batches, each with its two ranks.
        differing: Vec<Difference>,
    },
}

/// A micro-batch whose gradients two ranks computed differently: its own rank, and the rank that checked it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The micro-batch.
    pub micro_batch: u32,
    /// The micro-batch's own rank, and the rank that checked it.
    pub ranks: [u32; 2],
}

fn gradients_differ(step: u32, differing: &[Difference]) -> String {
    let each = |Difference { micro_batch, ranks: [owner, checker] }: &Difference| {
        format!("rank {owner} and rank {checker} for micro-batch {micro_batch}")
    };
    let named: Vec<String> = differing.iter().map(each).collect();
    format!(
        "different gradients in step {step}: {}; one machine of each pair computes wrongly (`tiebreak selftest` there says more). The step was \
         not written, but steps since the last check may be wrong: audit them",
        named.join(", ")
    )
}

fn diverged(step: u32, ranks: &[u32], outvoted: bool) -> String {
    let names: Vec<String> = ranks.iter().map(|rank| format!("rank {rank}")).collect();
    let judged = match outvoted {
        true => "is not that of most ranks: a machine that is not with them computes wrongly",
        false => "is not rank 0's: a machine of theirs or rank 0's computes wrongly",
    };
    format!(
        "{}: the state after step {step} {judged} (`tiebreak selftest` there says more). The step was not written: resume without \
         the faulty machine, with any number of ranks",
        names.join(", ")
    )
}
