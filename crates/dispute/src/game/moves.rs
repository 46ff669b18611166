//! The moves of the game as data: the parties that are asked, the clock, the size of an answer, and the questions that may
//! follow.
//!
//! The referee looks up every question here before it asks. After every move it checks that the next question is allowed.

use super::message::{Fold, Need, Question, SUPPLY_SLICES, Subject, Tree};
use super::rules::Rules;
use super::search;
use super::terms::run_clock;
use tiebreak_record::commit::tensor::SLICE_BYTES;
use tiebreak_record::rounding::log;

/// The kind of a question, without its positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuestionKind {
    /// [`Question::Logs`].
    Logs,
    /// [`Question::Supply`].
    Supply,
    /// [`Question::LogBlock`].
    LogBlock,
    /// [`Question::Commit`].
    Commit,
    /// [`Question::Reveal`].
    Reveal,
    /// [`Question::Children`] of a receipt's two roots.
    Roots,
    /// [`Question::Children`] of a receipt's rows.
    Rows,
    /// [`Question::Children`] of a receipt's passes.
    Passes,
    /// [`Question::Pass`].
    Pass,
    /// [`Question::Children`] of records.
    Records,
    /// [`Question::Record`].
    Record,
    /// [`Question::Children`] of a batch.
    Batch,
    /// [`Question::Statement`].
    Statement,
    /// [`Question::Children`] of the operators of a step or of a pass.
    Operators,
    /// [`Question::Children`] of gradients.
    Gradients,
    /// [`Question::Root`].
    Root,
    /// [`Question::Children`] of a tensor's bytes.
    Bytes,
    /// [`Question::Slice`].
    Slice,
    /// [`Question::Evidence`] for a whole element.
    Element,
    /// [`Question::Evidence`] for the frame of a fold.
    Frame,
    /// [`Question::Total`].
    Total,
    /// [`Question::Children`] of terms.
    Subtotals,
    /// [`Question::Evidence`] for terms.
    Terms,
    /// [`Question::Evidence`] for a decision of the rounding log.
    Decision,
    /// [`Question::Binding`].
    Binding,
}

/// The parties that are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Both parties at once: each states its claim.
    Both,
    /// One party, and the other if the first does not supply: both agree on the operands.
    Either,
    /// One party.
    One,
}

/// The clock that runs while a party answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The clock of moves, with an increment.
    Moves,
    /// The clock of replays: the party has to compute a step again.
    Replay,
    /// The clock of a replay of the whole run, for a challenger of the logged profile that commits. In a game about a receipt it is
    /// the clock of replays, and for all other parties that of moves.
    Run,
}

/// The bound on the bytes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// At most this number of bytes.
    Fixed(u64),
    /// A level of a tree.
    Level,
    /// Operands of a leaf, by [`Of`].
    Leaf,
    /// A part of the rounding log.
    Log,
    /// The outputs of a binding.
    Binding,
    /// A part of a log with the step's record.
    Supply,
}

/// A move.
pub struct Move {
    /// The question.
    pub kind: QuestionKind,
    /// The parties that are asked.
    pub who: Who,
    /// The clock that runs.
    pub clock: Clock,
    /// The size of an answer.
    pub size: Size,
    /// The questions that may follow in the same game.
    pub next: &'static [QuestionKind],
}

/// The bytes of an answer's frame: game, turn, question, signature.
const FRAME: u64 = 512;
/// The bytes of operands that a leaf takes.
pub const LEAF_MAX: u64 = 64 * 1024;

/// The bytes of a supplied part of a log, as text: slices, their proof, and the step's record with its proof.
pub(crate) const SUPPLY_MAX: u64 = 96 * 1024;

