//! The breaches by which a party of a game loses, as values, and as a sentence about the party.

use std::fmt::{self, Display, Formatter};

use super::message::{Field, Subject, Tree};
use super::moves::QuestionKind;
use super::reason::Reason;
pub use super::record_fault::RecordFault;
use super::tried::Tried;
use serde::{Serialize, Serializer};
use tiebreak_record::commit::Malformed;

/// The basis of an element's value that the referee holds parties to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Basis {
    /// A sum has no terms.
    #[error("the sum of no rows")]
    NoRows,
    /// Committed operands.
    #[error("what the operands give")]
    Operands,
    /// A decision of the rounding log.
    #[error("what the rounding log says")]
    Log,
    /// The log has no decision.
    #[error("the nearest value, since the log has no decision")]
    Nearest,
}

/// The values that an element of a logged product may be rounded to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LegalRange {
    /// The exact product.
    pub exact: f64,
    /// The bound on a native kernel's distance from the exact product.
    pub bound: f64,
    /// The least legal value.
    pub least: f32,
    /// The greatest legal value.
    pub greatest: f32,
}

/// The values that an element of a logged product may be rounded to.
#[derive(Clone, Debug, PartialEq)]
pub struct Leeway {
    /// The product's operator.
    pub operator: String,
    /// The element, row-major.
    pub element: usize,
    /// The nearest value, a binary32 pattern: the element's value without a decision.
    pub nearest: u32,
    /// The legal values; none where nothing is rounded.
    pub range: Option<LegalRange>,
}

impl Display for Leeway {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Leeway { operator, element, nearest, range } = self;
        match range {
            None => write!(f, "element {element} of {operator} is {nearest:08x}: nothing is rounded there"),
            Some(LegalRange { exact, bound, least, greatest }) => write!(
                f,
                "element {element} of {operator}: exact product {exact:e}, bound {bound:e}, legal {least:e} to {greatest:e}, nearest {:e}",
                f32::from_bits(*nearest)
            ),
        }
    }
}

/// A block of a rounding log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockOfLog {
    /// The step, from 1.
    pub step: u32,
    /// The part of the log.
    pub part: usize,
    /// The block of the part.
    pub block: u64,
}

impl Display for BlockOfLog {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let BlockOfLog { step, part, block } = self;
        write!(f, "block {block} of part {part} of the log of step {step}")
    }
}

