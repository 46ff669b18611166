//! `tiebreak job`.

mod finite;
mod memory;
mod new;
mod ranks;
mod reference;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use serde_json::{Value, json};

use crate::cli::args::job::JobArgs;
use crate::cli::args::limits::Limits;
use crate::cli::view::data::{say_copied, scanning};
use crate::cli::view::escape::{Lines, one_line};
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text};
use ranks::{OfRanks, RanksArgs};
use tiebreak_contract::program::models::{Input, KINDS, Model};
use tiebreak_contract::program::step::{Program, state_bytes};
use tiebreak_dispute::game::moves::LEAF_MAX;
use tiebreak_dispute::size::samples_bytes;
use tiebreak_job::Job;
use tiebreak_job::data::targets;
use tiebreak_job::identity::{philox_key, program_digest, seed};
use tiebreak_job::initial::InitialOrigin;
use tiebreak_job::manifest::files_root;
use tiebreak_job::spec::WeightNames;
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::checked;
use tiebreak_run::run::companions::Companions;
use tiebreak_run::run::data::JobData;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{
    JobFiles, RunError, check_thresholds, initial, network, read_job, read_program, shell,
};
use tiebreak_train::{evaluation_files, tokenizer};

/// Write job files to begin with, check them, and list their keys.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak job check job.toml")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check a job file, its data, and the weights or the run that it begins from.
    ///
    /// Errors name the key and the line, or the file.
    #[command(after_help = "Example:\n  tiebreak job check job.toml")]
    Check {
        #[command(flatten)]
        job: JobArgs,
        #[command(flatten)]
        ranks: RanksArgs,
        #[command(flatten)]
        limits: Limits,
    },
    /// Write a job to begin with: every key with its meaning, as comments.
    #[command(after_help = "Example:\n  tiebreak job new gpt --output new.toml")]
    New {
        /// Kind of the job's model.
        #[arg(value_parser = PossibleValuesParser::new(KINDS))]
        model: String,
        /// File for the job; without it the job is printed.
        ///
        /// A file that is there is not replaced.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Print every key of a job file: type, bounds, default, unit, meaning and an example.
    #[command(after_help = "Example:\n  tiebreak job reference --json-schema")]
    Reference {
        /// Print a JSON Schema instead, for editors.
        #[arg(long)]
        json_schema: bool,
    },
}

/// The facts that `check` finds about the data.
struct Checked {
    /// To draw from.
    samples: u64,
    /// Samples of an evaluation, where the job keeps some for it.
    kept: Option<u64>,
    /// Where the data have masks: the targets that count, and all targets.
    targets: Option<[u64; 2]>,
    bytes: u64,
    /// The root of the data's manifest.
    root: Digest,
    /// The Philox key of a run without a challenge.
    key: [u32; 2],
    /// The files that a run copies, with the bytes of each.
    copied: Vec<(String, u64)>,
    /// Files without a whole sample.
    unused: Vec<String>,
    /// Steps of which samples were drawn.
    drawn: Vec<u32>,
    /// Values of inputs that are not finite, file by file.
    not_finite: Vec<Value>,
}

impl Checked {
    /// The number of targets that count, where the data have masks.
    fn targets_text(&self) -> String {
        self.targets.map_or(String::new(), |[counted, all]| format!(", {counted} of {all} targets count"))
    }

    fn targets_json(&self) -> Value {
        self.targets.map_or(Value::Null, |[counted, all]| json!({ "counted": counted, "all": all }))
    }
}

/// Opens a job's data and draws a few batches, as training would.
fn check_data(
    printer: Printer,
    files: &JobFiles,
    job: &Job,
    program: &Program,
    companions: &Companions,
) -> Result<Checked, Failure> {
    let mut data = JobData::open(files, job, program)?;
    let (root, watch) = (files_root(&data.manifest), &mut scanning(printer));
    data.dataset.hold_to(tokenizer(job, companions));
    checked::Checked::of_this_user().check(&mut data.dataset, &root, None, watch)?;
    network::of_job(files, job, program)?;
    evaluation_files(files, job, program, companions, watch)?;
    let key = philox_key(&seed(job, &program_digest(program), &root, None));
    let drawn = data.sample(job, program, key)?;
    let not_finite = finite::of_data(printer, &mut data.dataset, job)?;
    let targets = targets(&mut data.dataset).map_err(RunError::from)?;
    let unused = data.dataset.unused().map(|path| path.display().to_string()).collect();
    let copied = data.copied(job).into_iter().map(|(file, bytes)| (file.path().display().to_string(), bytes));
    let (copied, dataset) = (copied.collect(), &data.dataset);
    let kept = job.data.validation_split.map(|_| dataset.samples_in_order());
    Ok(Checked {
        samples: dataset.samples(),
        kept,
        targets: targets.map(|targets| [targets.counted, targets.all]),
        bytes: dataset.bytes(),
        root,
        key,
        copied,
        unused,
        drawn,
        not_finite,
    })
}

