//! What is wrong with a record by itself: what job and step give, and it has not.

/// What is wrong with a record, whatever came before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordFault {
    /// It is of another computation.
    #[error("the record is of another computation")]
    OtherComputation,
    /// It is the first record, at another place.
    #[error("the first record stands at another place")]
    FirstElsewhere,
    /// It is the first record, with another state.
    #[error("its state is not the initial state that the computation names")]
    InitialState,
    /// It is the final record, at another place.
    #[error("the final record stands at another place")]
    FinalElsewhere,
    /// It is a step's, at another place.
    #[error("the record is not at its step's place")]
    StepElsewhere,
    /// Its learning rate is not the schedule's.
    #[error("the learning rate is {committed:08x}, and the schedule gives {due:08x}")]
    LearningRate {
        /// The record's pattern.
        committed: u32,
        /// The schedule's.
        due: u32,
    },
    /// Its cursor is another.
    #[error("the cursor is {cursor}, and {drawn} samples are drawn")]
    Cursor {
        /// The record's cursor.
        cursor: u64,
        /// The samples drawn up to the step.
        drawn: u64,
    },
    /// Its clip factor is not that of a job that does not clip.
    #[error("the clip factor is not 1, and the job does not clip")]
    Clip,
    /// It commits what the job does not promise, or does not commit what it does.
    #[error("the record commits {} {part}, against its job", if *promised { "no" } else { "to" })]
    Promise {
        /// What it is about, in words.
        part: &'static str,
        /// Whether the job promises it.
        promised: bool,
    },
}
