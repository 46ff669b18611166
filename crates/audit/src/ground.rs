//! The ground on which an audit ends, as a value and as a sentence.

use std::fmt::{self, Display, Formatter};

use serde::{Serialize, Serializer};

use tiebreak_contract::program::phase::Phase;
use tiebreak_dispute::fact::Wrong;
use tiebreak_dispute::verdict::Scalar;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::StepRecord;
use tiebreak_record::commit::trace::leaf_name;
use tiebreak_record::rounding::legal::Illegal;

/// A field of a step's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordField {
    /// The state after the step.
    #[error("state")]
    State,
    /// The batch.
    #[error("batch")]
    Batch,
    /// The root over the micro-batches' gradients.
    #[error("gradients")]
    Gradients,
    /// The root over the operators' outputs.
    #[error("operators")]
    Operators,
    /// The root of the rounding log.
    #[error("rounding log")]
    Log,
    /// The learning rate.
    #[error("learning rate")]
    LearningRate,
    /// The clip factor.
    #[error("clip factor")]
    Clip,
    /// The mean loss.
    #[error("loss")]
    Loss,
    /// The number of samples drawn.
    #[error("cursor")]
    Cursor,
}

/// The fields in which two records of one step differ, in a record's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences(pub Vec<RecordField>);

impl Display for Differences {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(&self.0.iter().map(RecordField::to_string).collect::<Vec<_>>().join(", "))
    }
}

/// The fields in which two records of one step differ.
pub fn differences(mine: &StepRecord, theirs: &StepRecord) -> Differences {
    use RecordField::*;
    let same = [
        (State, mine.state == theirs.state),
        (Batch, mine.batch == theirs.batch),
        (Gradients, mine.gradients == theirs.gradients),
        (Operators, mine.trace == theirs.trace),
        (Log, mine.log == theirs.log),
        (LearningRate, mine.learning_rate == theirs.learning_rate),
        (Clip, mine.clip == theirs.clip),
        (Loss, mine.loss == theirs.loss),
        (Cursor, mine.cursor == theirs.cursor),
    ];
    Differences(same.into_iter().filter(|(_, same)| !same).map(|(field, _)| field).collect())
}

/// A node's tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTile {
    /// The operator's name.
    pub operator: String,
    /// The name of the operator's primitive.
    pub primitive: String,
    /// The phase that ran the node.
    pub phase: Phase,
    /// The node's index in the phase's graph.
    pub node: usize,
    /// The tile's number.
    pub tile: usize,
    /// The number of tiles of the output.
    pub count: usize,
}

