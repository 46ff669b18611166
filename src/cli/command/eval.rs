//! `tiebreak eval`.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::args::decided::Decided;
use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::job::JobArgs;
use crate::cli::args::limits::Limits;
use crate::cli::args::state::released;
use crate::cli::view::escape::one_line;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_contract::arith::float;
use tiebreak_contract::program::step::Program;
use tiebreak_record::commit::state::{StateRoots, tensor_digests};
use tiebreak_record::job::Job;
use tiebreak_record::job::identity::program_digest;
use tiebreak_record::job::initial::Drawn;
use tiebreak_run::evaluate::{Evaluation, Evaluator, Found, Report};
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::evaluation::{self, EvaluationData};
use tiebreak_run::run::{RunError, initial, read_job, read_program, shell};
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
  tiebreak eval model.safetensors --job job.toml --data text.txt")]
pub struct Args {
    /// Folder or address of a run, or a .safetensors file of weights with --job.
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

/// The subject of an evaluation.
struct Subject {
    job: Job,
    program: Program,
    data: EvaluationData,
    /// The parameters and buffers.
    model: Vec<Vec<u8>>,
    /// In words, whose state it is.
    whose: String,
}

fn only_models() -> Failure {
    let why =
        "a program from a file says nothing of how its model is evaluated; only jobs of a model kind can be";
    Failure::new(Exit::Usage, why)
}

/// Data files of the command line, read as the job's are.
fn named_data(args: &Args, job: &Job, program: &Program) -> Result<EvaluationData, Failure> {
    let names: Vec<String> = args.data.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let spec = job.data.in_files(&names);
    let spec = spec.map_err(|why| Failure::new(Exit::Usage, format!("--data: {why}")))?;
    Ok(evaluation::open_named(&spec, &args.data, &program.sample())?)
}

/// A run's model, or its state after a step.
fn of_run(args: &Args) -> Result<Subject, Failure> {
    let folders: Vec<PathBuf> = args.data.iter().filter(|path| path.is_dir()).cloned().collect();
    let run = args.limits.open_with_data(&args.of, folders.first())?.with_data(folders.clone());
    run.job().model().ok_or_else(only_models)?;
    run.within_memory("the model", run.state_memory())?;
    let model = released(&run, args.step)?;
    let data = match args.data.len() > folders.len() {
        true => named_data(args, run.job(), run.program())?,
        false => evaluation::of_run(&run)?,
    };
    let whose = match args.step {
        Some(step) => format!("the state after step {step}, which its record commits"),
        None => "the released model, which the final record commits".into(),
    };
    Ok(Subject { job: run.computation.job, program: run.computation.program, data, model, whose })
}

/// Weights from a file, of a job's model.
fn of_weights(args: &Args, job: &Path) -> Result<Subject, Failure> {
    let files = JobArgs { job: job.to_path_buf(), data_root: None }.files()?;
    let job = read_job(job)?.1;
    job.model().ok_or_else(only_models)?;
    let program = read_program(&files, &job)?.0;
    // What the job draws anew when it trains is in these files, if they are of a model that was trained.
    let files_alone = Drawn::default();
    let mut model = initial::from_weights(std::slice::from_ref(&args.of), &job, &program, &files_alone)?;
    model.truncate(program.released());
    let data = match args.data.is_empty() {
        false => named_data(args, &job, &program)?,
        true => {
            let spec = match job.evaluation.as_ref().and_then(|e| e.files.as_ref()) {
                Some(names) => job.data.in_files(names).map_err(|why| Failure::new(Exit::Usage, why))?,
                None => job.data.clone(),
            };
            let paths = spec.files.paths().into_iter().map(|name| files.path("evaluation.files", name));
            evaluation::open_named(&spec, &paths.collect::<Result<Vec<_>, _>>()?, &program.sample())?
        }
    };
    let whose = format!("the weights in {}", one_line(&args.of.to_string_lossy()));
    Ok(Subject { job, program, data, model, whose })
}

fn evaluated(
    printer: Printer,
    args: &Args,
    samples: Option<u64>,
    subject: &mut Subject,
) -> Result<(Evaluation, String), Failure> {
    let of_model = subject.job.model().ok_or_else(only_models)?;
    let batch = args.batch.unwrap_or(of_model.batch.micro_batch);
    let needed = Evaluator::memory(&subject.job, of_model, batch);
    let needed = needed.map_err(|why| Failure::new(Exit::Usage, format!("--batch: {why}")))?;
    let model: usize = subject.model.iter().map(Vec::len).sum();
    args.limits
        .check(&format!("an evaluation of {batch} samples at once"), needed.saturating_add(model as u64))?;
    let mut engine = open_exact(&args.engine)?;
    let engine = engine.as_mut();
    let evaluator = Evaluator::new(engine, of_model, batch)?;
    let table = subject.program.state();
    let tensors = table.iter().zip(&subject.model).map(|(tensor, bytes)| engine.upload(&tensor.ty(), bytes));
    let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    let dataset = &mut subject.data.dataset;
    let all = dataset.samples_in_order().min(samples.unwrap_or(u64::MAX));
    let bar = printer.bar(all, "samples");
    let evaluation = evaluator.run(engine, &tensors, dataset, samples, &mut |done, _| {
        bar.set_position(done);
        bar.set_message("");
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
    let mut subject = match &args.job {
        Some(job) => of_weights(&args, job)?,
        None if args.of.is_file() => {
            let why = "a file of weights does not say what it is of: name its job with --job";
            return Err(Failure::new(Exit::Usage, why));
        }
        None => of_run(&args)?,
    };
    // As many samples as the report is of.
    let samples = args.samples.or(expected.as_ref().map(|expected| expected.samples));
    watch.planned();
    let (evaluation, engine) = evaluated(printer, &args, samples, &mut subject)?;
    let table = &subject.program.state()[..subject.program.released()];
    let [parameters, buffers, _] = StateRoots::of(table, &tensor_digests(table, &subject.model)).0;
    let finite = |bits: u32| Some(f32::from_bits(bits)).filter(|x| x.is_finite());
    let report = Report {
        format: Report::FORMAT.into(),
        program: program_digest(&subject.program),
        model: [parameters, buffers],
        data: subject.data.root,
        first_sample: Some(subject.data.dataset.first_evaluated()).filter(|&first| first > 0),
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
    Ok(said(printer, &subject.whose, &evaluation, &report, expected.as_ref(), (not_finite, next)))
}

/// Why the loss is not finite, if it is not: a value of the model, else one of the data.
fn not_finite(subject: &Subject, evaluation: &Evaluation) -> Option<NotFinite> {
    if float::is_finite(evaluation.loss) {
        return None;
    }
    let (table, loss) = (subject.program.state(), finite::in_words(evaluation.loss));
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
