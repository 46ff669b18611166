//! `tiebreak monitor simulate`.

use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::{Value, json};
use tiebreak_monitor::detection::{exact, formula};
use tiebreak_monitor::interval::wilson;
use tiebreak_monitor::plan::{samples, stretch};
use tiebreak_monitor::regime::{Regime, TrainingRun, check_probability};
use tiebreak_monitor::simulate::fleet::{Evasion, Fleet};
use tiebreak_monitor::simulate::measure::{Measured, Setting, measure};
use tiebreak_run::run::shell;

use super::inspections::{Inspections, count, flop_of, short, usage};
use super::registry::write;
use crate::cli::args::engine::cores;
use crate::cli::view::chart::{Chart, Curve};
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};

/// Standard deviations of an interval of 95 %.
const Z: f64 = 1.96;
/// The most chips of a simulated fleet.
const CHIPS_MAX: u64 = 1_000_000;

/// The way in which a simulated operator hides its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Hides {
    /// The run is not declared.
    Undeclared,
    /// The run is not declared, and its chips log nothing while it lasts.
    Silent,
    /// There is no such run: the logs of honest chips are inspected.
    Nothing,
}

/// Measure on simulated fleets how often an operator with an undeclared run is found.
///
/// Every drawn chip writes and signs a log. The code that draws and inspects real chips draws and inspects these. Each run begins just
/// after an inspection, which is the worst case.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor simulate --chips 1000 --run 1e24
  tiebreak monitor simulate --chips 3000 --run 1e24 --days 90 --operators 20 --stretch 1,2 --picture measured.svg")]
pub struct Args {
    /// Chips of the fleet, such as 1e5.
    #[arg(long, value_parser = count, value_name = "NUMBER")]
    chips: u64,
    /// Run that operators hide: its FLOP, or its name in the catalogue.
    #[arg(long, value_name = "FLOP|NAME")]
    run: String,
    /// Days that the run takes.
    #[arg(long, value_name = "DAYS", default_value_t = 30.0)]
    days: f64,
    /// Chips drawn at each inspection, in place of the number that the plan needs.
    #[arg(long, value_parser = count, value_name = "NUMBER")]
    samples: Option<u64>,
    /// Factors by which the run takes longer, on as many times fewer chips; each is measured.
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "K,...")]
    stretch: Vec<f64>,
    /// Simulated operators.
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    operators: u64,
    /// The way in which the operators hide the run.
    #[arg(long, value_enum, default_value_t = Hides::Undeclared)]
    hides: Hides,
    /// Probability with which an honest chip is not said to log too rarely.
    #[arg(long, default_value_t = 0.999, value_name = "P", hide_short_help = true)]
    rate_confidence: f64,
    /// Seed of the simulation: the same one gives the same result.
    #[arg(long, default_value_t = 1, value_name = "NUMBER", hide_short_help = true)]
    seed: u64,
    /// Threads, which change no result; by default all cores.
    #[arg(
        long, value_name = "NUMBER", help_heading = "Limits", value_parser = clap::value_parser!(u16).range(1..)
    )]
    threads: Option<u16>,
    /// Draw the measured shares and the plan's probabilities over the run's days as an SVG picture.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    #[command(flatten)]
    inspections: Inspections,
}

/// The measurement of one length of the run.
struct Row {
    k: f64,
    run: TrainingRun,
    chips: u64,
    measured: Measured,
    /// The probability by the exact plan, or that of silent chips; 0 for honest operators.
    planned: f64,
    eq1: f64,
}

impl Row {
    fn share(&self) -> f64 {
        self.measured.found as f64 / self.measured.operators as f64
    }

    fn interval(&self) -> (f64, f64) {
        wilson(self.measured.found, self.measured.operators, Z)
    }
}

fn row(
    args: &Args,
    regime: &Regime,
    run: &TrainingRun,
    (k, samples): (f64, u64),
    fleet: &Fleet,
    printer: Printer,
) -> Result<Row, Failure> {
    let run = stretch(regime, run, k).map_err(usage)?;
    let cores = cores();
    let evasion = match args.hides {
        Hides::Undeclared => Evasion::Undeclared,
        Hides::Silent => Evasion::Silent,
        Hides::Nothing => Evasion::Honest,
    };
    let setting = Setting {
        regime: *regime,
        run,
        samples,
        evasion,
        confidence: args.rate_confidence,
        operators: args.operators,
        seed: args.seed,
        threads: args.threads.map_or(cores, usize::from).min(cores),
    };
    let measured = printer.during("simulating operators", || measure(fleet, &setting))?;
    let planned = match evasion {
        Evasion::Undeclared => exact(regime, &run, samples),
        Evasion::Silent => setting.silent(),
        Evasion::Honest => 0.0,
    };
    let eq1 = formula(regime, &run, samples as f64);
    Ok(Row { k, run, chips: setting.chips(), measured, planned, eq1 })
}

