//! Verdicts on receipts of predictions: each lie of a signer gives a verdict that is checked without the model and the data, and no
//! evidence convicts an honest signer.

use std::collections::BTreeSet;
use std::ops::Deref;

use tiebreak_audit::predictions::Accuser;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::graph::{Graph, TensorId, TensorType};
use tiebreak_dispute::answer::{AnswerClaim, AnswerRuling, AnswerVerdict, ClassClaim};
use tiebreak_dispute::verdict::{Base64, Hashes, ProvenInput, ProvenTensor};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_job::Evaluable;
use tiebreak_record::commit::answer_trace::AnswerTrace;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::predictions::Predictions;
use tiebreak_record::commit::{merkle, tensor};
use tiebreak_run::predict::Predictor;
use tiebreak_run::predict::traced::{OtherTraces, SamplePass, sample_leaves};

use crate::common::predicting::{FIRST, Predicting, SAMPLES, gpt, perceptron, resnet};
use crate::network_files::ENCODER;
use crate::receipt_verdicts::no_edit_convicts;

/// A signer with a model of Philox's weights, and samples.
struct Signer {
    of: Predicting,
    key: PrivateKey,
}

impl Deref for Signer {
    type Target = Predicting;

    fn deref(&self) -> &Predicting {
        &self.of
    }
}

impl Signer {
    fn new(text: String) -> Signer {
        Signer { of: Predicting::new(text), key: PrivateKey::generate("signer.example", [5; 32]).unwrap() }
    }

    fn model(&self) -> &dyn Evaluable {
        &*self.model
    }

    /// An honest receipt, and its trace.
    fn honest(&self) -> (Predictions, AnswerTrace) {
        let receipt = self.predictions();
        let trace = self.trace(&receipt, &mut |_, _, _| None, true);
        (committed(&receipt, &trace), trace)
    }

    /// The trace of a receipt's samples, with changed outputs.
    fn trace(
        &self,
        receipt: &Predictions,
        tamper: &mut tiebreak_run::inference::traced::Change,
        is_honest: bool,
    ) -> AnswerTrace {
        let mut cpu = Cpu::new(1).unwrap();
        let released = self.released(&mut cpu);
        let pass = SamplePass::new(&mut cpu, self.model()).unwrap();
        let mut trace = AnswerTrace::default();
        for place in 0..receipt.samples.len() {
            let said = (receipt, place);
            let traced =
                pass.trace(&mut cpu, &released, &mut self.inputs(), said, Some(&mut *tamper)).unwrap();
            // Alone a sample has the bits that it has in a batch.
            assert!(!is_honest || traced.logits == receipt.samples[place].logits);
            trace.windows.push(traced.nodes);
        }
        trace
    }

    fn graph(&self) -> Graph {
        (*SamplePass::graphs(self.model(), 1)[0]).clone()
    }

    fn accuser<R>(
        &self,
        receipt: &Predictions,
        text: &str,
        trace: Option<&AnswerTrace>,
        with: impl FnOnce(&Accuser) -> R,
    ) -> R {
        let model = (&self.table[..], &self.weights[..]);
        with(&Accuser {
            job: (self.model(), &self.text),
            model,
            receipt: (receipt, text),
            opening: None,
            trace,
        })
    }

    /// The accuser's verdict on a signed receipt, after a check found a difference on the CPU and the reference.
    fn accused(&self, receipt: &Predictions, trace: Option<&AnswerTrace>) -> Option<AnswerVerdict> {
        let text = receipt.to_text(Some(&self.key));
        let places: Vec<u64> = (0..SAMPLES as u64).collect();
        let mut inputs = self.inputs();
        let [found, again] = [&mut Cpu::new(1).unwrap() as &mut dyn Engine, &mut Reference].map(|engine| {
            let released = self.released(engine);
            let predictor = Predictor::new(engine, self.model(), 2).unwrap();
            predictor.difference(engine, &released, &mut inputs, (receipt, &places), &mut |_| {}).unwrap()
        });
        assert_eq!(found, again);
        let mut cpu = Cpu::new(1).unwrap();
        let verdict = self.accuser(receipt, &text, trace, |accuser| match found {
            Some(found) => accuser.verdict(&mut cpu, &mut inputs, &found).unwrap(),
            None => {
                let other = self.other_traces(receipt, trace).expect("something differs");
                let place = other.place?;
                accuser.verdict_below(&mut cpu, &mut inputs, place).unwrap()
            }
        });
        if let Some(verdict) = &verdict {
            assert_eq!(AnswerVerdict::from_bytes(&verdict.to_bytes()).as_ref(), Ok(verdict));
        }
        verdict
    }

