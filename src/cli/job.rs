//! `tiebreak job`.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json};

use super::{CommandResult, Exit, Failure, Printer, bytes_text, job_reference};
use crate::engine::liveness::step_bytes;
use crate::job::Job;
use crate::job::identity::{philox_key, program_digest, seed};
use crate::job::initial::InitialOrigin;
use crate::job::manifest::files_root;
use crate::program::step::{Program, state_bytes};
use crate::run::data::JobData;
use crate::run::{RunError, check_thresholds, initial, read_job, read_program};

/// Look at job files.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check a job file, its data, and the weights or the run that it begins from: errors name the key and the line, or the file.
    #[command(after_help = "Example: tiebreak job check assets/jobs/demo.toml")]
    Check { job: PathBuf },
    /// Print every key of a job file: type, bounds, default, unit, meaning and an example.
    #[command(after_help = "Example: tiebreak job reference --json-schema > job.schema.json")]
    Reference {
        /// A JSON Schema instead, for editors.
        #[arg(long)]
        json_schema: bool,
    },
}

/// What `check` finds of the data.
struct Checked {
    samples: u64,
    bytes: u64,
    /// Files without a whole sample.
    unused: Vec<String>,
    /// Steps whose batches were drawn.
    drawn: Vec<u32>,
}

/// Opens a job's data and draws a few batches, as training would.
fn check_data(path: &Path, job: &Job, program: &Program) -> Result<Checked, Failure> {
    let mut data = JobData::open(path, job, program)?;
    let key = philox_key(&seed(job, &program_digest(program), &files_root(&data.manifest), None));
    let drawn = data.sample(job, program, key)?;
    let unused = data.dataset.unused().map(|path| path.display().to_string()).collect();
    Ok(Checked { samples: data.dataset.samples(), bytes: data.dataset.bytes(), unused, drawn })
}

/// Reads what the initial state is made from, as training would. Where it comes from: in words, and as JSON.
fn check_initial(path: &Path, job: &Job, program: &Program) -> Result<(String, Value), Failure> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let origin = initial::of_job(job, program, folder)?.map_or(InitialOrigin::Seed, |(_, origin)| origin);
    Ok(match &origin {
        InitialOrigin::Seed => ("made from the seed".into(), json!({ "kind": "seed" })),
        InitialOrigin::Weights { files } => {
            let bytes: u64 = files.iter().map(|file| file.bytes).sum();
            let paths = job.init.weights.join(", ");
            let text =
                format!("the weights in {paths} ({}); optimizer slots begin at zero", bytes_text(bytes));
            (text, json!({ "kind": "weights", "paths": job.init.weights, "files": files }))
        }
        InitialOrigin::Run(earlier) => {
            let path = job.init.run.as_deref().unwrap_or_default();
            let (run, ..) = earlier.finish().map_err(|why| RunError::malformed(&folder.join(path), why))?;
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
        Command::Check { job } => check(printer, job),
        Command::Reference { json_schema } => {
            let schema = job_reference::schema();
            let text =
                if json_schema { format!("{schema:#}") } else { job_reference::markdown().trim_end().into() };
            printer.result(text, &schema);
            Ok(Exit::Match)
        }
    }
}

fn check(printer: Printer, path: PathBuf) -> CommandResult {
    let (_, job) = read_job(&path)?;
    let program = read_program(&path, &job)?.0;
    check_thresholds(&path, &job, &program)?;
    let nodes = [&program.micro, &program.accumulate, &program.update].map(|graph| graph.nodes.len());
    let (state, peak) = (state_bytes(&program.state()), step_bytes(&program));
    let digest = program_digest(&program);
    let data = check_data(&path, &job, &program)?;
    let (origin, initial) = check_initial(&path, &job, &program)?;
    let advice = job.rounding.as_ref().and_then(|rounding| rounding.advice(&program.micro.logged));
    if let Some(advice) = &advice {
        printer.say(format!("warning: {advice}"));
    }
    for path in &data.unused {
        printer.say(format!("warning: {path} is shorter than a sample; nothing of it is drawn"));
    }
    let steps_per_epoch = data.samples as f64 / f64::from(program.samples());
    let epochs = f64::from(job.steps) / steps_per_epoch;
    let drawn: Vec<String> = data.drawn.iter().map(u32::to_string).collect();
    printer.result(
        format!(
            "{}: {} parameters, {} steps of {} samples\n{} samples in {} of data: {steps_per_epoch:.1} steps an epoch, {epochs:.2} \
             epochs; the batches of steps {} were drawn\ninitial state: {origin}\nstate {}, tensors of a step take {} at most\n\
             {} + {} + {} operators (micro-batch, accumulation, update)\njob     {}\nprogram {digest}",
            path.display(),
            program.parameter_count(),
            job.steps,
            program.samples(),
            data.samples,
            bytes_text(data.bytes),
            drawn.join(", "),
            bytes_text(state),
            bytes_text(peak),
            nodes[0],
            nodes[1],
            nodes[2],
            job.digest(),
        ),
        &json!({
            "parameters": program.parameter_count(),
            "steps": job.steps,
            "batch": program.samples(),
            "samples": data.samples,
            "data_bytes": data.bytes,
            "unused_files": data.unused,
            "steps_drawn": data.drawn,
            "steps_per_epoch": steps_per_epoch,
            "epochs": epochs,
            "initial": initial,
            "state_bytes": state,
            "step_bytes": peak,
            "nodes": nodes,
            "job": job.digest(),
            "program": digest,
        }),
    );
    Ok(Exit::Match)
}
