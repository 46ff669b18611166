//! `tiebreak monitor plan`.

use std::path::PathBuf;

use serde_json::{Value, json};
use tiebreak_monitor::detection::{exact, formula, stretched};
use tiebreak_monitor::plan::{self, Samples, least_rate, of_many, samples, smallest_run};
use tiebreak_monitor::regime::{Regime, TrainingRun};

use super::inspections::{Inspections, count, flop_of, short, usage};
use super::picture::{self, Over};
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_run::run::RunError;
use tiebreak_run::run::disk::Disk;

/// Compute how many chips to sample to find a run, or how likely a number of them finds it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor plan --chips 1e5 --run chinchilla-1t --days 30
  tiebreak monitor plan --chips 1e5 --run 1e25 --samples 100 --picture plan.svg")]
pub struct Args {
    /// Chips of the fleet, such as 1e5.
    #[arg(long, value_parser = count, value_name = "NUMBER")]
    chips: u64,
    /// Run that has to be found: its FLOP, or its name in the catalogue.
    #[arg(long, value_name = "FLOP|NAME")]
    run: String,
    /// Days that the run takes.
    #[arg(long, value_name = "DAYS", default_value_t = 30.0)]
    days: f64,
    /// Runs of this size that nobody declares.
    ///
    /// The command computes the probability that at least one of them is found.
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Chips sampled at each inspection, in place of the number that is needed.
    #[arg(long, value_parser = count, value_name = "NUMBER")]
    samples: Option<u64>,
    /// Factors by which the run takes longer, on as many times fewer chips.
    ///
    /// Each is a row of the table of evasions.
    #[arg(long, value_delimiter = ',', default_value = "0.5,1,2,5,10,30,100", value_name = "K,...")]
    stretch: Vec<f64>,
    /// Draw the probability of detection as an SVG picture.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Quantity below the picture's curves.
    #[arg(long, value_enum, default_value_t = Over::Samples, requires = "picture")]
    over: Over,
    #[command(flatten)]
    inspections: Inspections,
}

/// A row of the table of evasions: the run, stretched.
struct Evasion {
    k: f64,
    /// Nothing where the fleet has too few chips, or the days are outside their bounds.
    run: Option<TrainingRun>,
    found: f64,
}

fn evasions(regime: &Regime, run: &TrainingRun, drawn: u64, ks: &[f64]) -> Vec<Evasion> {
    let row = |&k: &f64| {
        let stretched = plan::stretch(regime, run, k).ok();
        Evasion { k, run: stretched, found: stretched.map_or(0.0, |run| exact(regime, &run, drawn)) }
    };
    ks.iter().map(row).collect()
}

/// The samples of each inspection that the plan has, or that were given.
struct Planned {
    samples: Samples,
    drawn: u64,
    found: f64,
}

fn head(args: &Args, regime: &Regime, run: &TrainingRun, planned: &Planned) -> Vec<String> {
    let share = 100.0 * regime.share(run);
    let mut lines = vec![match args.samples {
        None => format!(
            "sample {} chips at each inspection, {} a year: found with probability {:.4}",
            planned.drawn,
            short(planned.samples.per_year(planned.drawn as f64)),
            planned.found
        ),
        Some(samples) => {
            format!("{samples} chips at each inspection find the run with probability {:.4}", planned.found)
        }
    }];
    lines.push(format!(
        "run        {} FLOP in {} days: {} chips, {} % of the fleet of {}",
        short(run.flop),
        run.days,
        short(regime.chips_of(run).ceil()),
        short(share),
        regime.fleet.chips
    ));
    lines.push(format!(
        "inspection every {} days; a chip logs {} snapshots a day, so {:.4} of the run's chips have one at its first inspection",
        regime.period,
        regime.rate,
        regime.logged(run.days.min(regime.period))
    ));
    if args.samples.is_none() && planned.samples.probability < args.inspections.confidence {
        lines.push(
            "warning: even the whole fleet is not enough: chips log too rarely; raise --rate, or --period"
                .into(),
        );
    }
    lines
}

fn needed(samples: &Samples, confidence: f64) -> Vec<String> {
    let row = |name: &str, each: f64| {
        format!("  {name:<44} {:>12} {:>12}", short(each), short(samples.per_year(each)))
    };
    vec![
        format!(
            "chips to sample for a probability of {confidence:<9} {:>14} {:>12}",
            "an inspection", "a year"
        ),
        row("no chip twice, logs kept (exact)", samples.exact as f64),
        row("Eq. 1 of the paper", samples.formula),
        row("Eq. 1 to the first order (its Table 1)", samples.first_order),
    ]
}

