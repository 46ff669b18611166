//! Verdicts on receipts of answers: each lie of a signer gives a verdict that is checked without the model, and no evidence convicts
//! an honest signer.

use tiebreak_audit::answers::Accuser;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::inference::Writer;
use tiebreak_contract::program::network::{self, NetworkModel};
use tiebreak_contract::program::sampling::Sampling;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_dispute::answer::{AnswerClaim, AnswerRuling, AnswerVerdict, TokenizerParts};
use tiebreak_dispute::verdict::{Base64, ProvenInput};
use tiebreak_engine::cpu::Cpu;
use tiebreak_job::Job;
use tiebreak_record::commit::answer_trace::{AnswerTrace, node_leaves};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_record::commit::{merkle, tensor};
use tiebreak_run::inference::answer::{Answer, Identity};
use tiebreak_run::inference::decoder::Decoder;
use tiebreak_run::inference::replay::{Answerer, Difference};
use tiebreak_run::inference::traced::row_leaves;

/// The ids of the model, and the one that ends its texts where a tokenizer says so.
const CLASSES: u32 = 200;
const END: u32 = 190;

pub fn job_text(heads: u32) -> String {
    format!(
        "steps = 1\nmodel = {{ kind = \"gpt\", vocabulary = {CLASSES}, context = 8, layers = 2, heads = {heads}, width = 48 }}\n\
         data = {{ kind = \"bytes\", path = \"text.txt\" }}\nbatch = {{ micro_batch = 1, micro_batches = 1 }}\n\
         optimizer = {{ kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }}\nschedule = {{ peak = 0.1 }}\n"
    )
}

/// The model of a job, or that of a network file.
enum Model {
    Job(Box<Job>),
    Network(Box<NetworkModel>),
}

impl Model {
    fn of(text: &str) -> Model {
        match text.starts_with('{') {
            true => Model::Network(Box::new(network::model(text).unwrap().1)),
            false => Model::Job(Box::new(Job::parse("job.toml", text).unwrap())),
        }
    }

    fn writer(&self) -> Writer<'_> {
        match self {
            Model::Job(job) => job.model().map(|of| Writer::Job(&of.model, &of.products)).unwrap(),
            Model::Network(model) => Writer::Network(model),
        }
    }
}

/// A signer with a model: weights of Philox, and a job or a network file that has it.
pub struct Signer {
    text: String,
    model: Model,
    table: Vec<StateTensor>,
    bytes: Vec<Vec<u8>>,
    known: Vec<bool>,
    ends: Vec<u32>,
    tokenizer: Option<TokenizerParts>,
    pub key: PrivateKey,
}

impl Signer {
    pub fn new(ends: Vec<u32>) -> Signer {
        Signer::of(job_text(2), ends)
    }

    pub fn of(text: String, ends: Vec<u32>) -> Signer {
        let model = Model::of(&text);
        let writer = model.writer();
        let parameters = (0..).zip(writer.parameters()).map(|(number, p)| {
            let value = |i: u32| {
                let word = philox4x32_10([3, 0], [i, 0, number, 0])[0];
                ((f64::from(word) / f64::from(1 << 31) - 1.0) as f32).to_bits()
            };
            let words: Vec<u32> = (0..p.shape.iter().product()).map(value).collect();
            (StateTensor { name: format!("param/{}", p.name), shape: p.shape.clone() }, bytes_of(&words))
        });
        let (table, bytes) = parameters.unzip();
        let files = vec![("tokenizer.json".to_string(), Digest([7; 32]))];
        let tokenizer = (!ends.is_empty()).then(|| TokenizerParts { files, ends: ends.clone() });
        let key = PrivateKey::generate("signer.example", [5; 32]).unwrap();
        let known = vec![true; writer.vocabulary().unwrap() as usize];
        Signer { text, model, table, bytes, known, ends, tokenizer, key }
    }

