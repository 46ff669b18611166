//! Games about receipts of predictions: each sample is a pass, whose first wrong operator or logit convicts.

use std::collections::BTreeSet;
use std::ops::Deref;

use tiebreak_contract::program::graph::TensorId;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_dispute::answer::{Origin, Pass};
use tiebreak_dispute::game::message::Question;
use tiebreak_dispute::game::moves::LEAF_MAX;
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::result::Reason;
use tiebreak_dispute::game::rules::{Fault, Rules};
use tiebreak_dispute::game::terms::Terms;
use tiebreak_engine::cpu::Cpu;
use tiebreak_game::party::{PartyError, ReceiptParty, Replayed};
use tiebreak_job::{Evaluable, Job};
use tiebreak_record::commit::answer_trace::claimed_root;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::predictions::{Predictions, model_digest};
use tiebreak_record::commit::salted_receipt::{AnyReceipt, salted_texts};
use tiebreak_run::inference::traced::Change;
use tiebreak_run::predict::Inputs;
use tiebreak_run::predict::traced::{SamplePass, sample_leaf};

use crate::common::predicting::{self, FIRST, SAMPLES, job_text, perceptron, resnet};
use crate::play::key;
use crate::receipts::{Game, Model, Played, Wrong, change, honestly, lost, play, terms_about};

const ENCODER: &str = include_str!("../../assets/networks/encoder.json");

/// A logit is a sum of so many products that it is opened by a fold.
pub(crate) fn wide() -> String {
    job_text(
        "kind = \"mlp\", inputs = 13000, hidden = [], classes = 3, image_mean = [0.5], image_std = [0.25]",
        "kind = \"idx\", images = \"images\", labels = \"labels\"",
    )
}

pub(crate) fn gpt() -> String {
    predicting::gpt(90)
}

/// A model with a receipt of its predictions.
pub(crate) struct Predicting {
    of: predicting::Predicting,
    pub(crate) receipt: Predictions,
}

impl Deref for Predicting {
    type Target = predicting::Predicting;

    fn deref(&self) -> &predicting::Predicting {
        &self.of
    }
}

impl Predicting {
    pub(crate) fn new(text: String) -> Predicting {
        let of = predicting::Predicting::new(text);
        let mut made = Predicting { receipt: of.predictions(), of };
        made.receipt = made.receipt_of(&mut |_, _, _| None);
        made
    }

    /// The samples with another one in the place of this one of the receipt.
    pub(crate) fn swapped(&self, place: usize) -> Inputs {
        let each = self.model.network().batch(1)[0].ty().bytes();
        let mut samples = self.samples.clone();
        let at = |number: usize| number * each..(number + 1) * each;
        samples.copy_within(at(0), at(FIRST as usize + place).start);
        self.inputs_of(&samples)
    }

    /// The receipt of a signer who changes outputs and the logits that it commits, and whose inputs are these.
    fn receipt_with(&self, inputs: &mut Inputs, change: &mut Change) -> Predictions {
        let mut cpu = Cpu::new(1).unwrap();
        let released = self.released(&mut cpu);
        let pass = SamplePass::new(&mut cpu, &*self.model).unwrap();
        let (mut receipt, mut leaves) = (self.receipt.clone(), Vec::new());
        for place in 0..SAMPLES {
            let of = (&self.receipt, place);
            let traced = pass.trace(&mut cpu, &released, inputs, of, Some(&mut *change)).unwrap();
            leaves.push(sample_leaf(place, receipt.model.rows, &traced.nodes));
            receipt.samples[place].logits = traced.logits;
        }
        receipt.traces = Some(merkle::root(&leaves));
        receipt
    }

    /// A receipt with the roots of a signer who has this wrong bit.
    pub(crate) fn signing(&self, receipt: &Predictions, wrong: Wrong) -> Predictions {
        let made = self.receipt_of(&mut change(wrong));
        let mut signed = Predictions { traces: made.traces, ..receipt.clone() };
        for (sample, made) in signed.samples.iter_mut().zip(made.samples) {
            sample.logits = made.logits;
        }
        signed
    }

    fn receipt_of(&self, change: &mut Change) -> Predictions {
        self.receipt_with(&mut self.inputs(), change)
    }

    pub(crate) fn terms(&self, receipt: &Predictions) -> Terms {
        terms_about(&self.text, receipt.to_text(Some(&key(0))))
    }

