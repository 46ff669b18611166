//! `tiebreak job`.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use super::{CommandResult, Exit, Printer, bytes_text};
use crate::engine::liveness::step_bytes;
use crate::job::identity::program_digest;
use crate::program::step::state_bytes;
use crate::run::{read_job, read_program};

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
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let Command::Check { job: path } = args.command;
    let (_, job) = read_job(&path)?;
    let program = read_program(&path, &job)?.0;
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
            program.samples(),
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
            "state_bytes": state,
            "step_bytes": peak,
            "nodes": nodes,
            "job": job.digest(),
            "program": digest,
        }),
    );
    Ok(Exit::Match)
}
