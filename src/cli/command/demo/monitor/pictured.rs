//! The month of the monitoring demo as its page shows it.

use super::folder::{Month, read_log};
use super::found::{Found, Inspected, Limit};
use super::scenario::{CHIPS, CONFIDENCE, DAYS, LIMIT, Operator, RATE, START};
use crate::cli::view::page::monitoring::{Chip, Kind, Mark, Shown, Size, Told};
use crate::cli::view::page::plot::{Curve, Plot};
use crate::cli::view::report::{Exit, Failure};
use tiebreak_monitor::detection::exact;
use tiebreak_monitor::plan::samples;
use tiebreak_monitor::regime::{Fleet, Regime, RegimeError, TrainingRun};
use tiebreak_monitor::snapshot::record::Event;

/// Chips of the large fleet that the page compares with, and the same in words.
const LARGE: (u32, &str) = (100_000, "100,000");
/// Milliseconds of a day.
const DAY: f64 = 86_400_000.0;

fn refused(error: RegimeError) -> Failure {
    Failure::new(Exit::Undecided, error)
}

/// The regime over a fleet of so many chips, as the plan's command has it.
fn regime(limit: Limit, chips: u32) -> Regime {
    let fleet = Fleet { chips: u64::from(chips), flop_per_day: limit.chip * 86_400.0 };
    Regime { fleet, rate: RATE.parse().unwrap_or_default(), period: DAYS }
}

/// A run of so many times the limit.
fn run(limit: Limit, times: f64) -> TrainingRun {
    TrainingRun { flop: limit.flop as f64 * times, days: DAYS }
}

/// A chip: the marks of its log, if it was drawn.
fn chip(month: &Month, serial: String, inspected: &Inspected) -> Result<Chip, Failure> {
    if !inspected.drawn.contains(&serial) {
        return Ok(Chip { serial, marks: None });
    }
    let undeclared = inspected.undeclared();
    let is_undeclared =
        |record: u64| undeclared.iter().any(|one| one["chip"] == serial.as_str() && one["record"] == record);
    let mut marks = Vec::new();
    for signed in &read_log(month.folder, &serial)?.records {
        let record = &signed.record;
        let kind = match record.event {
            Event::Idle => Kind::Idle,
            _ if is_undeclared(record.counter) => Kind::Undeclared,
            Event::Snapshot { .. } => Kind::Declared,
            Event::Begin | Event::Clock | Event::Attach { .. } | Event::Unanswered(_) => continue,
        };
        marks.push(Mark { day: (record.time.saturating_sub(START)) as f64 / DAY, kind });
    }
    Ok(Chip { serial, marks: Some(marks) })
}

/// An operator as the page shows it.
fn shown(month: &Month, operator: &Operator, inspected: &Inspected) -> Result<Shown, Failure> {
    let chips = (0..CHIPS).map(|number| chip(month, operator.serial(number), inspected));
    Ok(Shown {
        name: operator.name,
        chips: chips.collect::<Result<_, _>>()?,
        says: inspected.sentence(),
        undeclared: inspected.undeclared().len(),
        above: inspected.violated().len(),
        runs: inspected.shares(),
        right: inspected.is_right(operator.cheat),
    })
}

/// The probability of detection over the chips that are drawn.
fn plot(limit: Limit, found: &Found) -> Plot {
    let regime = regime(limit, limit.fleet);
    let curve = |name: &str, times: f64| {
        let points = (0..=limit.fleet)
            .map(|drawn| (f64::from(drawn), exact(&regime, &run(limit, times), u64::from(drawn))));
        Curve { name: name.into(), points: points.collect() }
    };
    Plot {
        x: "chips drawn".into(),
        y: "probability of detection".into(),
        most: f64::from(limit.fleet),
        curves: vec![curve("a hidden run at the limit", 1.0), curve("one of half that size", 0.5)],
        mark: (found.samples as f64, found.probability),
    }
}

/// The page's content.
///
/// # Errors
/// If a log cannot be read, or the plan's numbers fit no fleet.
pub fn told(month: &Month, operators: &[Operator], found: &Found, limit: Limit) -> Result<Told, Failure> {
    let pairs = operators.iter().zip(&found.operators);
    let here = regime(limit, limit.fleet);
    let sizes = [0.1, 0.25, 0.5, 1.0, 2.0].map(|times| Size {
        times,
        chips: here.chips_of(&run(limit, times)).ceil(),
        found: exact(&here, &run(limit, times), found.samples),
    });
    let stated = found.operators.iter().flat_map(|inspected| &inspected.statements).map(|stated| {
        [&stated.file, &stated.audits, &stated.chips, &stated.matched, &stated.rules]
            .map(String::clone)
            .to_vec()
    });
    let times = f64::from(LARGE.0) / f64::from(limit.fleet);
    let large = samples(&regime(limit, LARGE.0), &run(limit, times), CONFIDENCE).map_err(refused)?;
    Ok(Told {
        operators: pairs
            .map(|(operator, inspected)| shown(month, operator, inspected))
            .collect::<Result<_, _>>()?,
        days: DAYS,
        rate: RATE,
        confidence: CONFIDENCE,
        limit: (limit.flop as f64, LIMIT.1),
        fleet: limit.fleet,
        drawn: found.samples,
        probability: found.probability,
        beacon: found.beacon.clone(),
        plot: plot(limit, found),
        sizes: sizes.to_vec(),
        large: (LARGE.1, large.exact),
        statements: stated.collect(),
        seed: month.seed,
    })
}