/// All moves.
pub(crate) const MOVES: [Move; 25] = {
    use Clock::{Moves, Replay};
    use QuestionKind::*;
    use Size::{Fixed, Level};
    use Who::{Both, Either, One};
    const fn row(
        kind: QuestionKind,
        who: Who,
        clock: Clock,
        size: Size,
        next: &'static [QuestionKind],
    ) -> Move {
        Move { kind, who, clock, size, next }
    }
    [
        row(QuestionKind::Logs, One, Moves, Fixed(128), &[Supply, LogBlock, QuestionKind::Commit]),
        row(Supply, One, Moves, Fixed(SUPPLY_MAX), &[QuestionKind::Logs]),
        row(LogBlock, One, Moves, Size::Supply, &[]),
        row(QuestionKind::Commit, Both, Clock::Run, Fixed(128), &[Reveal]),
        row(QuestionKind::Reveal, Both, Moves, Fixed(256), &[Roots, Records]),
        row(Roots, Both, Moves, Level, &[Rows, Passes, Pass, Root]),
        row(Rows, Both, Moves, Level, &[Rows, Root]),
        row(Passes, Both, Moves, Level, &[Passes, Pass]),
        row(Pass, Both, Moves, Fixed(256), &[Operators, Root]),
        row(Records, Both, Moves, Level, &[Records, Record]),
        row(Record, Both, Moves, Fixed(6144), &[Batch, Statement]),
        row(Batch, Both, Moves, Level, &[Batch, Root]),
        row(Statement, Both, Replay, Fixed(1024), &[Operators, Gradients, Root, QuestionKind::Binding]),
        row(Operators, Both, Moves, Level, &[Operators, Root]),
        row(Gradients, Both, Moves, Level, &[Gradients, QuestionKind::Binding]),
        row(Root, Both, Replay, Fixed(256), &[Bytes, Slice]),
        row(Bytes, Both, Moves, Level, &[Bytes, Slice]),
        row(Slice, Both, Moves, Fixed(2048), &[Element, Frame, Subtotals, Terms, Total]),
        row(Element, Either, Replay, Size::Leaf, &[]),
        row(Frame, Either, Replay, Size::Leaf, &[Total, Subtotals, Terms]),
        row(Total, Both, Moves, Fixed(512), &[Subtotals, Terms, Decision]),
        row(Subtotals, Both, Moves, Level, &[Subtotals, Terms]),
        row(Terms, Either, Moves, Size::Leaf, &[]),
        row(Decision, One, Moves, Size::Log, &[]),
        row(QuestionKind::Binding, Either, Moves, Size::Binding, &[]),
    ]
};

/// A question's kind.
pub(crate) fn kind(question: &Question) -> QuestionKind {
    match question {
        Question::Commit => QuestionKind::Commit,
        Question::Logs { .. } => QuestionKind::Logs,
        Question::Supply { .. } => QuestionKind::Supply,
        Question::LogBlock { .. } => QuestionKind::LogBlock,
        Question::Reveal => QuestionKind::Reveal,
        Question::Children { tree, .. } => match tree {
            Tree::Transcript => QuestionKind::Records,
            Tree::Receipt => QuestionKind::Roots,
            Tree::Rows => QuestionKind::Rows,
            Tree::Passes => QuestionKind::Passes,
            Tree::Batch { .. } => QuestionKind::Batch,
            Tree::Gradients { .. } => QuestionKind::Gradients,
            Tree::Trace { .. } | Tree::Pass { .. } => QuestionKind::Operators,
            Tree::Tensor { .. } => QuestionKind::Bytes,
            Tree::Terms { .. } => QuestionKind::Subtotals,
        },
        Question::Record { .. } => QuestionKind::Record,
        Question::Statement { .. } => QuestionKind::Statement,
        Question::Pass { .. } => QuestionKind::Pass,
        Question::Root { .. } => QuestionKind::Root,
        Question::Slice { .. } => QuestionKind::Slice,
        Question::Total { .. } => QuestionKind::Total,
        Question::Evidence { need: Need::All, .. } => QuestionKind::Element,
        Question::Evidence { need: Need::Frame { .. }, .. } => QuestionKind::Frame,
        Question::Evidence { need: Need::Terms { .. }, .. } => QuestionKind::Terms,
        Question::Evidence { need: Need::Decision, .. } => QuestionKind::Decision,
        Question::Binding { .. } => QuestionKind::Binding,
    }
}

/// The row of a question.
pub(crate) fn row(kind: QuestionKind) -> &'static Move {
    // The table has a row for each kind, in order; the test below checks it.
    &MOVES[kind as usize]
}

/// The kind of tensor that a question is about, which decides the evidence that an answer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// A batch: manifests, headers and an element of a sample.
    Batch,
    /// All other tensors, above all the outputs of nodes: operands, and for a logged product a part of the log.
    Node,
}

