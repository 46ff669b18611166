//! `tiebreak predict`.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::key::read_private;
use crate::cli::args::limits::Limits;
use crate::cli::args::part::parse_span;
use crate::cli::args::predicted::{DataArgs, upload};
use crate::cli::args::salted::SaltedArgs;
use crate::cli::view::escape::one_line;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_engine::{Engine, Tensor};
use tiebreak_job::Evaluable;
use tiebreak_record::commit::answer_trace::AnswerTrace;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::predictions::{
    PredictedSample, PredictingModel, Predictions, ROWS_MAX, SAMPLES_MAX, logits_digest, predicted, ranked,
};
use tiebreak_record::commit::salted_receipt::AnyReceipt;
use tiebreak_run::predict::traced::{SamplePass, sample_leaves};
use tiebreak_run::predict::{Computed, Inputs, Predictor};
use tiebreak_run::run::arrays::{self, Array, FloatType};
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{RunError, shell};

/// Predict the classes of samples, in the bits of every engine.
///
/// The logits of a sample depend on the model and the sample alone. Other samples, the batch, engine and threads change no bit
/// (docs/INFERENCE.md). A decoder predicts a token for each position of a whole context; `tiebreak generate` writes text.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak predict runs/mine --inputs images.npy --top 3
  tiebreak predict runs/mine --data text.txt --samples 0..4
  tiebreak predict runs/mine --inputs images.npy --receipt predictions.json --key trainer.key
  tiebreak predict runs/mine --samples 0..4 --receipt predictions.json --trace predictions.trace
  tiebreak predict model.safetensors --job job.toml --inputs images.npy --logits logits.npy")]
pub struct Args {
    /// Folder or address of a run, or released weights with --job.
    ///
    /// Weights are a .safetensors file, or a folder that has them, here or at an address.
    #[arg(value_name = "RUN|MODEL")]
    of: PathBuf,
    #[command(flatten)]
    data: DataArgs,
    /// Predict these samples alone, the first from 0.
    #[arg(long, value_name = "FIRST..END", value_parser = parse_span)]
    samples: Option<(u64, u64)>,
    /// Show the K classes with the greatest logits.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    top: Option<u32>,
    /// File for the logits, .npy or .safetensors.
    ///
    /// The array is f32 [samples, classes], or [samples, positions, tokens].
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,
    /// File for a receipt, by which others check the predictions.
    ///
    /// The receipt has digests of the model, and of each sample's inputs and logits.
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// File for a trace of the predictions, to which the receipt commits.
    ///
    /// With the trace others convict a wrong prediction down to the tile. It costs one more pass of each sample.
    #[arg(long, value_name = "FILE", requires = "receipt")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    salted: SaltedArgs,
    /// Private key that signs the receipt.
    #[arg(long, value_name = "KEY", requires = "receipt")]
    key: Option<PathBuf>,
    /// Predict with the checkpoint after this step, not with the released model.
    #[arg(long, value_name = "N", conflicts_with = "job")]
    step: Option<u32>,
    /// Samples that are computed at once; changes no bits.
    ///
    /// The default is a micro-batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    batch: Option<u32>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
}

/// The chosen samples, which the data have, and a receipt has room for.
fn chosen(args: &Args, all: u64, rows: u32) -> Result<Vec<u64>, Failure> {
    let (first, end) = args.samples.unwrap_or((0, all));
    if end > all {
        let why = format!("--samples {first}..{end}: the data have {all} samples");
        return Err(Failure::new(Exit::Usage, why));
    }
    let count = end - first;
    if count == 0 {
        return Err(Failure::new(Exit::Usage, "the data have no samples"));
    }
    let fits = count <= SAMPLES_MAX as u64 && count.saturating_mul(rows.into()) <= ROWS_MAX as u64;
    if args.receipt.is_some() && !(fits && first <= u32::MAX.into()) {
        let why = format!(
            "a receipt has at most {SAMPLES_MAX} samples with {ROWS_MAX} rows of logits, and these are {count} with {rows} each"
        );
        return Err(Failure::new(Exit::Usage, why).help("write several receipts, by --samples FIRST..END"));
    }
    Ok((first..end).collect())
}

/// The things that are printed and written.
struct Found {
    lines: Vec<String>,
    json: Vec<Value>,
    /// The bytes of all logits, if they are to be written.
    logits: Vec<u8>,
    /// The samples of a receipt, if one is to be written.
    samples: Vec<PredictedSample>,
    /// A sample and a row that predict nothing.
    without: Option<(u64, u32)>,
}