    pub fn answerer(&self) -> Answerer<'_> {
        Answerer {
            model: self.model.writer(),
            parameters: (&self.table, &self.bytes),
            known: &self.known,
            ends: &self.ends,
        }
    }

    /// An honest receipt of 14 tokens, which takes three windows, and its trace.
    pub fn honest(&self) -> (Receipt, AnswerTrace) {
        let (answerer, mut cpu) = (self.answerer(), Cpu::new(1).unwrap());
        let sampling = Sampling { temperature: 1.0f32.to_bits(), top_k: 9, top_p: 1.0f32.to_bits(), seed: 4 };
        let (mut ids, mut answer) = (vec![1, 2, 3], Answer::new(sampling, 14, true));
        let parameters = answerer.upload(&mut cpu).unwrap();
        let mut decoder = Decoder::new(&mut cpu, answerer.model, parameters).unwrap().unwrap();
        while !answer.is_whole() {
            let row = decoder.logits(&ids).unwrap();
            ids.extend(answer.take(&answerer, &row).unwrap());
        }
        drop(decoder);
        let tokenizer = self.tokenizer.as_ref().map(TokenizerParts::digest);
        let identity = Identity { model: answerer.identity().unwrap(), tokenizer };
        let mut receipt = answer.receipt(&identity, vec![1, 2, 3]).unwrap();
        let trace = answerer.trace(&mut cpu, &receipt, None, &mut |_| {}).unwrap();
        assert_eq!(merkle::root(&row_leaves(&receipt, &trace.rows)), receipt.root);
        receipt.traces = Some(answerer.traces_root(&receipt, &trace));
        (receipt, trace)
    }

    /// The receipt with the roots of another trace, signed.
    pub fn committed(&self, receipt: &Receipt, trace: &AnswerTrace) -> Receipt {
        let root = merkle::root(&row_leaves(receipt, &trace.rows));
        Receipt { root, traces: Some(self.answerer().traces_root(receipt, trace)), ..receipt.clone() }
    }

    /// The accuser's verdict on a signed receipt, after the check of the receipt found a difference.
    pub fn accused(&self, receipt: &Receipt, trace: Option<&AnswerTrace>) -> Option<AnswerVerdict> {
        let (answerer, mut cpu) = (self.answerer(), Cpu::new(1).unwrap());
        let all = 0..receipt.answer.len();
        let found = answerer.difference(&mut cpu, receipt, all, &mut |_| {}).unwrap().unwrap();
        assert!(answerer.confirms(receipt, &found, &mut |_| {}).unwrap());
        self.verdict(receipt, trace, &found)
    }

    fn verdict(
        &self,
        receipt: &Receipt,
        trace: Option<&AnswerTrace>,
        found: &Difference,
    ) -> Option<AnswerVerdict> {
        let text = receipt.to_text(Some(&self.key));
        let verdict = self.accuser(&self.answerer(), receipt, &text, trace, |accuser| {
            accuser.verdict(&mut Cpu::new(1).unwrap(), found).unwrap()
        });
        if let Some(verdict) = &verdict {
            assert_eq!(AnswerVerdict::from_bytes(&verdict.to_bytes()).as_ref(), Ok(verdict));
        }
        verdict
    }

    pub fn accuser<R>(
        &self,
        answerer: &Answerer,
        receipt: &Receipt,
        text: &str,
        trace: Option<&AnswerTrace>,
        with: impl FnOnce(&Accuser) -> R,
    ) -> R {
        let tokenizer = self.tokenizer.as_ref();
        with(&Accuser {
            answerer,
            job: &self.text,
            receipt: (receipt, text),
            tokenizer,
            opening: None,
            trace,
        })
    }

    /// The ruling of a referee who has the tokenizer.
    pub fn ruling(&self, verdict: &AnswerVerdict) -> Result<AnswerRuling, String> {
        let known = |count: u32| vec![true; count as usize];
        let tokenizer = self.tokenizer.as_ref();
        let tokenizer = tokenizer.map(|tokenizer| (tokenizer.digest(), &known as &dyn Fn(u32) -> Vec<bool>));
        verdict.examine(tokenizer).outcome.map_err(|why| why.to_string())
    }

    pub fn convicts(&self, verdict: &AnswerVerdict, says: &str) {
        match self.ruling(verdict) {
            Ok(AnswerRuling::Convicts(fault)) => assert!(fault.contains(says), "{says}: {fault}"),
            other => panic!("{says}: {other:?}"),
        }
    }
}

