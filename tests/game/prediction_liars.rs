//! Games about receipts of predictions with parties that withhold, contradict themselves, forge, or have other data.

use std::cell::RefCell;

use tiebreak_audit::predictions::Accuser;
use tiebreak_contract::program::graph::TensorId;
use tiebreak_dispute::answer::{AnswerRuling, AnswerVerdict, Origin};
use tiebreak_dispute::game::message::{Answer, Asked, Question, Sealed, Subject, Tree, commitment};
use tiebreak_dispute::game::result::Reason;
use tiebreak_engine::cpu::Cpu;
use tiebreak_game::party::{PartyError, ReceiptParty, Replayed};
use tiebreak_record::commit::answer_trace::{claimed_root, node_leaf};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::predictions::Predictions;
use tiebreak_record::commit::proven::Base64;
use tiebreak_run::predict::Inputs;
use tiebreak_run::run::disk::Disk;

use crate::play::key;
use crate::predictions::{Predicting, gpt, perceptron};
use crate::receipt_liars::every_trick_loses;
use crate::receipts::{NOWHERE, Played, forge, honestly, lost, opened, play};

/// Each trick from each turn on, of a liar about an operator that reads the sample, and about a logit.
#[test]
fn a_party_that_withholds_a_sample_loses() {
    let model = Predicting::new(perceptron());
    every_trick_loses(&model, (1, model.reader(), 5), &|_, _, _, answer| answer);
    every_trick_loses(&model, model.wrong_logit(2, 1100), &|_, _, _, answer| answer);
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

/// A party that is started again with its kept passes, and with other data, gives no answer that would convict it.
#[test]
fn a_party_with_kept_passes_and_other_data_says_nothing() {
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
    let says = "the inputs of sample 3 are ";
    assert!(open(model.swapped(1)).err().unwrap().to_string().starts_with(says) && !file.exists());
    let (mut before, mut again) = (open(model.inputs()).unwrap(), open(model.swapped(1)).unwrap());
    // Sample 2 is the same in both, and of sample 3 the party answers nothing, whatever the node.
    let ask = |party: &mut ReceiptParty, pass: u32, node: usize| {
        let question = Question::Root { subject: Subject::Pass { pass, node } };
        party.reply(&Sealed::new(Asked::new(terms.game(), 1, question), &key(9)).to_bytes())
    };
    for node in 0..model.pass().graph.nodes.len() {
        assert_eq!(ask(&mut before, 0, node).unwrap(), ask(&mut again, 0, node).unwrap());
        let refused = ask(&mut again, 1, node).err().unwrap().to_string();
        assert!(refused.starts_with(says), "{refused}");
    }
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
