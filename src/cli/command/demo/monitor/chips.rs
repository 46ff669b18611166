//! The chips of the monitoring demo: a register of all, and an agent for each under a clock that the demo moves.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::scenario::{Operator, RATE, START, Seed};
use tiebreak_monitor::chip::agent::{Agent, Chip};
use tiebreak_monitor::chip::clock::Clock;
use tiebreak_monitor::chip::keeper::{KeeperError, LogFile};
use tiebreak_monitor::chip::times::{Poisson, Rate};
use tiebreak_monitor::register::entry::{Change, Entry};
use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::snapshot::record::{Serial, Shard};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::RunError;

/// Microseconds of a day.
const DAY: f64 = 86_400e6;
/// The time that a training has to answer: longer than its steps take.
const PATIENCE: Duration = Duration::from_secs(2 * 86_400);

/// The register: every chip, entered on the day before the month.
///
/// # Errors
/// Never: the names are those of a register.
pub fn register(operators: &[Operator], chips: u32, seed: Seed) -> Result<Register, Malformed> {
    let mut register = Register::new("demo.example/2026")?;
    for operator in operators {
        for chip in 0..chips {
            let serial = operator.serial(chip);
            let change = Change::Enter {
                key: seed.key(&serial)?.public().to_text(),
                model: "demo chip".into(),
                owner: operator.name.into(),
                site: format!("{} hall", operator.name),
                exempt: None,
            };
            register.append(Entry { time: START / 1000 - 86_400, serial: Serial::new(&serial)?, change })?;
        }
    }
    Ok(register)
}

/// A clock that stands still until the demo moves it: microseconds since the month began.
#[derive(Clone, Default)]
struct Hands(Rc<Cell<u64>>);

impl Clock for Hands {
    fn wall(&self) -> u64 {
        START + self.0.get() / 1000
    }

    fn elapsed(&self) -> u64 {
        self.0.get()
    }
}

/// Chips that do the same, with one clock.
pub struct Chips {
    hands: Hands,
    agents: Vec<Agent<Hands, LogFile, Poisson>>,
}

/// The error of an agent whose log cannot be kept.
fn failed(error: KeeperError) -> RunError {
    RunError::Io { path: "logs".into(), source: std::io::Error::other(error) }
}

impl Chips {
    /// Starts the agents of some chips, whose logs are files of the folder `logs`.
    ///
    /// # Errors
    /// If a log cannot be kept.
    pub fn start(
        operator: &Operator,
        chips: std::ops::Range<u32>,
        logs: &Path,
        seed: Seed,
    ) -> Result<Chips, RunError> {
        let malformed = |error| RunError::malformed(logs, error);
        let rate: Rate = RATE.parse().map_err(malformed)?;
        let hands = Hands::default();
        let mut agents = Vec::new();
        for chip in chips {
            let name = operator.serial(chip);
            let path = logs.join(format!("{name}.log"));
            let serial = Serial::new(&name).map_err(malformed)?;
            let key = seed.key(&name).map_err(malformed)?;
            let times = seed.bytes("random times");
            let keeper = LogFile::open(&path).map_err(RunError::io(&path))?;
            let times = |counter| Poisson::new(rate, &times, &serial, counter);
            let chip = Chip { serial: serial.clone(), key, patience: PATIENCE };
            agents.push(Agent::begin(chip, hands.clone(), keeper, times).map_err(failed)?);
        }
        Ok(Chips { hands, agents })
    }

    /// The number of chips.
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Seconds since 1970, by the chips' clock.
    pub fn now(&self) -> u64 {
        self.hands.wall() / 1000
    }

    /// Days since the month began.
    pub fn day(&self) -> f64 {
        self.hands.0.get() as f64 / DAY
    }

    /// Lets time pass, up to a day of the month: what is due in between is logged at its time.
    ///
    /// # Errors
    /// If a log cannot be kept.
    pub fn pass_until(&mut self, day: f64) -> Result<(), RunError> {
        let end = (day * DAY) as u64;
        loop {
            let next = self.agents.iter().map(Agent::wakes_in).min().unwrap_or(Duration::MAX);
            let next = u64::try_from(next.as_micros()).unwrap_or(u64::MAX);
            let now = self.hands.0.get().saturating_add(next).min(end).max(self.hands.0.get());
            self.hands.0.set(now);
            self.agents.iter_mut().try_for_each(Agent::poll).map_err(failed)?;
            if now >= end {
                return Ok(());
            }
        }
    }

    /// A training attaches itself to every chip.
    ///
    /// # Errors
    /// If a log cannot be kept.
    pub fn attach(&mut self, shard: Shard, computation: Digest) -> Result<(), RunError> {
        self.agents
            .iter_mut()
            .try_for_each(|agent| agent.attach(shard, computation).map(drop))
            .map_err(failed)
    }

    /// The training is at a quiescent point, at this day: the chips that are due take a snapshot. `digest` gives that of the state.
    ///
    /// # Errors
    /// If the digest cannot be computed, or a log cannot be kept.
    pub fn step<E: From<RunError>>(
        &mut self,
        day: f64,
        step: u32,
        mut digest: impl FnMut() -> Result<Digest, E>,
    ) -> Result<(), E> {
        self.hands.0.set((day * DAY) as u64);
        let mut known = None;
        for agent in &mut self.agents {
            agent.poll().map_err(failed)?;
            if agent.asks() {
                let digest = known.map_or_else(&mut digest, Ok)?;
                known = Some(digest);
                agent.snapshot(step, digest).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// The training ends.
    ///
    /// # Errors
    /// If a log cannot be kept.
    pub fn detach(&mut self) -> Result<(), RunError> {
        self.agents.iter_mut().try_for_each(Agent::detach).map_err(failed)
    }
}
