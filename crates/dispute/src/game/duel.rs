//! A game of two parties whose records differ: the choice of the next question, and the results of the answers.
//!
//! At every moment the parties agree on everything before the position in question: both have committed to the same hashes of it.
//! So a loss rests on the loser's own commitments, whichever party supplied the operands.

use super::breach::Breach;
use super::message::{Answer, Field, Fold, Need, Question, Subject, Tree};
use super::result::Loss;
use super::rules::{Fault, Rules};
use super::search;
use super::stage::{DisputedElement, Folded, Next, Side, Stage, Walk, short};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::tensor::{SLICE_BYTES, piece_count, piece_range, piece_value};

/// The subject of a game that has not reached a tensor yet.
const NO_SUBJECT: Subject = Subject::Batch { step: 0, micro: 0, tensor: 0 };
const NO_RUN: Next = Next::Impossible("records are compared in a game about a receipt");
const UNASKED: Next = Next::Impossible("an answer is there to what was not asked");

/// A game of two.
pub(super) struct Duel {
    pub sides: [Side; 2],
    pub stage: Stage,
    pub disputed: Option<DisputedElement>,
    pub folded: Option<Folded>,
    /// The findings, level by level.
    pub found: Vec<String>,
}

impl Duel {
    /// The game of two parties that claim different roots over their records, or over the two roots of a receipt.
    pub fn new(rules: &Rules, parties: [usize; 2], roots: [Digest; 2]) -> Duel {
        let side = |i: usize| {
            let (party, root) = (parties[i], roots[i]);
            Side { party, root, record: None, before: None, passes: None, trace: None }
        };
        let (tree, whole) = rules.whole();
        let (count, ..) = rules.shape(tree);
        let values = roots.map(|root| root.0.to_vec());
        let stage = Stage::Walk(Walk { tree, first: 0, count, total: count, values });
        let found = vec![format!("{whole}: roots {} and {}", roots[0].short(), roots[1].short())];
        Duel { sides: [side(0), side(1)], stage, disputed: None, folded: None, found }
    }

    /// The next question, and the sides that are asked.
    pub fn question(&self) -> (Question, [bool; 2]) {
        let both = [true, true];
        let one = |side: usize| [side == 0, side == 1];
        let (subject, place) = self.place();
        match &self.stage {
            Stage::Walk(Walk { tree, first, count, .. }) => {
                (Question::Children { tree: *tree, first: *first, count: *count }, both)
            }
            Stage::Record { index, .. } => (Question::Record { index: *index }, both),
            Stage::Statement { step } => (Question::Statement { step: *step }, both),
            Stage::Pass { pass, .. } => (Question::Pass { pass: *pass }, both),
            Stage::Root { subject, .. } => (Question::Root { subject: *subject }, both),
            Stage::Slice { subject, slice, .. } => {
                (Question::Slice { subject: *subject, slice: *slice as u64 }, both)
            }
            Stage::Evidence { need, asked, .. } => {
                (Question::Evidence { subject, element: place, need: *need }, one(*asked))
            }
            Stage::Total => {
                let fold = self.folded.as_ref().map_or(Fold::Count, |folded| folded.fold);
                (Question::Total { subject, element: place, fold }, both)
            }
            Stage::Binding { step, field, asked, .. } => {
                (Question::Binding { step: *step, field: *field }, one(*asked))
            }
        }
    }

    /// The disputed element.
    pub fn place(&self) -> (Subject, u64) {
        let disputed = self.disputed.as_ref();
        disputed.map_or((NO_SUBJECT, 0), |d| (d.subject, d.element as u64))
    }

