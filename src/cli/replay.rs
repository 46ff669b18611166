//! `tiebreak replay`.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use super::audit::Limits;
use super::engine::{EngineArgs, open_exact};
use super::{CommandResult, Exit, Failure, Printer, bytes_text};
use crate::audit::plan::{Choice, plan};
use crate::audit::{checks, differences, estimated_seconds, replay_to};
use crate::engine::session::Session;
use crate::job::Granularity;
use crate::run::dir::Run;
use crate::step::{gradient_root, replayed_micro_batch, replayed_step, scalars};

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
    let run = Run::open(&args.run)?.with_data(args.data);
    let checked = checks::structure(&run, None)?;
    let last = (checked.transcript.records.len() as u32 - 1).min(run.job.steps);
    if args.step == 0 || args.step > last {
        return Err(Failure::new(Exit::Usage, format!("the head covers steps 1 to {last}")));
    }
    if args.microbatch.is_some_and(|i| i >= run.program.micro_batches) {
        let why = format!("a step has micro-batches 0 to {}", run.program.micro_batches - 1);
        return Err(Failure::new(Exit::Usage, why));
    }
    if args.microbatch.is_some() && run.job.commit.granularity == Granularity::Step {
        let why = "this run commits to whole steps only (granularity = \"step\"): leave --microbatch out";
        return Err(Failure::new(Exit::Usage, why));
    }
    let begin = plan(&run, &run.checkpoint_steps()?, args.step, &Choice::Range(args.step, args.step));
    args.limits.check(&begin)?;
    let mut engine = open_exact(&args.engine)?;
    let seconds = estimated_seconds(&run, engine.as_mut(), false, &checked, &begin)?;
    printer.say(format!(
        "replays {} steps: reads {}, needs about {} of memory and {seconds:.0} s on {}",
        begin.steps(),
        bytes_text(begin.bytes),
        bytes_text(begin.memory),
        engine.describe(),
    ));
    if args.limits.max_time.is_some_and(|limit| seconds > limit as f64) {
        return Err(Failure::new(Exit::Undecided, "that is longer than --max-time allows"));
    }
    let mut session = Session::new(engine.as_mut(), Arc::new(run.program.clone()))?;
    if let Some((step, what)) = replay_to(&run, &checked, &mut session, args.step)? {
        return Err(Failure::new(Exit::Diverges, format!("step {step} before it differs already: {what}")));
    }
    let mut dataset = run.dataset()?;
    let theirs = checked.step(args.step);
    let different = match args.microbatch {
        Some(micro) => {
            let batch = run.micro_batch(&mut dataset, args.step, micro)?;
            let at = scalars(&run, args.step);
            let (gradients, _) = replayed_micro_batch(&run, &mut session, at, micro, &batch)?;
            let root = gradient_root(&mut session, &gradients)?;
            let same = run.gradient_roots(theirs)?.get(micro as usize) == Some(&root);
            if same { vec![] } else { vec![format!("gradients of micro-batch {micro}")] }
        }
        None => {
            let batch = run.batch(&mut dataset, args.step)?;
            let (mine, _) = replayed_step(&run, &mut session, scalars(&run, args.step), &batch, false)?;
            differences(&mine.record, theirs)
        }
    };
    drop(session);
    let what =
        if different.is_empty() { "matches".into() } else { format!("differs: {}", different.join(", ")) };
    printer.result(
        format!("step {} on {} {what}", args.step, engine.describe()),
        &json!({ "step": args.step, "microbatch": args.microbatch, "differences": different }),
    );
    Ok(if different.is_empty() { Exit::Match } else { Exit::Diverges })
}