/// Reads what the initial state is made from, as training would. Where it comes from, in words and as JSON, and what of it is not finite.
fn check_initial(
    printer: Printer,
    files: &JobFiles,
    job: &Job,
    program: &Program,
    key: [u32; 2],
) -> Result<(String, Value, Vec<Value>), Failure> {
    let working = printer.working("looking at the initial state", None);
    let (state, origin) =
        initial::of_job(job, program, files, key)?.unwrap_or((Vec::new(), InitialOrigin::Seed));
    drop(working);
    let (text, json) = origin_text(files, job, &origin)?;
    let paths =
        job.init.run.iter().chain(job.init.files()).map(String::as_str).collect::<Vec<_>>().join(", ");
    let spoiled = finite::of_initial(printer, program, &state, &paths);
    Ok((text, json, spoiled))
}

/// The origin of an initial state: in words, and as JSON.
fn origin_text(files: &JobFiles, job: &Job, origin: &InitialOrigin) -> Result<(String, Value), Failure> {
    Ok(match origin {
        InitialOrigin::Seed => ("made from the seed".into(), json!({ "kind": "seed" })),
        InitialOrigin::Weights { files } => {
            let bytes: u64 = files.iter().map(|file| file.bytes).sum();
            let paths = job.init.files().map(String::as_str).collect::<Vec<_>>();
            let drawn = job.reinitialized().unwrap_or_default();
            let anew = match drawn.is_empty() {
                true => String::new(),
                false => format!("drawn from the seed: {}; ", drawn.join(", ")),
            };
            let text = format!(
                "the weights in {} ({}); {anew}optimizer slots begin at zero",
                paths.join(", "),
                bytes_text(bytes)
            );
            let mut value = json!({ "kind": "weights", "paths": paths, "files": files });
            if !drawn.is_empty() {
                value["drawn"] = json!(drawn);
            }
            (text, value)
        }
        InitialOrigin::Run(earlier) => {
            let path = job.init.run.as_deref().unwrap_or_default();
            let (run, ..) =
                earlier.finish().map_err(|why| RunError::malformed(&files.folder().join(path), why))?;
            let slots = if earlier.optimizer_state { "are taken too" } else { "begin at zero" };
            let text = format!("the final state of the run {run} in {path}; optimizer slots {slots}");
            (
                text,
                json!({ "kind": "run", "path": path, "run": run, "optimizer_state": earlier.optimizer_state }),
            )
        }
    })
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    match args.command {
        Command::Check { job, ranks, limits } => {
            let _watch = limits.watch(printer);
            check(printer, &job, ranks)
        }
        Command::New { model, output } => new(printer, &model, output.as_deref()),
        Command::Reference { json_schema } => {
            let schema = reference::schema();
            let text =
                if json_schema { format!("{schema:#}") } else { reference::markdown().trim_end().into() };
            printer.document(Lines::split(&text), &schema);
            Ok(Exit::Match)
        }
    }
}

fn new(printer: Printer, model: &str, output: Option<&Path>) -> CommandResult {
    let text = new::job(model);
    let Some(path) = output else {
        printer.document(Lines::split(text.trim_end()), &json!({ "model": model, "job": text }));
        return Ok(Exit::Match);
    };
    if path.exists() {
        return Err(Failure::new(
            Exit::Usage,
            format!("{} is there already: name another file", path.display()),
        ));
    }
    Disk::default().replace(&std::path::absolute(path).map_err(RunError::io(path))?, text.as_bytes())?;
    let job = Job::parse(&path.display().to_string(), &text)
        .map_err(|error| Failure::new(Exit::Undecided, error))?;
    let files = job.data.files.paths().join(", ");
    let why = format!("put its data beside it ({files}), then");
    let next = Next::new(why, format!("tiebreak job check {}", shell::path(path)));
    printer.result(
        vec![format!("wrote {}", path.display()), next.line()],
        &json!({ "model": model, "output": path, "data": job.data.files.paths(), "next": [next] }),
    );
    Ok(Exit::Match)
}

/// Warns of what a job may not mean. `unused`: the files without a whole sample.
fn warn(printer: Printer, job: &Job, unused: &[String]) {
    for path in unused {
        printer.say(format!("warning: {path} is shorter than a sample; nothing of it is drawn"));
    }
    warn_of_files(printer, job);
    warn_of_pixels(printer, job);
}

/// Warns of a job whose batches a dispute shows by long answers.
fn warn_of_files(printer: Printer, job: &Job) {
    let shown = samples_bytes(&job.data.files);
    if shown > LEAF_MAX {
        printer.say(format!(
            "warning: in a dispute an element of a batch is shown with the manifests and headers of all data files, up to {} here, where {} are meant \
             to do: put the data into fewer files, or tokens into files without headers",
            bytes_text(shown),
            bytes_text(LEAF_MAX)
        ));
    }
}