fn told(args: &Args, rows: &[Row], samples: u64, period: f64) -> Vec<String> {
    let first = &rows[0];
    let (low, high) = first.interval();
    let mut lines = vec![
        format!(
            "{} of {} operators were found ({:.4}; 95 % interval {low:.4} to {high:.4}); the plan says {:.4}",
            first.measured.found,
            first.measured.operators,
            first.share(),
            first.planned
        ),
        format!("{} chips, {samples} drawn at each inspection, one every {period} days", args.chips),
        format!(
            "{:>8} {:>8} {:>10} {:>10} {:>19} {:>10} {:>10}",
            "k", "days", "chips", "found", "95 % interval", "plan", "Eq. 1"
        ),
    ];
    lines.extend(rows.iter().map(|row| {
        let (low, high) = row.interval();
        format!(
            "{:>8} {:>8} {:>10} {:>10.4} {:>19} {:>10.4} {:>10.4}",
            short(row.k),
            short(row.run.days),
            row.chips,
            row.share(),
            format!("{low:.4} to {high:.4}"),
            row.planned,
            row.eq1
        )
    }));
    let sum = |of: fn(&Measured) -> u64| rows.iter().map(|row| of(&row.measured)).sum::<u64>();
    let (honest, accused) = (sum(|m| m.honest_logs), sum(|m| m.accused));
    lines.push(format!(
        "{accused} of {honest} logs of honest chips were accused of logging too rarely; at most {} are expected",
        short(honest as f64 * (1.0 - args.rate_confidence))
    ));
    lines.push(format!("{} records were signed, read and checked", sum(|m| m.records)));
    lines
}

/// Curves of the plan and of Eq. 1, and the measured shares with their intervals.
fn svg(args: &Args, rows: &[Row], samples: u64) -> String {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by(|a, b| a.run.days.total_cmp(&b.run.days));
    let curve = |name: &str, colour: usize, dashed: bool, y: &dyn Fn(&Row) -> f64| Curve {
        name: name.into(),
        points: rows.iter().map(|row| (row.run.days, y(row))).collect(),
        colour,
        dashed,
    };
    let curves = vec![
        curve("the plan (exact)", 0, false, &|row| row.planned),
        curve("Eq. 1", 1, false, &|row| row.eq1),
        curve("measured", 2, true, &|row| row.share()),
        curve("95 % interval, from", 4, true, &|row| row.interval().0),
        curve("95 % interval, to", 4, true, &|row| row.interval().1),
    ];
    let title = format!("{} simulated operators of {} chips, {samples} drawn", args.operators, args.chips);
    let x = format!("days that {} FLOP take, on as many chips as they then need", short(rows[0].run.flop));
    Chart { title: &title, x: &x, y: "share of operators who are found", curves }.svg()
}

fn rows_json(rows: &[Row]) -> Vec<Value> {
    let row = |row: &Row| {
        let (low, high) = row.interval();
        json!({
            "k": row.k, "days": row.run.days, "chips": row.chips, "operators": row.measured.operators,
            "found": row.measured.found, "share": row.share(), "low": low, "high": high,
            "exact": row.planned, "eq1": row.eq1, "honest_logs": row.measured.honest_logs,
            "accused": row.measured.accused, "records": row.measured.records,
        })
    };
    rows.iter().map(row).collect()
}

/// The command that plans what was measured.
fn planned(args: &Args, samples: u64) -> String {
    format!(
        "tiebreak monitor plan --chips {} --run {} --days {} --samples {samples}{}",
        args.chips,
        shell::word(&args.run),
        args.days,
        args.inspections.options()
    )
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.inspections.limits.watch(printer);
    if args.chips > CHIPS_MAX {
        let why = format!("--chips {}: a simulated fleet has at most {CHIPS_MAX}", args.chips);
        return Err(Failure::new(Exit::Usage, why));
    }
    check_probability(args.rate_confidence).map_err(usage)?;
    let catalogue = args.inspections.catalogue()?;
    let regime = args.inspections.regime(args.chips, &catalogue)?;
    let run = TrainingRun { flop: flop_of(&args.run, &catalogue)?, days: args.days };
    let needed = samples(&regime, &run, args.inspections.confidence).map_err(usage)?;
    let drawn = args.samples.unwrap_or(needed.exact).min(args.chips);
    let fleet = printer.during("making the fleet", || Fleet::new(args.chips))?;
    let rows = args.stretch.iter().map(|&k| row(args, &regime, &run, (k, drawn), &fleet, printer));
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    let mut lines = told(args, &rows, drawn, regime.period);
    if let Some(path) = &args.picture {
        write(path, &svg(args, &rows, drawn))?;
        lines.push(format!("picture: {}", path.display()));
    }
    let next = Next::new("the plan that is measured", planned(args, drawn));
    lines.push(next.line());
    let value = json!({
        "next": [next],
        "chips": args.chips, "drawn": drawn, "rate": regime.rate, "period_days": regime.period,
        "seed": args.seed, "rows": rows_json(&rows), "picture": args.picture,
    });
    printer.result(lines, &value);
    Ok(Exit::Match)
}
