//! A chip's log of a year: `cargo bench -p tiebreak-monitor --bench year [-- RATE]`, at ten snapshots a day by default.
//!
//! The agent and its file are those of `tiebreak monitor agent`; only the clock is made up. A training is attached all the time, and
//! each record is durable before the next. Prints records, bytes, and the seconds to write, to inspect and to match them. The declared
//! runs are synthetic: one has the logged states, the others have states of their own.

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tiebreak_contract::program::step::StateTensor;
use tiebreak_monitor::chip::agent::{Agent, Chip};
use tiebreak_monitor::chip::clock::Clock;
use tiebreak_monitor::chip::keeper::LogFile;
use tiebreak_monitor::chip::times::{Poisson, Rate};
use tiebreak_monitor::inspection::examine::{Inspection, examine};
use tiebreak_monitor::matching::index::Declared;
use tiebreak_monitor::matching::matcher::{Matcher, Shards};
use tiebreak_monitor::matching::provenance::Weight;
use tiebreak_monitor::matching::sighting::sightings;
use tiebreak_monitor::register::entry::{Change, Entry};
use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::snapshot::log::ChipLog;
use tiebreak_monitor::snapshot::record::{Serial, Shard};
use tiebreak_monitor::snapshot::shard_map::ShardMap;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;

/// Microseconds of a year.
const YEAR: u64 = 365 * 86_400 * 1_000_000;
/// Milliseconds since 1970 at which the year begins.
const BEGIN: u64 = 1_735_689_600_000;
/// Declared runs, and the steps of each.
const RUNS: u32 = 100;
const STEPS: u32 = 10_000;

/// A clock that stands still until it is set.
#[derive(Clone)]
struct Made(Rc<Cell<u64>>);

impl Clock for Made {
    fn wall(&self) -> u64 {
        BEGIN + self.0.get() / 1000
    }

    fn elapsed(&self) -> u64 {
        self.0.get()
    }
}

fn register(serial: &Serial, key: &PrivateKey) -> Result<Register, Box<dyn Error>> {
    let [model, owner, site] = ["h100", "Alice", "north"].map(String::from);
    let change = Change::Enter { key: key.public().to_text(), model, owner, site, exempt: None };
    let mut register = Register::new("example")?;
    register.append(Entry { time: BEGIN / 1000, serial: serial.clone(), change })?;
    Ok(register)
}

/// The computation of a declared run.
fn computation(run: u32) -> Digest {
    Digest(*blake3::hash(&run.to_le_bytes()).as_bytes())
}

/// The state of a declared run after a step.
fn state(run: u32, step: u32) -> Digest {
    let number = u64::from(run) << 32 | u64::from(step);
    Digest(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

/// Matches the log with declared runs. Prints the seconds to sort the runs' states, and to find the logged ones among them.
fn matched(log: &ChipLog) {
    let run = |run: u32| Declared {
        run: computation(RUNS + run),
        computation: computation(run),
        states: (0..=STEPS).map(|step| state(run, step)).collect(),
        declared: Some(BEGIN / 1000 - 1),
    };
    let runs: Vec<Declared> = (0..RUNS).map(run).collect();
    let tensors = vec![StateTensor { name: "param/a".to_string(), shape: vec![1] }];
    let start = Instant::now();
    let matcher = Matcher::new(&runs, &vec![tensors; RUNS as usize], [], Some(0));
    let sorted = start.elapsed();
    let start = Instant::now();
    let (all, none) = (sightings(log), Shards::new());
    let is_matched = |sighting| matcher.judge(sighting, &none).weight() == Weight::Matched;
    assert!(!all.is_empty() && all.iter().all(is_matched), "a snapshot is of no declared run");
    println!(
        "{} snapshots matched in {:.4} s with {} states of {RUNS} runs, which were sorted in {:.2} s",
        all.len(),
        start.elapsed().as_secs_f64(),
        RUNS * (STEPS + 1),
        sorted.as_secs_f64()
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let rate = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or("10".into());
    let (rate_number, rate): (f64, Rate) = (rate.parse()?, rate.parse()?);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("chip.log");
    let (serial, key) = (Serial::new("H100-42")?, PrivateKey::generate("chip", [1; 32])?);
    let register = register(&serial, &key)?;
    let clock = Made(Rc::new(Cell::new(0)));
    let start = Instant::now();
    let chip = Chip { serial: serial.clone(), key, patience: Duration::from_secs(60) };
    let times = |counter| Poisson::new(rate, &[7; 32], &serial, counter);
    let mut agent = Agent::begin(chip, clock.clone(), LogFile::open(&path)?, times)?;
    agent.attach(Shard { map: ShardMap::Whole.digest(), code: Digest([4; 32]) }, computation(0))?;
    let mut step = 0u32;
    loop {
        let next = clock.0.get() + u64::try_from(agent.wakes_in().as_micros())?;
        if next > YEAR {
            break;
        }
        clock.0.set(next);
        agent.poll()?;
        if agent.asks() {
            step += 1;
            agent.snapshot(step, state(0, step))?;
        }
    }
    let (records, written) = (agent.records(), start.elapsed());
    drop(agent);
    let start = Instant::now();
    let bytes = std::fs::read(&path)?;
    let inspection = Inspection {
        register: &register,
        serial: &serial,
        previous: None,
        closed: None,
        rate: rate_number,
        confidence: 0.999,
        until: BEGIN + YEAR / 1000,
        off_at_most: None,
        patience: 0,
    };
    let log = ChipLog::read(&bytes)?;
    let found = examine(&log, inspection);
    let inspected = start.elapsed();
    assert_eq!((found.findings.len(), found.records), (0, records), "{:?}", found.findings);
    println!(
        "{records} records in {} bytes, written in {:.2} s, inspected in {:.2} s",
        bytes.len(),
        written.as_secs_f64(),
        inspected.as_secs_f64()
    );
    matched(&log);
    Ok(())
}
