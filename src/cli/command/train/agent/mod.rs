//! A training that a chip's agent watches: its state is hashed when the agent asks, between two steps, and nothing else changes.

#[cfg(unix)]
mod attached;
mod snapshots;

use std::path::{Path, PathBuf};

use tiebreak_contract::program::step::Program;
use tiebreak_engine::EngineError;
use tiebreak_engine::session::Session;
use tiebreak_monitor::snapshot::shard_map::{ShardMap, TEXT_MAX};
#[cfg(not(unix))]
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::StepRecord;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, disk};
use tiebreak_run::step::StepError;
use tiebreak_run::step::finite::NotFinite;
use tiebreak_train::ranks::worker::Watch;
use tiebreak_train::{Progress, TrainError};

use super::bar::Bar;
use crate::cli::args::ranks::Role;
use crate::cli::view::report::{Exit, Failure, Printer, named};
use snapshots::Snapshots;

/// The number of the rank, in the name of a socket or a shard map.
const RANK: &str = "{rank}";

/// The agent of the chip that trains.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Monitoring")]
pub struct AgentArgs {
    /// Socket of the chip's agent (`tiebreak monitor agent`), which asks for snapshots.
    ///
    /// Training waits until the log has each snapshot, and stops if the agent is gone. No bit of the training changes. Where several
    /// ranks train, each has a chip of its own, and `{rank}` in the name stands for the rank's number.
    #[arg(long, value_name = "SOCKET", hide_short_help = true)]
    agent: Option<PathBuf>,
    /// Shard map: the slices of the state that this chip holds; without it the whole state.
    ///
    /// `{rank}` in the name stands for the rank's number.
    #[arg(long, value_name = "FILE", requires = "agent", hide_short_help = true)]
    shards: Option<PathBuf>,
}

impl AgentArgs {
    /// The options again, as a resume needs them.
    pub fn options(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let options = [("--agent", &self.agent), ("--shards", &self.shards)];
        options.into_iter().filter_map(|(option, path)| Some((option, path.as_deref()?)))
    }

    /// Refuses one agent for several ranks that this command starts: a chip's log follows one training at a time.
    pub fn check(&self, role: &Role) -> Result<(), Failure> {
        let one_for_all = |socket: &Path| !socket.to_string_lossy().contains(RANK);
        match (role, &self.agent) {
            (Role::Spawns { .. }, Some(socket)) if one_for_all(socket) => {
                let why = format!("--agent {} is of one chip, and several ranks train", socket.display());
                let help = "start an agent for each rank, and write {rank} where the sockets' names have the rank's number";
                Err(Failure::new(Exit::Usage, why).help(help))
            }
            _ => Ok(()),
        }
    }

    /// The options of one rank.
    pub fn of_rank(&self, rank: u32) -> AgentArgs {
        let own = |path: &Option<PathBuf>| {
            let text = path.as_ref()?.to_str().map(|text| text.replace(RANK, &rank.to_string()));
            text.map(PathBuf::from).or_else(|| path.clone())
        };
        AgentArgs { agent: own(&self.agent), shards: own(&self.shards) }
    }

    /// The agent's socket and the shard map, if an agent is named.
    ///
    /// # Errors
    /// If no agent listens there, or the map is not one of the program's state.
    pub fn asked(&self, program: &Program) -> Result<Option<(&Path, ShardMap)>, Failure> {
        let Some(socket) = self.agent.as_deref() else { return Ok(None) };
        listens(socket)?;
        let Some(path) = &self.shards else { return Ok(Some((socket, ShardMap::Whole))) };
        let text = disk::read_text(path, TEXT_MAX as u64).map_err(named)?;
        let map = ShardMap::from_text(&text).map_err(|error| RunError::malformed(path, error))?;
        map.check(&program.state()).map_err(|error| RunError::malformed(path, error))?;
        Ok(Some((socket, map)))
    }
}

/// Attaches a training to the agent at a socket. The agent logs it before it sees any state.
#[cfg(unix)]
use attached::{attach, listens};