/// The reason why an audit ends as it does.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Ground {
    /// Record 0 commits another state than its origin gives.
    #[error("record 0 does not commit the initial state that {origin} gives")]
    InitialState {
        /// The origin in words, as `InitialOrigin::source` gives it.
        origin: &'static str,
    },
    /// Record 0 commits another state than the files of weights give; the auditor has the files.
    #[error("record 0 does not commit the initial state that the weights' files give")]
    Weights,
    /// Record 0 commits other numbers than the seed gives, in tensors that the job draws.
    #[error("record 0 commits other numbers than the seed gives where the job draws them")]
    Drawn,
    /// A learning rate differs from the schedule's.
    #[error("the learning rate is not the schedule's")]
    LearningRate,
    /// A clip factor of a job without clipping is not 1.
    #[error("the clip factor of a job without clipping is not 1")]
    NoClip,
    /// A cursor differs from the number of samples drawn.
    #[error("the cursor is not the number of samples drawn so far")]
    Cursor,
    /// A batch differs from the one that seed and data give.
    #[error("the batch is not the one that seed and data give")]
    Batch,
    /// The final record has another state than the last step.
    #[error("the final record commits another state than the last step")]
    FinalState,
    /// The trainer signed two histories.
    #[error("the trainer signed two histories: another head over {records} records")]
    Fork {
        /// The number of records that the other head covers.
        records: u64,
    },
    /// The record's state contradicts its own trace.
    #[error("the record's state is not the one that its own trace's update computed")]
    State,
    /// A scalar of the record contradicts its own trace.
    #[error("the record's {} is not the one that its own trace computed", .0.name())]
    Scalar(Scalar),
    /// An operator's output differs.
    #[error(
        "operator {} ({}), {}: first differing tile {} of {}",
        .0.operator, .0.primitive, leaf_name(.0.phase, .0.node), .0.tile, .0.count
    )]
    Operator(NodeTile),
    /// An operator's output differs from the auditor's, and the scalar reference gives the trainer's.
    #[error("{} ({}), tile {} of {}", .0.operator, .0.primitive, .0.tile, .0.count)]
    FaultyTile(NodeTile),
    /// A decision of the rounding log is illegal, by the evidence or only by an engine's result.
    #[error("by the rounding log, {0}")]
    Decision(Illegal),
    /// A committed value is illegal, and the log has no decision for it.
    #[error("the log has no such decision, and {0}")]
    Unlogged(Wrong),
    /// A step's record differs from the scalar reference's.
    #[error("{fields}{}{}", micros_text(micro_batches), tensors_text(tensors))]
    Step {
        /// The fields that differ.
        fields: Differences,
        /// The micro-batches whose gradients differ, as far as the run has the trainer's roots.
        micro_batches: Vec<u32>,
        /// The state tensors that differ, if the trainer published the state.
        tensors: Vec<String>,
    },
    /// The gradients of one micro-batch differ.
    #[error("gradients of micro-batch {0}")]
    MicroBatch(u32),
    /// The run lacks the trace that the record commits, so no operator is named.
    #[error("{0}; no published trace is the one that the record commits")]
    Withheld(Box<Ground>),
    /// The named fields differ.
    #[error("{0} differ")]
    Fields(Differences),
    /// A difference that a missing decision would explain.
    #[error("{0} differ; a missing decision explains that as well as a trainer that computed something else")]
    Explicable(Explicable),
    /// A native auditor's record differs.
    #[error(
        "{0} differ from what this auditor's native kernels and the log give; audit with an exact engine (no --native) to find out why"
    )]
    NotReplicated(Differences),
    /// A logged product's output differs by more than one rounding.
    #[error("{operator}: {differ} of {tiles} tiles differ by more than one rounding that the log lacks")]
    Roundings {
        /// The operator.
        operator: String,
        /// Tiles that differ.
        differ: usize,
        /// Tiles of the output.
        tiles: usize,
    },
    /// A logged product's element is a legal rounding that the log lacks.
    #[error(
        "{operator}: the committed value of element {element} is {value:e}, which an honest kernel may round to, but the log has no \
         decision about it: a missing decision"
    )]
    Rounding {
        /// The operator.
        operator: String,
        /// The element, row-major.
        element: usize,
        /// The committed value.
        value: f32,
    },
    /// The run's records do not reach a head that somebody has.
    #[error(
        "{} over {records} records, and the run's head here covers {here}: nothing shows that this is the beginning of that history (get the \
         rest of the run; one that contradicts that head is a fork)",
        if *signed { "the trainer signed a head" } else { "there is another head, signed by nobody," }
    )]
    Unreached {
        /// True if the trainer signed that head.
        signed: bool,
        /// The number of records that the head covers.
        records: u64,
        /// The number of records in this run.
        here: u64,
    },
    /// The head covers no final record.
    #[error(
        "the head covers {covered} of {steps} steps and no final record: the run has no end yet, or it is withheld{}",
        if *model { "; no record commits the model.safetensors that is here" } else { "" }
    )]
    NoEnd {
        /// The number of steps that the head covers.
        covered: usize,
        /// The number of steps of the run.
        steps: u32,
        /// True if there is a released model.
        model: bool,
    },
    /// There is no released model.
    #[error("the run is complete, but its released model (model.safetensors) is not here")]
    NoModel,
    /// The released model cannot be read, or is not the committed one.
    #[error("the released model cannot be checked: {0}")]
    Model(String),
    /// The plan has steps before which no state is available.
    #[error(
        "steps {first} to {last} cannot be replayed: no state before them is here (checkpoint {} is missing or damaged)",
        .first.saturating_sub(1)
    )]
    Unreachable {
        /// The first of these steps.
        first: u32,
        /// The last of these steps.
        last: u32,
    },
    /// The plan has no step.
    #[error("there is no step to replay")]
    NoSteps,
    /// The auditor was asked about another run.
    #[error(
        "the auditor was asked about run {wanted}, and this is another one, so nothing of it was checked or replayed"
    )]
    OtherRun {
        /// The run that the auditor was asked about.
        wanted: Digest,
    },
    /// The run is not of what the auditor's client ordered.
    #[error(
        "the run is not of the job and the data that were ordered, so nothing of it was checked or replayed"
    )]
    NotOrdered,
    /// The run comes without the records, or without a head over them.
    #[error("the run comes without {file}, so nothing of it was checked or replayed")]
    Without {
        /// The file, in words.
        file: &'static str,
    },
    /// A file of the run is none of the run format.
    #[error("a file of the run breaks its format, so nothing of the run was replayed")]
    Unreadable,
    /// The trainer took records back, and another run has the right ones.
    #[error(
        "the trainer took back the records from step {step} on ({reason}); run {by} takes their place, and needs an audit of its own"
    )]
    Corrected {
        /// The first step that is taken back.
        step: u32,
        /// The corrected run.
        by: Digest,
        /// The name of the reason.
        reason: &'static str,
    },
    /// Several grounds.
    #[error("{}", .0.iter().map(Ground::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Ground>),
    /// The job lets its trainer choose more roundings than kernels need.
    #[error("{key} {why}")]
    Freedom {
        /// The key of the setting.
        key: String,
        /// The key's value and the most that it may be, in words.
        why: String,
    },
    /// No honest kernel decides like this.
    #[error("{0}")]
    Decisions(String),
    /// The auditor's time ended before the scalar reference had confirmed a difference.
    #[error(
        "on {engine}, {found}; --max-time was reached before the scalar reference had confirmed it. Confirm it with `tiebreak replay RUN \
         --step {step} --engine reference`"
    )]
    OutOfTime {
        /// The engine that found the difference.
        engine: String,
        /// The step, from 1.
        step: u32,
        /// The difference.
        found: Box<Ground>,
    },
    /// The scalar reference differs from the auditor's engine.
    #[error("{0} differ from the scalar reference too")]
    ReferenceDiffers(Differences),
}

