//! `--jobs` of `tiebreak audit`: the engines that replay at once.

use crate::cli::args::engine::{EngineArgs, EngineKind, cores, open};
use crate::cli::args::limits::Limits;
use crate::cli::view::report::{Exit, Failure, bytes_text};
use tiebreak_audit::plan::ReplayPlan;
use tiebreak_engine::Engine;

/// Bytes of memory that so many replays need.
pub fn memory(jobs: usize, plan: &ReplayPlan) -> u64 {
    plan.memory.saturating_mul(jobs as u64)
}

/// The number of jobs for a plan, which has at least one: no more than it has segments.
///
/// # Errors
/// If the jobs that were asked for need more memory than the limit, or one does.
pub fn number(
    asked: usize,
    plan: &ReplayPlan,
    limits: &Limits,
    engine: &EngineArgs,
) -> Result<usize, Failure> {
    limits.check_plan(plan)?;
    let fit = usize::try_from(limits.memory() / plan.memory.max(1)).unwrap_or(usize::MAX);
    let useful = plan.segments.len().max(1);
    if asked > 0 {
        let jobs = asked.min(useful);
        if jobs > fit {
            let (needed, limit) = (bytes_text(memory(jobs, plan)), bytes_text(limits.memory()));
            let why = format!("{jobs} replays at once need about {needed} of memory, the limit is {limit}");
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
