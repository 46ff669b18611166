//! What stands around the engine of a training or of an audit: repetitions in place of memory, and a check of its results.

use super::device_check::{Check, CheckArgs};
use super::engine::EngineArgs;
use super::limits::Limits;
use crate::cli::view::report::{Exit, Failure, bytes_text};
use tiebreak_audit::plan::memory_with;
use tiebreak_contract::program::step::Program;
use tiebreak_engine::device_check::Shares;
use tiebreak_engine::{Engine, liveness, recompute};
use tiebreak_job::Job;
use tiebreak_run::run::dir::Run;

#[derive(clap::Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Engine")]
pub struct RecomputeArgs {
    /// Take less memory and more time: compute tensors again instead of keeping them for the backward pass.
    ///
    /// The bits are the same. Jobs of the logged profile refuse the option. `tiebreak job check` says how much memory it saves.
    #[arg(long = "recompute", hide_short_help = true)]
    pub is_asked: bool,
}

impl RecomputeArgs {
    /// Refuses logged jobs, if the option is given.
    ///
    /// # Errors
    /// If a logged job's tensors would have to be computed again.
    pub fn check(self, job: &Job) -> Result<(), Failure> {
        if self.is_asked && job.rounding.is_some() {
            let why = "--recompute is for exact jobs: the log of a [rounding] table has one decision for each rounding";
            return Err(Failure::new(Exit::Usage, why).help("leave --recompute out"));
        }
        Ok(())
    }

    /// The engine, or one around it that computes tensors again.
    pub fn around(self, engine: Box<dyn Engine>) -> Box<dyn Engine> {
        recompute::engine(engine, self.is_asked)
    }

    /// Refuses work on a run that takes more memory than the limit. `needed` has the bytes for those of a step's tensors.
    ///
    /// # Errors
    /// If the work does not fit, with `--recompute` as advice where this option is enough.
    pub fn check_memory(
        self,
        limits: &Limits,
        what: &str,
        run: &Run,
        needed: &dyn Fn(u64) -> u64,
    ) -> Result<(), Failure> {
        let program = run.program();
        let refused = limits.check(what, needed(self.step_bytes(program)));
        if self.is_asked || run.job().rounding.is_some() {
            return refused;
        }
        refused.map_err(|failure| {
            let less = needed(recompute::step_bytes(program));
            let fits = less <= limits.memory();
            if fits { failure.help(format!("--recompute needs about {}", bytes_text(less))) } else { failure }
        })
    }

    /// The bytes that a replay of the run takes, with those of a step's tensors.
    pub fn replay_memory(self, run: &Run) -> u64 {
        memory_with(run, self.step_bytes(run.program()))
    }

    /// The option behind another command, with a blank before it.
    pub fn option(self) -> &'static str {
        if self.is_asked { " --recompute" } else { "" }
    }

    /// The most bytes of tensors that are alive at once in a step.
    pub fn step_bytes(self, program: &Program) -> u64 {
        if self.is_asked { recompute::step_bytes(program) } else { liveness::step_bytes(program) }
    }
}

#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Engine")]
pub struct AroundArgs {
    #[command(flatten)]
    pub recompute: RecomputeArgs,
    #[command(flatten)]
    pub check: CheckArgs,
}

impl AroundArgs {
    /// Refuses what would change nothing.
    ///
    /// # Errors
    /// If the engine to be checked is the scalar reference, or a logged job's tensors would have to be computed again.
    pub fn check(&self, engine: &EngineArgs, job: &Job) -> Result<(), Failure> {
        self.recompute.check(job)?;
        self.check.check(engine)
    }

    /// [`around_all`](AroundArgs::around_all) of one engine.
    pub fn around(&self, engine: Box<dyn Engine>, default: Shares) -> (Box<dyn Engine>, Option<Check>) {
        let (mut engines, check) = self.around_all(vec![engine], default);
        (engines.remove(0), check)
    }

    /// The engines with what is asked for; `default` has the shares of a check that are not given.
    pub fn around_all(
        &self,
        engines: Vec<Box<dyn Engine>>,
        default: Shares,
    ) -> (Vec<Box<dyn Engine>>, Option<Check>) {
        let (engines, check) = self.check.around_all(engines, default);
        let engines = engines.into_iter().map(|engine| self.recompute.around(engine));
        (engines.collect(), check)
    }

    /// The options that say the same to another process.
    pub fn options(&self) -> Vec<String> {
        let recompute = self.recompute.is_asked.then(|| "--recompute".to_string());
        recompute.into_iter().chain(self.check.options()).collect()
    }
}
