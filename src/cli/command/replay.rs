//! `tiebreak replay`.

use std::fmt::Display;
use std::path::PathBuf;

use serde_json::json;

use crate::cli::args::around::{SavingArgs, Ways};
use crate::cli::args::cache::CacheArgs;
use crate::cli::args::decided::Decided;
use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::limits::Limits;
use crate::cli::view::next::{self, Next};
use crate::cli::view::outcome::{
    ReplayBar, engine_text, exit, headline, outcome_exit, outcome_json, outcome_text, report_json,
    seconds_text,
};
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text};
use tiebreak_audit::plan::{Choice, ReplayPlan, memory_with, plan};
use tiebreak_audit::{
    Outcome, audit, checks, estimated_seconds, micro_batch, replay_begins_after, worth_estimating,
};
use tiebreak_engine::{Engine, recompute};
use tiebreak_job::Granularity;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::shell;

/// Replay one step, or one micro-batch of it, and compare it with the run's records.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak replay runs/mine --step 2 --microbatch 0")]
pub struct Args {
    /// Folder of the run, or its address (http://HOST/PATH).
    run: PathBuf,
    /// Step, from 1.
    #[arg(long, value_name = "N")]
    step: u32,
    /// Micro-batch, from 0: only its gradient is replayed.
    #[arg(long, value_name = "N")]
    microbatch: Option<u32>,
    /// Folder or address of the data files that the run does not hold.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    saving: SavingArgs,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    decided: Decided,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let (decided, cache) = (args.decided, args.cache.clone());
    let result = replayed(printer, args);
    cache.say(printer);
    decided.applied(result)
}

/// The command that writes the verdict on the step.
fn audit_command(args: &Args) -> Next {
    let (run, step) = (shell::path(&args.run), args.step);
    Next::new(
        "write the verdict with",
        format!("tiebreak audit {run} --steps {step}..{step}{}", args.saving.less_memory()),
    )
}

/// The plan of the replay, which begins with the state after step `from`.
fn planned(args: &Args, run: &Run, from: u32) -> Result<ReplayPlan, Failure> {
    let mut plan = plan(run, &[from], args.step, &Choice::Range(args.step, args.step));
    // A gradient of the step that follows the state needs no slots, and no sum.
    let is_gradient = args.microbatch.is_some() && from + 1 == args.step;
    let needed = |ways: Ways| match is_gradient {
        true => memory_with(run, recompute::micro_batch_bytes(run.program(), ways.recomputes)),
        false => ways.replay_memory(run),
    };
    let ways = args.saving.ways(&args.engine);
    // A micro-batch takes no --offload.
    let ways = Ways { outside: ways.outside.filter(|_| args.microbatch.is_none()), ..ways };
    ways.check_memory(&args.limits, "a replay", run, &needed)?;
    plan.memory = needed(ways);
    Ok(plan)
}

/// Refuses options that would save nothing.
fn check_saving(args: &Args, run: &Run) -> Result<(), Failure> {
    args.saving.check(&args.engine, run.job())?;
    if args.microbatch.is_some() && args.saving.offloads() {
        let why =
            "--offload is for whole steps: a micro-batch's gradient needs no slots, and waits for no sum";
        return Err(Failure::new(Exit::Usage, why).help("leave --offload out"));
    }
    Ok(())
}

/// A line about what the replay does not check.
fn not_checked_line(what: impl Display) -> String {
    format!("  not checked: {what}")
}

/// Says the end of a replay of a micro-batch.
fn say_part(printer: Printer, args: &Args, index: u32, engine: &dyn Engine, outcome: &Outcome) -> Exit {
    let text = format!("micro-batch {index} on {}: {}", engine.describe(), outcome_text(outcome));
    let not_checked: Vec<String> = args.cache.not_checked().into_iter().collect();
    printer.result(
        [text].into_iter().chain(not_checked.iter().map(not_checked_line)).collect::<Vec<_>>(),
        &json!({ "step": args.step, "microbatch": index, "outcome": outcome_json(outcome), "not_checked": not_checked }),
    );
    outcome_exit(outcome)
}

fn replayed(printer: Printer, args: Args) -> CommandResult {
    let watch = args.limits.watch(printer);
    let run = args.cache.around(args.limits.open_with_data(&args.run, args.data.as_ref())?)?;
    check_saving(&args, &run)?;
    let working = printer.working("checking the run", None);
    let checked = checks::structure(&run, None)?;
    drop(working);
    let last = (checked.transcript.records.len() as u32 - 1).min(run.job().steps);
    if args.step == 0 || args.step > last {
        let why = format!("--step {}: the head covers steps 1 to {last}", args.step);
        return Err(Failure::new(Exit::Usage, why).help(format!("give a step from 1 to {last}")));
    }
    if let Some(index) = args.microbatch.filter(|&index| index >= run.program().micro_batches) {
        let last = run.program().micro_batches - 1;
        let why = format!("--microbatch {index}: a step has micro-batches 0 to {last}");
        return Err(Failure::new(Exit::Usage, why).help(format!("give a micro-batch from 0 to {last}")));
    }
    if args.microbatch.is_some() && run.job().commit.granularity == Granularity::Step {
        let why = "this run commits to whole steps only (granularity = \"step\"): leave --microbatch out";
        return Err(Failure::new(Exit::Usage, why));
    }
    let begin = planned(&args, &run, replay_begins_after(&run, &checked, args.step)?)?;
    watch.planned();
    let mut engine = args.saving.around(open_exact(&args.engine)?)?;
    let seconds = (args.limits.time().is_some() || worth_estimating(&run, &begin))
        .then(|| estimated_seconds(&run, engine.as_mut(), false, &checked, &begin))
        .transpose()?;
    printer.say(format!(
        "replays {} steps: reads {}, needs about {} of memory{} on {}",
        begin.steps(),
        bytes_text(begin.bytes),
        bytes_text(begin.memory),
        seconds_text(seconds),
        engine_text(engine.as_ref()),
    ));
    if let Some((limit, seconds)) =
        args.limits.time().zip(seconds).filter(|(limit, s)| *s > limit.as_secs_f64())
    {
        let limit = limit.as_secs();
        let why = format!("the replay takes about {seconds:.0} s, and --max-time allows {limit} s");
        return Err(
            Failure::new(Exit::Undecided, why).help(format!("raise --max-time to {:.0}", seconds.ceil()))
        );
    }
    if let Some(index) = args.microbatch {
        let working = printer.working("replaying", seconds);
        let outcome = micro_batch(&run, engine.as_mut(), &checked, args.step, index)?;
        drop(working);
        return Ok(say_part(printer, &args, index, engine.as_ref(), &outcome));
    }
    let mut bar = ReplayBar::new(printer, &begin);
    let limit = args.limits.time();
    let (mut report, verdict) = audit(&run, engine.as_mut(), checked, begin, limit, &mut bar)?;
    drop(bar);
    let unasked = args.cache.not_checked();
    let next: Vec<Next> = verdict.iter().map(|_| audit_command(&args)).collect();
    let mut lines = vec![headline(&report)];
    lines.extend(unasked.iter().map(not_checked_line));
    report.not_checked.extend(unasked);
    lines.extend(next::lines(&next).map(|line| format!("  {line}")));
    let mut json = report_json(&report);
    json["next"] = json!(next);
    printer.result(lines, &json);
    Ok(exit(&report))
}
