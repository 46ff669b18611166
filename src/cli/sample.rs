//! `tiebreak sample`.

use std::path::PathBuf;
use std::sync::Arc;

use super::engine::{EngineArgs, open_exact};
use super::escape::Characters;
use super::limits::Limits;
use super::{CommandResult, Exit, Failure, Printer, random};
use crate::arith::DType;
use crate::arith::philox::philox4x32_10;
use crate::arith::words::bytes_of;
use crate::commit::state::{state_digest, tensor_digests};
use crate::engine::{Engine, EngineError, Tensor};
use crate::job::ModelJob;
use crate::program::graph::TensorType;
use crate::program::models::{Gpt, Model};
use crate::program::step::inference_graph;
use crate::run::dir::Run;
use crate::run::{RunError, checkpoint, transcript};

/// Write text with a trained byte-level model.
#[derive(clap::Args)]
#[command(after_help = "Example: tiebreak sample runs/shakespeare --prompt 'First Citizen:' --length 400\n\
From a checkpoint: tiebreak sample runs/shakespeare --step 200 --seed 7")]
pub struct Args {
    run: PathBuf,
    #[arg(long, default_value = "\n")]
    prompt: String,
    /// Bytes to write.
    #[arg(long, default_value_t = 400)]
    length: usize,
    /// 0 always takes the most likely byte.
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// The same seed gives the same text; without it one is drawn, and said on stderr.
    #[arg(long)]
    seed: Option<u64>,
    /// Write with the checkpoint after this step, not with the released model.
    #[arg(long)]
    step: Option<u32>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let run = args.limits.open(&args.run)?;
    let (job, gpt) = writer(&run)?;
    let seed = args.seed.map_or_else(|| random().map(u64::from_le_bytes), Ok)?;
    let table = run.program().state();
    let parameters = &table[..run.program().released()];
    run.within_memory("the model", run.state_memory())?;
    let state = released(&run, args.step)?;
    if args.seed.is_none() {
        printer.say(format!("seed {seed} (--seed {seed} writes this text again)"));
    }
    let mut engine = open_exact(&args.engine)?;
    let engine = engine.as_mut();
    let graph = engine.compile(Arc::new(inference_graph(&job.model, &job.products, 1)))?;
    let mut fixed = Vec::new();
    for (t, bytes) in parameters.iter().zip(&state) {
        fixed.push(engine.upload(&t.ty(), bytes)?);
    }
    let context = gpt.context as usize;
    let classes = gpt.vocabulary as usize;
    let zeros = words(engine, &vec![0; context])?;
    let rest = [words(engine, &[0])?, words(engine, &[0, 0])?, words(engine, &[0])?, words(engine, &[0])?];
    let mut text: Vec<u8> = args.prompt.into_bytes();
    if text.is_empty() || text.iter().any(|&b| b as usize >= classes) {
        return Err(Failure::new(Exit::Usage, "the prompt must have bytes that the model knows"));
    }
    // A model was trained by somebody else, so what it writes is foreign text.
    let mut characters = Characters::default();
    let mut goes_on =
        |bytes: &[u8]| printer.json || bytes.iter().all(|&byte| printer.piece(&characters.push(byte)));
    if !goes_on(&text) {
        return Ok(Exit::Match);
    }
    for number in 0..args.length {
        let window = &text[text.len().saturating_sub(context)..];
        let mut tokens: Vec<u32> = window.iter().map(|&b| u32::from(b)).collect();
        tokens.resize(context, 0);
        let mut inputs = fixed.clone();
        inputs.extend([words(engine, &tokens)?, zeros.clone()]);
        inputs.extend(rest.iter().cloned());
        let outputs = engine.run(&graph, &inputs, None)?;
        let logits = engine.download(&outputs[0])?;
        let row = &logits[(window.len() - 1) * classes * 4..window.len() * classes * 4];
        let row: Vec<f64> = row
            .chunks_exact(4)
            .map(|c| f64::from(f32::from_le_bytes(c.try_into().expect("chunks of four"))))
            .collect();
        let word = philox4x32_10([seed as u32, (seed >> 32) as u32], [number as u32, 0, 0, 0])[0];
        let byte = choose(&row, args.temperature, f64::from(word) / 4_294_967_296.0);
        text.push(byte);
        if !goes_on(&[byte]) {
            break;
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    if printer.json {
        printer.document("", &serde_json::json!({ "text": text, "seed": seed }));
    } else {
        printer.document(characters.rest(), &());
    }
    Ok(Exit::Match)
}

/// The job of a run whose model writes bytes, and that model.
fn writer(run: &Run) -> Result<(&ModelJob, &Gpt), Failure> {
    let refused = |why: &str| Err(Failure::new(Exit::Usage, why));
    let Some(job) = run.job().model() else {
        return refused(
            "the run's program is a file, which says nothing of how a model writes; only runs of a model kind can be sampled",
        );
    };
    match &job.model {
        Model::Gpt(gpt) if gpt.vocabulary > 256 => refused("only models over bytes can be sampled"),
        Model::Gpt(gpt) => Ok((job, gpt)),
        _ => refused("only language models write text"),
    }
}

/// The parameters and buffers of the released model, or of the checkpoint after a step, which has to be the state of its record.
pub fn released(run: &Run, step: Option<u32>) -> Result<Vec<Vec<u8>>, Failure> {
    let (table, released) = (run.program().state(), run.program().released());
    let Some(step) = step else {
        if !run.layout.model().exists() {
            let steps = run.checkpoint_steps()?;
            let why = format!("the run is not finished: name one of its checkpoints, {}", listed(&steps));
            return Err(Failure::new(Exit::Usage, why));
        }
        return Ok(checkpoint::read(&run.layout.model(), &table[..released])?);
    };
    let steps = run.checkpoint_steps()?;
    if !steps.contains(&step) {
        let why = format!("there is no checkpoint after step {step}; there are {}", listed(&steps));
        return Err(Failure::new(Exit::Usage, why));
    }
    let path = run.layout.checkpoint(step);
    let mut state = checkpoint::read(&path, &table)?;
    let (transcript, _) = transcript::read(&run.layout.transcript())?;
    let committed = transcript.records.get(step as usize).map(|record| record.state());
    if committed != Some(state_digest(&table, &tensor_digests(&table, &state))) {
        return Err(RunError::invalid(&path, "the checkpoint is not the state of its record").into());
    }
    state.truncate(released);
    Ok(state)
}

/// Steps as options, the last ten if there are more.
fn listed(steps: &[u32]) -> String {
    let shown: Vec<String> =
        steps[steps.len().saturating_sub(10)..].iter().map(|step| format!("--step {step}")).collect();
    if shown.is_empty() { "but it has none yet".into() } else { shown.join(", ") }
}

fn words(engine: &mut dyn Engine, words: &[u32]) -> Result<Tensor, EngineError> {
    let ty = TensorType { dtype: DType::U32, shape: vec![words.len() as u32] };
    engine.upload(&ty, &bytes_of(words))
}

/// A class of softmax(logits / temperature) by a uniform number. Nothing is committed here, so plain floats serve.
fn choose(logits: &[f64], temperature: f64, uniform: f64) -> u8 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0);
    if temperature <= 0.0 {
        return best as u8;
    }
    let weights: Vec<f64> = logits.iter().map(|x| ((x - logits[best]) / temperature).exp()).collect();
    let mut left = uniform * weights.iter().sum::<f64>();
    for (class, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return class as u8;
        }
    }
    best as u8
}
