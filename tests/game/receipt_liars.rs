//! Games about receipts with parties that withhold, contradict themselves, start again, or lie about a part of a sum.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use tiebreak_contract::program::graph::Primitive;
use tiebreak_dispute::answer::Pass;
use tiebreak_dispute::game::element::fold_of;
use tiebreak_dispute::game::message::{Answer, Asked, Need, Question, Sealed, Tree};
use tiebreak_dispute::game::moves::LEAF_MAX;
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::result::Reason;

use crate::play::{flipped, key, unproven};
use crate::receipts::{Act, Model, NOWHERE, Played, Wrong, honestly, job_text, lost, opened, play};

/// What a liar does with its answer.
type Withhold<'a> = &'a dyn Fn(&Asked, Answer) -> Option<Answer>;

/// A party whose root is another one, and that withholds something from a turn on, loses: whoever it is, and whatever it does.
#[test]
fn a_party_that_withholds_or_contradicts_itself_loses() {
    let model = Model::small();
    let wrong = (1, model.kinds(1)[4], 5);
    let kinds = every_trick_loses(&model, wrong, &|_, _, _, answer| answer);
    assert!(!kinds.contains("total"), "{kinds:?}");
}

/// The same for a liar about a sum of many products, which is searched.
#[test]
fn a_party_that_withholds_a_part_of_a_sum_loses() {
    let model = Model::of(job_text([50, 8192, 1, 1, 16]), 2);
    let graph = Pass::of(&model.receipt, &model.text, 0).unwrap().graph;
    let folded = (0..graph.nodes.len()).find(|&node| fold_of(&graph, node, 0, 0).is_some()).unwrap();
    let stating = [0, 1].map(Stating::new);
    let base: Base = &|liar, party, asked, answer| stating[liar].answer(party, asked, answer);
    let kinds = every_trick_loses(&model, (0, folded, 0), base);
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["frame", "subtotals", "terms", "total"]);
}

/// What a liar (the first number) makes of a party's answer before it plays a trick.
pub(crate) type Base<'a> = &'a dyn Fn(usize, usize, &Asked, Answer) -> Answer;

/// Signer and challenger lie about this node in turn, and play each trick from each turn on. Gives the kinds of questions about
/// sums that were asked.
pub(crate) fn every_trick_loses(model: &dyn Played, wrong: Wrong, base: Base) -> BTreeSet<&'static str> {
    let (lying, honest) = (model.game(Some(wrong)), model.game(None));
    let mut kinds = BTreeSet::new();
    for (liar, terms) in [(0, &lying), (1, &honest)] {
        let wrong_of = |number: u8| (usize::from(number) == liar).then_some(wrong);
        let mut parties = [0, 1].map(|number| model.party(terms, number, wrong_of(number)));
        let based = |party: usize, asked: &Asked, answer: Answer| Some(base(liar, party, asked, answer));
        let game = play(terms, &mut parties, &based, None);
        kinds.extend(game.asked.iter().filter_map(about_a_sum));
        // The same party with the right trace, since a liar knows that too.
        let right = RefCell::new(model.party(terms, liar as u8, Some(NOWHERE)));
        let copied = |asked: &Asked| {
            let question = Sealed::new(asked.clone(), &key(9)).to_bytes();
            opened(liar, &right.borrow_mut().reply(&question).unwrap())
        };
        for turn in 0..game.turns {
            let from = |act: Withhold, party: usize, asked: &Asked, answer| {
                let answer = base(liar, party, asked, answer);
                if party == liar && asked.turn >= turn { act(asked, answer) } else { Some(answer) }
            };
            let acts: [(&str, Withhold); 5] = [
                ("silent", &|_, _| None),
                ("declines", &|_, _| Some(Answer::Decline)),
                ("flips", &|_, answer| Some(flipped(answer, 3))),
                ("unproven", &|_, answer| Some(unproven(answer, 3))),
                ("copies", &|asked, _| Some(copied(asked))),
            ];
            // A challenger that copies from the begin on is honest.
            for (name, act) in acts.into_iter().filter(|(name, _)| (liar, turn, *name) != (1, 0, "copies")) {
                let from = |party: usize, asked: &Asked, answer: Answer| from(act, party, asked, answer);
                let game = play(terms, &mut parties, &from, None);
                let losses: Vec<usize> = game.result.losses().map(|loss| loss.party).collect();
                assert_eq!(
                    (losses, &game.result.remaining[..]),
                    (vec![liar], &[1 - liar][..]),
                    "{liar} {turn} {name}"
                );
                assert_eq!(game.result.upheld, model.claimed(), "{liar} {turn} {name}");
            }
        }
        let silent = play(terms, &mut parties, &|party, _, answer| (party != liar).then_some(answer), None);
        lost(&silent, liar, Reason::Timeout);
    }
    kinds
}

