//! The findings of an audit, and the reasons why an audit cannot be carried out.

use serde::de::IntoDeserializer;
use serde::{Deserialize, Deserializer, Serialize};

use super::attachments::Damaged;
use super::corrections::Listed;
use super::ground::Ground;
use super::plan::ReplayPlan;
use tiebreak_dispute::verdict::Verdict;
use tiebreak_engine::EngineError;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::Record;
use tiebreak_run::observers::tally::Tally;
use tiebreak_run::run::{OfContents, RunError};
use tiebreak_run::step::StepError;
use tiebreak_run::step::finite::LossesNotFinite;

/// The reasons why an audit could not be carried out.
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

impl OfContents for AuditError {
    fn is_of_contents(&self) -> bool {
        matches!(self, AuditError::Run(error) if error.is_of_contents())
    }
}

impl From<StepError> for AuditError {
    fn from(error: StepError) -> AuditError {
        match error {
            StepError::Run(error) => AuditError::Run(error),
            StepError::Engine(error) => AuditError::Engine(error),
        }
    }
}

/// The end of an audit. `W` is the ground's type; a report holds the ground's sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case", try_from = "OutcomeFields<W>")]
pub enum Outcome<W = Ground> {
    /// Every replayed step gave the committed result.
    Matches,
    /// The run contradicts its job, found without a replay.
    Inconsistent {
        /// The step of the record in question; 0 for the initial state.
        step: u32,
        /// The contradiction.
        what: W,
    },
    /// Replaying this step gives another result; the scalar reference agrees with the auditor.
    Diverges {
        /// The step, from 1.
        step: u32,
        /// The difference.
        what: W,
    },
    /// Replaying this step gives other gradients, which a rounding that the trainer's log lacks would explain. This does not
    /// prove that the trainer computed something else.
    MissingDecision {
        /// The step, from 1.
        step: u32,
        /// The difference.
        what: W,
    },
    /// The trainer took back the records from this step on, and nothing differs before it.
    Corrected {
        /// The first step that is taken back.
        step: u32,
        /// The correction.
        what: W,
    },
    /// Every replayed step gave the committed result, but the run's end is not available, or too little of the run was checked to
    /// say that it matches.
    Incomplete {
        /// The missing part of the check.
        what: W,
    },
    /// In the logged profile: the job allows its trainer more freedom than this version's kernels need, so that a match would say
    /// nothing.
    UnboundedFreedom {
        /// The setting, its value and the most it may be.
        what: W,
    },
    /// In the logged profile: every decision is legal and every step follows from the decisions, but no honest kernel of a known
    /// kind decides so. Statistics never convict.
    UnexplainedDecisions {
        /// The decisions.
        what: W,
    },
    /// Replaying this step gives another result, but a limit of the auditor's was reached before the scalar reference had
    /// confirmed it. Nobody is accused.
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
    /// The ground; `None` for a match.
    pub fn what(&self) -> Option<&W> {
        use Outcome::*;
        match self {
            Matches => None,
            Inconsistent { what, .. } | Diverges { what, .. } | MissingDecision { what, .. } => Some(what),
            Corrected { what, .. } => Some(what),
            Incomplete { what } | UnboundedFreedom { what } | UnexplainedDecisions { what } => Some(what),
            Unconfirmed { what, .. } | EngineFaulty { what, .. } => Some(what),
        }
    }

    /// The same outcome with its ground mapped.
    #[doc(hidden)] // for the layers above
    pub fn map<V>(self, ground: impl FnOnce(W) -> V) -> Outcome<V> {
        use Outcome::*;
        match self {
            Matches => Matches,
            Inconsistent { step, what } => Inconsistent { step, what: ground(what) },
            Diverges { step, what } => Diverges { step, what: ground(what) },
            MissingDecision { step, what } => MissingDecision { step, what: ground(what) },
            Corrected { step, what } => Corrected { step, what: ground(what) },
            Incomplete { what } => Incomplete { what: ground(what) },
            UnboundedFreedom { what } => UnboundedFreedom { what: ground(what) },
            UnexplainedDecisions { what } => UnexplainedDecisions { what: ground(what) },
            Unconfirmed { step, what } => Unconfirmed { step, what: ground(what) },
            EngineFaulty { step, engine, what } => EngineFaulty { step, engine, what: ground(what) },
        }
    }
}

/// The name of an outcome, as files write it.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutcomeName {
    Matches,
    Inconsistent,
    Diverges,
    MissingDecision,
    Corrected,
    Incomplete,
    UnboundedFreedom,
    UnexplainedDecisions,
    Unconfirmed,
    EngineFaulty,
}