    fn other_traces(&self, receipt: &Predictions, trace: Option<&AnswerTrace>) -> Option<OtherTraces> {
        let mut cpu = Cpu::new(1).unwrap();
        let released = self.released(&mut cpu);
        let pass = SamplePass::new(&mut cpu, self.model()).unwrap();
        pass.other_traces(&mut cpu, &released, &mut self.inputs(), (receipt, trace), &mut |_| {}).unwrap()
    }
}

/// The receipt with the root of a trace.
fn committed(receipt: &Predictions, trace: &AnswerTrace) -> Predictions {
    Predictions { traces: Some(merkle::root(&sample_leaves(receipt, trace))), ..receipt.clone() }
}

fn ruling(verdict: &AnswerVerdict) -> Result<AnswerRuling, String> {
    verdict.examine(None).outcome.map_err(|why| why.to_string())
}

fn convicts(verdict: &AnswerVerdict, kind: &str, says: &str) {
    assert_eq!(verdict.claim.kind(), kind);
    match ruling(verdict) {
        Ok(AnswerRuling::Convicts(fault)) => assert!(fault.contains(says), "{says}: {fault}"),
        other => panic!("{says}: {other:?}"),
    }
}

#[test]
fn a_class_that_its_own_logits_do_not_give_convicts() {
    for (text, row) in [(perceptron(), 0), (gpt(300), 3)] {
        let signer = Signer::new(text);
        let (honest, trace) = signer.honest();
        for traces in [None, honest.traces] {
            let mut lie = Predictions { traces, ..honest.clone() };
            lie.samples[1].predicted[row] ^= 1;
            let verdict = signer.accused(&lie, traces.map(|_| &trace)).unwrap();
            convicts(&verdict, "class", &format!("row {row} of sample 3 is said to predict class"));
        }
    }
    // Logits that the model does not give: without a trace nothing stands, whether the class is the model's or not.
    let signer = Signer::new(perceptron());
    let (honest, _) = signer.honest();
    for change in [0, 1] {
        let mut lie = Predictions { traces: None, ..honest.clone() };
        lie.samples[2].predicted[0] ^= change;
        lie.samples[2].logits = Digest([9; 32]);
        assert_eq!(signer.accused(&lie, None), None);
    }
    // Other data accuse nobody.
    let mut lie = honest.clone();
    lie.samples[0].input = Digest([9; 32]);
    assert_eq!(signer.accused(&lie, None), None);
}

#[test]
fn a_wrong_operator_of_a_prediction_convicts_by_its_tile() {
    let mut kinds = BTreeSet::new();
    for text in [gpt(300), resnet(), perceptron() + "[rounding]\n", ENCODER.into()] {
        let signer = Signer::new(text);
        let (honest, _) = signer.honest();
        let graph = signer.graph();
        for (node, of) in graph.nodes.iter().enumerate() {
            let name = of.operator.rsplit('.').next().unwrap().to_string() + of.primitive.name();
            if !kinds.insert(name) {
                continue;
            }
            let theirs = signer.trace(
                &honest,
                &mut |place, index, bytes| {
                    let mut changed = bytes.to_vec();
                    changed[bytes.len() / 2 / 4 * 4] ^= 1;
                    (place == 1 && index == node).then_some(changed)
                },
                false,
            );
            let lie = committed(&honest, &theirs);
            let verdict = signer.accused(&lie, Some(&theirs)).unwrap_or_else(|| panic!("node {node}"));
            convicts(&verdict, "tile", &format!("of sample 3, node {node}: element"));
            // Without the trace nothing stands.
            assert!(signer.other_traces(&lie, None).is_some_and(|other| other.place.is_none()));
        }
    }
    assert!(kinds.len() > 15, "{kinds:?}");
}

#[test]
fn logits_that_are_not_the_traces_convict() {
    let signer = Signer::new(gpt(300));
    let (honest, trace) = signer.honest();
    let mut lie = honest.clone();
    lie.samples[2].logits = Digest([9; 32]);
    let verdict = signer.accused(&lie, Some(&trace)).unwrap();
    convicts(&verdict, "logits", "the logits of sample 4 are not those of the signer's own trace");
    lie.samples[2].predicted[4] ^= 1;
    convicts(&signer.accused(&lie, Some(&trace)).unwrap(), "logits", "sample 4");
}