#[test]
fn a_token_that_its_own_row_does_not_give_convicts() {
    let signer = Signer::new(Vec::new());
    let (honest, trace) = signer.honest();
    // The last token: the rows before it are those of the honest answer.
    let mut lie = honest.clone();
    *lie.answer.last_mut().unwrap() ^= 1;
    for traces in [None, honest.traces] {
        lie.root = merkle::root(&row_leaves(&lie, &trace.rows));
        lie.traces = traces;
        let given = traces.map(|_| &trace);
        let verdict = signer.accused(&lie, given).unwrap();
        assert_eq!(verdict.claim.kind(), "token");
        signer.convicts(&verdict, "token 13 of the answer is");
    }
    // In the midst of an answer the rows behind the token are others: only the signer's trace gives the path to the row.
    let mut lie = honest.clone();
    lie.answer[4] ^= 1;
    let trace = signer.answerer().trace(&mut Cpu::new(1).unwrap(), &lie, None, &mut |_| {}).unwrap();
    let lie = signer.committed(&lie, &trace);
    assert_ne!(trace.rows, AnswerTrace::default().rows);
    for (traces, given) in [(None, None), (lie.traces, Some(&trace))] {
        let verdict = signer.accused(&Receipt { traces, ..lie.clone() }, given).unwrap();
        signer.convicts(&verdict, "token 4 of the answer is");
    }
    // A root over other rows than the model gives convicts nobody without a trace.
    let zeros = Receipt { root: Digest([0; 32]), traces: None, ..lie };
    assert_eq!(signer.accused(&zeros, None), None);
}

#[test]
fn an_answer_that_goes_on_or_stops_convicts() {
    let signer = Signer::new(vec![END]);
    let (honest, trace) = signer.honest();
    assert!(!honest.answer.contains(&END), "the golden answer is long");
    let mut stops = honest.clone();
    stops.answer.truncate(5);
    let verdict = signer.verdict(&stops, None, &Difference::Stopped { tokens: 5, length: 14 }).unwrap();
    signer.convicts(&verdict, "stops after 5 of 14 tokens");
    let mut goes_on = honest.clone();
    goes_on.answer[7] = END;
    let verdict = signer.verdict(&goes_on, None, &Difference::Ended { number: 8 }).unwrap();
    signer.convicts(&verdict, "token 8 of the answer comes after token 7, 190, which ends the text");
    // Neither is true of the honest receipt, and another tokenizer is not the receipt's.
    for found in [Difference::Stopped { tokens: 14, length: 14 }, Difference::Ended { number: 8 }] {
        assert_eq!(signer.verdict(&honest, Some(&trace), &found), None);
    }
    let others = TokenizerParts { ends: vec![honest.answer[2]], ..signer.tokenizer.clone().unwrap() };
    let text = honest.to_text(Some(&signer.key));
    for claim in [
        AnswerClaim::Ended { number: 3, tokenizer: others.clone() },
        AnswerClaim::Ended { number: 0, tokenizer: signer.tokenizer.clone().unwrap() },
        AnswerClaim::Stopped { tokenizer: Some(others) },
        AnswerClaim::Stopped { tokenizer: None },
    ] {
        let forged = AnswerVerdict::new(text.clone(), claim);
        assert!(signer.ruling(&forged).is_err(), "{forged:?}");
    }
    // Whoever lacks the tokenizer decides nothing about tokens.
    let mut lie = honest.clone();
    *lie.answer.last_mut().unwrap() ^= 1;
    lie.root = merkle::root(&row_leaves(&lie, &trace.rows));
    let verdict = signer.accused(&lie, Some(&trace)).unwrap();
    signer.convicts(&verdict, "token 13");
    let wanted = honest.tokenizer.unwrap();
    assert_eq!(verdict.examine(None).outcome, Ok(AnswerRuling::NeedsTokenizer(wanted)));
}

#[test]
fn a_wrong_operator_convicts_by_its_tile() {
    let signers = [Signer::new(Vec::new()), Signer::of(crate::network_files::DECODER.into(), Vec::new())];
    let kinds = signers.map(|signer| wrong_operators(&signer));
    assert!(kinds.iter().all(|kinds| *kinds > 15), "{kinds:?}");
}

