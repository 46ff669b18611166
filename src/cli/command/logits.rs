//! `tiebreak logits`.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::job::JobArgs;
use crate::cli::args::limits::Limits;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::{bytes_of, words_from_bytes};
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::models::{BatchTensor, Model};
use tiebreak_contract::program::products::ProductTable;
use tiebreak_contract::program::step::{Program, StateTensor, inference_graph, state_bytes};
use tiebreak_job::{Job, ModelJob};
use tiebreak_run::run::arrays::{self, Array, FloatType};
use tiebreak_run::run::{RunError, initial, read_job, read_program, state_files};

/// Write a model's outputs before softmax, in evaluation: no dropout, running averages.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tiebreak logits runs/mine --inputs tokens.npy --output logits.npy --digits 4"
)]
pub struct Args {
    /// Folder or address of a run, or a job that begins from weights.
    model: PathBuf,
    /// A .npy file of inputs.
    ///
    /// The array is tokens [samples, positions], or a classifier's inputs [samples, ...]: floats or pixels, as its job's data are.
    #[arg(long, value_name = "FILE")]
    inputs: PathBuf,
    /// File for the logits, .npy or .safetensors.
    ///
    /// The array is f32 [samples, positions, tokens], or [samples, classes].
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Step whose checkpoint is used; by default the run's last one.
    #[arg(long, value_name = "N")]
    step: Option<u32>,
    /// Digits of all products, 1 to 4, in place of the job's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4))]
    digits: Option<u8>,
    /// Second folder whose files a job may name, besides its own folder.
    #[arg(long, value_name = "DIR")]
    data_root: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
}

/// The model, and canonical bytes of its parameters and buffers.
fn state(args: &Args) -> Result<(ModelJob, Program, Vec<Vec<u8>>), Failure> {
    if args.model.is_dir() || tiebreak_remote::is_address(&args.model) {
        if args.data_root.is_some() {
            return Err(Failure::new(
                Exit::Usage,
                "--data-root is for jobs: a run names no files beyond its own",
            ));
        }
        let run = args.limits.open(&args.model)?;
        let model = model_of(run.job())?.clone();
        let (_, mut files, table) = state_files::open(&run, args.step)?;
        run.within_memory("the model", run.state_memory())?;
        let released = &table[..run.program().released()];
        let state = released.iter().map(|tensor| files.tensor(tensor)).collect::<Result<_, _>>()?;
        return Ok((model, run.computation.program, state));
    }
    if args.step.is_some() {
        return Err(Failure::new(Exit::Usage, "--step is for runs: a job has no checkpoints"));
    }
    let named = JobArgs { job: args.model.clone(), data_root: args.data_root.clone() };
    let (files, (_, job)) = (named.files()?, read_job(&args.model)?);
    let (program, _) = read_program(&files, &job)?;
    args.limits.check("the model", 2 * state_bytes(&program.state()))?;
    if job.reinitialized().is_ok_and(|drawn| !drawn.is_empty()) {
        let why =
            "the job draws parameters from its seed, which depends on its data: train it, and name the run";
        return Err(Failure::new(Exit::Usage, why));
    }
    // Nothing is drawn, so that the key makes no difference.
    let Some((mut state, _)) = initial::of_job(&job, &program, &files, [0; 2])? else {
        return Err(Failure::new(Exit::Usage, "the job begins from its seed: train it, and name the run"));
    };
    state.truncate(program.released());
    Ok((model_of(&job)?.clone(), program, state))
}

fn model_of(job: &Job) -> Result<&ModelJob, Failure> {
    let why =
        "the program is a file, which does not say where logits are; only jobs of a model kind have them";
    job.model().ok_or_else(|| {
        Failure::new(Exit::Usage, why)
            .help("`tiebreak predict RUN --logits FILE` writes those of whole samples")
    })
}

/// Samples as the graph takes them, and the rows of their logits that are kept.
struct Samples {
    /// Words of each sample, filled up with zeros: [samples][...].
    words: Vec<Vec<u32>>,
    /// Rows of a sample's logits that are kept.
    rows: usize,
}

/// True for models with logits at each position of a text.
fn of_text(model: &Model) -> bool {
    match model {
        Model::Gpt(_) | Model::Llama(_) => true,
        Model::Bert(bert) => bert.classes.is_none(),
        _ => false,
    }
}