/// The fields of any outcome. Serde's own reader of an enum with a tag copies fields of other names, which this one skips.
#[derive(Deserialize)]
struct OutcomeFields<W> {
    #[serde(deserialize_with = "outcome_name")]
    result: OutcomeName,
    step: Option<u32>,
    engine: Option<String>,
    what: Option<W>,
}

/// The name as a text. Serde's reader of an enum also takes `{"matches": null}`.
fn outcome_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OutcomeName, D::Error> {
    OutcomeName::deserialize(String::deserialize(deserializer)?.into_deserializer())
}

impl<W> TryFrom<OutcomeFields<W>> for Outcome<W> {
    type Error = &'static str;

    fn try_from(fields: OutcomeFields<W>) -> Result<Outcome<W>, &'static str> {
        let OutcomeFields { result, step, engine, what } = fields;
        let what = || what.ok_or("the outcome has no field what");
        let step = step.ok_or("the outcome has no field step");
        Ok(match result {
            OutcomeName::Matches => Outcome::Matches,
            OutcomeName::Inconsistent => Outcome::Inconsistent { step: step?, what: what()? },
            OutcomeName::Diverges => Outcome::Diverges { step: step?, what: what()? },
            OutcomeName::MissingDecision => Outcome::MissingDecision { step: step?, what: what()? },
            OutcomeName::Corrected => Outcome::Corrected { step: step?, what: what()? },
            OutcomeName::Incomplete => Outcome::Incomplete { what: what()? },
            OutcomeName::UnboundedFreedom => Outcome::UnboundedFreedom { what: what()? },
            OutcomeName::UnexplainedDecisions => Outcome::UnexplainedDecisions { what: what()? },
            OutcomeName::Unconfirmed => Outcome::Unconfirmed { step: step?, what: what()? },
            OutcomeName::EngineFaulty => {
                let engine = engine.ok_or("the outcome has no field engine")?;
                Outcome::EngineFaulty { step: step?, engine, what: what()? }
            }
        })
    }
}

/// An outcome, with its verdict if there is one.
pub struct Found {
    pub outcome: Outcome,
    pub verdict: Option<Verdict>,
}

/// The version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The version of reports.
pub const REPORT_FORMAT: u32 = 2;

/// The actions and findings of an audit.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of the report, [`REPORT_FORMAT`].
    pub format: u32,
    /// The version of the program that audited.
    pub verifier: String,
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
    /// The signer of the head, in words.
    pub signed: String,
    /// The number of records that the head covers, the initial one included.
    pub head_size: u64,
    /// The root over these records.
    pub head_root: Digest,
    /// True if the head covers the final record, and the released model is the one of that record.
    pub end_checked: bool,
    /// The auditor's engine.
    pub engine: String,
    /// The outcome of the audit.
    pub outcome: Outcome,
    /// Checks that passed, in words.
    pub checked: Vec<String>,
    /// Checks that were not made, with the reason, in words.
    pub not_checked: Vec<String>,
    /// Files that are damaged or cannot be read, none of which the audit needed.
    pub damaged: Vec<Damaged>,
    /// The corrections of the run, and the one by which it takes another run's place, if there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub corrections: Vec<Listed>,
    /// The losses of the records that are not finite, if there are any.
    pub not_finite: Option<LossesNotFinite>,
    /// True if the auditor rounded native products of its own: then the audit is about replication only.
    pub native: bool,
    /// Replayed steps, as ranges first..=last.
    pub replayed: Vec<(u32, u32)>,
    /// The plan of the audit.
    pub plan: ReplayPlan,
    /// In the logged profile: the trainer's rounding decisions, and the freedom that they had.
    pub rounding: Option<Tally>,
    /// Wall-clock time of the audit, in seconds.
    pub seconds: f64,
    /// The public key of the auditor who signs the report's file, as C2SP text.
    pub auditor: Option<String>,
}

impl Report {
    /// The number of steps whose replay gave the committed result.
    pub fn steps_replayed(&self) -> u64 {
        self.replayed.iter().map(|&(first, last)| u64::from(last + 1 - first)).sum()
    }

    /// True if the audit matched and reached the end of its plan.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_outcome_is_a_text() {
        let read = |text: &str| serde_json::from_str::<Outcome<String>>(text).is_ok();
        assert!(read(r#"{"result": "matches"}"#));
        for text in [r#"{"result": {"matches": null}}"#, r#"{"result": "match"}"#, r#"{"result": 0}"#, "{}"] {
            assert!(!read(text), "{text}");
        }
    }
}
