//! A decoder that keeps the keys and values of the tokens that it has read (docs/INFERENCE.md).

use tiebreak_contract::program::inference::{caches, window};
use tiebreak_contract::program::models::Model;
use tiebreak_contract::program::products::ProductTable;
use tiebreak_engine::{Engine, EngineError, Tensor};

use super::steps::Steps;

/// A model with its weights, and one text that it reads.
pub struct Decoder<'a> {
    steps: Steps<'a>,
    reading: Reading,
}

impl<'a> Decoder<'a> {
    /// `None` if the model is no decoder. `parameters` are on the engine, in the model's order.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn new(
        engine: &'a mut dyn Engine,
        model: (&'a Model, &'a ProductTable),
        parameters: Vec<Tensor>,
    ) -> Result<Option<Self>, EngineError> {
        let steps = Steps::new(engine, model, parameters, 1)?;
        Ok(steps.map(|steps| Self { steps, reading: Reading::default() }))
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
        loop {
            if let Some(row) = self.reading.advance(&mut self.steps, text)? {
                return Ok(row);
            }
        }
    }
}

/// A text's window, and how much of it is in caches.
#[derive(Default)]
pub(super) struct Reading {
    /// The index of the window's first token.
    first: usize,
    /// Tokens of the window that are in the caches.
    read: usize,
    caches: Vec<Tensor>,
}

impl Reading {
    /// True if the next token of a text of this length is read into the same caches.
    pub fn goes_on(&self, length: usize, context: u32) -> bool {
        self.first == window(length, context)
    }

    /// The position of a text's last token.
    pub fn position(&self, length: usize) -> u32 {
        (length - 1 - self.first) as u32
    }

    /// Gives the caches away.
    pub fn take_caches(&mut self) -> Vec<Tensor> {
        std::mem::take(&mut self.caches)
    }

    /// Reads the next tokens of a text. Returns the logits behind its last token, when that is read.
    pub fn advance(&mut self, steps: &mut Steps, text: &[u32]) -> Result<Option<Vec<u32>>, EngineError> {
        if !self.goes_on(text.len(), steps.context()) {
            *self = Self { first: window(text.len(), steps.context()), ..Self::default() };
        }
        if self.caches.is_empty() {
            self.caches = steps.empty()?;
        }
        let (tokens, chunk) = (&text[self.first..], steps.chunk());
        let is_one = tokens.len() - self.read == 1 || tokens.len() < chunk;
        let count = if is_one { 1 } else { chunk };
        // The last chunk takes some tokens again, to the same bits.
        let start = self.read.min(tokens.len() - count);
        let (mut rows, caches) =
            steps.step(&[start as u32], &tokens[start..start + count], self.take_caches())?;
        self.caches = caches;
        self.read = start + count;
        Ok(rows.pop().filter(|_| self.read == tokens.len()))
    }
}
