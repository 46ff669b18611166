//! Games about receipts of predictions with parties that withhold, contradict themselves, forge, or have other data.

use std::cell::RefCell;

use tiebreak_audit::predictions::Accuser;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::graph::TensorId;
use tiebreak_dispute::answer::{AnswerRuling, AnswerVerdict, Origin};
use tiebreak_dispute::game::breach::Unsettled;
use tiebreak_dispute::game::element::fold_of;
use tiebreak_dispute::game::message::{Answer, Asked, Question, Sealed, Subject, Tree, commitment};
use tiebreak_dispute::game::result::Reason;
use tiebreak_dispute::game::terms::Terms;
use tiebreak_dispute::game::verdict::GameVerdict;
use tiebreak_engine::cpu::Cpu;
use tiebreak_game::party::{PartyError, ReceiptParty, Replayed};
use tiebreak_record::commit::answer_trace::{claimed_root, node_leaf};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::predictions::Predictions;
use tiebreak_record::commit::proven::Base64;
use tiebreak_record::commit::tensor;
use tiebreak_run::predict::Inputs;
use tiebreak_run::run::disk::Disk;

use crate::common::predicting::perceptron;
use crate::play::key;
use crate::predictions::{Predicting, gpt, wide};
use crate::receipt_liars::{Stating, every_trick_loses};
use crate::receipts::{NOWHERE, Played, Wrong, change, forge, honestly, lost, opened, play};

/// Each trick from each turn on, of a liar about an operator that reads the sample, and about a logit.
#[test]
fn a_party_that_withholds_a_sample_loses() {
    let model = Predicting::new(perceptron());
    every_trick_loses(&model, (1, model.reader(), 5), &|_, _, _, answer| answer);
    every_trick_loses(&model, model.wrong_logit(2, 1100), &|_, _, _, answer| answer);
}

/// The same for a liar about a sum of many products of a sample, which is searched.
#[test]
fn a_party_that_withholds_a_part_of_a_samples_sum_loses() {
    let model = Predicting::new(wide());
    let graph = model.pass().graph;
    let folded = (0..graph.nodes.len()).find(|&node| fold_of(&graph, node, 0, 0).is_some()).unwrap();
    let stating = [0, 1].map(Stating::new);
    let kinds = every_trick_loses(&model, (1, folded, 0), &|liar, party, asked, answer| {
        stating[liar].answer(party, asked, answer)
    });
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["frame", "subtotals", "terms", "total"]);
}

/// A signer names a sample with a token that the model does not take, so that no value is right: nobody but the signer loses.
#[test]
fn a_number_that_the_model_does_not_take_convicts_the_signer_alone() {
    let model = Predicting::new(gpt());
    let (pass, reader) = (model.pass(), model.reader());
    let bad = bytes_of(&[89, 90, 0, 0, 0]);
    let read = |id: &TensorId| pass.origin(*id) == Some(&Origin::Sample);
    let id = pass.graph.nodes[reader].primitive.inputs().into_iter().find(read).unwrap();
    let mut receipt = model.receipt.clone();
    receipt.samples[1].input = tensor::digest(pass.graph.tensor(id), &bad);
    let terms = model.terms(&receipt);
    let shows = |answer: Answer| match answer {
        Answer::Operands { mut inputs } => {
            for input in inputs.iter_mut().filter(|input| read(&TensorId(input.tensor))) {
                input.bytes = Base64(bad.clone());
            }
            Some(Answer::Operands { inputs })
        }
        answer => Some(answer),
    };
    // In element 8 the token is 90, of which no embedding is right.
    let wrong = (1, reader, 8 * 4);
    let party = |terms: &Terms, number: u8, wrong: Wrong| {
        model.liar(terms, number, model.inputs(), Box::new(change(wrong)))
    };
    for wrongs in [[NOWHERE, wrong], [wrong, NOWHERE]] {
        let signed =
            if wrongs[0] == NOWHERE { terms.clone() } else { model.terms(&model.signing(&receipt, wrong)) };
        let mut parties = [party(&signed, 0, wrongs[0]), party(&signed, 1, wrongs[1])];
        let game = play(&signed, &mut parties, &|_, _, answer| shows(answer), None);
        lost(&game, 0, Reason::WrongValue);
        let says = "it committed to operands that no honest step has";
        assert_eq!(game.result.losses().next().unwrap().what.to_string(), says);
    }
    // Two challengers, of whom none is right.
    let keys = [0, 1, 2].map(|number| key(number).public().to_text());
    let terms = Terms { parties: keys.to_vec(), ..terms };
    let mut parties =
        [(0, NOWHERE), (1, NOWHERE), (2, wrong)].map(|(number, wrong)| party(&terms, number, wrong));
    let silent = |party: usize, _: &Asked, answer: Answer| if party == 0 { None } else { shows(answer) };
    let game = play(&terms, &mut parties, &silent, None);
    let losses: Vec<_> = game.result.losses().map(|loss| (loss.party, loss.reason)).collect();
    assert_eq!(losses, [(0, Reason::Timeout)]);
    assert_eq!((&game.result.remaining[..], game.result.upheld), (&[1, 2][..], None));
    assert!(matches!(game.result.games[0].incomplete_log, Some(Unsettled::Sample(_))), "{:?}", game.result);
    let again = GameVerdict::from_bytes(&game.verdict.to_bytes()).unwrap();
    assert_eq!(again.check().unwrap().result(), Some(&game.result));
}

