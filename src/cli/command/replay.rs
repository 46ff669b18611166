//! `tiebreak replay`.

use std::path::PathBuf;

use serde_json::json;

use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::limits::Limits;
use crate::cli::view::outcome::{
    exit, headline, outcome_exit, outcome_json, outcome_text, report_json, seconds_text,
};
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text};
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{
    Silent, audit, checks, estimated_seconds, micro_batch, replay_begins_after, worth_estimating,
};
use tiebreak_record::job::Granularity;

/// Replay one step, or one micro-batch of it, and compare it with what the run commits.
#[derive(clap::Args)]
#[command(after_help = "Example: tiebreak replay runs/shakespeare --step 120 --microbatch 0 --engine wgpu")]
pub struct Args {
    run: PathBuf,
    #[arg(long)]
    step: u32,
    /// Only the gradient of this micro-batch (from 0).
    #[arg(long)]
    microbatch: Option<u32>,
    /// Where data files are that the run does not hold.
    #[arg(long)]
    data: Option<PathBuf>,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    engine: EngineArgs,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let watch = args.limits.watch(printer);
    let run = args.limits.open_with_data(&args.run, args.data.as_ref())?;
    let checked = checks::structure(&run, None)?;
    let last = (checked.transcript.records.len() as u32 - 1).min(run.job().steps);
    if args.step == 0 || args.step > last {
        return Err(Failure::new(Exit::Usage, format!("the head covers steps 1 to {last}")));
    }
    if args.microbatch.is_some_and(|i| i >= run.program().micro_batches) {
        let why = format!("a step has micro-batches 0 to {}", run.program().micro_batches - 1);
        return Err(Failure::new(Exit::Usage, why));
    }
    if args.microbatch.is_some() && run.job().commit.granularity == Granularity::Step {
        let why = "this run commits to whole steps only (granularity = \"step\"): leave --microbatch out";
        return Err(Failure::new(Exit::Usage, why));
    }
    let from = replay_begins_after(&run, &checked, args.step)?;
    let begin = plan(&run, &[from], args.step, &Choice::Range(args.step, args.step));
    args.limits.check_plan(&begin)?;
    watch.planned();
    let mut engine = open_exact(&args.engine)?;
    let seconds = (args.limits.time().is_some() || worth_estimating(&run, &begin))
        .then(|| estimated_seconds(&run, engine.as_mut(), false, &checked, &begin))
        .transpose()?;
    printer.say(format!(
        "replays {} steps: reads {}, needs about {} of memory{} on {}",
        begin.steps(),
        bytes_text(begin.bytes),
        bytes_text(begin.memory),
        seconds_text(seconds),
        engine.describe(),
    ));
    if args.limits.time().zip(seconds).is_some_and(|(limit, seconds)| seconds > limit.as_secs_f64()) {
        return Err(Failure::new(Exit::Undecided, "that is longer than --max-time allows"));
    }
    if let Some(index) = args.microbatch {
        let outcome = micro_batch(&run, engine.as_mut(), &checked, args.step, index)?;
        let text = format!("micro-batch {index} on {}: {}", engine.describe(), outcome_text(&outcome));
        printer.result(
            text,
            &json!({ "step": args.step, "microbatch": index, "outcome": outcome_json(&outcome) }),
        );
        return Ok(outcome_exit(&outcome));
    }
    let limit = args.limits.time();
    let (report, verdict) = audit(&run, engine.as_mut(), checked, begin, limit, &mut Silent)?;
    let mut lines = vec![headline(&report)];
    if verdict.is_some() {
        lines.push("  tiebreak audit writes the verdict".into());
    }
    printer.result(lines, &report_json(&report));
    Ok(exit(&report))
}