    /// Takes the answers of the sides that were asked. `None`: the side did not answer in time, or declined.
    pub fn answered(&mut self, rules: &mut Rules, answers: [Option<Answer>; 2]) -> Next {
        match self.stage.clone() {
            Stage::Evidence { need, asked, declined, claims } => {
                let [first, second] = answers;
                let answer = if asked == 0 { first } else { second };
                self.evidence(rules, answer, need, (asked, declined), claims.as_ref())
            }
            Stage::Binding { step, field, asked, declined, claims } => {
                let [first, second] = answers;
                let answer = if asked == 0 { first } else { second };
                self.binding(rules, answer, (step, field), (asked, declined), claims.as_ref())
            }
            stage => {
                let refused: Vec<usize> = (0..2).filter(|&side| answers[side].is_none()).collect();
                if !refused.is_empty() {
                    return self.lost(&refused, Breach::Unopened);
                }
                let [Some(first), Some(second)] = answers else { return UNASKED };
                self.opened(rules, stage, [first, second])
            }
        }
    }

    /// Both sides have opened the values that they were asked for.
    fn opened(&mut self, rules: &mut Rules, stage: Stage, answers: [Answer; 2]) -> Next {
        let open = |answer: &Answer| match (&stage, answer) {
            (Stage::Walk(_), Answer::Children { values }) => Some(values.0.clone()),
            (Stage::Record { .. }, Answer::Record { record, .. }) => Some(record.0.clone()),
            (Stage::Statement { .. }, Answer::Statement(statement)) => Some(statement.trace.0.to_vec()),
            (Stage::Root { .. } | Stage::Pass { .. }, Answer::Root { root }) => Some(root.0.to_vec()),
            (Stage::Slice { .. }, Answer::Slice { bytes }) => Some(bytes.0.clone()),
            (Stage::Total, Answer::Total { value }) => Some(value.0.clone()),
            _ => None,
        };
        let values = [open(&answers[0]), open(&answers[1])];
        let other: Vec<usize> = (0..2).filter(|&side| values[side].is_none()).collect();
        let [Some(first), Some(second)] = values else {
            return self.lost(&other, Breach::OtherKind);
        };
        let values = [first, second];
        match stage {
            Stage::Walk(walk) => self.walk(rules, &walk, &values),
            Stage::Record { index, leaves } => self.record(rules, index, &leaves, answers),
            Stage::Statement { step } => self.statement(rules, step, &answers),
            Stage::Pass { pass, leaves } => self.pass(rules, pass, &leaves, values),
            Stage::Root { subject, leaves } => self.root(rules, subject, &leaves, values),
            Stage::Slice { subject, slice, values: claimed } => {
                self.slice(rules, subject, slice, &claimed, values)
            }
            Stage::Total => self.total(rules, values),
            Stage::Evidence { .. } | Stage::Binding { .. } => UNASKED, // `answered` takes these
        }
    }

    /// The named sides lose for one reason. If two sides differ in the values compared here, at least one is wrong.
    pub fn lost(&mut self, sides: &[usize], breach: Breach) -> Next {
        if sides.is_empty() {
            return Next::Impossible("two parties that differ are both right");
        }
        let loss = |&side: &usize| Loss::by(self.sides[side].party, breach.clone());
        Next::Lost(sides.iter().map(loss).collect())
    }

    /// The sides for which `wrong` is true contradict their earlier claims.
    pub(crate) fn contradicted(&mut self, wrong: impl Fn(usize) -> bool, breach: Breach) -> Option<Next> {
        let sides: Vec<usize> = (0..2).filter(|&side| wrong(side)).collect();
        (!sides.is_empty()).then(|| self.lost(&sides, breach))
    }

    pub fn go(&mut self, stage: Stage) -> Next {
        self.stage = stage;
        Next::Ask
    }

