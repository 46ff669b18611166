//! What stands around the engine of a training or of an audit: repetitions or a disk in place of memory, and a check of its results.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use super::device_check::{Check, CheckArgs};
use super::engine::{EngineArgs, EngineKind};
use super::limits::Limits;
use crate::cli::view::report::{Exit, Failure, bytes_text};
use tiebreak_audit::plan::memory_with;
use tiebreak_contract::program::step::Program;
use tiebreak_engine::device_check::Shares;
use tiebreak_engine::liveness::Keeping;
use tiebreak_engine::update_share::UpdateShare;
use tiebreak_engine::{Engine, recompute};
use tiebreak_job::Job;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::shell;
use tiebreak_run::run::spilled::Spilled;

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
    fn check(self, job: &Job) -> Result<(), Failure> {
        if self.is_asked && job.rounding.is_some() {
            let why = "--recompute is for exact jobs: the log of a [rounding] table has one decision for each rounding";
            return Err(Failure::new(Exit::Usage, why).help("leave --recompute out"));
        }
        Ok(())
    }

    /// The engine, or one around it that computes tensors again.
    fn around(self, engine: Box<dyn Engine>) -> Box<dyn Engine> {
        recompute::engine(engine, self.is_asked)
    }
}

/// The ways to need less memory that a command may take.
#[derive(Clone, Copy)]
pub struct Ways {
    /// Tensors are computed again.
    pub recomputes: bool,
    /// Slots and waiting gradients lie in a folder, if the command has the option.
    pub outside: Option<bool>,
    /// The engine holds a graph's inputs until its end, and audits copy the state before a step for it.
    pub holds: bool,
}

impl Ways {
    /// The most bytes of tensors that are alive at once in a step. Audits keep the state `before`.
    pub fn step_bytes(self, program: &Program, before: bool) -> u64 {
        self.share_bytes(program, &UpdateShare::whole(program), before)
    }

    /// [`Ways::step_bytes`] of a rank that holds a share of the optimizer's slots.
    pub fn share_bytes(self, program: &Program, share: &UpdateShare, before: bool) -> u64 {
        let keeping = Keeping { outside: self.outside == Some(true), before, holds: self.holds };
        recompute::step_bytes_sharing(program, share, self.recomputes, keeping)
    }

    /// The bytes that a replay of the run takes as long as no step differs.
    pub fn replay_memory(self, run: &Run) -> u64 {
        memory_with(run, self.step_bytes(run.program(), true))
    }

    /// Refuses work on a run that takes more memory than the limit. `needed` has the bytes that it takes in one of these ways.
    ///
    /// # Errors
    /// If the work does not fit, with options as advice that are enough.
    pub fn check_memory(
        self,
        limits: &Limits,
        what: &str,
        run: &Run,
        needed: &dyn Fn(Ways) -> u64,
    ) -> Result<(), Failure> {
        let refused = limits.check(what, needed(self));
        let others = [
            ("--recompute", Ways { recomputes: true, ..self }),
            ("--offload DIR", Ways { outside: Some(true), ..self }),
            ("--recompute --offload", Ways { recomputes: true, outside: Some(true), ..self }),
        ];
        let is_possible = |ways: Ways| {
            let recomputes = !ways.recomputes || run.job().rounding.is_none();
            recomputes && (ways.outside != Some(true) || self.outside.is_some())
        };
        refused.map_err(|failure| {
            let fitting = others.into_iter().map(|(option, ways)| (option, ways, needed(ways)));
            let mut fitting =
                fitting.filter(|(_, ways, bytes)| is_possible(*ways) && *bytes <= limits.memory());
            match fitting.next() {
                Some((option, _, less)) => failure.help(format!("{option} needs about {}", bytes_text(less))),
                None => failure,
            }
        })
    }
}

#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Engine")]
pub struct OffloadArgs {
    /// Take less memory and a disk: keep the optimizer's slots, and gradients that wait for their sum, in a file in this folder.
    ///
    /// The bits are the same. The file has no name and ends with the command, however that ends. The CPU engine alone takes the option.
    #[arg(long = "offload", value_name = "DIR", hide_short_help = true)]
    folder: Option<PathBuf>,
}

impl OffloadArgs {
    /// Refuses other engines than the CPU's.
    ///
    /// # Errors
    /// If the option is given for another engine.
    fn check(&self, engine: &EngineArgs) -> Result<(), Failure> {
        if self.folder.is_some() && engine.engine != EngineKind::Cpu {
            let why = "--offload is for the CPU engine, whose tensors are in this machine's memory";
            return Err(Failure::new(Exit::Usage, why).help("leave --offload out, or take --engine cpu"));
        }
        Ok(())
    }