/// A signer with honest passes who signs random logits, and one who signs a root that no trace has. They open what they signed, or
/// what they have, or nothing.
#[test]
fn a_signer_of_predictions_stands_by_its_roots() {
    let model = Predicting::new(perceptron());
    let mut random = model.receipt.clone();
    random.samples[1].logits = Digest([6; 32]);
    let untraced = Predictions { traces: Some(Digest([8; 32])), ..model.receipt.clone() };
    for (receipt, says, tree) in [
        (random, "root over the predictions' logits is", Tree::Rows),
        (untraced, "trace of the predictions is", Tree::Passes),
    ] {
        let terms = model.terms(&receipt);
        let refused = model.opened(&terms, 0, Some(model.inputs())).err().unwrap().to_string();
        assert!(
            refused.contains(says) && refused.contains("not the one that the receipt commits"),
            "{refused}"
        );
        let mut parties = [model.party(&terms, 0, Some(NOWHERE)), model.party(&terms, 1, None)];
        lost(&play(&terms, &mut parties, &honestly, None), 0, Reason::Contradiction);
        let (salt, roots) = (Digest([4; 32]), [receipt.traces.unwrap(), receipt.root()]);
        let root = claimed_root(&roots[0], &roots[1]);
        for (is_silent, reason) in [(false, Reason::Contradiction), (true, Reason::Timeout)] {
            let opens = |party: usize, asked: &Asked, answer: Answer| match (party, &asked.question) {
                (0, Question::Commit) => {
                    Some(Answer::Commit { commitment: commitment(&key(0).public(), &salt, &root) })
                }
                (0, Question::Reveal) => Some(Answer::Reveal { salt, root }),
                (0, Question::Children { tree: Tree::Receipt, .. }) => {
                    Some(Answer::Children { values: Base64([roots[0].0, roots[1].0].concat()) })
                }
                (0, Question::Children { tree: of, .. }) if *of == tree && is_silent => None,
                _ => Some(answer),
            };
            let game = play(&terms, &mut parties, &opens, None);
            lost(&game, 0, reason);
            assert_eq!(game.result.upheld, model.claimed());
        }
    }
}

/// Logits of another sample, of another place or with other bytes are not supplied: the other party is asked, and the liar loses. So
/// are other inputs of the sample.
#[test]
fn forged_operands_of_a_sample_are_not_supplied() {
    let model = Predicting::new(perceptron());
    let pass = model.pass();
    let forgeries: [&dyn Fn(&mut Answer); 6] = [
        &|answer| edit(answer, |pass, _| *pass = 0),
        &|answer| edit(answer, |pass, _| *pass = u32::MAX),
        &|answer| edit(answer, |_, slices| slices.clear()),
        &|answer| {
            if let Answer::Logits { logits, .. } = answer {
                logits.bytes.0[3] ^= 1;
            }
        },
        // Other logits, with a digest and a root of their own.
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
        // Other inputs, with a digest of their own.
        &|answer| {
            if let Answer::Operands { inputs } = answer {
                inputs.iter_mut().for_each(|input| forge(&pass.graph, input));
            }
        },
    ];
    for (number, forgery) in forgeries.into_iter().enumerate() {
        let wrong = if number == 5 { (2, model.reader(), 9) } else { model.wrong_logit(2, 1100) };
        let terms = model.game(Some(wrong));
        let mut parties = [model.party(&terms, 0, Some(wrong)), model.party(&terms, 1, None)];
        let forges = |party: usize, _: &Asked, mut answer: Answer| {
            if party == 0 {
                forgery(&mut answer);
            }
            Some(answer)
        };
        let game = play(&terms, &mut parties, &forges, None);
        lost(&game, 0, Reason::WrongValue);
        let asked = game.asked.iter().filter(|asked| matches!(asked, Question::Evidence { .. })).count();
        assert_eq!(asked, 2, "{number}");
    }
}