/// The true claims of each kind about an honest receipt.
fn true_claims(signer: &Signer, receipt: &Predictions, trace: &AnswerTrace) -> Vec<AnswerVerdict> {
    let text = receipt.to_text(Some(&signer.key));
    let claims = signer.accuser(receipt, &text, Some(trace), |accuser| {
        let (mut cpu, mut inputs) = (Cpu::new(1).unwrap(), signer.inputs());
        let row = receipt.model.rows - 1;
        let mut claims = vec![
            accuser.class_claim(&mut cpu, &mut inputs, 1, row).unwrap().unwrap(),
            accuser.logits_claim(1).unwrap(),
        ];
        for node in 0..signer.graph().nodes.len() {
            claims.push(accuser.tile_claim(&mut cpu, &mut inputs, (1, node, 0)).unwrap().unwrap());
        }
        claims
    });
    claims.into_iter().map(|claim| AnswerVerdict::new(text.clone(), claim)).collect()
}

#[test]
fn true_claims_and_edited_ones_convict_no_honest_signer_of_predictions() {
    let logged = perceptron() + "[rounding]\n";
    for (text, edits) in [(perceptron(), 30), (gpt(300), 6), (resnet(), 3), (logged, 6), (ENCODER.into(), 1)]
    {
        let signer = Signer::new(text);
        let (honest, trace) = signer.honest();
        let claims = true_claims(&signer, &honest, &trace);
        no_edit_convicts(&claims, edits, ruling);
    }
}

/// Evidence that carries another network than the receipt's is none.
#[test]
fn another_network_is_no_evidence() {
    let signer = Signer::new(ENCODER.into());
    let (honest, trace) = signer.honest();
    let verdict = true_claims(&signer, &honest, &trace).pop().unwrap();
    let AnswerClaim::Tile(claim) = &verdict.claim else { panic!("the last claim is of a tile") };
    for (from, to, says) in [
        ("\"heads\": 2", "\"heads\": 1", "its network file has the model"),
        ("\"format\"", "\"digits\": 2, \"format\"", "its network file has the model"),
        ("\"below\": 19", "\"below\": 20", "its network file: micro graph"),
        ("\"ids\"", "ids", "its network file: expected value"),
    ] {
        let mut other = claim.clone();
        other.job = ENCODER.replace(from, to);
        assert_ne!(other.job, ENCODER, "{from}");
        let why = ruling(&AnswerVerdict::new(verdict.receipt.clone(), AnswerClaim::Tile(other))).unwrap_err();
        assert!(why.contains(says), "{says}: {why}");
    }
    // An attribute of training alone changes no model.
    let mut same = claim.clone();
    same.job = ENCODER.replace("\"p\": 0.1", "\"p\": 0.5");
    assert_ne!(same.job, ENCODER);
    let found = ruling(&AnswerVerdict::new(verdict.receipt.clone(), AnswerClaim::Tile(same)));
    assert!(matches!(found, Ok(AnswerRuling::DoesNotConvict(_))), "{found:?}");
}

/// A claim of the tile of a node that reads the sample's inputs.
fn of_data(claims: &[AnswerVerdict], graph: &Graph) -> usize {
    let data = graph.inputs.iter().find(|port| port.name.starts_with("batch/")).unwrap().tensor;
    let reads = |verdict: &AnswerVerdict| match &verdict.claim {
        AnswerClaim::Tile(claim) => claim.inputs.iter().any(|input| input.tensor == data.0),
        _ => false,
    };
    claims.iter().position(reads).unwrap()
}

/// All bytes of a tensor, which are 0xff, with a digest that they give.
fn other_bytes(ty: &TensorType, old: &ProvenInput) -> ProvenInput {
    let bytes = vec![0xff; ty.bytes()];
    let slices = (0..tensor::piece_count(bytes.len(), tensor::SLICE_BYTES)).collect();
    let commitment = ProvenTensor { digest: tensor::digest(ty, &bytes), ..old.commitment.clone() };
    ProvenInput { commitment, slices, bytes: Base64(bytes), siblings: Hashes(Vec::new()), ..old.clone() }
}

/// Changes a claim.
type Change<'a, T> = &'a dyn Fn(&mut T);