    pub(crate) fn opened(
        &self,
        terms: &Terms,
        number: u8,
        inputs: Option<Inputs>,
    ) -> Result<ReceiptParty, PartyError> {
        let of = Replayed { weights: self.weights.clone(), samples: inputs };
        ReceiptParty::open(terms.clone(), of, key(number), Box::new(Cpu::new(1).unwrap()))
    }

    /// A party that is not honest.
    pub(crate) fn liar(
        &self,
        terms: &Terms,
        number: u8,
        inputs: Inputs,
        change: Box<Change<'static>>,
    ) -> ReceiptParty {
        let of = Replayed { weights: self.weights.clone(), samples: Some(inputs) };
        let engine = Box::new(Cpu::new(1).unwrap());
        ReceiptParty::open_cheating(terms.clone(), of, key(number), engine, change).unwrap()
    }

    pub(crate) fn pass(&self) -> Pass {
        Pass::of_sample(&self.receipt, &self.text, 0).unwrap()
    }

    /// The nodes of a pass, one of each kind.
    fn kinds(&self) -> Vec<usize> {
        let (graph, mut kinds) = (self.pass().graph, BTreeSet::new());
        let nodes = 0..graph.nodes.len();
        nodes.filter(|&node| kinds.insert(graph.nodes[node].primitive.name())).collect()
    }

    /// The node that reads the sample.
    pub(crate) fn reader(&self) -> usize {
        let pass = self.pass();
        let is_sample = |id: &TensorId| pass.origin(*id) == Some(&Origin::Sample);
        let reads = |node: &usize| pass.graph.nodes[*node].primitive.inputs().iter().any(is_sample);
        (0..pass.graph.nodes.len()).find(reads).unwrap()
    }

    /// A wrong bit of the logits that a signer commits beside its passes.
    pub(crate) fn wrong_logit(&self, place: usize, byte: usize) -> Wrong {
        (place, self.pass().graph.nodes.len(), byte)
    }
}

impl Played for Predicting {
    fn game(&self, wrong: Option<Wrong>) -> Terms {
        match wrong {
            Some(wrong) => self.terms(&self.receipt_of(&mut change(wrong))),
            None => self.terms(&self.receipt),
        }
    }

    fn party(&self, terms: &Terms, number: u8, wrong: Option<Wrong>) -> ReceiptParty {
        match wrong {
            None => self.opened(terms, number, Some(self.inputs())).unwrap(),
            Some(wrong) => self.liar(terms, number, self.inputs(), Box::new(change(wrong))),
        }
    }

    fn claimed(&self) -> Option<Digest> {
        self.receipt.traces.map(|traces| claimed_root(&traces, &self.receipt.root()))
    }
}

/// Plays a game in which one party lies; the liar alone loses, within the bound.
fn convicted(model: &Predicting, liar: usize, wrong: Wrong) -> Game {
    let wrong_of = |party: usize| (party == liar).then_some(wrong);
    let terms = model.game(wrong_of(0));
    let mut parties = [0, 1].map(|party| model.party(&terms, party as u8, wrong_of(party)));
    let game = play(&terms, &mut parties, &honestly, None);
    lost(&game, liar, Reason::WrongValue);
    assert_eq!(game.result.upheld, model.claimed());
    let bound = Referee::new(&terms).unwrap().bound();
    assert!(
        game.bytes <= bound.bytes
            && u64::from(game.turns) <= bound.messages
            && game.largest as u64 <= LEAF_MAX
    );
    game
}

#[test]
fn an_honest_signer_of_predictions_is_acquitted() {
    for text in [perceptron(), gpt(), resnet(), ENCODER.into()] {
        let model = Predicting::new(text);
        // Labels and the numbers of a step follow from the receipt, and no operator reads them.
        let pass = model.pass();
        let mut read = pass.graph.nodes.iter().flat_map(|node| node.primitive.inputs());
        assert!(read.all(|id| !matches!(pass.origin(id), Some(Origin::Derived(_)) | None)));
        let terms = model.game(None);
        let mut parties = [0, 1].map(|number| model.party(&terms, number, None));
        let game = play(&terms, &mut parties, &honestly, None);
        assert!(game.result.games.is_empty());
        assert_eq!((&game.result.remaining[..], game.result.upheld), (&[0, 1][..], model.claimed()));
    }
}

