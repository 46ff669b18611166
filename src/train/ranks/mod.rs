//! Data-parallel training: several processes ("ranks") compute micro-batches of one step each, and the run has the bits of one process.
//! Derivation, costs and what is trusted: `docs/DATA-PARALLEL.md`.
//!
//! [`plan`] divides a step, [`collective`] says what is asked of a network, [`tcp`] is one and `nccl` another, [`reduce`] adds gradients
//! over it by the contract's tree; [`share`] is a rank's part of a step, [`lead`] rank 0 and [`worker`] every other rank.

pub mod collective;
pub mod lead;
mod link;
#[cfg(feature = "cuda")]
pub mod nccl;
pub mod plan;
pub mod reduce;
pub mod share;
pub mod tcp;
pub mod worker;

use super::TrainError;
use crate::commit::Malformed;
use collective::Collective;

/// The step of no run: there is none after the last.
const END: u32 = 0;
/// The number of no micro-batch.
const NO_CHECK: u32 = u32::MAX;
/// Bytes of [`collective::Kind::Ready`]: run, program and state.
const READY_BYTES: u64 = 96;
/// The most bytes of a reason that a rank gives for stopping.
const REASON_MAX: usize = 1000;

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

/// The bytes of [`collective::Kind::Step`]: the step, and the micro-batch of another rank that the receiver is to compute too.
fn step_message(step: u32, check: u32) -> [u8; 8] {
    let [step, check] = [step, check].map(u64::from);
    (step | check << 32).to_le_bytes()
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

/// Tells the others of an error before this rank stops. Returns whether rank 0 knows.
pub fn report(collective: &mut dyn Collective, error: &TrainError) -> bool {
    match error {
        // What another rank said is passed on as it was said.
        TrainError::Rank(RankError::Stopped { why, .. }) => collective.abort(why),
        other => collective.abort(&other.to_string()),
    }
}
