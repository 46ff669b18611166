//! The reasons why a party has no answer to send.

use tiebreak_audit::AuditError;
use tiebreak_engine::EngineError;
use tiebreak_record::commit::Malformed;
use tiebreak_run::run::RunError;
use tiebreak_run::step::StepError;
use tiebreak_train::TrainError;

/// The reasons why a party could not answer, by blame.
#[derive(Debug, thiserror::Error)]
pub enum PartyError {
    /// This run and key cannot be played with these terms.
    #[error("{0}")]
    Refused(String),
    /// The terms or the question are malformed, or somebody else's.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The party's own run cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// This machine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A step could not be replayed.
    #[error(transparent)]
    Replay(#[from] TrainError),
    /// The replay of a step gave another result than its record.
    #[error(
        "step {step} comes out differently on {device} than the run's record says: this machine or the one that trained is faulty. Answer \
         with another engine"
    )]
    NotReproduced {
        /// The step.
        step: u32,
        /// The engine's device.
        device: String,
    },
}

impl From<StepError> for PartyError {
    fn from(error: StepError) -> PartyError {
        PartyError::Replay(error.into())
    }
}

impl From<AuditError> for PartyError {
    fn from(error: AuditError) -> PartyError {
        match error {
            AuditError::Run(error) => PartyError::Run(error),
            AuditError::Engine(error) => PartyError::Engine(error),
            AuditError::Limit(why) => PartyError::Refused(why),
        }
    }
}
