//! `tiebreak generate`.

use std::path::PathBuf;

use serde_json::json;

use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::limits::Limits;
use crate::cli::args::random::random;
use crate::cli::args::state::released;
use crate::cli::view::alphabet::Alphabet;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_contract::arith::float;
use tiebreak_contract::program::models::Model;
use tiebreak_contract::program::sampling::Sampling;
use tiebreak_record::job::ModelJob;
use tiebreak_run::inference::decoder::Decoder;
use tiebreak_run::run::dir::Run;

/// Write text with a trained language model, over bytes or a tokenizer's tokens.
///
/// The text depends on the model, the prompt, the settings and the seed alone (docs/INFERENCE.md). Engine and threads change no token.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak generate runs/mine --prompt 'First Citizen:' --length 400
  tiebreak generate runs/mine --step 2 --seed 7 --top-p 0.9
  tiebreak generate runs/gpt2 --tokenizer gpt2/tokenizer.json")]
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
    length: u32,
    /// Temperature; 0 always takes the most likely token.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f32,
    /// Draw among the K most likely tokens alone.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    top_k: Option<u32>,
    /// Draw among the most likely tokens whose probabilities reach P together.
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
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

/// The settings of the draws. A seed that nobody names is drawn, if it would change the text.
fn sampling(printer: Printer, args: &Args) -> Result<Sampling, Failure> {
    // Minus zero is the same temperature.
    let temperature = float::add(args.temperature.to_bits(), 0);
    let top_p = args.top_p.map_or(float::ONE, f32::to_bits);
    let mut sampling = Sampling { temperature, top_k: args.top_k.unwrap_or(0), top_p, seed: 0 };
    if let Some(why) = sampling.error() {
        return Err(Failure::new(
            Exit::Usage,
            format!("--temperature {} --top-p {}: {why}", args.temperature, f32::from_bits(top_p)),
        ));
    }
    if temperature == 0 && (args.top_k.is_some() || args.top_p.is_some()) {
        let why = "--temperature 0 takes the most likely token, so that --top-k and --top-p change nothing";
        return Err(Failure::new(Exit::Usage, why).help("leave them out, or name another temperature"));
    }
    match args.seed {
        Some(seed) => sampling.seed = seed,
        None if temperature == 0 => {}
        None => {
            sampling.seed = u64::from_le_bytes(random()?);
            printer.say(format!("seed {0} (--seed {0} writes this text again)", sampling.seed));
        }
    }
    Ok(sampling)
}

/// The ids of the prompt, which are the model's.
fn prompt(alphabet: &Alphabet, text: &str, classes: u32) -> Result<Vec<u32>, Failure> {
    let prompt = alphabet.ids(text)?;
    let greatest = prompt.iter().max();
    if greatest.is_none_or(|&id| id >= classes) {
        let found = greatest.map_or("it has none".into(), |id| format!("its greatest has number {id}"));
        let why = format!("the prompt must have tokens below {classes}, those of the model; {found}");
        return Err(Failure::new(Exit::Usage, why));
    }
    Ok(prompt)
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let run = args.limits.open(&args.run)?;
    let (job, classes) = writer(&run)?;
    let table = run.program().state();
    let parameters = &table[..run.program().released()];
    run.within_memory("the model", run.state_memory().saturating_add(Decoder::memory(&job.model)))?;
    let alphabet = Alphabet::of(&run, classes, args.tokenizer.as_deref())?;
    let state = released(&run, args.step)?;
    let sampling = sampling(printer, &args)?;
    let mut engine = open_exact(&args.engine)?;
    let engine = engine.as_mut();
    let mut fixed = Vec::new();
    for (t, bytes) in parameters.iter().zip(&state) {
        fixed.push(engine.upload(&t.ty(), bytes)?);
    }
    let decoder = Decoder::new(engine, (&job.model, &job.products), fixed)?;
    let mut decoder = decoder.ok_or_else(no_language_model)?;
    let known = alphabet.known(classes);
    let prompt = prompt(&alphabet, &args.prompt, classes)?;
    // A model was trained by somebody else, so what it writes is foreign text.
    let given = prompt.len();
    let mut written = alphabet.written(&args.prompt, prompt);
    let goes_on = |text: &str| printer.json || printer.piece(text);
    let mut open = goes_on(&written.begin());
    let (mut number, mut end) = (0, None);
    while open && end.is_none() && number < args.length {
        let row = decoder.logits(&written.ids)?;
        let id = sampling.token(&row, &known, number).map_err(|why| Failure::new(Exit::Undecided, why))?;
        number += 1;
        match alphabet.ends().contains(&id) {
            true => end = Some(id),
            false => open = goes_on(&written.push(id)?),
        }
    }
    let tokens = written.ids.len() - given;
    if printer.json {
        let ids: Vec<u32> = written.ids[given..].iter().copied().chain(end).collect();
        let found = json!({
            "text": written.text()?, "seed": sampling.seed, "tokens": tokens, "ended": end.is_some(), "ids": ids,
        });
        printer.document("", &found);
    } else if open && goes_on(&written.end()?) {
        printer.document("", &());
    }
    if end.is_some() {
        printer.say(format!("the model ended the text after {tokens} tokens"));
    }
    Ok(Exit::Match)
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
