//! A recording: a training that a program feeds with its batches. The Python package's `Recorder` calls it; no subcommand does.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Instant;

use clap::{ArgAction, Parser};
use serde_json::json;

use super::bar::Bar;
use super::memory::host_memory;
use super::stopped::Asked;
use crate::cli::args::around::Ways;
#[cfg(feature = "gpu")]
use crate::cli::args::device_memory;
use crate::cli::args::engine::{EngineArgs, open, open_exact};
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::args::place::job_files;
use crate::cli::args::random::random;
use crate::cli::view::escape::one_line;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_run::run::{Folder, read_job};
use tiebreak_train::fed::{Feed, Recording};
use tiebreak_train::{Beginning, TrainError, record};

/// The words of a caller, as those of `train`.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Args {
    job: PathBuf,
    #[arg(long)]
    out: PathBuf,
    #[arg(long)]
    key: Option<PathBuf>,
    #[arg(long)]
    data_root: Vec<PathBuf>,
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    stop_on_nan: bool,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
}

/// Records to the last step, or until the feed or the caller stops.
pub fn run(printer: Printer, words: &[OsString], feed: &mut dyn Feed) -> CommandResult {
    let wrong = |error: clap::Error| Failure::new(Exit::Usage, one_line(error.to_string().trim()));
    let (args, start) = (Args::try_parse_from(words).map_err(wrong)?, Instant::now());
    let private = args.key.as_deref().map(key::read_private).transpose()?;
    // Nothing is begun that no engine here computes.
    let mut engine = match read_job(&args.job)?.1.rounding {
        Some(_) => open(&args.engine)?,
        None => open_exact(&args.engine)?,
    };
    let beginning = Beginning {
        job: &args.job,
        data_root: None,
        out: Folder::at(&args.out),
        key: private.as_ref(),
        challenge: None,
        logged: false,
        nonce: random()?,
    };
    let recording = Recording::reaching(&beginning, &job_files(&args.job, &args.data_root)?)?;
    let run = recording.run();
    args.limits.check(
        "training",
        host_memory(run, &args.engine, Ways { recomputes: false, outside: None, holds: false }, None),
    )?;
    #[cfg(feature = "gpu")]
    device_memory::check(run.job(), run.program(), &args.engine, false, 0)?;
    let mut bar = Bar::new(printer, run);
    bar.stops = (args.stop_on_nan, Some(Asked::listen(printer, &args.limits, start)));
    let recorded = record(&recording, engine.as_mut(), private.as_ref(), feed, &mut bar);
    bar.bar.finish_and_clear();
    let steps = run.job().steps;
    let (done, why) = match recorded {
        Ok(run) => {
            printer.result(
                vec![format!("recorded {steps} steps"), format!("run    {}", run.id)],
                &json!({ "run": run.id, "done": steps, "steps": steps }),
            );
            return Ok(Exit::Match);
        }
        Err(error) => match &error {
            TrainError::Asked { step }
            | TrainError::NotFinite { step, .. }
            | TrainError::LastStateNotFinite { step, .. } => (*step, error),
            _ => return Err(Failure::from(error)),
        },
    };
    let not_finite = !matches!(why, TrainError::Asked { .. });
    printer.result(
        vec![format!("STOPPED after step {done} of {steps}: {why}")],
        &json!({ "done": done, "steps": steps, "why": one_line(&why.to_string()), "not_finite": not_finite }),
    );
    Ok(Exit::Undecided)
}