    /// A level of a tree: its values must give the node's value, and the first values that differ are next.
    fn walk(&mut self, rules: &Rules, walk: &Walk, values: &[Vec<u8>; 2]) -> Next {
        let (_, leaf, join) = rules.shape(walk.tree);
        let ranges = search::children(walk.first, walk.count, leaf);
        let size = join.bytes();
        let odd: Vec<usize> = (0..2).filter(|&side| values[side].len() != ranges.len() * size).collect();
        if !odd.is_empty() {
            return self.lost(&odd, Breach::LevelSize);
        }
        let values = [0, 1]
            .map(|side: usize| -> Vec<Vec<u8>> { values[side].chunks(size).map(<[u8]>::to_vec).collect() });
        let top = walk.first == 0 && walk.count == walk.total;
        let given = |side: usize| search::parent(join, walk.count, leaf, &values[side], top);
        let last = walk.first + walk.count - 1;
        if let Some(lost) = self.contradicted(
            |side| rules.checks(Fault::Levels) && given(side) != walk.values[side],
            Breach::Level { tree: walk.tree, first: walk.first, last },
        ) {
            return lost;
        }
        if walk.tree == Tree::Receipt {
            let passes = |values: &Vec<Vec<u8>>| Digest(values[0].as_slice().try_into().unwrap_or_default());
            self.sides.iter_mut().zip(&values).for_each(|(side, values)| side.passes = Some(passes(values)));
        }
        let Some(child) = (0..ranges.len()).find(|&i| values[0][i] != values[1][i]) else {
            return Next::Impossible("the same values below a node give two values of it");
        };
        let (first, count) = ranges[child];
        let claims = [values[0][child].clone(), values[1][child].clone()];
        let (a, b) = (short(&claims[0]), short(&claims[1]));
        let what = if count == 1 {
            format!("leaf {first}")
        } else {
            format!("leaves {first} to {}", first + count - 1)
        };
        self.found.push(format!("{}: {what}: {a} and {b}", walk.tree.name()));
        self.enter(rules, Walk { first, count, values: claims, ..walk.clone() })
    }

    /// Opens a node of a tree, or the object that its leaf commits to.
    pub fn enter(&mut self, rules: &Rules, walk: Walk) -> Next {
        let (_, leaf, _) = rules.shape(walk.tree);
        if walk.count > leaf {
            return self.go(Stage::Walk(walk));
        }
        let Walk { tree, first, count, values, .. } = walk;
        match tree {
            Tree::Transcript => {
                let leaves = values.map(|value| Digest(value.try_into().unwrap_or_default()));
                self.go(Stage::Record { index: first, leaves })
            }
            Tree::Tensor { subject } => self.go(Stage::Slice { subject, slice: first as usize, values }),
            Tree::Terms { fold, .. } => self.ask(rules, Need::Terms { fold, first, count }, Some(values)),
            Tree::Gradients { step } => {
                let field = Field::Gradient { micro: first as u32 };
                self.go(Stage::Binding { step, field, asked: 0, declined: false, claims: Some(values) })
            }
            // Rows follow from passes.
            Tree::Receipt if first == 0 => self.descend(rules, Tree::Passes, values),
            Tree::Receipt => self.descend(rules, Tree::Rows, values),
            Tree::Passes => self.go(Stage::Pass { pass: first as u32, leaves: values }),
            Tree::Batch { .. } | Tree::Trace { .. } | Tree::Pass { .. } | Tree::Rows => match rules
                .leaf(tree, first)
            {
                Some(subject) => {
                    self.found.push(format!("the first tensor that differs: {}", rules.describe(subject)));
                    self.go(Stage::Root { subject, leaves: values })
                }
                None => Next::Impossible("a tree has a leaf that the computation has not"),
            },
        }
    }

    /// Begins the search in a tree whose roots differ.
    fn descend(&mut self, rules: &Rules, tree: Tree, values: [Vec<u8>; 2]) -> Next {
        let (total, ..) = rules.shape(tree);
        self.enter(rules, Walk { tree, first: 0, count: total, total, values })
    }