/// Whoever wants an honest signer convicted changes each part of the evidence, and makes the rest fit where they can.
#[test]
fn forged_evidence_convicts_no_honest_signer_of_predictions() {
    let signer = Signer::new(resnet());
    let (honest, trace) = signer.honest();
    let (claims, graph) = (true_claims(&signer, &honest, &trace), signer.graph());
    let text = honest.to_text(Some(&signer.key));
    let refused = |receipt: &str, claim: AnswerClaim, says: &str| {
        let why = ruling(&AnswerVerdict::new(receipt.into(), claim)).expect_err(says);
        assert!(why.contains(says), "{says}: {why}");
    };
    let AnswerClaim::Class(class) = &claims[0].claim else { panic!() };
    let ClassClaim { bytes, .. } = &**class;
    let zeros = bytes_of(&vec![0; bytes.0.len() / 4]);
    let changes: [(Change<ClassClaim>, &str); 8] = [
        (&|c| c.sample = 0, "an input slice is not what the run committed to"),
        (&|c| c.sample = 3, "it is about sample 3, and the receipt has 3"),
        (&|c| c.row = 1, "it is about row 1, and a sample has 1"),
        (&|c| c.bytes = Base64(zeros.clone()), "is not what the run committed to"),
        (&|c| c.bytes.0.truncate(11), "the wrong place or length"),
        (&|c| c.bytes.0.push(0), "bytes of no slice"),
        (&|c| c.slices[0] = 1, "the wrong place or length"),
        (&|c| c.siblings.0.push([1; 32]), "the number of hashes is wrong"),
    ];
    for (change, says) in changes {
        let mut claim = class.clone();
        change(&mut claim);
        refused(&text, AnswerClaim::Class(claim), says);
    }
    let AnswerClaim::Logits(logits) = &claims[1].claim else { panic!() };
    let mut other = logits.clone();
    other.logits.digest = Digest([9; 32]);
    refused(&text, AnswerClaim::Logits(other), "is not what the pass's root commits");
    let AnswerClaim::Tile(tile) = &claims[of_data(&claims, &graph)].claim else { panic!() };
    let claims_of = |change: Change<tiebreak_dispute::answer::AnswerTile>| {
        let mut claim = tile.clone();
        change(&mut claim);
        AnswerClaim::Tile(claim)
    };
    let data = TensorId(tile.inputs[0].tensor);
    let changed = other_bytes(graph.tensor(data), &tile.inputs[0]);
    let changes: [(Change<tiebreak_dispute::answer::AnswerTile>, &str); 11] = [
        (&|c| c.job = c.job.replace("stages = [8]", "stages = [16]"), "and the receipt is of model"),
        (&|c| c.job = c.job.replace("steps", "stops"), "stops"),
        (&|c| c.window.number = 0, "sample 2 is not under the root over passes"),
        (&|c| c.window.number = 3, "it is about sample 3, and the receipt has 3"),
        (&|c| c.window.root = Digest([1; 32]), "sample 3 is not under the root over passes"),
        (&|c| c.node = graph.nodes.len(), "and there are"),
        (&|c| c.output.digest = Digest([1; 32]), "is not what the pass's root commits"),
        (&|c| c.value = Digest([1; 32]), "the tile gives a tensor"),
        (&|c| c.inputs[0] = changed.clone(), "the inputs of sample 3 are not those of the receipt"),
        (&|c| c.inputs[0].commitment.proof.push(Digest([1; 32])), "are not those of the receipt"),
        (&|c| drop(c.inputs.remove(0)), "is needed and not there"),
    ];
    for (change, says) in changes {
        refused(&text, claims_of(change), says);
    }
    // Each parameter and buffer that a tile reads is under its root.
    let mut parts = BTreeSet::new();
    for verdict in &claims {
        let AnswerClaim::Tile(tile) = &verdict.claim else { continue };
        for (place, input) in tile.inputs.iter().enumerate() {
            let id = TensorId(input.tensor);
            let Some(port) = graph.inputs.iter().find(|port| port.tensor == id) else { continue };
            if port.name.starts_with("batch/") {
                continue;
            }
            let mut claim = tile.clone();
            claim.inputs[place] = other_bytes(graph.tensor(id), input);
            refused(
                &text,
                AnswerClaim::Tile(claim),
                &format!("{} is not what the receipt commits", port.name),
            );
            parts.insert(port.name.split('/').next().unwrap());
        }
    }
    assert_eq!(parts, ["buffer", "param"].into());
    // Receipts that say something else, or that another key signed, or nobody.
    let claim = || AnswerClaim::Tile(tile.clone());
    let signed = |change: Change<Predictions>| {
        let mut receipt = honest.clone();
        change(&mut receipt);
        receipt.to_text(Some(&signer.key))
    };
    for (receipt, says) in [
        (honest.to_text(None), "nobody signed its receipt"),
        (text.replacen("\"first\":2", "\"first\":1", 1), "is not over this text"),
        (text[..text.len() - 1].to_string(), "differs from its one encoding"),
        (text.clone() + "\n", "differs from its one encoding"),
        (signed(&|r| r.traces = None), "its receipt commits no traces"),
        (signed(&|r| r.model.model = Digest([1; 32])), "and the receipt is of model"),
        (signed(&|r| r.model.classes = 4), "its model does not give 1 rows of 4 logits, as the receipt says"),
    ] {
        refused(&receipt, claim(), says);
    }
    let huge = signed(&|r| r.model.classes = u32::MAX);
    refused(&huge, claims[0].claim.clone(), "more than a tensor has");
    let others = PrivateKey::generate("other.example", [6; 32]).unwrap();
    let examined = AnswerVerdict::new(honest.to_text(Some(&others)), claim()).examine(None);
    assert_eq!(examined.signer, Some(others.public()));
    // Claims about answers.
    let token = AnswerClaim::Token { number: 0, row: Base64(vec![0; 12]), proof: Vec::new() };
    refused(&text, token, "its claim is about an answer, and its receipt is of predictions");
    refused(&text, AnswerClaim::Stopped { tokenizer: None }, "its claim is about an answer");
}

