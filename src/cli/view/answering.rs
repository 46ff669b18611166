//! A run's language model as a command answers with it, and the meaning of its tokens.

use std::path::Path;
use std::sync::Arc;

use crate::cli::view::alphabet::Alphabet;
use crate::cli::view::report::{Exit, Failure};
use tiebreak_contract::program::models::Model;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_record::job::ModelJob;
use tiebreak_run::inference::decoder::Decoder;
use tiebreak_run::inference::replay::Answerer;
use tiebreak_run::run::dir::Run;

/// A run's language model, without its weights.
pub struct Speaker {
    pub run: Run,
    /// The ids of the model are below this.
    pub classes: u32,
    pub alphabet: Arc<Alphabet>,
    known: Vec<bool>,
    table: Vec<StateTensor>,
}

impl Speaker {
    /// The model of a run. `tokenizer` names another tokenizer than the one that the run keeps.
    pub fn of(run: Run, tokenizer: Option<&Path>) -> Result<Speaker, Failure> {
        let (job, classes) = writer(&run)?;
        run.within_memory("the model", run.state_memory().saturating_add(Decoder::memory(&job.model)))?;
        let alphabet = Arc::new(Alphabet::of(&run, classes, tokenizer)?);
        let known = alphabet.known(classes);
        let mut table = run.program().state();
        table.truncate(run.program().released());
        Ok(Speaker { run, classes, alphabet, known, table })
    }

    /// The model with these weights.
    pub fn answerer<'a>(&'a self, weights: &'a [Vec<u8>]) -> Result<Answerer<'a>, Failure> {
        let (job, _) = writer(&self.run)?;
        Ok(Answerer {
            model: (&job.model, &job.products),
            parameters: (&self.table, weights),
            known: &self.known,
            ends: self.alphabet.ends(),
        })
    }
}

/// The job of a run whose model writes text, and that model's number of classes.
fn writer(run: &Run) -> Result<(&ModelJob, u32), Failure> {
    let Some(job) = run.job().model() else {
        let why = "the run's program is a file, which says nothing of how a model writes; only runs of a model kind give answers";
        return Err(Failure::new(Exit::Usage, why));
    };
    match &job.model {
        Model::Gpt(gpt) => Ok((job, gpt.vocabulary)),
        Model::Llama(llama) => Ok((job, llama.vocabulary)),
        _ => Err(no_language_model()),
    }
}

/// The error of a model that is no decoder.
pub fn no_language_model() -> Failure {
    Failure::new(Exit::Usage, "only decoders write text: models of the kinds gpt and llama")
}