    /// Gives the engines a place in the folder, if the option is given: a file each.
    ///
    /// # Errors
    /// If the folder takes no file.
    fn give(&self, engines: &mut [Box<dyn Engine>]) -> Result<(), Failure> {
        let Some(folder) = &self.folder else { return Ok(()) };
        for engine in engines {
            engine.use_outside(Arc::new(Spilled::in_folder(folder)?));
        }
        Ok(())
    }
}

/// The options that save memory, without a check of results.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Engine")]
pub struct SavingArgs {
    #[command(flatten)]
    pub recompute: RecomputeArgs,
    #[command(flatten)]
    offload: OffloadArgs,
}

impl SavingArgs {
    /// Refuses what would change nothing, and logged jobs whose tensors would have to be computed again.
    ///
    /// # Errors
    /// If an option is not for this engine, or not for this job.
    pub fn check(&self, engine: &EngineArgs, job: &Job) -> Result<(), Failure> {
        self.recompute.check(job)?;
        self.offload.check(engine)
    }

    /// True if tensors shall lie in a folder.
    pub fn offloads(&self) -> bool {
        self.offload.folder.is_some()
    }

    /// The ways in which the work is done.
    pub fn ways(&self, engine: &EngineArgs) -> Ways {
        let is_cpu = engine.engine == EngineKind::Cpu;
        let outside = is_cpu.then_some(self.offloads());
        Ways { recomputes: self.recompute.is_asked, outside, holds: !is_cpu }
    }

    /// The engine with what is asked for.
    ///
    /// # Errors
    /// If the folder of `--offload` takes no file.
    pub fn around(&self, engine: Box<dyn Engine>) -> Result<Box<dyn Engine>, Failure> {
        let mut engines = [engine];
        self.offload.give(&mut engines)?;
        let [engine] = engines;
        Ok(self.recompute.around(engine))
    }

    /// The options as a shell takes them, each with a blank before it.
    pub fn less_memory(&self) -> String {
        let recompute = if self.recompute.is_asked { " --recompute" } else { "" };
        let offload = self.offload.folder.as_deref();
        let offload = offload.map_or(String::new(), |folder| format!(" --offload {}", shell::path(folder)));
        recompute.to_string() + &offload
    }
}

/// Engines, and the check of their results, if there is one.
pub type Engines = (Vec<Box<dyn Engine>>, Option<Check>);

#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Engine")]
pub struct AroundArgs {
    #[command(flatten)]
    pub saving: SavingArgs,
    #[command(flatten)]
    pub check: CheckArgs,
}

impl AroundArgs {
    /// Refuses what would change nothing.
    ///
    /// # Errors
    /// If the engine to be checked is the scalar reference, or a logged job's tensors would have to be computed again.
    pub fn check(&self, engine: &EngineArgs, job: &Job) -> Result<(), Failure> {
        self.saving.check(engine, job)?;
        self.check.check(engine)
    }

    /// The ways in which the work is done.
    pub fn ways(&self, engine: &EngineArgs) -> Ways {
        self.saving.ways(engine)
    }

    /// [`around_all`](AroundArgs::around_all) of one engine.
    ///
    /// # Errors
    /// As [`around_all`](AroundArgs::around_all).
    pub fn around(
        &self,
        engine: Box<dyn Engine>,
        default: Shares,
    ) -> Result<(Box<dyn Engine>, Option<Check>), Failure> {
        let (mut engines, check) = self.around_all(vec![engine], default)?;
        Ok((engines.remove(0), check))
    }

    /// The engines with what is asked for; `default` has the shares of a check that are not given.
    ///
    /// # Errors
    /// If the folder of `--offload` takes no file.
    pub fn around_all(&self, mut engines: Vec<Box<dyn Engine>>, default: Shares) -> Result<Engines, Failure> {
        self.saving.offload.give(&mut engines)?;
        let (engines, check) = self.check.around_all(engines, default);
        let engines = engines.into_iter().map(|engine| self.saving.recompute.around(engine));
        Ok((engines.collect(), check))
    }

    /// The options that say the same to another process.
    pub fn options(&self) -> Vec<OsString> {
        let recompute = self.saving.recompute.is_asked.then(|| "--recompute".into());
        let offload = self.saving.offload.folder.iter().map(|folder| {
            let mut option = OsString::from("--offload=");
            option.push(folder);
            option
        });
        let check = self.check.options().into_iter().map(OsString::from);
        recompute.into_iter().chain(offload).chain(check).collect()
    }
}
