//! The faults of a record by itself: it contradicts the job or its step.

/// A fault of a record, independent of the records before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordFault {
    /// The record belongs to another computation.
    #[error("the record is of another computation")]
    OtherComputation,
    /// The record is a first record, but has another index.
    #[error("the first record stands at another place")]
    FirstElsewhere,
    /// The record is the first record, but has another state.
    #[error("its state is not the initial state that the computation names")]
    InitialState,
    /// The record is a final record, but has another index.
    #[error("the final record stands at another place")]
    FinalElsewhere,
    /// The record is a step's record, but has another index.
    #[error("the record is not at its step's place")]
    StepElsewhere,
    /// The record's learning rate is not the schedule's.
    #[error("the learning rate is {committed:08x}, and the schedule gives {due:08x}")]
    LearningRate {
        /// The record's pattern.
        committed: u32,
        /// The pattern of the schedule.
        due: u32,
    },
    /// The record's cursor is wrong.
    #[error("the cursor is {cursor}, and {drawn} samples are drawn")]
    Cursor {
        /// The record's cursor.
        cursor: u64,
        /// The samples drawn up to the step.
        drawn: u64,
    },
    /// The record's clip factor is not that of a job that does not clip.
    #[error("the clip factor is not 1, and the job does not clip")]
    Clip,
    /// The record commits something that the job does not promise, or lacks something that it promises.
    #[error("the record commits {} {part}, against its job", if *promised { "no" } else { "to" })]
    Promise {
        /// The commitment in question, in words.
        part: &'static str,
        /// True if the job promises the commitment.
        promised: bool,
    },
}
