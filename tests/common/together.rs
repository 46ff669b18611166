//! Answers in one batch, which join and leave at different times, against each answer alone.

use std::collections::BTreeMap;

use tiebreak_contract::program::products::ProductTable;
use tiebreak_contract::program::sampling::Sampling;
use tiebreak_engine::Engine;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_run::inference::answer::{Answer, Identity};
use tiebreak_run::inference::batch::{Batch, TextId};
use tiebreak_run::inference::decoder::Decoder as Reader;
use tiebreak_run::inference::replay::Answerer;

use crate::cached_decoders::{BAD, Decoder, decoder, decoders, network};

/// The ids that end texts.
const ENDS: [u32; 1] = [9];
/// The candidates: all but the bad token, whose embedding holds an infinity.
const KNOWN: [bool; 11] = {
    let mut known = [true; 11];
    known[BAD as usize] = false;
    known
};

/// Small decoders, one of them a network file's. One has a context that is longer than the chunks in which prompts are read.
pub fn all_decoders() -> impl Iterator<Item = Decoder> {
    let gpt = r#"{"kind": "gpt", "vocabulary": 11, "context": 45, "layers": 1, "heads": 2, "width": 4}"#;
    decoders().into_iter().chain([decoder(gpt, ProductTable::preset(), [45, 3]), network()])
}

/// A request for an answer.
struct Asked {
    prompt: Vec<u32>,
    length: u32,
    seed: u64,
    /// The round in which it joins.
    joins: usize,
    /// The round after which it leaves, if its answer is not whole.
    leaves: Option<usize>,
}

/// Requests of all lengths: shorter and longer than a chunk and a context, of one token and of many. One has the bad token, so that its rows are
/// no numbers. Answers outgrow their windows, and tokens end some of them.
fn requests() -> Vec<Asked> {
    let text = |key: u32, len: u32| (0..len).map(|i| (i * i + 3 * i * key + key) % 9).collect();
    let asked = |key: u32, len: u32, length: u32, joins: usize| Asked {
        prompt: text(key, len),
        length,
        seed: u64::from(key) << 30,
        joins,
        leaves: None,
    };
    let mut all = vec![
        asked(1, 3, 30, 0),
        asked(2, 1, 5, 0),
        asked(3, 14, 12, 1),
        asked(4, 6, 1, 1),
        asked(5, 2, 40, 1),
        asked(6, 8, 9, 2),
        asked(7, 9, 20, 2),
        asked(8, 21, 3, 2),
        asked(9, 4, 25, 6),
        asked(10, 5, 17, 14),
        asked(11, 2, 6, 40),
        asked(12, 33, 11, 3),
        asked(13, 37, 5, 4),
        asked(14, 50, 14, 20),
    ];
    all[6].prompt[7] = BAD;
    all[4].leaves = Some(17);
    all
}

fn sampling(asked: &Asked) -> Sampling {
    let [temperature, top_p] = [1.5f32, 0.95].map(f32::to_bits);
    Sampling { temperature, top_k: 8, top_p, seed: asked.seed }
}

/// How tokens are chosen. In two of three answers no token ends the text, so that they are long.
fn rules<'a>(decoder: &'a Decoder, asked: &Asked) -> Answerer<'a> {
    let ends: &[u32] = if asked.prompt.len() % 3 == 1 { &ENDS } else { &[] };
    Answerer { model: decoder.writer(), parameters: (&[], &[]), known: &KNOWN, ends }
}

/// The receipt so far. All have the same digests of models.
fn receipt(answer: &Answer, asked: &Asked) -> Receipt {
    let identity = Identity { model: [Digest([1; 32]); 2], tokenizer: None };
    answer.receipt(&identity, asked.prompt.clone()).unwrap()
}

/// The receipt of each answer that nobody else is answered beside, and of those which leave early after each token. Answers end where
/// a row gives no token.
pub fn alone(decoder: &Decoder, engine: &mut dyn Engine) -> Vec<Vec<Receipt>> {
    let mut of = |asked: &Asked| {
        let parameters = decoder.upload(engine);
        let mut reader = Reader::new(engine, decoder.writer(), parameters).unwrap().unwrap();
        let mut answer = Answer::new(sampling(asked), asked.length, true);
        let mut receipts = vec![receipt(&answer, asked)];
        while !answer.is_whole() {
            let text = [&asked.prompt[..], answer.ids()].concat();
            let row = reader.logits(&text).unwrap();
            if answer.take(&rules(decoder, asked), &row).is_err() {
                break;
            }
            receipts.push(receipt(&answer, asked));
        }
        receipts
    };
    requests().iter().map(&mut of).collect()
}

/// Holds an engine to the answers that were computed alone, in a batch of at most `texts`.
pub fn together(decoder: &Decoder, engine: &mut dyn Engine, alone: &[Vec<Receipt>], texts: usize) {
    let requests = requests();
    let (name, parameters) = (engine.describe(), decoder.upload(engine));
    let mut batch = Batch::new(engine, decoder.writer(), parameters, texts as u32).unwrap().unwrap();
    let mut waiting: Vec<usize> = (0..requests.len()).collect();
    let mut running: BTreeMap<TextId, (usize, Answer)> = BTreeMap::new();
    let (mut found, mut most): (Vec<Option<Receipt>>, _) = (vec![None; requests.len()], 0);
    for round in 0.. {
        while let Some(place) = waiting.iter().position(|&i| requests[i].joins <= round)
            && batch.len() < texts
        {
            let number = waiting.remove(place);
            let asked = &requests[number];
            let answer = Answer::new(sampling(asked), asked.length, true);
            running.insert(batch.join(asked.prompt.clone()), (number, answer));
        }
        if waiting.is_empty() && batch.is_empty() {
            break;
        }
        most = most.max(batch.len());
        assert!(round < 1000, "{name}: an answer is never whole");
        let mut choose = |id: TextId, row: &[u32]| {
            let (number, answer) = running.get_mut(&id).expect("a text that is there");
            let taken = answer.take(&rules(decoder, &requests[*number]), row);
            if let (Ok(Some(token)), false) = (taken, answer.is_whole()) {
                return Some(token);
            }
            found[*number] = Some(receipt(answer, &requests[*number]));
            running.remove(&id);
            None
        };
        batch.advance(&mut choose).unwrap();
        let leaving: Vec<TextId> = running
            .iter()
            .filter(|(_, (i, _))| requests[*i].leaves == Some(round))
            .map(|(id, _)| *id)
            .collect();
        for id in leaving {
            batch.leave(id);
            let (number, answer) = running.remove(&id).unwrap();
            found[number] = Some(receipt(&answer, &requests[number]));
        }
        assert_eq!(batch.len(), running.len(), "{name}: a seat is not freed");
    }
    assert!(most == texts, "{name}: the batch was never full");
    for (number, (found, alone)) in found.iter().zip(alone).enumerate() {
        let found = found.as_ref().expect("every answer ended");
        let expected = if requests[number].leaves.is_some() {
            &alone[found.answer.len()]
        } else {
            &alone[alone.len() - 1]
        };
        assert_eq!(found, expected, "answer {number} of {texts} at once on {name}");
    }
}