/// An act or a signed statement by which a party loses.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Breach {
    /// The party declined to open its own commitment.
    #[error("it did not open what it had committed to")]
    Unopened,
    /// The party's answer is of the wrong kind.
    #[error("it answered another question")]
    OtherKind,
    /// The party's answer names another question.
    #[error("its answer is to another question")]
    OtherQuestion,
    /// The party's answer is not signed by it, or not in its encoding.
    #[error("its answer is none: {0}")]
    NoAnswer(Malformed),
    /// The party's answer is too long.
    #[error("its answer has {len} bytes, and no right one more than {limit}")]
    TooLong {
        /// Bytes of the answer.
        len: usize,
        /// The most bytes of a right one.
        limit: u64,
    },
    /// The party has not answered in its time.
    #[error("its time was up{}", .0.as_ref().map_or(String::new(), |tried| format!("; {}", tried.text())))]
    TimeUp(Option<Tried>),
    /// The party has not answered yet.
    #[error("it has not answered")]
    Silent,
    /// The party signed two answers to one question.
    #[error("it signed two answers to the question of turn {turn}")]
    TwoAnswers {
        /// The turn.
        turn: u32,
    },
    /// The party signed two statements about one step.
    #[error("it signed two roots over the operators of step {step}")]
    TwoStatements {
        /// The step, from 1.
        step: u32,
    },
    /// The party opened another commitment than its own.
    #[error("its opening is not what it committed to")]
    Opening,
    /// The trainer opened another root than its head's.
    #[error("it opens another root than that of its signed head")]
    OtherRoot,
    /// The signer opened another root than that over its receipt's two.
    #[error("it opens another root than the one over the traces and rows of the receipt, which it signed")]
    OtherReceipt,
    /// The root over the operators of a pass contradicts the pass's leaf.
    #[error("the root over its {of}'s operators is not the one that it committed to")]
    PassRoot {
        /// What the pass is of.
        of: &'static str,
    },
    /// The trainer opened another root than the terms give.
    #[error("it does not stand by the root that the terms say it claims")]
    ForsakenRoot,
    /// The level of a tree has too many values, or too few.
    #[error("a level has another number of values")]
    LevelSize,
    /// The level of a tree contradicts the node above it.
    #[error("its values below {} of leaves {first} to {last} do not give the one that it claimed", tree.name())]
    Level {
        /// The tree.
        tree: Tree,
        /// The first leaf below the node.
        first: u64,
        /// The last leaf below the node.
        last: u64,
    },
    /// The party's record is not the leaf that it committed to.
    #[error("its record is not the one that it committed to")]
    OtherRecord,
    /// The record before is not proved.
    #[error("it does not prove the record before")]
    Unproven,
    /// The bytes of its record are no record.
    #[error("its record {index} is none: {why}")]
    NoRecord {
        /// The record's index.
        index: u64,
        /// The rule that the bytes break.
        why: Malformed,
    },
    /// The party's record cannot have this index.
    #[error("record {index}: {fault}")]
    Record {
        /// The record's index.
        index: u64,
        /// The rule that the record breaks.
        fault: RecordFault,
    },
    /// The party's final record has another state than its last step.
    #[error("the final record's state is not that of the last step, to which it committed too")]
    FinalState,
    /// The challenger did not replay under the trainer's log.
    #[error("its record {step} carries another rounding log than the trainer's, which the terms fix")]
    OtherLog {
        /// The step, from 1.
        step: u32,
    },
    /// The party's statement has another root over operators than its record.
    #[error("its statement about the step is not the root over operators in its record")]
    StatedTrace,
    /// The party's statement is not about its record, or not signed by it.
    #[error("its statement is not about this record, or not signed by it")]
    Statement,
    /// The root of a tensor's bytes contradicts the tensor's digest.
    #[error("the root of its tensor's bytes is not the one that it committed to")]
    TensorRoot,
    /// A slice contradicts the root of the tensor's bytes.
    #[error("its slice is not the one that it committed to")]
    Slice,
    /// An element differs from the referee's result.
    #[error("element {element} of {tensor} is not {word:08x}, {by}")]
    Element {
        /// The tensor.
        subject: Subject,
        /// The tensor in words.
        tensor: String,
        /// The element, row-major.
        element: usize,
        /// The right pattern.
        word: u32,
        /// The basis of the right pattern.
        by: Basis,
    },
    /// The party's order names an index beyond the tensor.
    #[error("it orders a position that there is not")]
    Position,
    /// The party's total is too long or too short.
    #[error("a total has another length")]
    TotalSize,
    /// The party's rank differs from its order.
    #[error("the rank that it counts is not the one that its order says")]
    Rank,
    /// The sum of its products differs from its element.
    #[error("the sum of its products does not give its element")]
    Total,
    /// The party's part of a sum differs from the referee's result.
    #[error("a part of an element's terms does not come to what it claimed")]
    Subtotal,
    /// The party committed to operands that its operator is not defined for.
    #[error("it committed to operands that no honest step has")]
    Undefined {
        /// The operator.
        operator: String,
    },
    /// The trainer's rounding is illegal.
    #[error("{0}")]
    Rounding(Leeway),
    /// The challenger's element is no rounding that the log gives.
    #[error("its element is not the nearest value, and the log has no decision")]
    NotNearest,
    /// A field of its record differs from the result of its operators.
    #[error("the {} of record {step} is not what the step's operators give, on which it agrees", field.name())]
    Field {
        /// The step, from 1.
        step: u32,
        /// The field.
        field: Field,
    },
    /// The trainer does not show a decision.
    #[error("it does not show the rounding that its log has")]
    HiddenRounding,
    /// Nobody supplies operands.
    #[error("neither party supplies operands that both committed to")]
    NoOperands,
    /// Nobody supplies outputs.
    #[error("neither party supplies outputs that both committed to")]
    NoOutputs,
    /// The trainer does not supply a part of its log.
    #[error("it does not supply the part of its log that it was asked for{}", .0.as_ref().map_or(String::new(), |why| format!(": {why}")))]
    NotSupplied(Option<Malformed>),
    /// The trainer's log is longer than any log can be.
    #[error("its log of step {step} has {len} bytes, and none can have more than {most}")]
    LogTooLong {
        /// The step, from 1.
        step: u32,
        /// Bytes of the log.
        len: u64,
        /// The most bytes that a log of the program has.
        most: u64,
    },
    /// The challenger asks for a part that no log has.
    #[error("it asks for a part of a log that there is not, or that comes before one that it asked for")]
    Asked,
    /// The challenger complains about a part that no log has.
    #[error("it complains of a part of a log that there is not")]
    Complained,
    /// The challenger complains about a block that can be read.
    #[error("{0} can be read, against what it says")]
    Readable(BlockOfLog),
    /// The challenger complains about a block that the log lacks.
    #[error("there is no {0}, against what it says")]
    NoBlock(BlockOfLog),
    /// The trainer's log cannot be read.
    #[error("{block}, its own, cannot be read, so that nobody can replay the step: {why}")]
    Unreadable {
        /// The block.
        block: BlockOfLog,
        /// The rule that its bytes break.
        why: Malformed,
    },
}