/// Cuts the inputs into samples, after checking that the model takes them.
fn samples(model: &Model, wanted: &BatchTensor, array: &Array) -> Result<Samples, String> {
    let (ty, TensorType { dtype, shape }) = (wanted.ty(), &array.ty);
    let is_text = of_text(model);
    // Later positions change nothing before them; those of an encoder have to be padding, or none.
    let (least, filler) = match model {
        Model::Bert(bert) => (bert.padding.map_or(wanted.shape[0], |_| 1), bert.padding.unwrap_or(0)),
        _ => (1, 0),
    };
    let rows = if is_text { shape.last().copied().unwrap_or(0) } else { 1 };
    let fits = match is_text {
        true => shape.len() <= 2 && (least..=wanted.shape[0]).contains(&rows),
        false => shape.len() == wanted.shape.len() && shape[1..] == wanted.shape[1..],
    };
    if !fits || *dtype != wanted.dtype {
        let most = wanted.shape[0];
        let text = match least == most {
            true => format!("[samples, {most} positions]; a job with model.padding takes shorter texts"),
            false => format!("[samples, {least} to {most} positions]"),
        };
        let sizes: String = wanted.shape[1..].iter().map(|size| format!(", {size}")).collect();
        let others = format!("[samples{sizes}]");
        let due = if is_text { text } else { others };
        return Err(format!("it holds {dtype:?} {shape:?}; the model takes {:?} {due}", wanted.dtype));
    }
    let words = words_from_bytes(*dtype, &array.bytes);
    if wanted.dtype == DType::U32 && words.iter().any(|&word| word >= wanted.below) {
        return Err(format!("a number is {} or more, which the model has no class for", wanted.below));
    }
    let each = if is_text { rows as usize } else { ty.len() };
    let filled = |sample: &[u32]| {
        let mut sample = sample.to_vec();
        sample.resize(ty.len(), filler);
        sample
    };
    Ok(Samples { words: words.chunks_exact(each.max(1)).map(filled).collect(), rows: rows as usize })
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let (job, program, state) = state(&args)?;
    let arrays = arrays::read(&args.inputs)?;
    let [array] = &arrays[..] else {
        return Err(RunError::invalid(&args.inputs, "a file of one array is wanted").into());
    };
    let batch = job.model.batch(1);
    let samples =
        samples(&job.model, &batch[0], array).map_err(|why| RunError::invalid(&args.inputs, why))?;
    let products = args.digits.map_or_else(|| job.products.clone(), ProductTable::uniform);
    let mut engine = open_exact(&args.engine)?;
    let engine = engine.as_mut();
    let graph = engine.compile(Arc::new(inference_graph(&*job.model, &products, 1)))?;
    let mut fixed = Vec::new();
    let table: Vec<StateTensor> = program.state();
    for (tensor, bytes) in table.iter().zip(&state) {
        fixed.push(engine.upload(&tensor.ty(), bytes)?);
    }
    let words = |engine: &mut dyn tiebreak_engine::Engine, ty: &TensorType, words: &[u32]| {
        engine.upload(ty, &bytes_of(words))
    };
    let scalar = |dtype, len: u32| TensorType { dtype, shape: vec![len] };
    let mut logits = Vec::new();
    let bar = printer.bar(samples.words.len() as u64, "samples");
    for (done, sample) in (1u64..).zip(&samples.words) {
        let mut inputs = fixed.clone();
        inputs.push(words(engine, &batch[0].ty(), sample)?);
        inputs.push(words(engine, &batch[1].ty(), &vec![0; batch[1].ty().len()])?);
        inputs.push(words(engine, &scalar(DType::F32, 1), &[0])?);
        for len in [2, 1, 1] {
            inputs.push(words(engine, &scalar(DType::U32, len), &vec![0; len as usize])?);
        }
        let outputs = engine.run(&graph, &inputs, None)?;
        let bytes = engine.download(&outputs[0])?;
        let kept = samples.rows * bytes.len() / job.model.labels_per_sample() as usize;
        logits.extend_from_slice(&bytes[..kept]);
        bar.set_position(done);
        bar.set_message("");
    }
    bar.finish_and_clear();
    let mut shape = array.ty.shape.clone();
    shape.truncate(if of_text(&job.model) { 2 } else { 1 });
    let rows: usize = shape.iter().map(|&d| d as usize).product();
    shape.push((logits.len() / 4 / rows.max(1)) as u32);
    let array = Array { name: "logits".into(), ty: TensorType { dtype: DType::F32, shape }, bytes: logits };
    arrays::write(&args.output, std::slice::from_ref(&array), FloatType::F32)?;
    let text = format!("logits {:?} -> {}", array.ty.shape, args.output.display());
    printer.result(text, &json!({ "shape": array.ty.shape, "output": args.output }));
    Ok(Exit::Match)
}