impl Found {
    fn take(&mut self, args: &Args, predictor: &Predictor, computed: &Computed) {
        let most = args.top.unwrap_or(1) as usize;
        let number = computed.number;
        let (mut classes, mut top) = (Vec::new(), Vec::new());
        for (row, logits) in (0..).zip(computed.logits.chunks(predictor.classes as usize)) {
            let ranking = ranked(logits, most);
            let place = if predictor.rows == 1 { String::new() } else { format!(", position {row}") };
            let class = |class: &u32| match args.top {
                None => format!("class {class}"),
                Some(_) => format!("class {class} ({:.4})", f32::from_bits(logits[*class as usize])),
            };
            let text = match ranking.is_empty() {
                true => "no class, since a logit is NaN".to_string(),
                false => ranking.iter().map(class).collect::<Vec<_>>().join(", "),
            };
            self.lines.push(format!("sample {number}{place}: {text}"));
            classes.push(predicted(logits));
            top.push(ranking.iter().map(|class| in_json(*class, logits)).collect::<Vec<_>>());
        }
        let digest = logits_digest(predictor.rows, &computed.logits);
        let mut json =
            json!({ "sample": number, "classes": classes, "input": computed.input, "logits": digest });
        if args.top.is_some() {
            json["top"] = json!(top);
        }
        self.json.push(json);
        if args.logits.is_some() {
            self.logits.extend(bytes_of(&computed.logits));
        }
        if args.receipt.is_some() {
            match predictor.predicted(computed) {
                Ok(sample) => self.samples.push(sample),
                Err(row) => self.without = self.without.or(Some((number, row))),
            }
        }
    }
}

fn in_json(class: u32, row: &[u32]) -> Value {
    let bits = row[class as usize];
    let logit = Some(f32::from_bits(bits)).filter(|logit| logit.is_finite());
    json!({ "class": class, "logit": logit, "bits": format!("{bits:08x}") })
}

fn halted() -> Failure {
    Failure::new(Exit::Undecided, "the predictions were stopped before the last sample")
}

/// A model on an engine, and its samples.
struct Predicting<'a> {
    engine: &'a mut dyn Engine,
    of_model: &'a dyn Evaluable,
    released: &'a [Tensor],
    inputs: &'a mut Inputs,
}

/// Writes the trace of a receipt's predictions, with whose root the receipt goes on.
fn write_trace(
    args: &Args,
    of: Predicting,
    receipt: &mut Predictions,
    printer: Printer,
) -> Result<(), Failure> {
    let Some(path) = &args.trace else { return Ok(()) };
    let graphs = SamplePass::graphs(of.of_model, receipt.samples.len());
    args.limits.check("the trace", AnswerTrace::bytes_max(0, &graphs).saturating_mul(2))?;
    let pass = SamplePass::new(of.engine, of.of_model)?;
    let mut trace = AnswerTrace::default();
    let bar = printer.bar(receipt.samples.len() as u64, "samples");
    for (place, sample) in receipt.samples.iter().enumerate() {
        let traced = pass.trace(of.engine, of.released, of.inputs, (receipt, place), None)?;
        if traced.logits != sample.logits {
            let number = u64::from(receipt.first) + place as u64;
            let why = format!(
                "sample {number} has other logits alone than in a batch: the engine computes them in two ways"
            );
            return Err(Failure::new(Exit::Undecided, why).help("see `tiebreak adapters --test`"));
        }
        trace.windows.push(traced.nodes);
        bar.set_position(place as u64 + 1);
        bar.set_message("");
        if bar.wish().is_break() {
            return Err(halted());
        }
    }
    bar.finish_and_clear();
    let at = std::path::absolute(path).map_err(RunError::io(path))?;
    Disk::default().replace(&at, &trace.encode())?;
    receipt.traces = Some(merkle::root(&sample_leaves(receipt, &trace)));
    Ok(())
}