/// Tampers with one operator of each kind, and returns the number of kinds. Only a third of the kinds is tried; `.ci/full pairs` tries all.
fn wrong_operators(signer: &Signer) -> usize {
    let third =
        if crate::common::every_pair("two thirds of the kinds of operators in answers") { 1 } else { 3 };
    let (honest, trace) = signer.honest();
    let answerer = signer.answerer();
    let mut kinds = std::collections::BTreeSet::new();
    for window in 0..trace.windows.len() {
        let graph = answerer.window_graphs(&honest)[window].clone();
        for (node, operator) in graph.nodes.iter().enumerate() {
            // Each operator once, in turn over the windows.
            let kind = operator.operator.rsplit('.').next().unwrap().to_string() + operator.primitive.name();
            if !kinds.insert(kind) || kinds.len() % third != 0 {
                continue;
            }
            let mut tamper = |of: usize, index: usize, bytes: &[u8]| {
                (of == window && index == node).then(|| {
                    let mut changed = bytes.to_vec();
                    // The lowest bit of the last element's first byte: no index leaves its bounds by that.
                    let place = changed.len() / 2 / 4 * 4;
                    changed[place] ^= 1;
                    changed
                })
            };
            let theirs =
                answerer.trace(&mut Cpu::new(1).unwrap(), &honest, Some(&mut tamper), &mut |_| {}).unwrap();
            let lie = signer.committed(&honest, &theirs);
            let Some(verdict) = signer.accused(&lie, Some(&theirs)) else {
                panic!("window {window}, node {node}: no verdict")
            };
            let AnswerClaim::Tile(claim) = &verdict.claim else { panic!("{:?}", verdict.claim.kind()) };
            assert_eq!((claim.window.number, claim.node), (window, node));
            // The accuser guesses the bit, so that one element is enough.
            signer.convicts(&verdict, &format!("of window {window}, node {node}: element"));
            // Without the trace nothing stands.
            assert_eq!(signer.accused(&lie, None), None);
        }
    }
    kinds.len()
}

#[test]
fn a_row_that_is_not_the_traces_convicts() {
    let signer = Signer::new(Vec::new());
    let (honest, mut trace) = signer.honest();
    for number in [0, 6, 13] {
        let mut changed = trace.clone();
        changed.rows[number] = Digest([9; 32]);
        let lie = signer.committed(&honest, &changed);
        let verdict = signer.accused(&lie, Some(&changed)).unwrap();
        assert_eq!(verdict.claim.kind(), "row");
        signer.convicts(&verdict, &format!("the row of token {number} is not"));
    }
    // Traces of other windows, under honest rows.
    trace.windows[1][3].digest = Digest([1; 32]);
    let lie = Receipt { traces: Some(signer.answerer().traces_root(&honest, &trace)), ..honest };
    let (all, mut cpu) = (0..lie.answer.len(), Cpu::new(1).unwrap());
    let found = signer.answerer().difference(&mut cpu, &lie, all, &mut |_| {}).unwrap();
    assert!(matches!(found, Some(Difference::Traces { .. })), "{found:?}");
}

/// The verdict that a script made from the page alone (`assets/vectors/inference.py`).
#[test]
fn a_verdict_made_from_the_page_convicts() {
    let all: serde_json::Value =
        serde_json::from_str(include_str!("../../assets/vectors/inference.json")).unwrap();
    let verdict = AnswerVerdict::from_bytes(all["verdict"].as_str().unwrap().as_bytes()).unwrap();
    let (receipt, signer) = Receipt::from_text(&verdict.receipt).unwrap();
    assert_eq!(signer.unwrap().identified()[..12], *"liar.example");
    let known = |count: u32| (0..count).map(|id| id != 10).collect();
    let wanted = receipt.tokenizer.unwrap();
    let examined = verdict.examine(Some((wanted, &known)));
    let Ok(AnswerRuling::Convicts(fault)) = examined.outcome else { panic!("{:?}", examined.outcome) };
    assert!(fault.contains("and its own row gives"), "{fault}");
    // Another tokenizer decides nothing.
    let other = verdict.examine(Some((Digest([0; 32]), &known)));
    assert_eq!(other.outcome, Ok(AnswerRuling::NeedsTokenizer(wanted)));
}