/// A difference that a missing decision would explain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Explicable {
    /// A difference in these fields of a record.
    #[error("{0}")]
    Fields(Differences),
    /// A difference in the gradients of a micro-batch.
    #[error("gradients of micro-batch {0}")]
    MicroBatch(u32),
}

fn micros_text(micro_batches: &[u32]) -> String {
    if micro_batches.is_empty() {
        return String::new();
    }
    let few: Vec<String> = micro_batches.iter().take(8).map(u32::to_string).collect();
    let more = match micro_batches.len() - few.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("; gradients of micro-batches {}{more} differ", few.join(", "))
}

fn tensors_text(tensors: &[String]) -> String {
    match tensors {
        [] => String::new(),
        [first, ..] => format!("; {} state tensors differ, first {first}", tensors.len()),
    }
}

impl Ground {
    /// One ground from several; `None` if there are none.
    pub(crate) fn all(mut grounds: Vec<Ground>) -> Option<Ground> {
        if grounds.len() > 1 { Some(Ground::Several(grounds)) } else { grounds.pop() }
    }

    /// True if records and job alone show the ground, so that a verdict on it tells no salt of a run that hides.
    pub(super) fn is_in_records(&self) -> bool {
        matches!(self, Ground::LearningRate | Ground::Cursor | Ground::FinalState | Ground::Fork { .. })
    }

    /// A stable name of the ground's kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Ground::InitialState { .. } => "initial_state",
            Ground::Weights => "weights",
            Ground::Drawn => "drawn",
            Ground::LearningRate => "learning_rate",
            Ground::NoClip => "no_clip",
            Ground::Cursor => "cursor",
            Ground::Batch => "batch",
            Ground::FinalState => "final_state",
            Ground::Fork { .. } => "fork",
            Ground::State => "state",
            Ground::Scalar(Scalar::Clip) => "clip",
            Ground::Scalar(Scalar::Loss) => "loss",
            Ground::Operator(_) => "operator",
            Ground::FaultyTile(_) => "faulty_tile",
            Ground::Decision(_) => "decision",
            Ground::Unlogged(_) => "unlogged",
            Ground::Step { .. } => "step",
            Ground::MicroBatch(_) => "micro_batch",
            Ground::Withheld(ground) => ground.kind(),
            Ground::Fields(_) => "fields",
            Ground::Explicable(_) => "explicable",
            Ground::NotReplicated(_) => "not_replicated",
            Ground::Roundings { .. } => "roundings",
            Ground::Rounding { .. } => "rounding",
            Ground::Unreached { .. } => "unreached",
            Ground::NoEnd { .. } => "no_end",
            Ground::NoModel => "no_model",
            Ground::Model(_) => "model",
            Ground::Unreachable { .. } => "unreachable",
            Ground::NoSteps => "no_steps",
            Ground::OtherRun { .. } => "other_run",
            Ground::NotOrdered => "not_ordered",
            Ground::Without { .. } => "without",
            Ground::Unreadable => "unreadable",
            Ground::Corrected { .. } => "corrected",
            Ground::Several(_) => "several",
            Ground::Freedom { .. } => "freedom",
            Ground::Decisions(_) => "decisions",
            Ground::OutOfTime { .. } => "out_of_time",
            Ground::ReferenceDiffers(_) => "reference_differs",
        }
    }
}

