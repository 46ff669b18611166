//! A language model as a command answers with it, and the meaning of its tokens.

use std::sync::Arc;

use crate::cli::view::alphabet::{Alphabet, Kept};
use crate::cli::view::report::Failure;
use tiebreak_contract::program::inference::Writer;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_job::Job;
use tiebreak_run::inference::batch::Batch;
use tiebreak_run::inference::replay::Answerer;

/// A language model, without its weights.
pub struct Speaker<'j> {
    writer: Writer<'j>,
    /// The ids of the model are below this.
    pub classes: u32,
    pub alphabet: Arc<Alphabet>,
    known: Vec<bool>,
    table: Vec<StateTensor>,
}

impl<'j> Speaker<'j> {
    /// The model of a job or of its network file, with its number of tokens; `table` names its parameters. `tokenizer` names another tokenizer than the one that `kept`
    /// gives: a folder, and its files.
    ///
    /// # Errors
    /// If the tokenizer cannot be read.
    pub fn of(
        (job, writer, classes): (&Job, Writer<'j>, u32),
        table: Vec<StateTensor>,
        tokenizer: Option<Kept>,
        kept: impl FnOnce() -> Result<Kept, Failure>,
    ) -> Result<Speaker<'j>, Failure> {
        Ok(Speaker::with(Alphabet::of(job, classes, tokenizer, kept)?, (writer, classes), table))
    }

    /// The model whose ids mean what an alphabet says.
    pub fn with(
        alphabet: Alphabet,
        (writer, classes): (Writer<'j>, u32),
        table: Vec<StateTensor>,
    ) -> Speaker<'j> {
        let known = alphabet.known(classes);
        Speaker { writer, classes, alphabet: Arc::new(alphabet), known, table }
    }

    /// The model with these weights.
    pub fn answerer<'a>(&'a self, weights: &'a [Vec<u8>]) -> Answerer<'a> {
        Answerer {
            model: self.writer,
            parameters: (&self.table, weights),
            known: &self.known,
            ends: self.alphabet.ends(),
        }
    }

    /// Bytes of the tensors that live at once while one answer is made, the parameters included.
    pub fn memory(&self) -> u64 {
        Batch::memory(self.writer, 1)
    }
}
