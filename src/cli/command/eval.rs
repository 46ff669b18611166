//! `tiebreak eval`.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::args::decided::Decided;
use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::limits::Limits;
use crate::cli::args::predicted::upload;
use crate::cli::args::subject::{Named, Subject};
use crate::cli::view::escape::one_line;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_contract::arith::float;
use tiebreak_job::identity::program_digest;
use tiebreak_record::commit::state::{StateRoots, tensor_digests};
use tiebreak_run::evaluate::{Evaluation, Evaluator, Found, Report};
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::evaluation::EvaluationData;
use tiebreak_run::run::{RunError, shell};
use tiebreak_run::step::finite::{self, NotFinite};

/// The most bytes of a report.
const REPORT_MAX: u64 = 1 << 16;

/// Compute a model's loss, accuracy and perplexity, in the bits of every engine.
///
/// With --expect the command ends with 0 if the bits are the report's, and with 1 if they differ. Exit code 3 means that nothing was
/// decided, and 4 that the report is malformed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak eval runs/mine --data text.txt --report eval.json
  tiebreak eval runs/mine --data text.txt --expect eval.json
  tiebreak eval runs/captured --network captured/network.json   # by default the run's copy
  tiebreak eval model.safetensors --job job.toml --data text.txt")]
pub struct Args {
    /// Folder or address of a run, or released weights with --job.
    ///
    /// Weights are a .safetensors file, or a folder that has them, here or at an address.
    #[arg(value_name = "RUN|MODEL")]
    of: PathBuf,
    /// Data file, in the order in which the job names its own; once for each.
    ///
    /// Without the option the command takes the job's [evaluation] files. A job without them has the samples that its validation_split
    /// keeps, else its training data.
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,
    /// File for the report.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Compare with this report of the same evaluation by somebody else.
    #[arg(long, value_name = "REPORT")]
    expect: Option<PathBuf>,
    /// Job that says which model weights are of, and how data are read.
    #[arg(long, value_name = "JOB")]
    job: Option<PathBuf>,
    /// Network file of a program from a file, as tiebreak.capture writes it.
    ///
    /// The network has to give the job's program. The default is the file that the run keeps, or that the job of weights names.
    #[arg(long, value_name = "FILE")]
    network: Option<PathBuf>,
    /// Evaluate the checkpoint after this step, not the released model.
    #[arg(long, value_name = "N", conflicts_with = "job")]
    step: Option<u32>,
    /// Evaluate the first N samples alone.
    ///
    /// The default is all, or as many as --expect's report is of.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    samples: Option<u64>,
    /// Samples that are computed at once; changes no bits.
    ///
    /// The default is a micro-batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    batch: Option<u32>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    decided: Decided,
}

/// Reads a report.
fn read(path: &Path) -> Result<Report, RunError> {
    let text = disk::read_text(path, REPORT_MAX)?;
    Report::parse(&text).map_err(|source| RunError::malformed(path, source))
}

/// The fields that decide bits: name and value.
fn fields(report: &Report) -> Vec<(&'static str, String)> {
    vec![
        ("program", report.program.to_string()),
        ("parameters", report.model[0].to_string()),
        ("buffers", report.model[1].to_string()),
        ("data", report.data.to_string()),
        ("first_sample", report.first_sample.unwrap_or(0).to_string()),
        ("samples", report.samples.to_string()),
        ("labels", report.labels.to_string()),
        ("hits", report.hits.to_string()),
        ("loss", one_line(&report.loss).into_owned()),
        ("losses", report.losses.to_string()),
    ]
}

fn evaluated(
    printer: Printer,
    args: &Args,
    samples: Option<u64>,
    (subject, data): (&Subject, &mut EvaluationData),
) -> Result<(Evaluation, String), Failure> {
    let of_model = subject.of_model();
    let batch = args.batch.unwrap_or(of_model.micro_batch());
    let needed = Evaluator::memory(subject.job(), of_model, batch);
    let needed = needed.map_err(|why| Failure::new(Exit::Usage, format!("--batch: {why}")))?;
    let needed = needed.saturating_add(subject.bytes());
    args.limits.check(&format!("an evaluation of {batch} samples at once"), needed)?;
    let mut engine = open_exact(&args.engine)?;
    let engine = engine.as_mut();
    let evaluator = Evaluator::new(engine, of_model, batch)?;
    let tensors = upload(engine, subject)?;
    let dataset = &mut data.dataset;
    let all = dataset.samples_in_order().min(samples.unwrap_or(u64::MAX));
    let bar = printer.bar(all, "samples");
    let evaluation = evaluator.run(engine, &tensors, dataset, samples, &mut |done, _| {
        bar.set_position(done);
        bar.set_message("");
        bar.wish()
    })?;
    bar.finish_and_clear();
    Ok((evaluation, engine.describe()))
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let decided = args.decided;
    decided.applied(evaluate(printer, args))
}

