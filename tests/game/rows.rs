//! Games about the tokens and rows of a receipt, over passes on which both parties agree.

use std::cell::RefCell;

use tiebreak_audit::answers::Accuser;
use tiebreak_contract::program::graph::TensorId;
use tiebreak_dispute::answer::{AnswerRuling, AnswerVerdict, Origin, Pass};
use tiebreak_dispute::game::message::{Answer, Asked, Need, Question, Sealed, Subject, Tree, commitment};
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::result::Reason;
use tiebreak_engine::cpu::Cpu;
use tiebreak_record::commit::answer_trace::{claimed_root, node_leaf};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::proven::Base64;
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_run::inference::replay::Difference;

use crate::play::key;
use crate::receipt_liars::every_trick_loses;
use crate::receipts::{Model, NOWHERE, Played, Wrong, forge, honestly, lost, opened, play};

/// A wrong bit in the row of a token. Rows that a signer commits follow the last node.
fn wrong_row(model: &Model, number: usize, byte: usize) -> Wrong {
    let pass = |window: usize| Pass::of(&model.receipt, &model.text, window).unwrap();
    let window = (0..).find(|&window| pass(window).numbers.contains(&number)).unwrap();
    let pass = pass(window);
    let len = 4 * model.answerer().known.len();
    (window, pass.graph.nodes.len(), pass.row_place(&model.receipt, number) * len + byte)
}

/// The accuser's verdict on a receipt whose first token does not follow from the model, without a trace.
fn verdict(model: &Model, text: &str) -> Option<AnswerVerdict> {
    let (answerer, mut cpu) = (model.answerer(), Cpu::new(1).unwrap());
    let (receipt, _) = Receipt::from_text(text).unwrap();
    let all = 0..receipt.answer.len();
    let found = answerer.difference(&mut cpu, &receipt, all, &mut |_| {}).unwrap().unwrap();
    assert!(matches!(found, Difference::Token { number: 0, .. }), "{found:?}");
    let (job, receipt) = (&model.text[..], (&receipt, text));
    let accuser = Accuser { answerer: &answerer, job, receipt, tokenizer: None, opening: None, trace: None };
    accuser.verdict(&mut cpu, &found).unwrap()
}

fn is_of_rows(question: &Question) -> bool {
    matches!(question, Question::Children { tree: Tree::Rows, .. })
}

/// The receipt has made-up tokens, the honest passes over them, and a root that no rows have. No trace is at hand, so there is no
/// evidence about the token. In the game the signer has to open rows that give this root, and has none.
#[test]
fn a_signer_who_commits_honest_passes_and_no_rows_loses() {
    let model = Model::small();
    let (traces, root) = (model.receipt.traces.unwrap(), Digest([6; 32]));
    let text = model.signed_with(traces, root);
    assert_eq!(verdict(&model, &text), None);
    let terms = model.terms(text);
    let refused = model.refused(&terms);
    assert!(refused.contains("rows is not the one that the receipt commits"), "{refused}");
    let mut parties = [model.party(&terms, 0, Some(NOWHERE)), model.party(&terms, 1, None)];
    // It opens the root over its own rows, which it did not sign.
    lost(&play(&terms, &mut parties, &honestly, None), 0, Reason::Contradiction);
    // It opens what it signed, and below that its own rows, at once or behind the root that it signed; or it is silent about rows.
    let (salt, claimed) = (Digest([4; 32]), claimed_root(&traces, &root));
    for (opens_root, is_silent, reason) in [
        (false, false, Reason::Contradiction),
        (true, false, Reason::Contradiction),
        (true, true, Reason::Timeout),
    ] {
        let opens = |party: usize, asked: &Asked, answer: Answer| match (party, &asked.question) {
            (0, Question::Commit) => {
                Some(Answer::Commit { commitment: commitment(&key(0).public(), &salt, &claimed) })
            }
            (0, Question::Reveal) => Some(Answer::Reveal { salt, root: claimed }),
            (0, Question::Children { tree: Tree::Receipt, .. }) if opens_root => {
                Some(Answer::Children { values: Base64([traces.0, root.0].concat()) })
            }
            (0, question) if is_silent && is_of_rows(question) => None,
            _ => Some(answer),
        };
        let game = play(&terms, &mut parties, &opens, None);
        lost(&game, 0, reason);
        assert_eq!(game.asked.iter().any(is_of_rows), opens_root);
        assert_eq!(game.result.upheld, model.claimed());
    }
}

/// A wrong bit at the begin, in the middle and at the end of a row, of the first, of some and of the last token.
#[test]
fn a_wrong_row_convicts() {
    let model = Model::small();
    let last = model.receipt.answer.len() - 1;
    for (number, byte) in [(0, 0), (5, 401), (7, 797), (last, 799)] {
        let wrong = wrong_row(&model, number, byte);
        for liar in [0, 1] {
            let wrong_of = |party: usize| (party == liar).then_some(wrong);
            let terms = model.terms(model.signed(wrong_of(0)));
            let mut parties = [0, 1].map(|party| model.party(&terms, party as u8, wrong_of(party)));
            let game = play(&terms, &mut parties, &honestly, None);
            lost(&game, liar, Reason::WrongValue);
            let bound = Referee::new(&terms).unwrap().bound();
            assert!(game.bytes <= bound.bytes && u64::from(game.turns) <= bound.messages);
            assert_eq!(game.result.upheld, model.claimed());
            let is_about = |question: &Question| matches!(question, Question::Root { subject: Subject::Row { number: of } } if *of as usize == number);
            assert!(game.asked.iter().any(is_about));
        }
    }
}

