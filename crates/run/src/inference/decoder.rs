//! A decoder that keeps the keys and values of the tokens that it has read (docs/INFERENCE.md).

use std::sync::Arc;

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::{bytes_of, words_from_bytes};
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::inference::{caches, inference_step, places, window};
use tiebreak_contract::program::models::Model;
use tiebreak_contract::program::products::ProductTable;
use tiebreak_engine::{Compiled, Engine, EngineError, Tensor};

/// Tokens of a step that reads a prompt.
const CHUNK: u32 = 32;

/// A model with its weights, and one text that it reads.
pub struct Decoder<'a> {
    engine: &'a mut dyn Engine,
    parameters: Vec<Tensor>,
    /// The types of the caches, and the caches.
    types: Vec<TensorType>,
    caches: Vec<Tensor>,
    /// A step of one token.
    one: Compiled,
    /// A step of several, for prompts, and their number.
    several: (Compiled, u32),
    /// Positions of the context.
    context: u32,
    /// The window into the text: the index of its first token, and how many tokens of it are in the caches.
    window: (usize, usize),
}

impl<'a> Decoder<'a> {
    /// `None` if the model is no decoder. `parameters` are on the engine, in the model's order.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn new(
        engine: &'a mut dyn Engine,
        (model, products): (&Model, &ProductTable),
        parameters: Vec<Tensor>,
    ) -> Result<Option<Self>, EngineError> {
        let context = model.labels_per_sample();
        let chunk = CHUNK.min(context);
        let steps = [1, chunk].map(|tokens| inference_step(model, products, [1, tokens]));
        let ([Some(one), Some(several)], Some(types)) = (steps, caches(model, 1)) else {
            return Ok(None);
        };
        let one = engine.compile(Arc::new(one))?;
        let several = (engine.compile(Arc::new(several))?, chunk);
        let types = types.into_iter().map(|(_, ty)| ty).collect();
        let mut decoder =
            Self { engine, parameters, types, caches: Vec::new(), one, several, context, window: (0, 0) };
        decoder.empty()?;
        Ok(Some(decoder))
    }

    /// Bytes of a model's caches, those before and after a step; 0 if the model is no decoder.
    pub fn memory(model: &Model) -> u64 {
        let caches = caches(model, 1).unwrap_or_default();
        caches.iter().map(|(_, ty)| 2 * ty.bytes() as u64).sum()
    }

    /// The logits behind a text's last token, [V] words. The text is that of the last call, and more tokens.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn logits(&mut self, text: &[u32]) -> Result<Vec<u32>, EngineError> {
        let first = window(text.len(), self.context);
        if first != self.window.0 {
            self.window = (first, 0);
            self.empty()?;
        }
        let tokens = &text[first..];
        let chunk = self.several.1 as usize;
        let mut logits = Vec::new();
        while self.window.1 < tokens.len() {
            let is_one = tokens.len() - self.window.1 == 1 || tokens.len() < chunk;
            let count = if is_one { 1 } else { chunk };
            // The last chunk takes some tokens again, to the same bits.
            let start = self.window.1.min(tokens.len() - count);
            logits = self.step(start as u32, &tokens[start..start + count])?;
            self.window.1 = start + count;
        }
        Ok(words_from_bytes(DType::F32, &logits))
    }

    fn empty(&mut self) -> Result<(), EngineError> {
        let zeros = self.types.iter().map(|ty| self.engine.upload(ty, &vec![0; ty.bytes()]));
        self.caches = zeros.collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Reads tokens into the caches from a position on. Returns the last one's logits.
    fn step(&mut self, start: u32, tokens: &[u32]) -> Result<Vec<u8>, EngineError> {
        let count = tokens.len() as u32;
        let [positions, rows] =
            places(&[start], count, self.context).expect("the window is within the context");
        let graph = if count == 1 { &self.one } else { &self.several.0 };
        let mut inputs = self.parameters.clone();
        for list in [tokens, &positions, &rows] {
            let ty = TensorType { dtype: DType::U32, shape: vec![list.len() as u32] };
            inputs.push(self.engine.upload(&ty, &bytes_of(list))?);
        }
        inputs.append(&mut self.caches);
        let mut outputs = self.engine.run(graph, &inputs, None)?;
        self.caches = outputs.split_off(1);
        let mut logits = self.engine.download(&outputs[0])?;
        Ok(logits.split_off(logits.len() / tokens.len() * (tokens.len() - 1)))
    }
}