/// Warns of a job whose pictures are others than those that its released weights were trained on, as far as anybody can tell.
fn warn_of_pixels(printer: Printer, job: &Job) {
    if is_unnormalised(job) {
        printer.say(
            "warning: init.weights are of a network over images, and the job does not say how pixels are normalised: it takes byte / 255. torchvision's \
             weights expect model.normalize = \"imagenet\", and many vision transformers \"half\"; write \"none\" if these expect byte / 255",
        );
    }
}

/// True if a job with released weights of a network over images leaves out how pixels are normalised.
fn is_unnormalised(job: &Job) -> bool {
    let Some(model) = job.model() else { return false };
    let is_pixels = job.data.files.input() == Input::Pixels;
    let is_network = matches!(model.model, Model::Resnet(_) | Model::Vgg11(_) | Model::Vit(_));
    let is_said = model.model.normalization().is_none_or(|normalization| normalization.is_said());
    !job.init.weights.is_empty() && job.init.names == WeightNames::Hf && is_pixels && is_network && !is_said
}

/// The command that trains a job.
fn train_command(args: &JobArgs) -> String {
    let root = args.data_root.iter().map(|root| format!(" --data-root {}", shell::path(root)));
    let out = Path::new("runs").join(args.job.file_stem().unwrap_or_default());
    format!(
        "tiebreak train {}{} --out {}",
        shell::path(&args.job),
        root.collect::<String>(),
        shell::path(&out)
    )
}

fn check(printer: Printer, args: &JobArgs, ranks: RanksArgs) -> CommandResult {
    let (_, job) = read_job(&args.job)?;
    let (path, files) = (&args.job, args.files()?);
    let program = read_program(&files, &job)?.0;
    check_thresholds(path, &job, &program)?;
    let nodes = [&program.micro, &program.accumulate, &program.update].map(|graph| graph.nodes.len());
    let state = state_bytes(&program.state());
    let (memory, ranks) = (memory::Memory::of(&program), ranks.of(&program)?);
    let digest = program_digest(&program);
    let companions = Companions::of_job(&job, &files)?;
    let data = check_data(printer, &files, &job, &program, &companions)?;
    let (origin, initial, spoiled) = check_initial(printer, &files, &job, &program, data.key)?;
    let not_finite = [&data.not_finite[..], &spoiled].concat();
    let advice = job.rounding.as_ref().and_then(|rounding| rounding.advice(&program.micro.logged));
    advice.iter().for_each(|advice| printer.say(format!("warning: {advice}")));
    warn(printer, &job, &data.unused);
    let companions = companions.sources().map(|(path, bytes)| (path.display().to_string(), bytes));
    let copied: Vec<(String, u64)> = data.copied.iter().cloned().chain(companions).collect();
    say_copied(printer, copied.iter().map(|(path, bytes)| (path.as_str(), *bytes)));
    let steps_per_epoch = data.samples as f64 / f64::from(program.samples());
    let epochs = f64::from(job.steps) / steps_per_epoch;
    let in_json = |json| ranks.iter().fold(json, |json, ranks| ranks.in_json(json));
    let drawn: Vec<String> = data.drawn.iter().map(u32::to_string).collect();
    printer.result(
        Lines::split(&format!(
            "{}: {} parameters, {} steps of {} samples\n{} samples{} in {} of data: {steps_per_epoch:.1} steps an epoch, {epochs:.2} \
             epochs; every id and label is the model's{}; samples of steps {} were drawn\ninitial state: {}\nstate {}, {}\n\
             {} operators (micro-batch, accumulation, update)\njob     {}\nprogram {digest}\ndata    {}\ntrain it with: {}",
            one_line(&path.display().to_string()),
            program.parameter_count(),
            job.steps,
            program.samples(),
            data.samples,
            data.kept.map_or(String::new(), |kept| format!(" to draw from, {kept} for evaluations,")),
            bytes_text(data.bytes),
            data.targets_text(),
            drawn.join(", "),
            one_line(&origin),
            bytes_text(state),
            memory.text() + &ranks.as_ref().map_or(String::new(), OfRanks::text),
            nodes.map(|count| count.to_string()).join(" + "),
            job.digest(),
            data.root,
            train_command(args),
        )),
        &in_json(memory.in_json(json!({
            "parameters": program.parameter_count(),
            "steps": job.steps,
            "batch": program.samples(),
            "samples": data.samples,
            "evaluated_samples": data.kept,
            "targets": data.targets_json(),
            "data_bytes": data.bytes,
            "copied": data.copied.iter().map(|(path, bytes)| json!({ "path": path, "bytes": bytes })).collect::<Vec<_>>(),
            "unused_files": data.unused,
            "steps_drawn": data.drawn,
            "steps_per_epoch": steps_per_epoch,
            "epochs": epochs,
            "initial": initial,
            "not_finite": not_finite,
            "state_bytes": state,
            "nodes": nodes,
            "job": job.digest(),
            "program": digest,
            "data": data.root,
        }))),
    );
    Ok(Exit::Match)
}
