//! `tiebreak correct withdraw`.

use std::path::PathBuf;

use serde_json::json;

use crate::cli::args::limits::Limits;
use crate::cli::view::next::{self, Next};
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_run::run::{shell, withdraw};

/// Withdraw the records from a step on, which no head covers yet.
///
/// Copies of everything that is withdrawn stay in the run's folder `withdrawn`: records, gradients, traces, logs and checkpoints. If the
/// command is stopped, the same command line ends its work. A head that covers one of the records is a signed promise: then the command
/// changes nothing.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak correct withdraw runs/mine --step 17")]
pub struct Args {
    /// Folder of the run.
    run: PathBuf,
    /// First step that is withdrawn: the first wrong one.
    #[arg(long, value_name = "STEP", value_parser = clap::value_parser!(u32).range(1..))]
    step: u32,
    #[command(flatten)]
    limits: Limits,
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let run = args.limits.open(&args.run)?;
    let out = shell::path(&args.run);
    let published = run.head_sizes()?.last().is_some_and(|&size| size > u64::from(args.step));
    let done = printer.during("keeping copies of what is withdrawn", || withdraw::withdraw(&run, args.step));
    let done = done.map_err(|error| match published {
        true => Failure::from(error).help(format!(
            "publish a correction: `tiebreak correct begin {out} --step {} --out NEW` begins the corrected run",
            args.step
        )),
        false => Failure::from(error),
    })?;
    let key = if run.file.trainer_key.is_some() { " --key KEY" } else { "" };
    let resume = format!("tiebreak train --out {out} --resume{key}");
    let next = Next::new("go on, on an engine that is right", resume);
    let next = [if key.is_empty() { next } else { next.note("KEY is the file of the run's private key") }];
    let mut lines = vec![format!(
        "run {}: the records from step {} on are withdrawn; the last one is of step {}",
        run.id.short(),
        args.step,
        done.last
    )];
    let state =
        done.checkpoint.map_or("its initial state".into(), |step| format!("the checkpoint of step {step}"));
    lines.push(format!("  training goes on from {state}"));
    lines.push(format!("  {} copies are kept: {}", done.kept.len(), done.kept.join(", ")));
    lines.extend(next::lines(&next));
    printer.result(
        lines,
        &json!({
            "run": run.id,
            "step": args.step,
            "last": done.last,
            "checkpoint_step": done.checkpoint,
            "kept": done.kept,
            "next": next,
        }),
    );
    Ok(Exit::Match)
}
