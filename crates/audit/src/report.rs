//! What an audit finds, and why one cannot be carried out.

use serde::{Deserialize, Serialize};

use super::attachments::Damaged;
use super::ground::Ground;
use super::plan::ReplayPlan;
use tiebreak_dispute::verdict::Verdict;
use tiebreak_engine::EngineError;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::Record;
use tiebreak_run::observers::tally::Tally;
use tiebreak_run::run::RunError;
use tiebreak_run::step::StepError;
use tiebreak_run::step::finite::LossesNotFinite;

/// Why an audit could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The run's files are malformed, cannot be read, or do not allow this audit.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The auditor's engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A limit that the auditor set.
    #[error("{0}")]
    Limit(String),
}

impl From<StepError> for AuditError {
    fn from(error: StepError) -> AuditError {
        match error {
            StepError::Run(error) => AuditError::Run(error),
            StepError::Engine(error) => AuditError::Engine(error),
        }
    }
}

/// How an audit ended. `W`: on what ground; a report holds the sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Outcome<W = Ground> {
    /// Everything that was replayed came out as committed.
    Matches,
    /// The run is not what its job says, found without a replay.
    Inconsistent {
        /// The step of the record in question; 0 for the initial state.
        step: u32,
        /// The contradiction.
        what: W,
    },
    /// Replaying this step gives something else; the scalar reference agrees with the auditor.
    Diverges {
        /// The step, from 1.
        step: u32,
        /// The difference.
        what: W,
    },
    /// Replaying this step gives other gradients, as a rounding that the trainer's log lacks would: not enough to say that the
    /// trainer computed something else.
    MissingDecision {
        /// The step, from 1.
        step: u32,
        /// The difference.
        what: W,
    },
    /// Everything that was replayed came out as committed, but the run's end cannot be had, or too little of the run was checked to
    /// say that it matches.
    Incomplete {
        /// The part that is missing.
        what: W,
    },
    /// In the logged profile: the job allows its trainer more freedom than this version's kernels need, so that a match would say
    /// nothing.
    UnboundedFreedom {
        /// The setting, its value and the most it may be.
        what: W,
    },
    /// In the logged profile: every decision is legal and every step follows from them, but an honest kernel of a known kind does not
    /// decide so. Statistics never convict.
    UnexplainedDecisions {
        /// The decisions.
        what: W,
    },
    /// Replaying this step gives something else, but a limit of the auditor's was reached before the scalar reference had confirmed
    /// that. Nobody is accused.
    Unconfirmed {
        /// The step, from 1.
        step: u32,
        /// The difference, the limit, and the way to confirm it.
        what: W,
    },
    /// The auditor's engine differs from both the trainer and the scalar reference.
    EngineFaulty {
        /// The step, from 1.
        step: u32,
        /// The engine's name.
        engine: String,
        /// The difference.
        what: W,
    },
}

impl<W> Outcome<W> {
    /// On what ground; none of a match.
    pub fn what(&self) -> Option<&W> {
        use Outcome::*;
        match self {
            Matches => None,
            Inconsistent { what, .. } | Diverges { what, .. } | MissingDecision { what, .. } => Some(what),
            Incomplete { what } | UnboundedFreedom { what } | UnexplainedDecisions { what } => Some(what),
            Unconfirmed { what, .. } | EngineFaulty { what, .. } => Some(what),
        }
    }

    /// The same outcome on another ground.
    pub fn map<V>(self, ground: impl FnOnce(W) -> V) -> Outcome<V> {
        use Outcome::*;
        match self {
            Matches => Matches,
            Inconsistent { step, what } => Inconsistent { step, what: ground(what) },
            Diverges { step, what } => Diverges { step, what: ground(what) },
            MissingDecision { step, what } => MissingDecision { step, what: ground(what) },
            Incomplete { what } => Incomplete { what: ground(what) },
            UnboundedFreedom { what } => UnboundedFreedom { what: ground(what) },
            UnexplainedDecisions { what } => UnexplainedDecisions { what: ground(what) },
            Unconfirmed { step, what } => Unconfirmed { step, what: ground(what) },
            EngineFaulty { step, engine, what } => EngineFaulty { step, engine, what: ground(what) },
        }
    }
}

/// What a difference came to.
pub struct Found {
    pub outcome: Outcome,
    pub verdict: Option<Verdict>,
}

/// The version of reports.
pub const REPORT_FORMAT: u32 = 2;

/// What an audit did and found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of the report, [`REPORT_FORMAT`].
    pub format: u32,
    /// The run id.
    pub run: Digest,
    /// The computation that the run is of.
    pub computation: Digest,
    /// The digest of the canonical job.
    pub job: Digest,
    /// The root of the data's manifest.
    pub data: Digest,
    /// Steps of the whole run.
    pub steps: u32,
    /// Who signed the head, in words.
    pub signed: String,
    /// Records that the head covers, the initial one included.
    pub head_size: u64,
    /// The root over them.
    pub head_root: Digest,
    /// Whether the head covers the final record, and the released model is its.
    pub end_checked: bool,
    /// The auditor's engine.
    pub engine: String,
    /// How the audit ended.
    pub outcome: Outcome,
    /// Checks that passed, in words.
    pub checked: Vec<String>,
    /// Checks that were not made, and why, in words.
    pub not_checked: Vec<String>,
    /// Files that are damaged or cannot be read, none of which the audit needed.
    pub damaged: Vec<Damaged>,
    /// Which losses of the records are not finite, if some are.
    pub not_finite: Option<LossesNotFinite>,
    /// Whether the auditor rounded native products of its own: then the audit is about replication only.
    pub native: bool,
    /// Replayed steps, as ranges first..=last.
    pub replayed: Vec<(u32, u32)>,
    /// The segments that were to be replayed.
    pub plan: ReplayPlan,
    /// In the logged profile: the trainer's rounding decisions, and the freedom they had.
    pub rounding: Option<Tally>,
    /// Wall-clock time of the audit, in seconds.
    pub seconds: f64,
    /// The public key of the auditor who signs the report's file, as C2SP text.
    pub auditor: Option<String>,
}

impl Report {
    /// Steps that were replayed and came out as committed.
    pub fn steps_replayed(&self) -> u64 {
        self.replayed.iter().map(|&(first, last)| u64::from(last + 1 - first)).sum()
    }

    /// Whether the audit matched and reached the end of its plan.
    pub fn is_complete(&self) -> bool {
        self.outcome == Outcome::Matches && self.steps_replayed() == self.plan.steps()
    }
}

/// The step of a record, 0 for the initial one.
pub fn step_of(record: &Record) -> u32 {
    match record {
        Record::Initial { .. } => 0,
        Record::Step { step, .. } => step.step,
        Record::Final { steps, .. } => *steps + 1,
    }
}