/// The true claims of each kind about an honest receipt.
fn honest_claims(signer: &Signer, receipt: &Receipt, trace: &AnswerTrace) -> Vec<AnswerVerdict> {
    let (text, answerer) = (receipt.to_text(Some(&signer.key)), signer.answerer());
    let graph = answerer.window_graphs(receipt)[1].clone();
    let claims = signer.accuser(&answerer, receipt, &text, Some(trace), |accuser| {
        let mut cpu = Cpu::new(1).unwrap();
        let mut claims = vec![
            accuser.token_claim(&mut cpu, 5).unwrap().unwrap(),
            accuser.row_claim(&mut cpu, 9).unwrap().unwrap(),
        ];
        for node in 0..graph.nodes.len() {
            claims.push(accuser.tile_claim(&mut cpu, (1, node, 0)).unwrap().unwrap());
        }
        claims
    });
    claims.into_iter().map(|claim| AnswerVerdict::new(text.clone(), claim)).collect()
}

#[test]
fn true_claims_and_edited_ones_convict_no_honest_signer() {
    true_claims_hold(&Signer::new(Vec::new()), 40);
}

/// The same for a Llama, and for the products of the logged profile.
#[test]
fn true_claims_about_other_models_convict_no_honest_signer() {
    let llama = job_text(2)
        .replace("kind = \"gpt\"", "kind = \"llama\", kv_heads = 1, hidden = 24, rope_theta = 100.0");
    true_claims_hold(&Signer::of(llama, Vec::new()), 4);
    true_claims_hold(&Signer::of(job_text(2) + "[rounding]\n", Vec::new()), 4);
}

/// True claims, and edits of their files, most of them behind the receipt, convict no honest signer.
pub fn no_edit_convicts(
    claims: &[AnswerVerdict],
    edits: u32,
    ruling: impl Fn(&AnswerVerdict) -> Result<AnswerRuling, String>,
) {
    let mut read = 0;
    for (number, verdict) in (0..).zip(claims) {
        let found = ruling(verdict);
        assert!(matches!(found, Ok(AnswerRuling::DoesNotConvict(_))), "{number}: {found:?}");
        let bytes = verdict.to_bytes();
        let behind = bytes.windows(9).position(|part| part == b",\"claim\":").unwrap();
        for edit in 0..edits {
            let [place, byte, kind, _] = philox4x32_10([8, number], [edit, 0, 0, 0]);
            let start = if edit % 8 == 0 { 0 } else { behind };
            let place = start + place as usize % (bytes.len() - start);
            let mut edited = bytes.clone();
            match kind % 8 {
                0 => drop(edited.remove(place)),
                1 => edited.insert(place, edited[place]),
                2 => edited[place] = byte as u8,
                _ => edited[place] = b"0123456789abcdefABC+/"[byte as usize % 21],
            }
            let Ok(found) = AnswerVerdict::from_bytes(&edited) else { continue };
            read += 1;
            let found = ruling(&found);
            assert!(
                !matches!(found, Ok(AnswerRuling::Convicts(_))),
                "claim {number}, edit {edit}: {found:?}"
            );
        }
        for bytes in [&bytes[..bytes.len() - 1], &[&bytes[..], b"\n"].concat()] {
            assert!(AnswerVerdict::from_bytes(bytes).is_err());
        }
    }
    assert!(read > claims.len() * edits as usize / 8, "{read}");
}

fn true_claims_hold(signer: &Signer, edits: u32) {
    let (honest, trace) = signer.honest();
    let claims = honest_claims(signer, &honest, &trace);
    no_edit_convicts(&claims, edits, |verdict| signer.ruling(verdict));
    // Nobody signed: nobody is accused.
    let plain = AnswerVerdict::new(honest.to_text(None), claims[0].claim.clone());
    assert!(signer.ruling(&plain).unwrap_err().contains("nobody signed its receipt"));
}

