//! `--jobs` of `tiebreak audit`: the engines that replay at once.

use crate::cli::args::engine::{EngineArgs, EngineKind, cores, open};
use crate::cli::args::limits::Limits;
use crate::cli::view::report::{Exit, Failure, bytes_text};
use tiebreak_audit::plan::ReplayPlan;
use tiebreak_engine::Engine;

/// Bytes of memory that so many replays need as long as no step differs.
pub fn memory(jobs: usize, plan: &ReplayPlan) -> u64 {
    plan.memory.saturating_mul(jobs as u64)
}

/// Bytes of memory that confirming a difference needs, while the other jobs replay.
pub fn memory_to_confirm(jobs: usize, plan: &ReplayPlan, alone: u64) -> u64 {
    alone.saturating_add(memory(jobs.saturating_sub(1), plan))
}

/// The number of jobs for a plan, which has at least one: no more than it has segments. If one job could confirm a difference, which needs
/// `confirming` bytes, so can one of several.
///
/// # Errors
/// If the jobs that were asked for need more memory than the limit, or one does.
pub fn number(
    asked: usize,
    (plan, confirming): (&ReplayPlan, u64),
    limits: &Limits,
    engine: &EngineArgs,
) -> Result<usize, Failure> {
    limits.check_plan(plan)?;
    let confirms = confirming <= limits.memory();
    // What one of the jobs needs at most, beside replays of the others.
    let most = if confirms { plan.memory.max(confirming) } else { plan.memory };
    let others = limits.memory().saturating_sub(most) / plan.memory.max(1);
    let fit = usize::try_from(others).map_or(usize::MAX, |others| others.saturating_add(1));
    let useful = plan.segments.len().max(1);
    if asked > 0 {
        let jobs = asked.min(useful);
        if jobs > fit {
            let needed = bytes_text(memory_to_confirm(jobs, plan, most));
            let (what, limit) = (
                if confirms { ", one of which confirms a difference," } else { "" },
                bytes_text(limits.memory()),
            );
            let why =
                format!("{jobs} replays at once{what} need about {needed} of memory, the limit is {limit}");
            return Err(Failure::new(Exit::Undecided, why).help(format!("give --jobs {fit}, or --jobs 0")));
        }
        return Ok(jobs);
    }
    // A GPU has no cores for several: they would wait for each other.
    let threads = match engine.engine {
        EngineKind::Cpu if engine.threads > 0 => engine.threads,
        EngineKind::Cpu | EngineKind::Reference => cores(),
        #[allow(unreachable_patterns, reason = "builds without GPUs have no other engine")]
        _ => 1,
    };
    Ok(threads.min(useful).min(fit))
}

/// The engines as a report names them.
pub fn described(engines: &[Box<dyn Engine>]) -> String {
    match engines {
        [one] => one.describe(),
        all => format!("{} x {}", all.len(), all.first().map_or(String::new(), |one| one.describe())),
    }
}

/// So many engines, which share the threads of one.
///
/// # Errors
/// If one cannot be opened.
pub fn engines(jobs: usize, args: &EngineArgs) -> Result<Vec<Box<dyn Engine>>, Failure> {
    args.check()?;
    let mut args = args.clone();
    if jobs > 1 && args.engine == EngineKind::Cpu {
        let threads = if args.threads == 0 { cores() } else { args.threads };
        args.threads = (threads / jobs).max(1);
    }
    (0..jobs).map(|_| open(&args)).collect()
}
