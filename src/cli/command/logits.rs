//! `tiebreak logits`.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::job::JobArgs;
use crate::cli::args::limits::Limits;
use crate::cli::args::predicted::upload;
use crate::cli::args::subject::Subject;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, named};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::{bytes_of, words_from_bytes};
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::models::{BatchTensor, Model};
use tiebreak_contract::program::products::ProductTable;
use tiebreak_contract::program::step::inference_graph;
use tiebreak_run::predict::Predictor;
use tiebreak_run::run::RunError;
use tiebreak_run::run::arrays::{self, Array, FloatType};

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
    /// Network file of a program from a file, as tiebreak.capture writes it.
    ///
    /// The network has to give the job's program. The default is the file that the run keeps, or that the job names.
    #[arg(long, value_name = "FILE")]
    network: Option<PathBuf>,
    /// Another folder whose files a job may name, besides its own, or an address; once for each.
    ///
    /// A job reaches files at addresses only below the addresses given here: your credentials may open others.
    #[arg(long, value_name = "DIR")]
    data_root: Vec<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
}

/// The model, with its parameters and buffers.
fn subject(args: &Args) -> Result<Subject, Failure> {
    let network = args.network.as_deref();
    if args.model.is_dir() || tiebreak_remote::is_address(&args.model) {
        if !args.data_root.is_empty() {
            return Err(Failure::new(
                Exit::Usage,
                "--data-root is for jobs: a run names no files beyond its own",
            ));
        }
        return Subject::of_state(&args.model, network, args.step, &args.limits);
    }
    if args.step.is_some() {
        return Err(Failure::new(Exit::Usage, "--step is for runs: a job has no checkpoints"));
    }
    let job = JobArgs { job: args.model.clone(), data_root: args.data_root.clone() };
    Subject::of_job(&job, network, &args.limits)
}

/// The texts of a model whose samples may be shorter than its context.
struct Texts {
    /// The fewest positions.
    least: usize,
    /// The token behind a shorter text.
    filler: u32,
}

impl Texts {
    /// Those of a model with logits at each position of a text; `None` for other models.
    fn of(subject: &Subject, context: usize) -> Option<Texts> {
        // Later positions change nothing before them; those of an encoder have to be padding, or none.
        if subject.writer().is_ok() {
            return Some(Texts { least: 1, filler: 0 });
        }
        match subject.job().model().map(|job| &job.model) {
            Some(Model::Bert(bert)) if bert.classes.is_none() => Some(match bert.padding {
                Some(filler) => Texts { least: 1, filler },
                None => Texts { least: context, filler: 0 },
            }),
            _ => None,
        }
    }
}

/// Samples as the graph takes them.
struct Samples {
    /// Words of each sample, filled up: [samples][...].
    words: Vec<Vec<u32>>,
    /// The rows of a sample's logits that are kept, if the model takes shorter samples.
    rows: Option<usize>,
}

/// Cuts the inputs into samples, after checking that the model takes them.
fn samples(texts: Option<&Texts>, wanted: &BatchTensor, array: &Array) -> Result<Samples, String> {
    let (whole, TensorType { dtype, shape }) = (wanted.ty().len(), &array.ty);
    let of_one = if wanted.shape.len() > 1 && wanted.shape[0] == 1 { 1 } else { 0 };
    let due = &wanted.shape[of_one..];
    let positions = shape.last().copied().unwrap_or(0) as usize;
    let fits = match texts {
        Some(texts) => shape.len() <= 2 && (texts.least..=whole).contains(&positions),
        None => shape.get(1..) == Some(due),
    };
    if !fits || *dtype != wanted.dtype {
        let due = match texts {
            Some(texts) if texts.least == whole => {
                format!("[samples, {whole} positions]; a job with model.padding takes shorter texts")
            }
            Some(texts) => format!("[samples, {} to {whole} positions]", texts.least),
            None => format!("[samples{}]", due.iter().map(|size| format!(", {size}")).collect::<String>()),
        };
        return Err(format!("it holds {dtype:?} {shape:?}; the model takes {:?} {due}", wanted.dtype));
    }
    let words = words_from_bytes(*dtype, &array.bytes);
    if wanted.dtype == DType::U32 && words.iter().any(|&word| word >= wanted.below) {
        return Err(format!("a number is {} or more, which the model has no class for", wanted.below));
    }
    let each = if texts.is_some() { positions } else { whole };
    let filler = texts.map_or(0, |texts| texts.filler);
    let filled = |sample: &[u32]| {
        let mut sample = sample.to_vec();
        sample.resize(whole, filler);
        sample
    };
    let rows = texts.map(|_| positions);
    Ok(Samples { words: words.chunks_exact(each.max(1)).map(filled).collect(), rows })
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let subject = subject(&args)?;
    let arrays = arrays::read(&args.inputs).map_err(named)?;
    let [array] = &arrays[..] else {
        return Err(RunError::invalid(&args.inputs, "a file of one array is wanted").into());
    };
    let (of_model, job) = (subject.of_model(), subject.job());
    let (network, batch) = (of_model.network(), of_model.network().batch(1));
    let texts = Texts::of(&subject, batch[0].ty().len());
    let samples = samples(texts.as_ref(), &batch[0], array);
    let samples = samples.map_err(|why| RunError::invalid(&args.inputs, why))?;
    let needed = Predictor::memory(job, of_model, 1).map_err(|why| Failure::new(Exit::Usage, why))?;
    args.limits.check("the logits of a sample", needed.saturating_add(subject.bytes()))?;
    let products = args.digits.map_or_else(|| of_model.products().clone(), ProductTable::uniform);
    let mut engine = open_exact(&args.engine)?;
    let engine = engine.as_mut();
    let graph = inference_graph(network, &products, 1);
    let classes = graph.tensor(graph.outputs[0].tensor).shape[1];
    let graph = engine.compile(Arc::new(graph))?;
    let fixed = upload(engine, &subject)?;
    let words = |engine: &mut dyn tiebreak_engine::Engine, ty: &TensorType, words: &[u32]| {
        engine.upload(ty, &bytes_of(words))
    };
    let scalar = |dtype, len: u32| TensorType { dtype, shape: vec![len] };
    let all = network.labels_per_sample() as usize;
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
        let kept = samples.rows.unwrap_or(all) * (bytes.len() / all);
        logits.extend_from_slice(&bytes[..kept]);
        bar.set_position(done);
        bar.set_message("");
        if bar.wish().is_break() {
            return Err(Failure::new(Exit::Undecided, "the logits were stopped before the last sample"));
        }
    }
    bar.finish_and_clear();
    let mut shape = array.ty.shape.clone();
    shape.truncate(if samples.rows.is_some() { 2 } else { 1 });
    if samples.rows.is_none() && all > 1 {
        shape.push(all as u32);
    }
    shape.push(classes);
    let array = Array { name: "logits".into(), ty: TensorType { dtype: DType::F32, shape }, bytes: logits };
    arrays::write(&args.output, std::slice::from_ref(&array), FloatType::F32)?;
    let text = format!("logits {:?} -> {}", array.ty.shape, args.output.display());
    printer.result(text, &json!({ "shape": array.ty.shape, "output": args.output }));
    Ok(Exit::Match)
}