/// The logits of another sample, with every proof: they do not supply those of the disputed one.
#[test]
fn logits_of_another_sample_are_not_supplied() {
    let model = Predicting::new(perceptron());
    let wrong = model.wrong_logit(2, 1100);
    let terms = model.game(Some(wrong));
    let mut parties = [model.party(&terms, 0, Some(wrong)), model.party(&terms, 1, None)];
    let honest = RefCell::new(model.party(&terms, 1, None));
    let forges = |party: usize, asked: &Asked, answer: Answer| match (&asked.question, answer) {
        (Question::Evidence { element, need, .. }, Answer::Logits { pass: 2, .. }) if party == 0 => {
            let (subject, element, need) = (Subject::Row { number: 1 }, *element, *need);
            let question = Question::Evidence { subject, element, need };
            let question = Sealed::new(Asked { question, ..asked.clone() }, &key(9)).to_bytes();
            let answer = opened(1, &honest.borrow_mut().reply(&question).unwrap());
            assert!(matches!(answer, Answer::Logits { pass: 1, .. }), "{answer:?}");
            Some(answer)
        }
        (_, answer) => Some(answer),
    };
    let game = play(&terms, &mut parties, &forges, None);
    lost(&game, 0, Reason::WrongValue);
    let asked = game.asked.iter().filter(|asked| matches!(asked, Question::Evidence { .. }));
    assert_eq!(asked.count(), 2);
}

fn edit(answer: &mut Answer, of: impl Fn(&mut u32, &mut Vec<usize>)) {
    if let Answer::Logits { pass, logits, .. } = answer {
        of(pass, &mut logits.slices);
    }
}

/// A party with other data does not begin, also if it has kept the passes of the receipt's.
#[test]
fn a_party_with_kept_passes_and_other_data_does_not_begin() {
    let model = Predicting::new(perceptron());
    let (terms, folder) = (model.game(None), tempfile::tempdir().unwrap());
    let file = folder.path().join("passes");
    let open = |inputs: Inputs| {
        let of = Replayed { weights: model.weights.clone(), samples: Some(inputs) };
        let (cpu, kept) = (Box::new(Cpu::new(1).unwrap()), (file.clone(), Disk::default()));
        let mut party = ReceiptParty::open_keeping(terms.clone(), of, key(1), cpu, kept)?;
        party.prepare()?;
        Ok::<ReceiptParty, PartyError>(party)
    };
    let refused = || {
        let why = open(model.swapped(1)).err().unwrap().to_string();
        assert!(why.starts_with("the inputs of sample 3 are "), "{why}");
    };
    refused();
    assert!(!file.exists());
    open(model.inputs()).unwrap();
    assert!(file.exists());
    refused();
    open(model.inputs()).unwrap();
}

/// A wrong class over the model's logits needs no game: the accuser's verdict follows without the trace.
#[test]
fn a_wrong_class_over_the_models_logits_gives_a_verdict() {
    let model = Predicting::new(gpt());
    let mut lie = model.receipt.clone();
    lie.samples[1].predicted[3] ^= 1;
    let text = lie.to_text(Some(&key(0)));
    let terms = model.terms(&lie);
    let mut parties = [0, 1].map(|number| model.party(&terms, number, None));
    assert!(play(&terms, &mut parties, &honestly, None).result.games.is_empty());
    let accuser = Accuser {
        job: (&*model.model, &model.text),
        model: (&model.table, &model.weights),
        receipt: (&lie, &text),
        opening: None,
        trace: None,
    };
    let mut cpu = Cpu::new(1).unwrap();
    let claim = accuser.class_claim(&mut cpu, &mut model.inputs(), 1, 3).unwrap().unwrap();
    let verdict = AnswerVerdict::new(text.clone(), claim);
    assert!(matches!(verdict.examine(None).outcome, Ok(AnswerRuling::Convicts(_))));
}
