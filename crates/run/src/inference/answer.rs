//! An answer that grows token by token, and its receipt. Contract: `docs/INFERENCE.md`, Answers and Receipts.

use tiebreak_contract::program::sampling::{NoToken, Sampling};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::receipt::{AnswerRoot, Receipt};

use super::replay::Answerer;

/// The digests by which receipts name a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The digest of the model's keys, and the root of the parameters.
    pub model: [Digest; 2],
    /// The digest of the tokenizer; `None` over bytes.
    pub tokenizer: Option<Digest>,
}

/// An answer so far.
pub struct Answer {
    sampling: Sampling,
    length: u32,
    /// The tokens of the text.
    ids: Vec<u32>,
    /// The token that ended it.
    end: Option<u32>,
    /// The root over the tokens and their rows, if there will be a receipt.
    root: Option<AnswerRoot>,
}

impl Answer {
    /// An answer of at most `length` tokens. Only one with a receipt hashes the rows of logits.
    pub fn new(sampling: Sampling, length: u32, with_receipt: bool) -> Answer {
        Answer { sampling, length, ids: Vec::new(), end: None, root: with_receipt.then(AnswerRoot::default) }
    }

    /// The token that follows from the logits behind the text, if it is one of the text: not if it ends the text.
    ///
    /// # Errors
    /// If the logits give no token.
    pub fn take(&mut self, answerer: &Answerer, row: &[u32]) -> Result<Option<u32>, NoToken> {
        let id = self.sampling.token(row, answerer.known, self.ids.len() as u32)?;
        if let Some(root) = &mut self.root {
            root.push(id, row);
        }
        if answerer.ends.contains(&id) {
            self.end = Some(id);
            return Ok(None);
        }
        self.ids.push(id);
        Ok(Some(id))
    }

    /// True if no token follows.
    pub fn is_whole(&self) -> bool {
        self.ended() || self.ids.len() >= self.length as usize
    }

    /// True if a token ended the text.
    pub fn ended(&self) -> bool {
        self.end.is_some()
    }

    /// The tokens of the text, without one that ended it.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// All tokens.
    pub fn tokens(&self) -> Vec<u32> {
        self.ids.iter().copied().chain(self.end).collect()
    }

    /// The receipt of the answer to a prompt; `None` if none was asked for.
    pub fn receipt(&self, identity: &Identity, prompt: Vec<u32>) -> Option<Receipt> {
        let ([model, parameters], tokenizer) = (identity.model, identity.tokenizer);
        let (sampling, length, answer) = (self.sampling, self.length, self.tokens());
        let root = self.root.as_ref()?.root();
        Some(Receipt { model, parameters, tokenizer, sampling, length, prompt, answer, root, traces: None })
    }
}
