//! `tiebreak job`.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use super::{CommandResult, Exit, Printer, bytes_text, job_reference};
use crate::engine::liveness::step_bytes;
use crate::job::identity::{job_digest, program_digest};
use crate::program::step::state_bytes;
use crate::run::read_job;

/// Look at job files.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check a job file: errors name the key and the line.
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
    let (text, job) = read_job(&path)?;
    let program = job.program();
    let nodes = [&program.micro, &program.accumulate, &program.update].map(|graph| graph.nodes.len());
    let (state, peak) = (state_bytes(&program.state()), step_bytes(&program));
    let digest = program_digest(&program);
    printer.result(
        format!(
            "{}: {} parameters, {} steps of {} samples\nstate {}, tensors of a step take {} at most\n\
             {} + {} + {} operators (micro-batch, accumulation, update)\njob     {}\nprogram {digest}",
            path.display(),
            program.parameter_count(),
            job.steps,
            program.batch(),
            bytes_text(state),
            bytes_text(peak),
            nodes[0],
            nodes[1],
            nodes[2],
            job_digest(&text),
        ),
        &json!({
            "parameters": program.parameter_count(),
            "steps": job.steps,
            "batch": program.batch(),
            "state_bytes": state,
            "step_bytes": peak,
            "nodes": nodes,
            "job": job_digest(&text),
            "program": digest,
        }),
    );
    Ok(Exit::Match)
}
