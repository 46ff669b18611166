//! Decoders over caches, in chunks and in batches with strangers: every engine must give each position's logits the same bits.

use std::sync::Arc;

use tiebreak_contract::arith::words::{bytes_of, words_from_bytes};
use tiebreak_contract::arith::{DType, philox};
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::inference::{Writer, caches, inference_step, places};
use tiebreak_contract::program::models::{Model, Network};
use tiebreak_contract::program::network::{self, NetworkModel};
use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
use tiebreak_contract::program::step::inference_graph;
use tiebreak_engine::{Engine, Tensor};

/// A token whose embedding holds an infinity.
pub const BAD: u32 = 10;

/// The logits of each position, as words.
pub type Rows = Vec<Vec<u32>>;

/// A decoder with weights.
pub struct Decoder {
    of: Of,
    parameters: Vec<(TensorType, Vec<u8>)>,
    context: u32,
    vocabulary: u32,
}

/// The model of a job, or that of a network file.
enum Of {
    Job(Box<Model>, ProductTable),
    Network(Box<NetworkModel>),
}

/// A GPT, a Llama with adapters whose heads share keys, with products in blocks where a table allows them, and a Llama with windows.
pub fn decoders() -> [Decoder; 3] {
    let gpt = r#"{"kind": "gpt", "vocabulary": 11, "context": 9, "layers": 2, "heads": 2, "width": 6}"#;
    let llama = r#"{"kind": "llama", "vocabulary": 11, "context": 8, "layers": 2, "heads": 4, "kv_heads": 2, "width": 8,
        "hidden": 12, "head_width": 4, "qk_norm": true, "qkv_bias": true,
        "lora": {"rank": 2, "alpha": 0.5, "dropout": 0.3, "targets": ["v_proj", "1.mlp.*"]}}"#;
    let windowed = r#"{"kind": "llama", "vocabulary": 11, "context": 8, "layers": 2, "heads": 4, "kv_heads": 2, "width": 8,
        "hidden": 12, "sliding_window": 2}"#;
    let mut blocks = ProductTable::two_and_three();
    blocks.set(ProductClass::Values, ProductDigits { digits_a: 3, digits_b: 2, block: 64 });
    let plain = |model, sizes| decoder(model, ProductTable::preset(), sizes);
    [plain(gpt, [9, 1]), decoder(llama, blocks, [8, 2]), plain(windowed, [8, 4])]
}

/// A decoder with weights of Philox, by a key.
pub fn decoder(model: &str, products: ProductTable, [context, key]: [u32; 2]) -> Decoder {
    of(Of::Job(serde_json::from_str(model).unwrap(), products), [context, key])
}

/// The decoder of a network file, which is no built-in model: positions by a table and by rotation, heads that share keys, and layers
/// beside one another.
pub fn network() -> Decoder {
    network_of(include_str!("../../assets/networks/decoder.json"), [7, 6])
}

/// The decoder of a network file's text, with weights by a key.
pub fn network_of(text: &str, sizes: [u32; 2]) -> Decoder {
    of(Of::Network(Box::new(network::model(text).unwrap().1)), sizes)
}

fn of(of: Of, [context, key]: [u32; 2]) -> Decoder {
    let parameters = (0..).zip(of.writer().parameters()).map(|(number, p)| {
        let ty = TensorType { dtype: DType::F32, shape: p.shape.clone() };
        let value = |i: usize| {
            let word = philox::philox4x32_10([key, 0], [i as u32, 0, number, 0])[0];
            let is_bad = p.name == "token_embedding" && i as u32 / p.shape[1] == BAD;
            let value = f64::from(word) / f64::from(1 << 30) - 2.0;
            if is_bad && i.is_multiple_of(3) { f32::INFINITY } else { value as f32 }.to_bits()
        };
        let words: Vec<u32> = (0..ty.len()).map(value).collect();
        let bytes = bytes_of(&words).to_vec();
        (ty, bytes)
    });
    let parameters = parameters.collect();
    let vocabulary = of.writer().vocabulary().unwrap();
    Decoder { of, parameters, context, vocabulary }
}

impl Of {
    fn writer(&self) -> Writer<'_> {
        match self {
            Of::Job(model, products) => Writer::Job(model, products),
            Of::Network(model) => Writer::Network(model),
        }
    }
}