    fn record(&mut self, rules: &mut Rules, index: u64, leaves: &[Digest; 2], answers: [Answer; 2]) -> Next {
        let Some(run) = rules.run_mut() else { return NO_RUN };
        let mut faults = Vec::new();
        for (side, answer) in answers.into_iter().enumerate() {
            let Answer::Record { record, before } = answer else { continue };
            let mut fault = |breach: Breach| faults.push(Loss::by(self.sides[side].party, breach));
            if merkle::leaf(&record.0) != leaves[side] {
                fault(Breach::OtherRecord);
                continue;
            }
            let root = self.sides[side].root;
            let fits = match &before {
                None => index == 0,
                Some(before) => before.index + 1 == index && run.under(&root).covers(before),
            };
            if !fits {
                fault(Breach::Unproven);
                continue;
            }
            match Record::decode(&record.0) {
                Err(why) => fault(Breach::NoRecord { index, why }),
                Ok(decoded) => match run.record_fault(index, &decoded) {
                    Some(of) => fault(Breach::Record { index, fault: of }),
                    None => self.sides[side].record = Some((decoded, leaves[side])),
                },
            }
            self.sides[side].before = before;
        }
        if !faults.is_empty() {
            return Next::Lost(faults);
        }
        self.found.push(format!("the first record that differs: {index} of {}", run.records()));
        self.fields(rules, index)
    }

    /// Compares the fields of two records with one index.
    fn fields(&mut self, rules: &mut Rules, index: u64) -> Next {
        let [Some((first, _)), Some((second, _))] = [0, 1].map(|side: usize| self.sides[side].record.clone())
        else {
            return Next::Impossible("records are compared before both are open");
        };
        match (first, second) {
            (Record::Final { roots: a, .. }, Record::Final { roots: b, .. }) => {
                let last =
                    self.sides[0].before.as_ref().and_then(|before| Record::decode(&before.record.0).ok());
                let Some(last) = last else {
                    return Next::Impossible("a record that was read when it was proved cannot be read");
                };
                let wrong: Vec<usize> =
                    (0..2).filter(|&side| [a, b][side].digest() != last.state()).collect();
                self.lost(&wrong, Breach::FinalState)
            }
            (Record::Step { step: a, .. }, Record::Step { step: b, .. }) => {
                let step = index as u32;
                if a.batch != b.batch {
                    self.found.push("the batches differ".into());
                    return self.descend(
                        rules,
                        Tree::Batch { step },
                        [a.batch, b.batch].map(|d| d.0.to_vec()),
                    );
                }
                if a.log != b.log {
                    // The trainer's record is under the root of the terms, so the challenger knew the log before it committed.
                    let challenger = usize::from(self.sides[0].party == 0);
                    return self.lost(&[challenger], Breach::OtherLog { step });
                }
                self.go(Stage::Statement { step })
            }
            _ => Next::Impossible(
                "two records of one place are of two kinds, or one initial state has two leaves",
            ),
        }
    }

    fn statement(&mut self, rules: &Rules, step: u32, answers: &[Answer; 2]) -> Next {
        let Some(run) = rules.run() else { return NO_RUN };
        let mut traces = [Digest([0; 32]); 2];
        let mut odd = Vec::new();
        for (side, answer) in answers.iter().enumerate() {
            let (Answer::Statement(said), Some((record, leaf))) = (answer, &self.sides[side].record) else {
                continue;
            };
            let about = said.computation == *run.computation() && said.step == step && said.record == *leaf;
            if !about || !said.is_of(&rules.parties[self.sides[side].party]) {
                odd.push(side);
            }
            let committed = match record {
                Record::Step { step, .. } => step.trace,
                _ => None,
            };
            if committed.is_some_and(|trace| trace != said.trace) && odd.is_empty() {
                return self.lost(&[side], Breach::StatedTrace);
            }
            traces[side] = said.trace;
            self.sides[side].trace = Some(said.trace);
        }
        if !odd.is_empty() {
            return self.lost(&odd, Breach::Statement);
        }
        if traces[0] != traces[1] {
            return self.descend(rules, Tree::Trace { step }, traces.map(|trace| trace.0.to_vec()));
        }
        self.found.push(format!("both state the same operators of step {step}"));
        let [Some(a), Some(b)] = [self.sides[0].step(), self.sides[1].step()] else {
            return Next::Impossible("a statement is about a record that is not a step's");
        };
        if let (Some(a), Some(b)) = (a.gradients, b.gradients)
            && a != b
        {
            return self.descend(rules, Tree::Gradients { step }, [a, b].map(|d| d.0.to_vec()));
        }
        let fields = [
            (Field::State, a.state != b.state),
            (Field::Clip, a.clip != b.clip),
            (Field::Loss, a.loss != b.loss),
        ];
        match fields.into_iter().find(|(_, differ)| *differ) {
            Some((field, _)) => {
                self.go(Stage::Binding { step, field, asked: 0, declined: false, claims: None })
            }
            None => Next::Impossible("two records with the same fields have two leaves"),
        }
    }