fn evaluate(printer: Printer, args: Args) -> CommandResult {
    let watch = args.limits.watch(printer);
    let expected = args.expect.as_deref().map(read).transpose()?;
    let (job, network) = (args.job.as_deref(), Some(args.network.as_deref()));
    let named = Named { of: &args.of, job, network, step: args.step, data: &args.data };
    let subject = Subject::of(&named, &args.limits)?;
    let mut data = subject.data(&args.data)?;
    // As many samples as the report is of.
    let samples = args.samples.or(expected.as_ref().map(|expected| expected.samples));
    watch.planned();
    let (evaluation, engine) = evaluated(printer, &args, samples, (&subject, &mut data))?;
    if evaluation.labels == 0 {
        let why = format!(
            "no label of {} samples has a loss: the job's loss.ignore, mask or masking leaves none that counts",
            evaluation.samples
        );
        return Err(Failure::new(Exit::Usage, why).help("evaluate more samples, or other data"));
    }
    let table = subject.table();
    let [parameters, buffers, _] = StateRoots::of(&table, &tensor_digests(&table, &subject.model)).0;
    let finite = |bits: u32| Some(f32::from_bits(bits)).filter(|x| x.is_finite());
    let report = Report {
        format: Report::FORMAT.into(),
        program: program_digest(subject.program()),
        model: [parameters, buffers],
        data: data.root,
        first_sample: Some(data.dataset.first_evaluated()).filter(|&first| first > 0),
        samples: evaluation.samples,
        labels: evaluation.labels,
        hits: evaluation.hits,
        loss: format!("{:08x}", evaluation.loss),
        losses: evaluation.losses,
        found: Found {
            loss: finite(evaluation.loss),
            accuracy: finite(evaluation.accuracy()),
            perplexity: finite(evaluation.perplexity()),
            engine,
        },
    };
    if let Some(path) = &args.report {
        Disk::default()
            .replace(&std::path::absolute(path).map_err(RunError::io(path))?, report.text().as_bytes())?;
    }
    let not_finite = not_finite(&subject, &evaluation);
    let next = again(&args);
    Ok(said(printer, &one_line(&subject.whose), &evaluation, &report, expected.as_ref(), (not_finite, next)))
}

/// Why the loss is not finite, if it is not: a value of the model, else one of the data.
fn not_finite(subject: &Subject, evaluation: &Evaluation) -> Option<NotFinite> {
    if float::is_finite(evaluation.loss) {
        return None;
    }
    let (table, loss) = (subject.table(), finite::in_words(evaluation.loss));
    let tensors = table.iter().zip(&subject.model);
    let first =
        finite::of_tensors(tensors.map(|(t, bytes)| (t.name.as_str(), &t.shape[..], bytes.as_slice())));
    let why = "the model's values are finite, so that they or the data are too large, or the data hold what is no number: tiebreak job check";
    let unknown = first.is_none().then(|| why.to_string());
    Some(NotFinite { loss, first, unknown })
}

/// The command by which somebody else compares the evaluation, if a report was written.
fn again(args: &Args) -> Option<Next> {
    let report = shell::path(args.report.as_ref()?);
    let mut words = vec![shell::path(&args.of)];
    words.extend(args.job.iter().map(|job| format!("--job {}", shell::path(job))));
    words.extend(args.network.iter().map(|network| format!("--network {}", shell::path(network))));
    words.extend(args.data.iter().map(|data| format!("--data {}", shell::path(data))));
    words.extend(args.step.map(|step| format!("--step {step}")));
    let command = format!("tiebreak eval {} --expect {report}", words.join(" "));
    Some(Next::new("on another machine", command))
}

/// Prints what was found, and how it compares.
fn said(
    printer: Printer,
    whose: &str,
    evaluation: &Evaluation,
    report: &Report,
    expected: Option<&Report>,
    (not_finite, next): (Option<NotFinite>, Option<Next>),
) -> Exit {
    let number = f32::from_bits;
    let mut lines = vec![format!(
        "loss {:.6} ({})  accuracy {:.4} ({} of {})  perplexity {:.4}",
        number(evaluation.loss),
        report.loss,
        number(evaluation.accuracy()),
        evaluation.hits,
        evaluation.labels,
        number(evaluation.perplexity())
    )];
    lines.extend(not_finite.iter().map(|found| match &found.first {
        Some(first) => format!("NOT FINITE: the loss is {}, since the model is not: {first}", found.loss),
        None => format!("NOT FINITE: {found}"),
    }));
    lines.push(format!("of {whose}; {} samples, data {}", evaluation.samples, report.data));
    let differing: Vec<_> = expected.map_or(Vec::new(), |expected| {
        let pairs = fields(report).into_iter().zip(fields(expected));
        pairs.filter(|(ours, theirs)| ours != theirs).collect()
    });
    for ((name, ours), (_, theirs)) in &differing {
        lines.push(format!("DIFFERS: {name} is {ours}, the report says {theirs}"));
    }
    let exit = if differing.is_empty() { Exit::Match } else { Exit::Diverges };
    if expected.is_some() && exit == Exit::Match {
        lines.push("MATCHES: every bit is the report's".into());
    }
    lines.extend(next.iter().map(Next::line));
    let mut json = json!(report);
    json["next"] = json!(next.iter().collect::<Vec<_>>());
    json["not_finite"] = json!(not_finite);
    if expected.is_some() {
        json["result"] = json!(if exit == Exit::Match { "matches" } else { "diverges" });
        json["differs"] = json!(differing.iter().map(|((name, _), _)| name).collect::<Vec<_>>());
    }
    printer.result(lines, &json);
    exit
}