impl Decoder {
    /// The model.
    pub fn writer(&self) -> Writer<'_> {
        self.of.writer()
    }

    /// True if layers have windows.
    pub fn has_windows(&self) -> bool {
        matches!(self.writer(), Writer::Job(Model::Llama(llama), _) if llama.sliding_window.is_some())
    }

    /// The parameters on an engine.
    pub fn upload(&self, engine: &mut dyn Engine) -> Vec<Tensor> {
        self.parameters.iter().map(|(ty, bytes)| engine.upload(ty, bytes).unwrap()).collect()
    }

    fn rows(&self, bytes: &[u8]) -> Rows {
        words_from_bytes(DType::F32, bytes).chunks(self.vocabulary as usize).map(<[u32]>::to_vec).collect()
    }

    /// The logits of sequences that go through a cache `chunk` tokens at a time. The last chunk of each ends with the sequence,
    /// so that it takes some positions again. A sequence that is done goes on doing its last chunk.
    pub fn cached(&self, engine: &mut dyn Engine, sequences: &[&[u32]], chunk: u32) -> Vec<Rows> {
        let count = sequences.len() as u32;
        let graph = inference_step(self.writer(), [count, chunk]).unwrap();
        let graph = engine.compile(Arc::new(graph)).unwrap();
        let parameters = self.upload(engine);
        let zeros = caches(self.writer(), count).unwrap();
        let mut state: Vec<Tensor> =
            zeros.iter().map(|(_, ty)| engine.upload(ty, &vec![0; ty.bytes()]).unwrap()).collect();
        let mut found: Vec<Rows> = sequences.iter().map(|s| vec![Vec::new(); s.len()]).collect();
        let longest = sequences.iter().map(|s| s.len() as u32).max().unwrap();
        for next in (0..longest).step_by(chunk as usize) {
            let starts: Vec<u32> = sequences.iter().map(|s| next.min(s.len() as u32 - chunk)).collect();
            let new = sequences.iter().zip(&starts).flat_map(|(s, &at)| &s[at as usize..][..chunk as usize]);
            let [positions, rows] = places(&starts, chunk, self.context).unwrap();
            let mut inputs = parameters.clone();
            for list in [new.copied().collect(), positions, rows] {
                let ty = TensorType { dtype: DType::U32, shape: vec![list.len() as u32] };
                inputs.push(engine.upload(&ty, &bytes_of(&list)).unwrap());
            }
            inputs.append(&mut state);
            let mut outputs = engine.run(&graph, &inputs, None).unwrap();
            state = outputs.split_off(1);
            let logits = self.rows(&engine.download(&outputs[0]).unwrap());
            for ((of, &start), logits) in found.iter_mut().zip(&starts).zip(logits.chunks(chunk as usize)) {
                for (place, row) in (start as usize..).zip(logits) {
                    assert!(of[place].is_empty() || of[place] == *row, "position {place} again");
                    of[place] = row.clone();
                }
            }
        }
        found
    }

    /// The logits of one sequence by the ordinary forward pass, with `padding` up to the context.
    pub fn whole(&self, engine: &mut dyn Engine, sequence: &[u32], padding: u32) -> Rows {
        let (model, products): (&dyn Network, _) = match &self.of {
            Of::Job(model, products) => (&***model, products),
            Of::Network(model) => (model.network(), &model.products),
        };
        let graph = inference_graph(model, products, 1);
        let graph = engine.compile(Arc::new(graph)).unwrap();
        let mut inputs = self.upload(engine);
        let mut tokens = sequence.to_vec();
        tokens.resize(self.context as usize, padding);
        let labels = vec![0; self.context as usize];
        for list in [&tokens[..], &labels, &[0], &[0, 0], &[0], &[0]] {
            let dtype = if inputs.len() == self.parameters.len() + 2 { DType::F32 } else { DType::U32 };
            let ty = TensorType { dtype, shape: vec![list.len() as u32] };
            inputs.push(engine.upload(&ty, &bytes_of(list)).unwrap());
        }
        let outputs = engine.run(&graph, &inputs, None).unwrap();
        let mut rows = self.rows(&engine.download(&outputs[0]).unwrap());
        rows.truncate(sequence.len());
        rows
    }

    /// Three sequences. The second has a bad token, which some windows do not reach, and the third is shorter.
    pub fn sequences(&self) -> [Vec<u32>; 3] {
        let text = |key: u32, len: u32| (0..len).map(move |i| (i * i + 3 * i * key + key) % BAD).collect();
        let [first, mut second, third]: [Vec<u32>; 3] = [text(1, self.context), text(2, 7), text(5, 6)];
        second[if self.has_windows() { 1 } else { 5 }] = BAD;
        [first, second, third]
    }

    /// The logits that every engine, chunk and batch must give: one sequence at a time, its tokens one by one.
    pub fn expected(&self, engine: &mut dyn Engine) -> Vec<Rows> {
        self.sequences().iter().flat_map(|s| self.cached(engine, &[s], 1)).collect()
    }

    /// Holds an engine to the expected logits, in these chunks: each sequence alone, and in batches in two orders.
    pub fn check(&self, engine: &mut dyn Engine, expected: &[Rows], chunks: &[u32]) {
        let [a, b, c] = &self.sequences();
        for &chunk in chunks {
            let message = format!("{} in chunks of {chunk}", engine.describe());
            assert_eq!(self.cached(engine, &[a, b, c], chunk), expected, "{message}");
            let turned = self.cached(engine, &[c, a], chunk);
            assert_eq!(turned, [&expected[2..], &expected[..1]].concat(), "{message}");
        }
        assert_eq!(self.cached(engine, &[a], self.context), expected[..1], "{}", engine.describe());
    }
}
