//! Why training stops.

use crate::commit::Malformed;
use crate::engine::EngineError;
use crate::run::RunError;
use crate::step::StepError;

/// Why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Rank(#[from] RankError),
    /// A step that was done before came out differently.
    #[error(
        "step {step} came out differently than before the interruption: this machine or {device} is faulty"
    )]
    NotReproduced { step: u32, device: String },
}

impl From<StepError> for TrainError {
    fn from(error: StepError) -> TrainError {
        match error {
            StepError::Run(error) => TrainError::Run(error),
            StepError::Engine(error) => TrainError::Engine(error),
        }
    }
}

/// What can go wrong between ranks, by the rank that is to blame.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// The user's to mend.
    #[error("{0}")]
    Refused(String),
    #[error(
        "rank {rank} is gone ({why}); the run can be resumed from its last checkpoint, with any number of ranks"
    )]
    Lost { rank: u32, why: String },
    #[error(
        "rank {rank} did nothing for {seconds} s (--rank-timeout); the run can be resumed from its last checkpoint, with any number of ranks"
    )]
    Hung { rank: u32, seconds: u64 },
    #[error("rank {rank} sent what has no place in the protocol: {source}")]
    Malformed { rank: u32, source: Malformed },
    #[error("rank {rank} derives another run or program from the job: it runs another version of tiebreak")]
    OtherProgram { rank: u32 },
    /// What a rank said when it stopped.
    #[error("rank {rank} reports: {why}")]
    Stopped { rank: u32, why: String },
    /// Gradients could not go from GPU to GPU, and no other rank is known to be the reason.
    #[error(
        "{why}; the run can be resumed from its last checkpoint, with any number of ranks, and --transport tcp does without NCCL"
    )]
    Nccl { why: String },
    /// Ranks whose state is not that of the others; step 0 is the beginning. `outvoted`: by more than half of all ranks.
    #[error("{}", diverged(*step, ranks, *outvoted))]
    Diverged { step: u32, ranks: Vec<u32>, outvoted: bool },
    /// Found by checking each other's gradients.
    #[error("{}", gradients_differ(*step, differing))]
    GradientsDiffer { step: u32, differing: Vec<Difference> },
}

/// A micro-batch whose gradients two ranks computed differently: the one it was given to, and the one that checked it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    pub micro_batch: u32,
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