/// The kind of a question about an element of many terms.
fn about_a_sum(question: &Question) -> Option<&'static str> {
    match question {
        Question::Evidence { need: Need::Frame { .. }, .. } => Some("frame"),
        Question::Evidence { need: Need::Terms { .. }, .. } => Some("terms"),
        Question::Total { .. } => Some("total"),
        question => is_of_terms(question).then_some("subtotals"),
    }
}

/// A party that was killed and starts again gives the same answer to each question, with nothing remembered.
#[test]
fn a_party_that_was_killed_answers_as_before() {
    let model = Model::small();
    let wrong = (1, model.kinds(1)[4], 5);
    let terms = model.terms(model.signed(Some(wrong)));
    let again = |number: usize| model.party(&terms, number as u8, (number == 0).then_some(wrong));
    let mut parties = [0, 1].map(again);
    let answers = |party: usize, asked: &Asked, answer: Answer| {
        let question = Sealed::new(asked.clone(), &key(9)).to_bytes();
        assert_eq!(opened(party, &again(party).reply(&question).unwrap()), answer);
        Some(answer)
    };
    lost(&play(&terms, &mut parties, &answers, None), 0, Reason::WrongValue);
}

/// A long context: a product of many terms is opened by a fold, and an absmax of a column of a cache fits an answer.
#[test]
fn elements_that_read_a_whole_context_are_decided() {
    let model = Model::of(job_text([50, 8192, 1, 1, 16]), 2);
    let terms = model.terms(model.signed(None));
    let referee = Referee::new(&terms).unwrap();
    let graph = Pass::of(&model.receipt, &model.text, 0).unwrap().graph;
    let find = |wanted: &dyn Fn(usize, &Primitive) -> bool| {
        (0..graph.nodes.len()).find(|&node| wanted(node, &graph.nodes[node].primitive)).unwrap()
    };
    let folded = find(&|node, _| fold_of(&graph, node, 0, 0).is_some());
    let absmax = find(
        &|_, primitive| matches!(primitive, Primitive::Absmax { input, .. } if input.dims[3] > 8192 && input.strides[3] > 1),
    );
    let stating = Stating::new(1);
    let states = |party: usize, asked: &Asked, answer: Answer| Some(stating.answer(party, asked, answer));
    let cases: [(usize, Act, Reason); 3] = [
        (folded, &honestly, Reason::Contradiction),
        (folded, &states, Reason::WrongValue),
        (absmax, &honestly, Reason::WrongValue),
    ];
    let mut largest = 0;
    for (node, act, reason) in cases {
        let mut parties = [model.party(&terms, 0, None), model.party(&terms, 1, Some((0, node, 0)))];
        let game = play(&terms, &mut parties, act, None);
        lost(&game, 1, reason);
        assert!(game.bytes <= referee.bound().bytes, "{} of {}", game.bytes, referee.bound().bytes);
        let of_terms = game.asked.iter().any(is_of_terms);
        assert_eq!(of_terms, node == folded && reason == Reason::WrongValue);
        largest = largest.max(game.largest);
    }
    assert!(largest as u64 <= LEAF_MAX, "{largest}");
}

fn is_of_terms(question: &Question) -> bool {
    matches!(question, Question::Children { tree: Tree::Terms { .. }, .. })
}

/// A liar whose element is a wrong sum of products. If it stated the total of its operands, it would contradict its element. It
/// states one that gives the element, and is wrong in a part of it.
pub(crate) struct Stating {
    liar: usize,
    /// The elements of the two parties.
    words: Cell<[f32; 2]>,
    /// The difference of the liar's total from that of its operands.
    more: Cell<i128>,
}

impl Stating {
    pub(crate) fn new(liar: usize) -> Stating {
        Stating { liar, words: Cell::new([0.0; 2]), more: Cell::new(0) }
    }

    pub(crate) fn answer(&self, party: usize, asked: &Asked, mut answer: Answer) -> Answer {
        match &mut answer {
            Answer::Slice { bytes } => {
                let mut known = self.words.get();
                known[party] = f32::from_le_bytes(bytes.0[..4].try_into().unwrap());
                self.words.set(known);
            }
            Answer::Total { value } if party == self.liar => {
                let known = self.words.get().map(f64::from);
                let (right, wrong) = (known[1 - self.liar], known[self.liar]);
                let sum = i128::from_le_bytes(value.0[..].try_into().unwrap());
                let scale = (right / sum as f64).log2().round().exp2();
                self.more.set(((wrong - right) / scale) as i128);
                add(&mut value.0, self.more.get());
            }
            Answer::Children { values } if party == self.liar && is_of_terms(&asked.question) => {
                add(&mut values.0[..16], self.more.get());
            }
            _ => {}
        }
        answer
    }
}

/// Adds to a sum of products.
fn add(sum: &mut [u8], more: i128) {
    let before = i128::from_le_bytes((&*sum).try_into().unwrap());
    sum.copy_from_slice(&(before + more).to_le_bytes());
}