/// The kind of tensor that a question is about.
pub(crate) fn of(question: &Question) -> Of {
    match question {
        Question::Evidence { subject: Subject::Batch { .. }, .. } => Of::Batch,
        _ => Of::Node,
    }
}

/// The most bytes of a sealed answer to a question of this kind.
pub(crate) fn answer_max(kind: QuestionKind, of: Of, rules: &Rules) -> u64 {
    let base64 = |bytes: u64| bytes.div_ceil(3) * 4;
    FRAME
        + match row(kind).size {
            Size::Fixed(bytes) => bytes,
            Size::Level => {
                let value = if kind == QuestionKind::Subtotals { rules.subtotal_bytes() } else { 32 };
                base64((1 << search::LEVELS) * value) + 64
            }
            Size::Leaf => match of {
                Of::Batch => rules.samples_bytes(),
                Of::Node => LEAF_MAX + log_bytes(kind, of, rules),
            },
            Size::Log => 1024 + log_bytes(kind, of, rules),
            Size::Binding => rules.binding_bytes(),
            Size::Supply => SUPPLY_MAX + rules.log_bytes(),
        }
}

/// The bytes of an answer that can belong to a rounding log.
fn log_bytes(kind: QuestionKind, of: Of, rules: &Rules) -> u64 {
    match (kind, of) {
        (QuestionKind::Element | QuestionKind::Decision, Of::Node) => rules.log_bytes(),
        _ => 0,
    }
}

/// The most bytes of a sealed question that carries no part of a log.
pub const QUESTION_MAX: u64 = 1024;
/// The most bytes of a sealed question that carries a part of a log.
pub const CARRIED_MAX: u64 = QUESTION_MAX + SUPPLY_MAX;

/// The most bytes of any sealed answer.
pub(crate) fn largest(rules: &Rules) -> u64 {
    let of = [Of::Batch, Of::Node];
    let asked = |row: &&Move| {
        rules.is_logged()
            || !matches!(row.kind, QuestionKind::Logs | QuestionKind::Supply | QuestionKind::LogBlock)
    };
    MOVES.iter().filter(asked).flat_map(|row| of.map(|of| answer_max(row.kind, of, rules))).max().unwrap_or(0)
}

/// The bounds of a game of two, or of all games of some parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Bound {
    /// The number of answers.
    pub messages: u64,
    /// Bytes of questions and answers, without rounding logs.
    pub bytes: u64,
    /// Bytes of rounding logs.
    pub log_bytes: u64,
    /// Milliseconds, if every party uses all its time.
    pub milliseconds: u64,
    /// The bounds of the supply of logs to one challenger, before the game; in the exact profile there is none.
    pub supply: SupplyBound,
}

/// The bounds of the supply of logs to one challenger, with its replay of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SupplyBound {
    /// Rounded values of a step.
    pub values: u64,
    /// Bytes of a step's log, at most.
    pub step_bytes: u64,
    /// The number of parts of logs.
    pub parts: u64,
    /// Bytes of questions and answers; each part is sent twice.
    pub bytes: u64,
    /// Milliseconds that the challenger has to replay the run.
    pub replay: u64,
    /// Milliseconds, if trainer and challenger use all their time.
    pub milliseconds: u64,
}

/// The bounds of the supply of logs to one challenger: all parts of the longest logs that the program's steps can have.
fn supply_bound(rules: &Rules, clocks: &super::terms::Clocks) -> SupplyBound {
    let Some(run) = rules.run().filter(|run| run.is_logged()) else { return SupplyBound::default() };
    let step_bytes = run.log_max();
    let parts = step_bytes.div_ceil(SLICE_BYTES as u64 * SUPPLY_SLICES).saturating_mul(run.records() - 2);
    let both = [QuestionKind::Logs, QuestionKind::Supply]
        .map(|kind| answer_max(kind, Of::Node, rules))
        .iter()
        .sum::<u64>();
    let bytes = parts.saturating_add(1).saturating_mul(QUESTION_MAX + CARRIED_MAX + both);
    let replay = run_clock(&run.context.computation.job, clocks.replay);
    let increments = parts.saturating_mul(2).saturating_add(4).saturating_mul(clocks.increment);
    let milliseconds = clocks.moves.saturating_mul(2).saturating_add(increments).saturating_add(replay);
    let program = run.program();
    let values = log::values(&program.micro.logged, program.micro_batches);
    let bytes = bytes.saturating_add(rules.log_bytes());
    SupplyBound { values, step_bytes, parts, bytes, replay, milliseconds }
}