/// The inverse questions: what else so many samples find, and what would make them enough.
fn inverse(args: &Args, regime: &Regime, run: &TrainingRun, drawn: u64) -> (Vec<String>, Value) {
    let confidence = args.inspections.confidence;
    let (smallest, rate) = (
        smallest_run(regime, run.days, drawn, confidence),
        least_rate(regime, run, drawn, confidence).ok().flatten(),
    );
    let mut lines = vec![match &smallest {
        Ok(run) => format!(
            "the smallest run of {} days that {drawn} samples find with probability {confidence}: {} FLOP",
            run.days,
            short(run.flop)
        ),
        Err(error) => format!("no run of {} days is found by {drawn} samples: {error}", run.days),
    }];
    lines.push(match rate {
        Some(rate) => {
            format!("the least rate at which {drawn} samples find this one, by Eq. 1: {} a day", short(rate))
        }
        None => format!("no rate of snapshots lets {drawn} samples find this one with that probability"),
    });
    let json = json!({ "smallest_run_flop": smallest.ok().map(|run| run.flop), "least_rate": rate });
    (lines, json)
}

fn table(regime: &Regime, evasions: &[Evasion], planned: &Planned, run: &TrainingRun) -> Vec<String> {
    let mut lines = vec![
        "the same FLOP in k times the days:".into(),
        format!("{:>8} {:>10} {:>12} {:>10} {:>10}", "k", "days", "chips", "found", "App. C.1"),
    ];
    for row in evasions {
        lines.push(match &row.run {
            Some(stretch) => format!(
                "{:>8} {:>10} {:>12} {:>10.4} {:>10.4}",
                short(row.k),
                short(stretch.days),
                short(regime.chips_of(stretch).ceil()),
                row.found,
                stretched(regime.share(run), planned.drawn as f64 * regime.inspections(run), row.k)
            ),
            None => format!("{:>8}   not possible with this fleet", short(row.k)),
        });
    }
    lines
}

/// The command that draws so many chips.
fn draw(chips: u64) -> Next {
    let command = format!(
        "tiebreak monitor draw --register REGISTER --closed HEADS --chips {chips} --beacon HEX --round TEXT"
    );
    Next::new("draw the chips with", command)
        .note("REGISTER lists the chips, HEADS the ends of their logs; the beacon's value comes after both")
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.inspections.limits.watch(printer);
    let catalogue = args.inspections.catalogue()?;
    let regime = args.inspections.regime(args.chips, &catalogue)?;
    let run = TrainingRun { flop: flop_of(&args.run, &catalogue)?, days: args.days };
    let confidence = args.inspections.confidence;
    let samples = samples(&regime, &run, confidence).map_err(usage)?;
    let drawn = args.samples.unwrap_or(samples.exact);
    if drawn > args.chips {
        let why = format!("--samples {drawn}: the fleet has {} chips", args.chips);
        return Err(Failure::new(Exit::Usage, why));
    }
    if let Some(k) = args.stretch.iter().find(|k| !(1e-3..=1e3).contains(*k)) {
        return Err(Failure::new(
            Exit::Usage,
            format!("--stretch {k}: a number from 0.001 to 1000 is wanted"),
        ));
    }
    let planned = Planned { samples, drawn, found: exact(&regime, &run, drawn) };
    let mut lines = head(&args, &regime, &run, &planned);
    lines.extend(needed(&samples, confidence));
    let of_all = of_many(planned.found, args.runs);
    if args.runs > 1 {
        lines.push(format!("at least one of {} such runs is found with probability {of_all:.4}", args.runs));
    }
    let (inverse_lines, inverse) = inverse(&args, &regime, &run, drawn);
    lines.extend(inverse_lines);
    let evasions = evasions(&regime, &run, drawn, &args.stretch);
    lines.extend(table(&regime, &evasions, &planned, &run));
    if let Some(path) = &args.picture {
        let text = picture::svg(&regime, &run, drawn, args.over);
        let path = std::path::absolute(path).map_err(RunError::io(path))?;
        Disk::default().replace(&path, text.as_bytes())?;
        lines.push(format!("picture: {}", path.display()));
    }
    let next = (drawn > 0).then(|| draw(drawn));
    lines.extend(next.iter().map(Next::line));
    let rows = evasions.iter().map(|row| {
        let chips = row.run.map(|run| regime.chips_of(&run).ceil());
        json!({ "k": row.k, "days": row.run.map(|run| run.days), "chips": chips, "found": row.run.map(|_| row.found) })
    });
    printer.result(
        lines,
        &json!({
            "chips": args.chips,
            "flop_per_chip_day": regime.fleet.flop_per_day,
            "rate": regime.rate,
            "period_days": regime.period,
            "run": { "flop": run.flop, "days": run.days, "chips": regime.chips_of(&run).ceil(), "share": regime.share(&run) },
            "confidence": confidence,
            "samples": {
                "exact": samples.exact, "exact_probability": samples.probability,
                "eq1": samples.formula, "first_order": samples.first_order,
                "exact_per_year": samples.per_year(samples.exact as f64),
                "eq1_per_year": samples.per_year(samples.formula),
                "first_order_per_year": samples.first_order_per_year(),
            },
            "drawn": drawn,
            "found": { "exact": planned.found, "eq1": formula(&regime, &run, drawn as f64), "of_runs": of_all },
            "inverse": inverse,
            "evasions": rows.collect::<Vec<_>>(),
            "picture": args.picture,
            "next": next.iter().collect::<Vec<_>>(),
        }),
    );
    Ok(Exit::Match)
}
