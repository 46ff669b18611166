//! `tiebreak sample`.

mod decoder;

use std::path::PathBuf;

use self::decoder::Decoder;

use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::limits::Limits;
use crate::cli::args::random::random;
use crate::cli::args::state::released;
use crate::cli::view::alphabet::Alphabet;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::program::models::Model;
use tiebreak_record::job::ModelJob;
use tiebreak_run::run::dir::Run;

/// Write text with a trained language model, over bytes or a tokenizer's tokens.
///
/// A text longer than the model's context goes on from its last half context.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak sample runs/mine --prompt 'First Citizen:' --length 400
  tiebreak sample runs/mine --step 2 --seed 7
  tiebreak sample runs/gpt2 --tokenizer gpt2/tokenizer.json")]
pub struct Args {
    /// Folder of the run.
    run: PathBuf,
    /// Text that the model goes on with.
    #[arg(long, value_name = "TEXT", default_value = "\n", hide_default_value = true)]
    prompt: String,
    /// Most tokens to write.
    ///
    /// A byte is a token in a model over bytes. A token that ends texts ends this one.
    #[arg(long, value_name = "N", default_value_t = 400)]
    length: usize,
    /// Temperature; 0 always takes the most likely token.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f64,
    /// Seed; the same one gives the same text.
    ///
    /// Without the option a seed is drawn, and printed on stderr.
    #[arg(long)]
    seed: Option<u64>,
    /// Write with the checkpoint after this step, not with the released model.
    #[arg(long, value_name = "N")]
    step: Option<u32>,
    /// Tokenizer: tokenizer.json, or a folder with one, or with vocab.json and merges.txt.
    ///
    /// The default is the tokenizer that the run keeps. A build with `--features tokenizer` reads them.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let run = args.limits.open(&args.run)?;
    let (job, vocabulary) = writer(&run)?;
    let seed = args.seed.map_or_else(|| random().map(u64::from_le_bytes), Ok)?;
    let table = run.program().state();
    let parameters = &table[..run.program().released()];
    run.within_memory("the model", run.state_memory().saturating_add(Decoder::memory(job)))?;
    let alphabet = Alphabet::of(&run, vocabulary, args.tokenizer.as_deref())?;
    let state = released(&run, args.step)?;
    if args.seed.is_none() {
        printer.say(format!("seed {seed} (--seed {seed} writes this text again)"));
    }
    let mut engine = open_exact(&args.engine)?;
    let engine = engine.as_mut();
    let mut fixed = Vec::new();
    for (t, bytes) in parameters.iter().zip(&state) {
        fixed.push(engine.upload(&t.ty(), bytes)?);
    }
    let mut decoder = Decoder::new(engine, job, fixed)?.ok_or_else(no_language_model)?;
    let classes = vocabulary as usize;
    let known = alphabet.known(vocabulary);
    let prompt = alphabet.ids(&args.prompt)?;
    let greatest = prompt.iter().max();
    if greatest.is_none_or(|&id| id as usize >= classes) {
        let found = greatest.map_or("it has none".into(), |id| format!("its greatest has number {id}"));
        let why = format!("the prompt must have tokens below {classes}, those of the model; {found}");
        return Err(Failure::new(Exit::Usage, why));
    }
    // A model was trained by somebody else, so what it writes is foreign text.
    let mut written = alphabet.written(&args.prompt, prompt);
    let goes_on = |text: &str| printer.json || printer.piece(text);
    let mut open = goes_on(&written.begin());
    let (mut number, mut ended) = (0, false);
    while open && !ended && number < args.length {
        let row = known_logits(&decoder.logits(&written.ids)?, &known);
        let word = philox4x32_10([seed as u32, (seed >> 32) as u32], [number as u32, 0, 0, 0])[0];
        let id = choose(&row, args.temperature, f64::from(word) / 4_294_967_296.0);
        ended = alphabet.ends().contains(&id);
        if !ended {
            number += 1;
            open = goes_on(&written.push(id)?);
        }
    }
    if printer.json {
        let text = written.text()?;
        let found = serde_json::json!({ "text": text, "seed": seed, "tokens": number, "ended": ended });
        printer.document("", &found);
    } else if open && goes_on(&written.end()?) {
        printer.document("", &());
    }
    if ended {
        printer.say(format!("the model ended the text after {number} tokens"));
    }
    Ok(Exit::Match)
}

/// The logits of a position. A model may have more ids than its tokenizer, padded to a round number: those are never written.
fn known_logits(row: &[u8], known: &[bool]) -> Vec<f64> {
    let row = row.as_chunks().0.iter().map(|logit| f64::from(f32::from_le_bytes(*logit)));
    row.zip(known).map(|(logit, known)| if *known { logit } else { f64::NEG_INFINITY }).collect()
}

/// The job of a run whose model writes text, and that model's number of classes.
fn writer(run: &Run) -> Result<(&ModelJob, u32), Failure> {
    let Some(job) = run.job().model() else {
        let why = "the run's program is a file, which says nothing of how a model writes; only runs of a model kind can be sampled";
        return Err(Failure::new(Exit::Usage, why));
    };
    match &job.model {
        Model::Gpt(gpt) => Ok((job, gpt.vocabulary)),
        Model::Llama(llama) => Ok((job, llama.vocabulary)),
        _ => Err(no_language_model()),
    }
}

fn no_language_model() -> Failure {
    Failure::new(Exit::Usage, "only language models write text")
}

/// A class of softmax(logits / temperature) by a uniform number. Nothing is committed here, so plain floats serve.
fn choose(logits: &[f64], temperature: f64, uniform: f64) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0);
    if temperature <= 0.0 {
        return best as u32;
    }
    let weights: Vec<f64> = logits.iter().map(|x| ((x - logits[best]) / temperature).exp()).collect();
    let mut left = uniform * weights.iter().sum::<f64>();
    for (class, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return class as u32;
        }
    }
    best as u32
}
