//! What a verdict's evidence decides, as a value, and in a sentence each way.

use std::fmt::{self, Display, Formatter};

use super::evidence::proven::Scalar;
use tiebreak_contract::program::phase::Phase;
use tiebreak_record::commit::trace::leaf_name;
use tiebreak_record::rounding::legal::Illegal;

/// Something that a run commits, which is or is not what an honest trainer's would be.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Fact {
    /// Record 0 commits the initial state of its own computation.
    InitialRecord,
    /// The initial state is the one that its origin gives.
    InitialState {
        /// The origin in words, as `InitialOrigin::source` gives it.
        source: &'static str,
    },
    /// An element of the initial state is the one that a file of weights or the seed gives.
    InitialElement {
        /// The state tensor's name.
        tensor: String,
        /// The element, row-major.
        element: usize,
        /// Whether the job draws the tensor from the seed.
        drawn: bool,
        /// The binary32 patterns: the committed one, and the one that file or seed gives.
        patterns: [u32; 2],
    },
    /// The final record commits the last step's state.
    FinalState,
    /// A record's state is the one that its own trace's update computed.
    State,
    /// The clip factor of a job that does not clip is 1.
    NoClip {
        /// The committed pattern.
        pattern: u32,
    },
    /// A scalar of a record is the one that its own trace computed.
    Scalar {
        /// Which scalar.
        scalar: Scalar,
        /// The committed pattern.
        pattern: u32,
    },
    /// A record's learning rate is the schedule's.
    LearningRate {
        /// The patterns: the committed one, and the schedule's.
        patterns: [u32; 2],
    },
    /// A record's cursor is the number of samples drawn.
    Cursor {
        /// The committed cursor.
        cursor: u64,
        /// The samples drawn up to the step.
        drawn: u64,
    },
    /// A record's batch is the one that seed and data give.
    Batch,
    /// A shorter history is the beginning of a longer one.
    History {
        /// The records of the shorter one.
        records: u64,
    },
    /// Two heads cover the same record.
    Record {
        /// The record's place.
        index: u64,
    },
    /// A part of an operator's output is what the operator makes of its committed inputs.
    Operator {
        /// The operator's name.
        operator: String,
        /// The name of what it computes.
        primitive: String,
        /// The phase that ran the node.
        phase: Phase,
        /// The node's place in the phase's graph.
        node: usize,
        /// Which part.
        part: Part,
    },
    /// An element of a logged product has a value that an honest kernel may round to.
    Rounding {
        /// Whether the value is the log's decision; else it stands in the committed tile.
        logged: bool,
        /// The element, its value and what is legal.
        rounding: Illegal,
    },
}

/// A part of an operator's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A tile of 4096 bytes.
    Tile {
        /// The tile's number.
        tile: usize,
        /// The tiles of the output.
        count: usize,
    },
    /// One element, of bytes that the trainer disclosed.
    Element {
        /// The element, row-major.
        element: usize,
        /// The pattern that the operator makes.
        pattern: u32,
    },
}

impl Display for Part {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            Part::Tile { tile, count } => write!(f, "tile {tile} of {count}"),
            Part::Element { element, .. } => write!(f, "element {element}"),
        }
    }
}

impl Fact {
    /// A stable name of what is decided.
    pub fn kind(&self) -> &'static str {
        match self {
            Fact::InitialRecord => "initial_record",
            Fact::InitialState { .. } => "initial_state",
            Fact::InitialElement { .. } => "initial_element",
            Fact::FinalState => "final_state",
            Fact::State => "state",
            Fact::NoClip { .. } => "no_clip",
            Fact::Scalar { scalar: Scalar::Clip, .. } => "clip",
            Fact::Scalar { scalar: Scalar::Loss, .. } => "loss",
            Fact::LearningRate { .. } => "learning_rate",
            Fact::Cursor { .. } => "cursor",
            Fact::Batch => "batch",
            Fact::History { .. } => "history",
            Fact::Record { .. } => "record",
            Fact::Operator { part: Part::Tile { .. }, .. } => "tile",
            Fact::Operator { part: Part::Element { .. }, .. } => "element",
            Fact::Rounding { .. } => "rounding",
        }
    }

    /// What it is about, and what an honest trainer's is.
    fn subject(&self) -> (String, String) {
        let say = |subject: &str, predicate: &str| (subject.to_string(), predicate.to_string());
        match self {
            Fact::InitialRecord => say("record 0's state", "the initial state of its own computation"),
            Fact::InitialState { source } => {
                say("the initial state", &format!("the one that {source} gives"))
            }
            Fact::InitialElement { tensor, element, drawn, .. } => {
                let predicate = match drawn {
                    true => "the one that the seed gives",
                    false => "the one in the weights' file",
                };
                say(&format!("element {element} of {tensor} in the initial state"), predicate)
            }
            Fact::FinalState => say("the final record's state", "the last step's"),
            Fact::State => say("the record's state", "the one that its own trace's update computed"),
            Fact::NoClip { .. } => say("the record's clip factor", "1"),
            Fact::Scalar { scalar, .. } => {
                say(&format!("the record's {}", scalar.name()), "the one that its own trace computed")
            }
            Fact::LearningRate { .. } => say("the record's learning rate", "the schedule's"),
            Fact::Cursor { .. } => say("the record's cursor", "the number of samples drawn"),
            Fact::Batch => say("the record's batch", "the one that seed and data give"),
            Fact::History { records } => {
                say(&format!("the history of {records} records"), "the beginning of the longer one")
            }
            Fact::Record { index } => {
                say(&format!("record {index} under one head"), "the one under the other")
            }
            Fact::Operator { part, .. } => {
                say(&format!("the committed {part}"), "what the operator makes of its inputs")
            }
            Fact::Rounding { rounding, .. } => {
                let (element, operator) = (rounding.element, &rounding.operator);
                say(&format!("element {element} of {operator}"), "a value that an honest kernel may round to")
            }
        }
    }
}

/// A fact that holds: nobody is convicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Right(pub Fact);

impl Display for Right {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let (subject, predicate) = self.0.subject();
        let verb = if matches!(self.0, Fact::Rounding { .. }) { "has" } else { "is" };
        write!(f, "{subject} {verb} {predicate}")
    }
}

/// A fact that does not hold: the trainer signed what no honest one signs.
#[derive(Clone, Debug, PartialEq)]
pub struct Wrong(pub Fact);

impl Display for Wrong {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match &self.0 {
            Fact::Operator { operator, primitive, phase, node, part } => {
                let name = leaf_name(*phase, *node);
                write!(
                    f,
                    "{operator} ({primitive}) of {name}: {part} is not what the operator makes of its committed inputs"
                )
            }
            Fact::Rounding { logged: true, rounding } => write!(f, "by the rounding log, {rounding}"),
            Fact::Rounding { logged: false, rounding } => write!(f, "as committed, {rounding}"),
            other => {
                let (subject, predicate) = other.subject();
                write!(f, "{subject} is not {predicate}")
            }
        }
    }
}