/// An operator of each kind is wrong once, of the signer and of a challenger; everything behind it follows from it.
#[test]
fn a_wrong_operator_of_a_sample_convicts() {
    let logged = perceptron() + "[rounding]\n";
    let mut kinds = BTreeSet::new();
    for text in [resnet(), gpt(), ENCODER.into(), logged] {
        let model = Predicting::new(text);
        let graph = model.pass().graph;
        for (number, node) in model.kinds().into_iter().enumerate() {
            if !kinds.insert(graph.nodes[node].primitive.name().to_string()) {
                continue;
            }
            for liar in [0, 1] {
                let game = convicted(&model, liar, (1, node, number * 37));
                let found = &game.result.games[0].found;
                assert!(found.iter().any(|found| found == "the first pass that differs: 1 (sample 3)"));
                let of = |found: &String| found.contains(&format!("step/{node} of sample 3"));
                assert!(found.iter().any(of), "{found:?}");
            }
        }
    }
    assert!(kinds.len() > 12, "{kinds:?}");
}

/// Honest passes, and one wrong bit in the logits of a sample: of the first, a middle and the last row, and at both ends of a slice.
#[test]
fn a_wrong_logit_convicts() {
    for (text, cases) in [
        (perceptron(), [(0, 0), (1, 1023), (2, 1024), (2, 1199)]),
        (gpt(), [(0, 0), (1, 723), (1, 1024), (2, 1799)]),
    ] {
        let model = Predicting::new(text);
        for (place, byte) in cases {
            for liar in [0, 1] {
                let game = convicted(&model, liar, model.wrong_logit(place, byte));
                let found = &game.result.games[0].found;
                let says =
                    format!("the first tensor that differs: the logits of sample {}", FIRST as usize + place);
                assert!(found.contains(&says), "{found:?}");
                assert!(found.iter().any(|found| found.starts_with(&format!("element {}: ", byte / 4))));
            }
        }
    }
}

/// The signer predicts another sample than the receipt names, and has all that follows from it. The party that reads that sample has
/// none of the receipt's, so it is not supplied.
#[test]
fn a_signer_who_swaps_a_sample_loses() {
    for text in [perceptron(), gpt(), resnet(), ENCODER.into()] {
        let model = Predicting::new(text);
        let mut nothing = |_: usize, _: usize, _: &[u8]| None;
        let receipt = model.receipt_with(&mut model.swapped(1), &mut nothing);
        assert_ne!(receipt.samples[1].logits, model.receipt.samples[1].logits);
        for (liar, terms) in [(0, model.terms(&receipt)), (1, model.game(None))] {
            let refused = model.opened(&terms, liar, Some(model.swapped(1))).err().unwrap().to_string();
            assert!(refused.starts_with("the inputs of sample 3 are "), "{refused}");
            assert!(refused.ends_with("give the data that the receipt is of"), "{refused}");
            let cheats = || model.liar(&terms, liar, model.swapped(1), Box::new(nothing));
            let party = |number| if number == liar { cheats() } else { model.party(&terms, number, None) };
            let mut parties = [0, 1].map(party);
            let game = play(&terms, &mut parties, &honestly, None);
            lost(&game, liar.into(), Reason::WrongValue);
            let reader = format!("step/{} of sample 3", model.reader());
            assert!(game.result.games[0].found.iter().any(|found| found.contains(&reader)));
            // Of the two samples the liar's is refused, whoever is asked first.
            let evidence = game.asked.iter().filter(|asked| matches!(asked, Question::Evidence { .. }));
            assert_eq!(evidence.count(), if liar == 0 { 2 } else { 1 });
        }
    }
}

/// A referee that leaves a check out accuses an honest party.
#[test]
fn a_faulty_referee_of_predictions_is_noticed() {
    let model = Predicting::new(perceptron());
    let terms = model.game(None);
    for wrong in [(1, model.reader(), 5), model.wrong_logit(1, 5)] {
        let mut parties = [model.party(&terms, 0, None), model.party(&terms, 1, Some(wrong))];
        let game = play(&terms, &mut parties, &honestly, Some(Fault::Blame));
        assert!(game.result.losses().any(|loss| loss.party == 0), "{:?}", game.result);
    }
}