/// Writes the receipt and the trace, signed if there is a key. Returns the command that checks the receipt.
fn write_receipt(
    (printer, args): (Printer, &Args),
    (model, of): (PredictingModel, Predicting),
    (first, found): (u64, &mut Found),
    key: Option<&PrivateKey>,
) -> Result<Option<Next>, Failure> {
    let Some(path) = &args.receipt else { return Ok(None) };
    if let Some((sample, row)) = found.without {
        let why = format!(
            "sample {sample} predicts no class, since row {row} of its logits has a NaN: no receipt is written"
        );
        return Err(Failure::new(Exit::Undecided, why)
            .help("`tiebreak eval` names the first value of the model that is not finite"));
    }
    let samples = std::mem::take(&mut found.samples);
    let mut receipt = Predictions { model, first: first as u32, samples, traces: None };
    write_trace(args, of, &mut receipt, printer)?;
    args.salted.write(path, &AnyReceipt::Predictions(receipt), key)?;
    let mut words = vec![shell::path(path), shell::path(&args.of)];
    words.extend(args.data.words());
    words.extend(args.salted.words());
    words.extend(args.step.map(|step| format!("--step {step}")));
    words.extend(args.trace.iter().map(|trace| format!("--trace {}", shell::path(trace))));
    Ok(Some(Next::new("to check the receipt", format!("tiebreak receipt check {}", words.join(" ")))))
}

/// Writes the logits of all chosen samples.
fn write_logits(args: &Args, predictor: &Predictor, samples: usize, bytes: Vec<u8>) -> Result<(), Failure> {
    let Some(path) = &args.logits else { return Ok(()) };
    let (rows, classes) = (predictor.rows, predictor.classes);
    let shape = if rows == 1 { vec![samples as u32, classes] } else { vec![samples as u32, rows, classes] };
    let array = Array { name: "logits".into(), ty: TensorType { dtype: DType::F32, shape }, bytes };
    Ok(arrays::write(path, &[array], FloatType::F32)?)
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let watch = args.limits.watch(printer);
    let key = args.key.as_deref().map(read_private).transpose()?;
    let subject = args.data.subject(&args.of, args.step, &args.limits)?;
    let mut inputs = args.data.inputs(&subject)?;
    let of_model = subject.of_model();
    let rows = of_model.network().labels_per_sample();
    let numbers = chosen(&args, inputs.count(), rows)?;
    let batch =
        args.batch.unwrap_or(of_model.micro_batch()).min(numbers.len().try_into().unwrap_or(u32::MAX));
    let needed = Predictor::memory(subject.job(), of_model, batch);
    let needed = needed.map_err(|why| Failure::new(Exit::Usage, format!("--batch: {why}")))?;
    let needed = needed.saturating_add(subject.bytes());
    args.limits.check(&format!("a prediction of {batch} samples at once"), needed)?;
    let mut engine = open_exact(&args.engine)?;
    let engine = engine.as_mut();
    let predictor = Predictor::new(engine, of_model, batch)?;
    if args.logits.is_some() {
        let of_sample = 4 * u64::from(rows) * u64::from(predictor.classes);
        let all = of_sample.saturating_mul(numbers.len() as u64);
        args.limits.check("the file of logits", all.saturating_mul(2).saturating_add(needed))?;
    }
    watch.planned();
    let released = upload(engine, &subject)?;
    let (lines, json, logits, samples) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut found = Found { lines, json, logits, samples, without: None };
    let bar = printer.bar(numbers.len() as u64, "samples");
    let stopped = predictor.run(engine, &released, &mut inputs, &numbers, |computed| {
        found.take(&args, &predictor, &computed);
        bar.set_position(found.json.len() as u64);
        bar.set_message("");
        bar.wish().break_value()
    })?;
    bar.finish_and_clear();
    if stopped.is_some() {
        return Err(halted());
    }
    let model = predictor.identity(of_model, &subject.table(), &subject.model);
    write_logits(&args, &predictor, numbers.len(), std::mem::take(&mut found.logits))?;
    let of = Predicting { engine, of_model, released: &released, inputs: &mut inputs };
    let next = write_receipt((printer, &args), (model, of), (numbers[0], &mut found), key.as_ref())?;
    let whose = one_line(&subject.whose);
    let samples = if numbers.len() == 1 { "sample" } else { "samples" };
    let mut lines = vec![format!("{} {samples}, predicted by {whose}", numbers.len())];
    lines.extend(found.lines);
    let [parameters, buffers] = model.state;
    let document = json!({
        "model": model.model, "parameters": parameters, "buffers": buffers, "classes": model.classes, "samples": found.json,
        "next": next.iter().collect::<Vec<_>>(),
    });
    printer.result(lines, &document);
    if let Some(next) = &next {
        printer.say(next.line());
    }
    Ok(Exit::Match)
}