/// An input that carries other bytes of its first slice, with the digest that they give; the proof is as it was.
fn forged_input(
    ty: &tiebreak_contract::program::graph::TensorType,
    whole: &[u8],
    id: u32,
    old: &ProvenInput,
) -> ProvenInput {
    let mut bytes = whole.to_vec();
    bytes.iter_mut().for_each(|byte| *byte ^= 0x10);
    let values = tensor::piece_values(&bytes, tensor::SLICE_BYTES);
    let slices: Vec<usize> = (0..values.len()).collect();
    let commitment = tiebreak_dispute::verdict::ProvenTensor {
        digest: tensor::digest(ty, &bytes),
        ..old.commitment.clone()
    };
    let siblings = tiebreak_dispute::verdict::Hashes(Vec::new());
    ProvenInput { tensor: id, commitment, slices, bytes: Base64(bytes), siblings }
}

/// Whoever wants an honest signer convicted changes each part of the evidence, and makes the rest fit where they can.
#[test]
fn forged_evidence_convicts_no_honest_signer() {
    let signer = Signer::new(Vec::new());
    let (honest, trace) = signer.honest();
    let answerer = signer.answerer();
    let graph = answerer.window_graphs(&honest)[1].clone();
    let refused = |claim: AnswerClaim, says: &str| {
        let verdict = AnswerVerdict::new(honest.to_text(Some(&signer.key)), claim);
        let why = signer.ruling(&verdict).expect_err(says);
        assert!(why.contains(says), "{says}: {why}");
    };
    let mut touched = [0; 2];
    for verdict in honest_claims(&signer, &honest, &trace) {
        match verdict.claim {
            AnswerClaim::Token { number, row, proof } => {
                let zeros = Base64(vec![0; row.0.len()]);
                refused(
                    AnswerClaim::Token { number, row: zeros, proof: proof.clone() },
                    "is not what the receipt commits",
                );
                refused(
                    AnswerClaim::Token { number: 4, row: row.clone(), proof: proof.clone() },
                    "is not what the receipt commits",
                );
                refused(
                    AnswerClaim::Token { number: 14, row: row.clone(), proof: proof.clone() },
                    "the answer has 14",
                );
                refused(
                    AnswerClaim::Token { number, row: Base64(row.0[1..].to_vec()), proof: proof.clone() },
                    "four each",
                );
                refused(
                    AnswerClaim::Token { number, row: Base64(vec![0; 4 * 257]), proof },
                    "is not what the receipt commits",
                );
            }
            AnswerClaim::Row(claim) => {
                let mut other = claim.clone();
                other.row.digest = Digest([1; 32]);
                refused(AnswerClaim::Row(other), "the row of token 9 is not what the receipt commits");
                let mut other = claim.clone();
                other.number = 0;
                refused(AnswerClaim::Row(other), "window 1 gives no row of token 0");
                let mut other = claim.clone();
                other.logits.slices.remove(0);
                other.logits.bytes.0.drain(..tensor::SLICE_BYTES);
                refused(AnswerClaim::Row(other), "");
                let id = graph.output("logits").unwrap();
                let mut other = claim.clone();
                other.logits =
                    forged_input(graph.tensor(id), &vec![0; graph.tensor(id).bytes()], id.0, &claim.logits);
                refused(AnswerClaim::Row(other), "is not what the window's root commits");
                let mut other = claim.clone();
                other.logits.tensor = 0;
                refused(AnswerClaim::Row(other), "and the logits are tensor");
            }
            AnswerClaim::Tile(claim) => {
                // A model whose operators would give something else.
                let mut other = claim.clone();
                other.job = job_text(1);
                refused(AnswerClaim::Tile(other), "and the receipt is of model");
                // A trace of one's own: another output, under a root that fits it.
                let mut nodes = trace.windows[1].clone();
                let ty = graph.tensor(graph.nodes[claim.node].output);
                let zeros = tensor::tile_values(&vec![0xff; ty.bytes()]);
                nodes[claim.node] = tiebreak_record::commit::trace::TracedNode::new(ty, zeros.clone());
                let leaves = node_leaves(&nodes);
                let mut other = claim.clone();
                other.window.root = merkle::root(&leaves);
                other.output.digest = nodes[claim.node].digest;
                other.output.proof = merkle::prove(&leaves, claim.node);
                other.value = Digest(zeros[0]);
                let all: Vec<tensor::Hash> = zeros.clone();
                let prove = tiebreak_record::commit::multiproof::prove;
                other.siblings.0 = prove(tiebreak_record::commit::multiproof::blake3, &all, &[0]);
                refused(AnswerClaim::Tile(other.clone()), "window 1 is not what the receipt commits");
                other.window = claim.window.clone();
                refused(AnswerClaim::Tile(other.clone()), "is not what the window's root commits");
                other.output = claim.output.clone();
                refused(AnswerClaim::Tile(other), "the tile gives a tensor");
                // Other inputs, and inputs that follow from the receipt.
                for (place, input) in claim.inputs.iter().enumerate() {
                    let id = tiebreak_contract::program::graph::TensorId(input.tensor);
                    let ty = graph.tensor(id);
                    let mut other = claim.clone();
                    other.inputs[place] = forged_input(ty, &vec![0; ty.bytes()], id.0, input);
                    let is_parameter = graph.inputs.iter().any(|port| port.tensor == id);
                    touched[usize::from(is_parameter)] += 1;
                    refused(
                        AnswerClaim::Tile(other),
                        if is_parameter { "param/" } else { "is not what the window's root commits" },
                    );
                    let mut other = claim.clone();
                    other.inputs.push(input.clone());
                    refused(AnswerClaim::Tile(other), "it carries a tensor twice");
                    let mut other = claim.clone();
                    other.inputs.remove(place);
                    refused(AnswerClaim::Tile(other), "is needed and not there");
                }
                for id in graph.nodes[claim.node].primitive.inputs() {
                    let from = graph.inputs.iter().find(|port| port.tensor == id);
                    if from.is_some_and(|port| !port.name.starts_with("param/")) {
                        let input = forged_input(
                            graph.tensor(id),
                            &vec![0; graph.tensor(id).bytes()],
                            id.0,
                            &honest_input(&claim.output),
                        );
                        let mut other = claim.clone();
                        other.inputs.push(input);
                        refused(AnswerClaim::Tile(other), "that follows from the receipt");
                    }
                }
                let mut other = claim.clone();
                other.node = graph.nodes.len();
                refused(AnswerClaim::Tile(other), "and there are");
                let mut other = claim.clone();
                other.window.number = 9;
                refused(AnswerClaim::Tile(other), "the answer has 3");
                let mut other = claim.clone();
                other.tile = 1 << 40;
                refused(AnswerClaim::Tile(other), "");
            }
            _ => unreachable!("no other claims are made"),
        }
    }
    assert!(touched.iter().all(|count| *count > 10), "{touched:?}");
}

