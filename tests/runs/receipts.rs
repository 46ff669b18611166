//! Receipts of answers in this process: one that a script made from the page alone, replayed on the scalar reference and on CPUs, and
//! its mutations.

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::inference::Writer;
use tiebreak_contract::program::models::Model;
use tiebreak_contract::program::products::ProductTable;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_engine::{Compiled, Engine, EngineError, Observer, Tensor};
use tiebreak_record::commit::receipt::{AnswerRoot, Receipt};
use tiebreak_run::inference::decoder::Decoder;
use tiebreak_run::inference::replay::{Answerer, Difference};

/// A token whose embedding holds an infinity.
const BAD: u32 = 10;

/// The receipt in `assets/vectors/inference.json`.
fn golden() -> String {
    let all: serde_json::Value =
        serde_json::from_str(include_str!("../../assets/vectors/inference.json")).unwrap();
    all["receipt"].as_str().unwrap().to_string()
}

/// A GPT with weights of Philox, by a key: that of the receipt has key 1 and 9 positions (`tests/common/cached.rs`).
struct Gpt {
    model: Model,
    products: ProductTable,
    table: Vec<StateTensor>,
    bytes: Vec<Vec<u8>>,
}

impl Gpt {
    fn new(key: u32, context: u32) -> Gpt {
        let model = format!(
            r#"{{"kind": "gpt", "vocabulary": 11, "context": {context}, "layers": 2, "heads": 2, "width": 6}}"#
        );
        let model: Model = serde_json::from_str(&model).unwrap();
        let parameters = (0..).zip(model.parameters()).map(|(number, p)| {
            let value = |i: u32| {
                let word = philox4x32_10([key, 0], [i, 0, number, 0])[0];
                let is_bad = p.name == "token_embedding" && i / p.shape[1] == BAD && i.is_multiple_of(3);
                let value = (f64::from(word) / f64::from(1 << 30) - 2.0) as f32;
                if is_bad { f32::INFINITY } else { value }.to_bits()
            };
            let words: Vec<u32> = (0..p.shape.iter().product()).map(value).collect();
            (StateTensor { name: format!("param/{}", p.name), shape: p.shape.clone() }, bytes_of(&words))
        });
        let (table, bytes) = parameters.unzip();
        Gpt { model, products: ProductTable::preset(), table, bytes }
    }

    fn answerer(&self) -> Answerer<'_> {
        let model = Writer::Job(&self.model, &self.products);
        let parameters = (&self.table[..], &self.bytes[..]);
        Answerer { model, parameters, known: &KNOWN, ends: &ENDS }
    }
}

/// The candidates of the golden receipt, and the ids that end its texts.
const KNOWN: [bool; 11] = {
    let mut known = [true; 11];
    known[BAD as usize] = false;
    known
};
const ENDS: [u32; 1] = [9];

#[test]
fn a_receipt_made_from_the_page_matches() {
    let (text, [gpt, other]) = (golden(), [Gpt::new(1, 9), Gpt::new(2, 8)]);
    let (receipt, signer) = Receipt::from_text(&text).unwrap();
    assert!(signer.is_none() && receipt.to_text(None) == text);
    let answerer = gpt.answerer();
    assert_eq!(answerer.identity(), Some([receipt.model, receipt.parameters]));
    let others = other.answerer().identity().unwrap();
    assert!(others[0] != receipt.model && others[1] != receipt.parameters);
    // Whole windows on the reference and on CPUs, and parts of the answer.
    let (all, count) = (0..receipt.answer.len(), receipt.answer.len());
    assert_eq!(answerer.difference(&mut Reference, &receipt, all.clone(), &mut |_| {}).unwrap(), None);
    for threads in [1, 3] {
        let mut cpu = Cpu::new(threads).unwrap();
        for numbers in [all.clone(), 0..1, 7..count, count - 1..count] {
            assert_eq!(answerer.difference(&mut cpu, &receipt, numbers, &mut |_| {}).unwrap(), None);
        }
        // The same answer token by token, over caches.
        let parameters = answerer.upload(&mut cpu).unwrap();
        let mut reader = Decoder::new(&mut cpu, answerer.model, parameters).unwrap().unwrap();
        let (mut ids, mut root) = (receipt.prompt.clone(), AnswerRoot::default());
        for number in 0..count as u32 {
            let row = reader.logits(&ids).unwrap();
            let id = receipt.sampling.token(&row, &KNOWN, number).unwrap();
            root.push(id, &row);
            ids.push(id);
        }
        assert_eq!((&ids[receipt.prompt.len()..], root.root()), (&receipt.answer[..], receipt.root));
    }
    // An answer goes on until a token ends it.
    let more = Receipt { answer: [&receipt.answer[..], &[3]].concat(), ..receipt.clone() };
    let found = answerer.difference(&mut Reference, &more, 0..count + 1, &mut |_| {}).unwrap();
    assert_eq!(found, Some(Difference::Ended { number: count as u32 }));
}

