//! The states that a training did not show, as a value and as a sentence.

use serde::Serialize;

use tiebreak_record::commit::digest::Digest;

use super::index::Declared;
use super::provenance::Weight;
use super::sighting::Training;

/// A training that a chip saw nothing of, or not all that was due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Silence {
    /// The training's computation is not declared, and the chip saw no state of it.
    #[error("the training told the chip computation {told}, which no declared run has, and showed no state")]
    UndeclaredTraining {
        /// The computation that the chip was told.
        told: Digest,
    },
    /// Snapshots were due, and the training did not answer.
    #[error("the training did not answer {count} snapshots that were due, so its states then are unknown")]
    Unanswered {
        /// The number of snapshots.
        count: u64,
    },
}

impl Silence {
    /// The silence of a training; `None` if it showed all that was due. Snapshots of an undeclared training are judged by
    /// themselves.
    pub fn of(training: &Training, declared: &[Declared]) -> Option<Silence> {
        let told = training.computation.filter(|told| declared.iter().all(|run| run.computation != *told));
        match (told, training.snapshots, training.unanswered) {
            (Some(told), 0, _) => Some(Silence::UndeclaredTraining { told }),
            (_, _, 0) => None,
            (_, _, count) => Some(Silence::Unanswered { count }),
        }
    }

    /// The weight.
    pub fn weight(&self) -> Weight {
        match self {
            Silence::UndeclaredTraining { .. } => Weight::Finding,
            Silence::Unanswered { .. } => Weight::Undecided,
        }
    }
}