fn honest_input(output: &tiebreak_dispute::verdict::ProvenTensor) -> ProvenInput {
    let (bytes, siblings) = (Base64(Vec::new()), tiebreak_dispute::verdict::Hashes(Vec::new()));
    ProvenInput { tensor: 0, commitment: output.clone(), slices: Vec::new(), bytes, siblings }
}

#[test]
fn traces_have_one_encoding() {
    let signer = Signer::new(Vec::new());
    let (honest, trace) = signer.honest();
    let graphs = signer.answerer().window_graphs(&honest);
    let (rows, bytes) = (honest.answer.len(), trace.encode());
    assert_eq!(bytes.len() as u64, AnswerTrace::bytes_max(rows, &graphs));
    assert_eq!(AnswerTrace::decode(&bytes, rows, &graphs).as_ref(), Ok(&trace));
    for cut in [0, 3, 4, 36, 452, 456, bytes.len() - 1] {
        assert!(AnswerTrace::decode(&bytes[..cut], rows, &graphs).is_err(), "{cut}");
    }
    for place in (0..bytes.len()).step_by(97) {
        let mut changed = bytes.clone();
        changed[place] ^= 1;
        assert_ne!(AnswerTrace::decode(&changed, rows, &graphs).as_ref(), Ok(&trace), "{place}");
    }
    assert!(AnswerTrace::decode(&[&bytes[..], &[0]].concat(), rows, &graphs).is_err());
    assert!(AnswerTrace::decode(&bytes, rows - 1, &graphs).is_err());
    assert!(AnswerTrace::decode(&bytes, rows, &graphs[..2]).is_err());
    let huge = [&[0xff; 4][..], &bytes[4..]].concat();
    assert!(AnswerTrace::decode(&huge, rows, &graphs).is_err());
}
