//! A language model as a command answers with it, and the meaning of its tokens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::view::alphabet::Alphabet;
use crate::cli::view::report::{Exit, Failure};
use tiebreak_contract::program::models::Model;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_record::job::{Job, ModelJob};
use tiebreak_run::inference::decoder::Decoder;
use tiebreak_run::inference::replay::Answerer;
use tiebreak_run::run::companions::Companions;

/// A job's language model, without its weights.
pub struct Speaker<'j> {
    job: &'j ModelJob,
    /// The ids of the model are below this.
    pub classes: u32,
    pub alphabet: Arc<Alphabet>,
    known: Vec<bool>,
    table: Vec<StateTensor>,
}

impl<'j> Speaker<'j> {
    /// The model of a job, whose parameters and buffers `table` names. `tokenizer` names another tokenizer than the one that `kept`
    /// gives: a folder, and its files.
    ///
    /// # Errors
    /// If the model is no decoder, or its tokenizer cannot be read.
    pub fn of(
        job: &'j Job,
        table: Vec<StateTensor>,
        tokenizer: Option<&Path>,
        kept: impl FnOnce() -> Result<(PathBuf, Companions), Failure>,
    ) -> Result<Speaker<'j>, Failure> {
        let (model, classes) = writer(job)?;
        let alphabet = Arc::new(Alphabet::of(job, classes, tokenizer, kept)?);
        let known = alphabet.known(classes);
        Ok(Speaker { job: model, classes, alphabet, known, table })
    }

    /// The model with these weights.
    pub fn answerer<'a>(&'a self, weights: &'a [Vec<u8>]) -> Answerer<'a> {
        Answerer {
            model: (&self.job.model, &self.job.products),
            parameters: (&self.table, weights),
            known: &self.known,
            ends: self.alphabet.ends(),
        }
    }

    /// Bytes that one answer takes beside the weights.
    pub fn memory(&self) -> u64 {
        Decoder::memory(&self.job.model)
    }
}

/// The job's model that writes text, and its number of classes.
///
/// # Errors
/// If the model is no decoder.
pub fn writer(job: &Job) -> Result<(&ModelJob, u32), Failure> {
    let Some(model) = job.model() else {
        let why = "the job's program is a file, which says nothing of how a model writes; only jobs of a model kind give answers";
        return Err(Failure::new(Exit::Usage, why));
    };
    match &model.model {
        Model::Gpt(gpt) => Ok((model, gpt.vocabulary)),
        Model::Llama(llama) => Ok((model, llama.vocabulary)),
        _ => Err(no_language_model()),
    }
}

/// The error of a model that is no decoder.
pub fn no_language_model() -> Failure {
    Failure::new(Exit::Usage, "only decoders write text: models of the kinds gpt and llama")
}