/// Each trick from each turn on, of a liar about a row.
#[test]
fn a_party_that_withholds_a_row_loses() {
    let model = Model::small();
    every_trick_loses(&model, wrong_row(&model, 7, 500), &|_, _, _, answer| answer);
}

/// Logits of another window, of another place or with other bytes are not supplied: the other party is asked, and the liar loses.
#[test]
fn forged_logits_are_not_supplied() {
    let model = Model::small();
    let wrong = wrong_row(&model, 7, 500);
    let terms = model.terms(model.signed(Some(wrong)));
    let mut parties = [model.party(&terms, 0, Some(wrong)), model.party(&terms, 1, None)];
    let pass = Pass::of(&model.receipt, &model.text, wrong.0).unwrap();
    let forgeries: [&dyn Fn(&mut Answer); 7] = [
        &|answer| edit(answer, |pass, _| *pass = 0),
        &|answer| edit(answer, |pass, _| *pass = u32::MAX),
        &|answer| edit(answer, |_, slices| slices[0] ^= 1),
        &|answer| edit(answer, |_, slices| slices.clear()),
        &|answer| {
            if let Answer::Logits { logits, .. } = answer {
                logits.bytes.0[3] ^= 1;
            }
        },
        &|answer| {
            if let Answer::Logits { root, .. } = answer {
                root.0[0] ^= 1;
            }
        },
        // Other logits, with a digest and a window's root of their own.
        &|answer| {
            if let Answer::Logits { root, logits, .. } = answer {
                forge(&pass.graph, logits);
                let made = pass.origin(TensorId(logits.tensor));
                let Some(&Origin::Node(node)) = made else { panic!("{made:?}") };
                let (leaf, count) = (node_leaf(node, &logits.commitment.digest), pass.graph.nodes.len());
                let proof = &logits.commitment.proof;
                *root = merkle::root_from_proof(leaf, node as u64, count as u64, proof).unwrap();
            }
        },
    ];
    for forgery in forgeries {
        let forges = |party: usize, _: &Asked, mut answer: Answer| {
            if party == 0 {
                forgery(&mut answer);
            }
            Some(answer)
        };
        let game = play(&terms, &mut parties, &forges, None);
        lost(&game, 0, Reason::WrongValue);
        let asked = game.asked.iter().filter(|asked| matches!(asked, Question::Evidence { .. })).count();
        assert_eq!(asked, 2);
    }
}

/// The logits of the next window have the position of the row too, from fewer tokens before it: they do not supply the row.
#[test]
fn logits_of_a_later_window_are_not_supplied() {
    let model = Model::small();
    let (number, next) = (10, 11);
    let wrong = wrong_row(&model, number, 500);
    let terms = model.terms(model.signed(Some(wrong)));
    let mut parties = [model.party(&terms, 0, Some(wrong)), model.party(&terms, 1, None)];
    let later = RefCell::new(model.party(&terms, 1, None));
    let forges = |party: usize, asked: &Asked, answer: Answer| match answer {
        Answer::Logits { pass: right, .. } if party == 0 => {
            let subject = Subject::Row { number: next };
            let question = Question::Evidence { subject, element: 0, need: Need::All };
            let question = Sealed::new(Asked { question, ..asked.clone() }, &key(9)).to_bytes();
            let answer = opened(1, &later.borrow_mut().reply(&question).unwrap());
            let Answer::Logits { pass, logits, .. } = &answer else { panic!("{answer:?}") };
            assert_eq!((right, *pass, &logits.slices[..]), (1, 2, &[2][..]));
            Some(answer)
        }
        answer => Some(answer),
    };
    lost(&play(&terms, &mut parties, &forges, None), 0, Reason::WrongValue);
}

fn edit(answer: &mut Answer, of: impl Fn(&mut u32, &mut Vec<usize>)) {
    if let Answer::Logits { pass, logits, .. } = answer {
        of(pass, &mut logits.slices);
    }
}

/// A signer who opens the model's rows needs no game: the accuser's verdict about the token follows without its trace.
#[test]
fn a_wrong_token_over_the_models_rows_gives_a_verdict() {
    let model = Model::small();
    let text = model.signed(None);
    let terms = model.terms(text.clone());
    let mut parties = [0, 1].map(|number| model.party(&terms, number, None));
    assert!(play(&terms, &mut parties, &honestly, None).result.games.is_empty());
    let verdict = verdict(&model, &text).unwrap();
    assert_eq!(verdict.claim.kind(), "token");
    assert!(matches!(verdict.examine(None).outcome, Ok(AnswerRuling::Convicts(_))));
}