impl Breach {
    /// The reason why a party loses by this breach.
    pub(crate) fn reason(&self) -> Reason {
        use Breach::*;
        match self {
            NoRecord { .. } | Record { .. } | FinalState | Element { .. } | Position | Subtotal => {
                Reason::WrongValue
            }
            Undefined { .. } | NotNearest | Breach::Field { .. } | LogTooLong { .. } => Reason::WrongValue,
            Readable(_) | NoBlock(_) | Unreadable { .. } => Reason::WrongValue,
            Rounding(_) => Reason::IllegalRounding,
            Opening
            | OtherRoot
            | OtherReceipt
            | PassRoot { .. }
            | Level { .. }
            | OtherRecord
            | StatedTrace
            | TensorRoot
            | Slice
            | Rank
            | Total => Reason::Contradiction,
            TwoAnswers { .. } | TwoStatements { .. } => Reason::Equivocation,
            OtherLog { .. } => Reason::OtherLog,
            TimeUp(_) | Silent => Reason::Timeout,
            Unopened | ForsakenRoot | HiddenRounding | NoOperands | NoOutputs | NotSupplied(_) => {
                Reason::Refusal
            }
            TooLong { .. } => Reason::Oversize,
            OtherKind | OtherQuestion | NoAnswer(_) | LevelSize | Unproven | Statement | TotalSize => {
                Reason::Garbage
            }
            Asked | Complained => Reason::Garbage,
        }
    }

    /// A stable name of the breach.
    #[doc(hidden)] // for the layers above
    pub fn kind(&self) -> &'static str {
        use Breach::*;
        match self {
            Unopened => "unopened",
            OtherKind => "other_kind",
            OtherQuestion => "other_question",
            NoAnswer(_) => "no_answer",
            TooLong { .. } => "too_long",
            TimeUp(_) => "time_up",
            Silent => "silent",
            TwoAnswers { .. } => "two_answers",
            TwoStatements { .. } => "two_statements",
            Opening => "opening",
            OtherRoot => "other_root",
            OtherReceipt => "other_receipt",
            PassRoot { .. } => "pass_root",
            ForsakenRoot => "forsaken_root",
            LevelSize => "level_size",
            Level { .. } => "level",
            OtherRecord => "other_record",
            Unproven => "unproven",
            NoRecord { .. } => "no_record",
            Record { .. } => "record",
            FinalState => "final_state",
            OtherLog { .. } => "other_log",
            StatedTrace => "stated_trace",
            Statement => "statement",
            TensorRoot => "tensor_root",
            Slice => "slice",
            Element { .. } => "element",
            Position => "position",
            TotalSize => "total_size",
            Rank => "rank",
            Total => "total",
            Subtotal => "subtotal",
            Undefined { .. } => "undefined",
            Rounding(_) => "rounding",
            NotNearest => "not_nearest",
            Breach::Field { .. } => "field",
            HiddenRounding => "hidden_rounding",
            NoOperands => "no_operands",
            NoOutputs => "no_outputs",
            NotSupplied(_) => "not_supplied",
            LogTooLong { .. } => "log_too_long",
            Asked => "asked",
            Complained => "complained",
            Readable(_) => "readable",
            NoBlock(_) => "no_block",
            Unreadable { .. } => "unreadable",
        }
    }
}

/// The reason why nobody lost a game of two parties that differ.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsettled {
    /// The trainer's log lacks the decision that would show who is right.
    #[error("{0}; the log has no decision about it, and the value is legal")]
    NoDecision(Leeway),
    /// The signer names a sample with a number that the model does not take, and neither party is the signer.
    #[error(
        "{0} is not defined for a number of the sample. The signer chose the sample, and neither party is the signer"
    )]
    Sample(String),
    /// The referee reached an impossible state.
    #[error("{0}: a collision of hashes, or a fault of the referee's program")]
    Impossible(&'static str),
    /// The next question is not one that the table of moves allows.
    #[error("{asked:?} after {before:?}: a fault of the referee's program")]
    NoMove {
        /// The question.
        asked: QuestionKind,
        /// The question before it.
        before: Option<QuestionKind>,
    },
}

