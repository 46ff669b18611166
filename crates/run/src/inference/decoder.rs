//! A decoder that keeps the keys and values of the tokens that it has read (docs/INFERENCE.md).

use tiebreak_contract::program::inference::{Writer, window};
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
        model: Writer<'a>,
        parameters: Vec<Tensor>,
    ) -> Result<Option<Self>, EngineError> {
        let steps = Steps::new(engine, model, parameters, 1)?;
        Ok(steps.map(|steps| Self { steps, reading: Reading::default() }))
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
    pub first: usize,
    /// Tokens of the window that are in the caches.
    pub read: usize,
    /// Caches of its own; a text in a batch may have none.
    pub caches: Vec<Tensor>,
}

impl Reading {
    /// Moves the window to where a text of this length has it, if it is not there. True if it moved, so that nothing of it is read.
    pub fn moved(&mut self, length: usize, context: u32) -> bool {
        let (before, first) = (self.first, window(length, context));
        if before != first {
            *self = Self { first, ..Self::default() };
        }
        before != first
    }

    /// Reads the next tokens of a text. Returns the logits behind its last token, when that is read.
    pub fn advance(&mut self, steps: &mut Steps, text: &[u32]) -> Result<Option<Vec<u32>>, EngineError> {
        self.moved(text.len(), steps.context());
        if self.caches.is_empty() {
            self.caches = steps.empty(1)?;
        }
        let (tokens, chunk) = (&text[self.first..], steps.chunk());
        let is_one = tokens.len() - self.read == 1 || tokens.len() < chunk;
        let count = if is_one { 1 } else { chunk };
        // The last chunk takes some tokens again, to the same bits.
        let start = self.read.min(tokens.len() - count);
        let (mut rows, caches) =
            steps.step(&[start as u32], &tokens[start..start + count], std::mem::take(&mut self.caches))?;
        self.caches = caches;
        self.read = start + count;
        Ok(rows.pop().filter(|_| self.read == tokens.len()))
    }
}
