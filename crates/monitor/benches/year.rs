//! A chip's log of a year: `cargo bench -p tiebreak-monitor --bench year [-- RATE]`, at ten snapshots a day by default.
//!
//! The agent and its file are those of `tiebreak monitor agent`; only the clock is made up. A training is attached all the time, and
//! each record is durable before the next. Prints records, bytes, and the seconds to write and to inspect them.

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tiebreak_monitor::chip::agent::{Agent, Chip};
use tiebreak_monitor::chip::clock::Clock;
use tiebreak_monitor::chip::keeper::LogFile;
use tiebreak_monitor::chip::times::{Poisson, Rate};
use tiebreak_monitor::inspection::examine::{Inspection, examine};
use tiebreak_monitor::register::entry::{Change, Entry};
use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::snapshot::log::ChipLog;
use tiebreak_monitor::snapshot::record::{Serial, Shard};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;

/// Microseconds of a year.
const YEAR: u64 = 365 * 86_400 * 1_000_000;
/// Milliseconds since 1970 at which the year begins.
const BEGIN: u64 = 1_735_689_600_000;

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
    agent.attach(Shard { map: Digest([3; 32]), code: Digest([4; 32]) }, Digest([5; 32]))?;
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
            agent.snapshot(step, Digest(*blake3::hash(&step.to_le_bytes()).as_bytes()))?;
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
    };
    let found = examine(&ChipLog::read(&bytes)?, inspection);
    let inspected = start.elapsed();
    assert_eq!((found.findings.len(), found.records), (0, records), "{:?}", found.findings);
    println!(
        "{records} records in {} bytes, written in {:.2} s, inspected in {:.2} s",
        bytes.len(),
        written.as_secs_f64(),
        inspected.as_secs_f64()
    );
    Ok(())
}