/// A CPU engine that answers with the next id: it turns the rows of logits by one.
struct Faulty(Cpu);

impl Engine for Faulty {
    tiebreak_engine::forward!(self => self.0; upload, read, compile);

    fn describe(&self) -> String {
        "faulty adapter".into()
    }
    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let mut outputs = self.0.run(compiled, inputs, observer)?;
        let mut logits = self.0.download(&outputs[0])?;
        logits.rotate_right(4);
        let ty = TensorType { dtype: DType::F32, shape: vec![logits.len() as u32 / 44, 11] };
        outputs[0] = self.0.upload(&ty, &logits)?;
        Ok(outputs)
    }
}

#[test]
fn a_faulty_checker_accuses_nobody() {
    let gpt = Gpt::new(1, 9);
    let (receipt, _) = Receipt::from_text(&golden()).unwrap();
    let (answerer, all) = (gpt.answerer(), 0..receipt.answer.len());
    let mut faulty = Faulty(Cpu::new(1).unwrap());
    let found = answerer.difference(&mut faulty, &receipt, all.clone(), &mut |_| {}).unwrap().unwrap();
    assert!(matches!(found, Difference::Token { .. }), "{found:?}");
    assert!(!answerer.confirms(&receipt, &found, &mut |_| {}).unwrap());
    // A lie that a right engine finds, in a token and in the root alone.
    let mut cpu = Cpu::new(1).unwrap();
    let mut tokens = receipt.answer.clone();
    tokens[2] = (tokens[2] + 1) % ENDS[0];
    let root = AnswerRoot::default().root();
    for lie in [Receipt { answer: tokens, ..receipt.clone() }, Receipt { root, ..receipt.clone() }] {
        let found = answerer.difference(&mut cpu, &lie, all.clone(), &mut |_| {}).unwrap().unwrap();
        assert!(answerer.confirms(&lie, &found, &mut |_| {}).unwrap(), "{found:?}");
    }
}

/// Receipts with changed, left out and doubled characters end with an error or a difference. Those that match differ in settings
/// alone, by which the model gives the same tokens.
#[test]
fn no_mutation_of_a_receipt_panics_or_matches_by_chance() {
    let (text, gpt) = (golden(), Gpt::new(1, 9));
    let (honest, _) = Receipt::from_text(&text).unwrap();
    let answerer = gpt.answerer();
    let identity = answerer.identity().unwrap();
    let mut cpu = Cpu::new(1).unwrap();
    let [mut read, mut replayed, mut matched] = [0; 3];
    for number in 0..1500 {
        let [place, byte, kind, _] = philox4x32_10([41, 4], [number, 0, 0, 0]);
        let mut bytes = text.clone().into_bytes();
        // Half of the changes are in the settings and the tokens, behind the digests.
        let start = if number % 2 == 0 { 0 } else { text.find("\"temperature\"").unwrap() };
        let place = start + place as usize % (bytes.len() - start);
        match kind % 8 {
            0 => drop(bytes.remove(place)),
            1 => bytes.insert(place, bytes[place]),
            2 => bytes[place] = byte as u8,
            _ => bytes[place] = b"0123456789abcdef"[byte as usize % 16],
        }
        let Ok(changed) = String::from_utf8(bytes) else { continue };
        let Ok((receipt, _)) = Receipt::from_text(&changed) else { continue };
        if receipt == honest {
            assert_eq!(changed, text);
            continue;
        }
        read += 1;
        if [receipt.model, receipt.parameters] != identity || answerer.has_tokens(&receipt).is_err() {
            continue;
        }
        replayed += 1;
        let all = 0..receipt.answer.len();
        if answerer.difference(&mut cpu, &receipt, all, &mut |_| {}).unwrap().is_none() {
            matched += 1;
            let (sampling, length) = (honest.sampling, honest.length);
            let settled = Receipt { sampling, length, tokenizer: honest.tokenizer, ..receipt };
            assert_eq!(settled, honest, "{changed}");
        }
    }
    assert!(read > 300 && replayed > 100 && matched < replayed / 2, "{read} {replayed} {matched}");
}