/// Terms that say nothing are refused, and so is what is not the receipt's.
#[test]
fn terms_about_predictions_are_checked() {
    let model = Predicting::new(resnet());
    let honest = model.game(None);
    assert_eq!(Rules::new(&honest).unwrap().traces(), model.receipt.traces);
    assert_eq!(Terms::from_bytes(&honest.to_bytes()).as_ref(), Ok(&honest));
    let own = key(0);
    let with =
        |receipt: Predictions, key: Option<&PrivateKey>| terms_about(&model.text, receipt.to_text(key));
    let receipt = || model.receipt.clone();
    let salted = salted_texts(&AnyReceipt::Predictions(receipt()), [3; 32], Some(&own));
    let mut other = receipt();
    other.model.classes = 4;
    for (says, terms) in [
        ("nobody signed", with(receipt(), None)),
        ("the first party is not", with(receipt(), Some(&key(1)))),
        ("commits no traces", with(Predictions { traces: None, ..receipt() }, Some(&own))),
        ("terms: its model does not give 1 rows of 4 logits", with(other, Some(&own))),
        ("terms: its job has the model", terms_about(&perceptron(), receipt().to_text(Some(&own)))),
        ("opening", terms_about(&model.text, salted[0].clone())),
    ] {
        let why = Rules::new(&terms).err().expect(says).to_string();
        assert!(why.contains(says), "{says}: {why}");
        assert!(model.opened(&terms, 0, Some(model.inputs())).is_err());
    }
    let mut opened = terms_about(&model.text, salted[0].clone());
    opened.receipt.as_mut().unwrap().opening = Some(salted[1].clone());
    assert_eq!(Rules::new(&opened).unwrap().traces(), model.receipt.traces);
    // A parameter, a buffer and the data.
    let is_buffer = |tensor: &StateTensor| tensor.name.starts_with("buffer/");
    for (place, says) in [
        (0, "the root over the parameters is"),
        (model.table.iter().position(is_buffer).unwrap(), "the root over the buffers is"),
    ] {
        let mut weights = model.weights.clone();
        weights[place][0] ^= 1;
        let of = Replayed { weights, samples: Some(model.inputs()) };
        let why =
            ReceiptParty::open(honest.clone(), of, key(0), Box::new(Cpu::new(1).unwrap())).err().unwrap();
        assert!(why.to_string().contains(says), "{why}");
    }
    let each = model.samples.len() / (FIRST as usize + SAMPLES);
    let few = model.inputs_of(&model.samples[each..]);
    for (inputs, says) in [
        (Some(few), "the data have 4 samples, and the receipt is of those below 5"),
        (None, "give the data that it is of"),
    ] {
        let why = model.opened(&honest, 1, inputs).err().unwrap().to_string();
        assert!(why.contains(says), "{says}: {why}");
    }
    let answer = Model::small();
    let why = model.opened(&answer.game(None), 1, Some(model.inputs())).err().unwrap().to_string();
    assert!(why.contains("which has no samples"), "{why}");
}

/// The plan of a party's memory has the digests of every operator of every sample.
#[test]
fn the_memory_of_many_samples_is_planned() {
    let model = Predicting::new(perceptron());
    let plan = |receipt: &Predictions| ReceiptParty::memory(&model.terms(receipt)).unwrap();
    let (short, mut many) = (plan(&model.receipt), model.receipt.clone());
    many.samples = vec![many.samples[0].clone(); 5000];
    let nodes = model.pass().graph.nodes.len() as u64;
    assert!(plan(&many) >= short + 32 * (5000 - SAMPLES as u64) * nodes);
}

/// A dispute about many predictions of a large model takes at most the answers and bytes of docs/DISPUTE.md, whatever the parties do.
#[test]
fn a_game_about_many_predictions_is_small() {
    let text = job_text(
        "kind = \"vit\", height = 224, width = 224, planes = 3, patch = 16, classes = 1000, layers = 12, heads = 12, channels = 768, hidden = 3072",
        "kind = \"arrays\", inputs = \"x.npy\", labels = \"y.npy\", dtype = \"u8\"",
    );
    let job = Job::parse("job.toml", &text).unwrap();
    let of_model: &dyn Evaluable = job.model().unwrap();
    let mut receipt = Predicting::new(perceptron()).receipt;
    receipt.model.model = model_digest(&of_model.settings());
    receipt.model.classes = 1000;
    receipt.samples = vec![receipt.samples[0].clone(); 50_000];
    let terms = terms_about(&text, receipt.to_text(Some(&key(0))));
    let bound = Referee::new(&terms).unwrap().bound();
    let said = format!("is {} answers and {} kB", bound.messages, bound.bytes / 1000);
    assert!(include_str!("../../docs/DISPUTE.md").contains(&said), "{said}");
}