    /// Both sides have opened the roots over a pass's operators.
    fn pass(&mut self, rules: &Rules, number: u32, leaves: &[Vec<u8>; 2], values: [Vec<u8>; 2]) -> Next {
        let of = rules.receipt().and_then(|receipt| Some((receipt, receipt.pass(number)?)));
        let Some((receipt, pass)) = of else {
            return Next::Impossible("a pass is open that the receipt has not");
        };
        let roots = [0, 1].map(|side: usize| Digest(values[side].as_slice().try_into().unwrap_or_default()));
        let other = |side: usize| pass.leaf(&roots[side]).0[..] != leaves[side];
        if let Some(lost) = self.contradicted(other, Breach::PassRoot { of: receipt.pass_is_of() }) {
            return lost;
        }
        self.found.push(format!("the first {}", receipt.differing(number, pass)));
        self.sides.iter_mut().zip(roots).for_each(|(side, root)| side.trace = Some(root));
        self.descend(rules, Tree::Pass { pass: number }, values)
    }

    fn root(&mut self, rules: &Rules, subject: Subject, leaves: &[Vec<u8>; 2], values: [Vec<u8>; 2]) -> Next {
        let leaf = |side: usize| {
            let root: [u8; 32] = values[side].as_slice().try_into().unwrap_or_default();
            rules.tensor_leaf(subject, &root)
        };
        let other = |side: usize| leaf(side).is_none_or(|leaf| leaf.0[..] != leaves[side]);
        if let Some(lost) = self.contradicted(other, Breach::TensorRoot) {
            return lost;
        }
        self.descend(rules, Tree::Tensor { subject }, values)
    }

    fn slice(
        &mut self,
        rules: &Rules,
        subject: Subject,
        slice: usize,
        claimed: &[Vec<u8>; 2],
        bytes: [Vec<u8>; 2],
    ) -> Next {
        let Some((_, ty)) = rules.tensor(subject) else {
            return Next::Impossible("a slice is open of a tensor that the computation has not");
        };
        let (len, count) = (ty.bytes(), piece_count(ty.bytes(), SLICE_BYTES));
        let range = piece_range(len, SLICE_BYTES, slice);
        let right = |side: usize| {
            bytes[side].len() == range.len()
                && piece_value(&bytes[side], SLICE_BYTES, slice, count)[..] == claimed[side]
        };
        let wrong = |side: usize| rules.checks(Fault::Slices) && !right(side);
        if let Some(lost) = self.contradicted(wrong, Breach::Slice) {
            return lost;
        }
        let Some(byte) = (0..range.len()).find(|&i| bytes[0][i] != bytes[1][i]) else {
            return Next::Impossible("the same bytes give two values of a slice");
        };
        let element = (range.start + byte) / ty.dtype.size();
        let disputed = DisputedElement { subject, element, ty, slice, bytes };
        let (a, b) = (disputed.claimed(0), disputed.claimed(1));
        self.found.push(format!("element {element}: {a:08x} and {b:08x}"));
        self.disputed = Some(disputed);
        self.element(rules, subject, element, [a, b])
    }
}
