//! The facts that a verdict's evidence decides, as values, and as a sentence for each outcome.

use std::fmt::{self, Display, Formatter};

use super::evidence::proven::Scalar;
use tiebreak_contract::program::phase::Phase;
use tiebreak_record::commit::trace::leaf_name;
use tiebreak_record::rounding::legal::Illegal;

/// A fact about something that a run commits: it is what an honest trainer's would be, or not.
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
        /// True if the job draws the tensor from the seed.
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
        /// The scalar.
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
    /// A shorter history is the beginning of a longer history.
    History {
        /// The number of records of the shorter history.
        records: u64,
    },
    /// Two heads cover the same record.
    Record {
        /// The record's index.
        index: u64,
    },
    /// A part of an operator's output is the operator's result for its committed inputs.
    Operator {
        /// The operator's name.
        operator: String,
        /// The name of the primitive that the operator runs.
        primitive: String,
        /// The phase that ran the node.
        phase: Phase,
        /// The node's index in the phase's graph.
        node: usize,
        /// The part of the output.
        part: OutputPart,
    },
    /// An element of a logged product has a value that an honest kernel may round to.
    Rounding {
        /// True if the value is the log's decision; otherwise it is in the committed tile.
        logged: bool,
        /// The element, its value and the legal values.
        rounding: Illegal,
    },
}

/// A part of an operator's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPart {
    /// A tile of 4096 bytes.
    Tile {
        /// The tile's number.
        tile: usize,
        /// The number of tiles of the output.
        count: usize,
    },
    /// One element, from bytes that the trainer disclosed.
    Element {
        /// The element, row-major.
        element: usize,
        /// The pattern that the operator gives.
        pattern: u32,
    },
}

impl Display for OutputPart {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            OutputPart::Tile { tile, count } => write!(f, "tile {tile} of {count}"),
            OutputPart::Element { element, .. } => write!(f, "element {element}"),
        }
    }
}

impl Fact {
    /// A stable name of the kind of fact.
    #[doc(hidden)] // for the layers above
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
            Fact::Operator { part: OutputPart::Tile { .. }, .. } => "tile",
            Fact::Operator { part: OutputPart::Element { .. }, .. } => "element",
            Fact::Rounding { .. } => "rounding",
        }
    }

    /// The subject of the fact, and its value for an honest trainer.
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

/// A fact that does not hold: the trainer signed something that no honest trainer signs.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Each fact has a sentence for each outcome, which the checker of a verdict reads.
    #[test]
    fn each_fact_has_a_sentence_each_way() {
        let part = OutputPart::Element { element: 5, pattern: 0 };
        let (operator, primitive) = ("block0.gelu".to_string(), "gelu.v1".to_string());
        let rounding = Illegal {
            micro_batch: 1,
            operator: "head.linear".into(),
            product: 0,
            element: 7,
            exact: 1.5,
            bound: 0.25,
            value: 3.0,
            legal: [1.0, 2.0],
        };
        let illegal = "head.linear of micro-batch 1, element 7, is 3e0; the exact product is 1.5e0, and no kernel that is within 2.5e-1 of it \
                       rounds outside 1e0 to 2e0";
        let cases = [
            (
                Fact::InitialState { source: "the seed" },
                "the initial state is the one that the seed gives",
                "the initial state is not the one that the seed gives".to_string(),
            ),
            (
                Fact::InitialElement { tensor: "param/a".into(), element: 3, drawn: false, patterns: [1, 2] },
                "element 3 of param/a in the initial state is the one in the weights' file",
                "element 3 of param/a in the initial state is not the one in the weights' file".into(),
            ),
            (
                Fact::Scalar { scalar: Scalar::Loss, pattern: 0 },
                "the record's loss is the one that its own trace computed",
                "the record's loss is not the one that its own trace computed".into(),
            ),
            (
                Fact::History { records: 5 },
                "the history of 5 records is the beginning of the longer one",
                "the history of 5 records is not the beginning of the longer one".into(),
            ),
            (
                Fact::Operator { operator, primitive, phase: Phase::Update, node: 9, part },
                "the committed element 5 is what the operator makes of its inputs",
                "block0.gelu (gelu.v1) of update/9: element 5 is not what the operator makes of its committed inputs".into(),
            ),
            (
                Fact::Rounding { logged: true, rounding },
                "element 7 of head.linear has a value that an honest kernel may round to",
                format!("by the rounding log, {illegal}"),
            ),
        ];
        for (fact, right, wrong) in cases {
            assert_eq!(Right(fact.clone()).to_string(), right);
            assert_eq!(Wrong(fact).to_string(), wrong);
        }
    }
}