impl Unsettled {
    /// A stable name of the outcome.
    #[doc(hidden)] // for the layers above
    pub fn kind(&self) -> &'static str {
        match self {
            Unsettled::NoDecision(_) => "no_decision",
            Unsettled::Sample(_) => "sample",
            Unsettled::Impossible(_) => "impossible",
            Unsettled::NoMove { .. } => "no_move",
        }
    }
}

/// Files hold the sentence.
impl Serialize for Breach {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Files hold the sentence.
impl Serialize for Unsettled {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tried::End;
    use super::*;

    /// Files hold these sentences, and a checker compares them: none may change.
    #[test]
    fn sentences_are_those_that_files_hold() {
        let mut tried = Tried::new(1);
        tried.count(End::NoConnection);
        let why = Malformed::invalid("record", "it is cut off");
        let leeway = |range| Leeway { operator: "h.linear".into(), element: 7, nearest: 0x3f80_0000, range };
        let block = BlockOfLog { step: 3, part: 2, block: 1 };
        let cases = [
            (Breach::TimeUp(None), "its time was up"),
            (Breach::TimeUp(Some(tried)), "its time was up; asked once: 1 x no connection"),
            (
                Breach::PassRoot { of: "window" },
                "the root over its window's operators is not the one that it committed to",
            ),
            (Breach::NotSupplied(None), "it does not supply the part of its log that it was asked for"),
            (
                Breach::NotSupplied(Some(why.clone())),
                "it does not supply the part of its log that it was asked for: record: it is cut off",
            ),
            (Breach::NoRecord { index: 4, why: why.clone() }, "its record 4 is none: record: it is cut off"),
            (
                Breach::Record { index: 4, fault: RecordFault::LearningRate { committed: 1, due: 0xabc } },
                "record 4: the learning rate is 00000001, and the schedule gives 00000abc",
            ),
            (
                Breach::Record {
                    index: 4,
                    fault: RecordFault::Promise { part: "gradients", promised: true },
                },
                "record 4: the record commits no gradients, against its job",
            ),
            (
                Breach::Record {
                    index: 4,
                    fault: RecordFault::Promise { part: "operators", promised: false },
                },
                "record 4: the record commits to operators, against its job",
            ),
            (
                Breach::Level { tree: Tree::Trace { step: 2 }, first: 16, last: 31 },
                "its values below operators of leaves 16 to 31 do not give the one that it claimed",
            ),
            (
                Breach::Element {
                    subject: Subject::Batch { step: 1, micro: 0, tensor: 0 },
                    tensor: "x of step 1's batch".into(),
                    element: 5,
                    word: 0xff,
                    by: Basis::Nearest,
                },
                "element 5 of x of step 1's batch is not 000000ff, the nearest value, since the log has no decision",
            ),
            (
                Breach::Field { step: 6, field: Field::Clip },
                "the clip factor of record 6 is not what the step's operators give, on which it agrees",
            ),
            (Breach::Rounding(leeway(None)), "element 7 of h.linear is 3f800000: nothing is rounded there"),
            (
                Breach::Rounding(leeway(Some(LegalRange {
                    exact: 1.5,
                    bound: 0.25,
                    least: 1.0,
                    greatest: 2.0,
                }))),
                "element 7 of h.linear: exact product 1.5e0, bound 2.5e-1, legal 1e0 to 2e0, nearest 1e0",
            ),
            (
                Breach::Readable(block),
                "block 1 of part 2 of the log of step 3 can be read, against what it says",
            ),
            (
                Breach::Unreadable { block, why },
                "block 1 of part 2 of the log of step 3, its own, cannot be read, so that nobody can replay the step: record: it is cut off",
            ),
        ];
        for (breach, sentence) in cases {
            assert_eq!(breach.to_string(), sentence);
            assert_eq!(serde_json::to_string(&breach).unwrap(), format!("\"{sentence}\""));
        }
        let unsettled = [
            (
                Unsettled::NoDecision(leeway(None)),
                "element 7 of h.linear is 3f800000: nothing is rounded there; the log has no decision about it, and the value is legal",
            ),
            (
                Unsettled::Sample("embed".into()),
                "embed is not defined for a number of the sample. The signer chose the sample, and neither party is the signer",
            ),
            (
                Unsettled::Impossible("two and two are five"),
                "two and two are five: a collision of hashes, or a fault of the referee's program",
            ),
            (
                Unsettled::NoMove { asked: QuestionKind::Root, before: Some(QuestionKind::Terms) },
                "Root after Some(Terms): a fault of the referee's program",
            ),
        ];
        for (unsettled, sentence) in unsettled {
            assert_eq!(unsettled.to_string(), sentence);
        }
    }
}