/// A row with a NaN predicts nothing: whoever signs a class of it is convicted by the row.
#[test]
fn a_class_of_a_row_with_a_nan_convicts() {
    let mut signer = Signer::new(perceptron());
    let (honest, _) = signer.honest();
    let place = signer.weights.len() - 1;
    signer.of.weights[place][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let mut cpu = Cpu::new(1).unwrap();
    let released = signer.released(&mut cpu);
    let predictor = Predictor::new(&mut cpu, signer.model(), 1).unwrap();
    let model = predictor.identity(signer.model(), &signer.table, &signer.weights);
    let logits = predictor
        .run(&mut cpu, &released, &mut signer.inputs(), &[u64::from(FIRST)], |computed| Some(computed.logits))
        .unwrap()
        .unwrap();
    let mut lie = Predictions { model, traces: None, ..honest };
    lie.samples[0].logits = tiebreak_record::commit::predictions::logits_digest(1, &logits);
    let verdict = signer.accused(&lie, None).unwrap();
    convicts(&verdict, "class", "the logits that the receipt commits give none, since one is a NaN");
}

#[test]
fn traces_of_predictions_have_one_encoding() {
    let signer = Signer::new(perceptron());
    let (_, trace) = signer.honest();
    let (graphs, bytes) = (SamplePass::graphs(signer.model(), SAMPLES), trace.encode());
    assert_eq!(bytes.len() as u64, AnswerTrace::bytes_max(0, &graphs));
    assert_eq!(AnswerTrace::decode(&bytes, 0, &graphs).as_ref(), Ok(&trace));
    for cut in [0, 3, 4, 8, 44, bytes.len() - 1] {
        assert!(AnswerTrace::decode(&bytes[..cut], 0, &graphs).is_err(), "{cut}");
    }
    assert!(AnswerTrace::decode(&bytes, 0, &graphs[1..]).is_err());
    assert!(AnswerTrace::decode(&bytes, 1, &graphs).is_err());
}

/// The verdict that a script made from the page alone (`assets/vectors/predictions.py`).
#[test]
fn a_verdict_on_predictions_made_from_the_page_convicts() {
    let all: serde_json::Value =
        serde_json::from_str(include_str!("../../assets/vectors/predictions.json")).unwrap();
    let verdict = AnswerVerdict::from_bytes(all["verdict"].as_str().unwrap().as_bytes()).unwrap();
    let signer = verdict.examine(None).signer.unwrap();
    assert_eq!(signer.name(), "liar.example");
    convicts(&verdict, "class", "row 0 of sample 6 is said to predict class");
}