/// A report holds the ground's sentence.
impl Serialize for Ground {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports hold these sentences, and people read them.
    #[test]
    fn sentences_are_made_of_their_values() {
        let fields = Differences(vec![RecordField::State, RecordField::Log, RecordField::Loss]);
        let step = |micro_batches: std::ops::Range<u32>, tensors: &[&str]| Ground::Step {
            fields: fields.clone(),
            micro_batches: micro_batches.collect(),
            tensors: tensors.iter().map(ToString::to_string).collect(),
        };
        let tile = NodeTile {
            operator: "block0.gelu".into(),
            primitive: "gelu.v1".into(),
            phase: Phase::Micro(2),
            node: 9,
            tile: 3,
            count: 8,
        };
        let cases = [
            (step(0..0, &[]), "state, rounding log, loss"),
            (
                step(0..8, &["param/a"]),
                "state, rounding log, loss; gradients of micro-batches 0, 1, 2, 3, 4, 5, 6, 7 differ; 1 state tensors differ, first param/a",
            ),
            (
                step(0..11, &["m/a", "m/b"]),
                "state, rounding log, loss; gradients of micro-batches 0, 1, 2, 3, 4, 5, 6, 7 and 3 more differ; 2 state tensors differ, first m/a",
            ),
            (
                Ground::Withheld(Box::new(Ground::Explicable(Explicable::Fields(fields.clone())))),
                "state, rounding log, loss differ; a missing decision explains that as well as a trainer that computed something else; no \
                 published trace is the one that the record commits",
            ),
            (
                Ground::Explicable(Explicable::MicroBatch(4)),
                "gradients of micro-batch 4 differ; a missing decision explains that as well as a trainer that computed something else",
            ),
            (
                Ground::Operator(tile.clone()),
                "operator block0.gelu (gelu.v1), micro2/9: first differing tile 3 of 8",
            ),
            (Ground::FaultyTile(tile), "block0.gelu (gelu.v1), tile 3 of 8"),
            (Ground::Scalar(Scalar::Loss), "the record's loss is not the one that its own trace computed"),
            (
                Ground::Unreached { signed: false, records: 9, here: 4 },
                "there is another head, signed by nobody, over 9 records, and the run's head here covers 4: nothing shows that this is the \
                 beginning of that history (get the rest of the run; one that contradicts that head is a fork)",
            ),
            (
                Ground::Several(vec![
                    Ground::NoEnd { covered: 2, steps: 8, model: true },
                    Ground::Unreachable { first: 1, last: 2 },
                ]),
                "the head covers 2 of 8 steps and no final record: the run has no end yet, or it is withheld; no record commits the \
                 model.safetensors that is here; steps 1 to 2 cannot be replayed: no state before them is here (checkpoint 0 is missing or damaged)",
            ),
            (
                Ground::OutOfTime { engine: "cpu".into(), step: 5, found: Box::new(Ground::Fields(fields)) },
                "on cpu, state, rounding log, loss differ; --max-time was reached before the scalar reference had confirmed it. Confirm it \
                 with `tiebreak replay RUN --step 5 --engine reference`",
            ),
        ];
        for (ground, sentence) in cases {
            assert_eq!(ground.to_string(), sentence);
            assert_eq!(serde_json::to_string(&ground).unwrap(), format!("\"{sentence}\""));
        }
    }
}