/// The most questions of a kind in a game of two; each goes to both parties, or to one after the other.
fn most(kind: QuestionKind, rules: &Rules) -> u64 {
    let depth = |leaves: u64, leaf: u64| u64::from(search::depth(leaves, leaf));
    let tree = |tree: Tree| depth(rules.shape(tree).0, 1);
    match kind {
        QuestionKind::Rows => tree(Tree::Rows),
        QuestionKind::Passes => tree(Tree::Passes),
        QuestionKind::Records => tree(Tree::Transcript),
        QuestionKind::Batch => tree(Tree::Batch { step: 1 }),
        QuestionKind::Gradients => tree(Tree::Gradients { step: 1 }),
        QuestionKind::Operators => depth(rules.operators_most(), 1),
        QuestionKind::Bytes => depth(rules.slices_most(), 1),
        // The fold whose answers carry the fewest terms.
        QuestionKind::Subtotals => depth(rules.terms_most(), Fold::Sums { parts: 1 }.terms_max()),
        _ => 1,
    }
}

/// The kinds of questions on a path through a game, from its first question, and the kind of tensor at its end. Every path is a
/// part of one of these.
fn paths(rules: &Rules) -> &'static [(&'static [QuestionKind], Of)] {
    use QuestionKind::*;
    if rules.run().is_none() {
        return &[
            (&[Roots, Rows, Root, Bytes, Slice, Element], Of::Node),
            (&[Roots, Passes, Pass, Operators, Root, Bytes, Slice, Element], Of::Node),
            (&[Roots, Passes, Pass, Operators, Root, Bytes, Slice, Frame, Total, Subtotals, Terms], Of::Node),
        ];
    }
    &[
        (&[Records, Record, Batch, Root, Bytes, Slice, Element], Of::Batch),
        (
            &[Records, Record, Statement, Operators, Root, Bytes, Slice, Frame, Total, Subtotals, Terms],
            Of::Node,
        ),
        (&[Records, Record, Statement, Operators, Root, Bytes, Slice, Total, Decision], Of::Node),
        (&[Records, Record, Statement, Gradients, QuestionKind::Binding], Of::Node),
    ]
}

/// The bounds of a game of two.
pub(crate) fn bound(rules: &Rules, clocks: &super::terms::Clocks) -> Bound {
    let (supply, logs) = (supply_bound(rules, clocks), 2 * rules.log_bytes());
    let mut bound = Bound { messages: 0, bytes: 0, log_bytes: logs, milliseconds: 0, supply };
    for &(path, of) in paths(rules) {
        let (mut messages, mut bytes) = (0, 0);
        for &kind in path {
            let times = 2 * most(kind, rules);
            messages += times;
            bytes += times * (QUESTION_MAX + answer_max(kind, of, rules) - log_bytes(kind, of, rules));
        }
        bound.messages = bound.messages.max(messages);
        bound.bytes = bound.bytes.max(bytes);
    }
    let increments = (bound.messages / 2).saturating_mul(clocks.increment);
    bound.milliseconds =
        clocks.moves.saturating_add(clocks.replay).saturating_add(increments).saturating_mul(2);
    bound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_row_for_each_kind_in_order() {
        for (place, row) in MOVES.iter().enumerate() {
            assert_eq!(row.kind as usize, place);
            assert!(row.next.iter().all(|next| (*next as usize) < MOVES.len()));
        }
    }

    /// A game that follows the table ends. No kind leads back to itself, except for the levels of a tree, and for parts of logs,
    /// whose positions ascend.
    #[test]
    fn moves_go_forward() {
        for row in &MOVES {
            for &next in row.next {
                let again = (next == row.kind && row.size == Size::Level) || row.kind == QuestionKind::Supply;
                assert!(next > row.kind || again, "{:?}", row.kind);
            }
        }
    }
}