/// Why a chip's agent cannot watch ranks that divide the optimizer's state.
pub const DIVIDED: &str =
    "--agent and --shard-optimizer exclude each other: a chip's snapshot is of the whole state";

/// The error of a system that has no agents.
#[cfg(not(unix))]
fn no_agents() -> Failure {
    let why = "an agent listens at a Unix socket, which this system does not have";
    Failure::new(Exit::Usage, why).help("leave --agent out, or train on Linux or macOS")
}

#[cfg(not(unix))]
fn listens(_: &Path) -> Result<(), Failure> {
    Err(no_agents())
}

#[cfg(not(unix))]
fn attach(_: Printer, _: &Path, _: ShardMap, _: Digest) -> Result<Box<dyn Snapshots>, Failure> {
    Err(no_agents())
}

/// The chip's agent beside any rank but 0, if there is one.
pub struct WatchedRank<'a> {
    args: &'a AgentArgs,
    chip: Option<Box<dyn Snapshots>>,
    printer: Printer,
}

impl WatchedRank<'_> {
    /// The agent that a rank's command line names.
    pub fn new(printer: Printer, args: &AgentArgs) -> WatchedRank<'_> {
        WatchedRank { args, chip: None, printer }
    }
}

impl Watch for WatchedRank<'_> {
    fn began(&mut self, run: &Run, divided: bool) -> Result<(), TrainError> {
        if divided && self.args.agent.is_some() {
            return Err(EngineError::Stopped(DIVIDED.into()).into());
        }
        let attached = self.args.asked(run.program()).and_then(|asked| {
            asked.map(|(socket, map)| attach(self.printer, socket, map, run.computation.id)).transpose()
        });
        // Rank 0 says it to the user.
        self.chip = attached.map_err(|failure| EngineError::Stopped(failure.message))?;
        Ok(())
    }

    fn state(&mut self, step: u32, session: &mut Session) -> Result<(), StepError> {
        let Some(chip) = &mut self.chip else { return Ok(()) };
        if let Some(warning) = chip.take(step, session)? {
            self.printer.say(warning);
        }
        Ok(())
    }
}

/// A progress bar, and the chip's agent beside it if there is one.
pub struct Watched<'a> {
    bar: &'a mut Bar,
    chip: Option<Box<dyn Snapshots>>,
    printer: Printer,
}

impl Watched<'_> {
    /// Attaches a run to the agent that is asked for.
    ///
    /// # Errors
    /// If the agent refuses, or does not answer.
    pub fn new<'a>(
        printer: Printer,
        bar: &'a mut Bar,
        asked: Option<(&Path, ShardMap)>,
        run: &Run,
    ) -> Result<Watched<'a>, Failure> {
        let attached = |(socket, map)| attach(printer, socket, map, run.computation.id);
        Ok(Watched { bar, chip: asked.map(attached).transpose()?, printer })
    }

    fn snapshots(&mut self, step: u32, session: &mut Session) -> Result<(), StepError> {
        let Some(chip) = &mut self.chip else { return Ok(()) };
        if let Some(warning) = chip.take(step, session)? {
            self.bar.bar.aside(self.printer, warning);
        }
        Ok(())
    }
}

impl Progress for Watched<'_> {
    fn begin(&mut self, done: u32) {
        self.bar.begin(done);
    }

    fn loaded(&mut self, done: u32, session: &mut Session) -> Result<(), StepError> {
        self.bar.loaded(done, session)?;
        self.snapshots(done, session)
    }

    fn step(&mut self, record: &StepRecord, norm: u32) {
        self.bar.step(record, norm);
    }

    fn state(
        &mut self,
        step: u32,
        session: &mut Session,
        waiting: &mut (dyn FnMut() + Send),
    ) -> Result<(), StepError> {
        self.bar.state(step, session, waiting)?;
        self.snapshots(step, session)
    }

    fn not_finite(&mut self, step: u32, found: &NotFinite) {
        self.bar.not_finite(step, found);
    }

    fn stops_at_not_finite(&self) -> bool {
        self.bar.stops_at_not_finite()
    }

    fn is_asked_to_stop(&mut self) -> bool {
        self.bar.is_asked_to_stop()
    }
}
