//! `tiebreak monitor table`: the paper's Table 1 for every run of the catalogue.

use serde_json::json;
use tiebreak_monitor::plan::samples;
use tiebreak_monitor::regime::{RegimeError, TrainingRun};

use super::inspections::{Inspections, count, short, usage};
use crate::cli::view::report::{CommandResult, Exit, Printer};

/// Print the chips to sample in a year for each run of the catalogue and several fleets.
///
/// The default fleets give the paper's Table 1.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak monitor table --chips 1e3,1e5,1e7")]
pub struct Args {
    /// Chips of the fleets.
    #[arg(long, value_delimiter = ',', default_value = "1e3,1e5,1e7", value_parser = count, value_name = "NUMBER,...")]
    chips: Vec<u64>,
    /// Days that each run takes.
    #[arg(long, value_name = "DAYS", default_value_t = 30.0)]
    days: f64,
    #[command(flatten)]
    inspections: Inspections,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.inspections.limits.watch(printer);
    let catalogue = args.inspections.catalogue()?;
    let confidence = args.inspections.confidence;
    let heads = args.chips.iter().map(|chips| format!(" {:>30}", format!("{} chips", short(*chips as f64))));
    let mut lines = vec![
        format!(
            "chips to sample in a year for a probability of {confidence}: no chip twice / Eq. 1 / its first order; - where the fleet is too small"
        ),
        format!("{:<18}{:>10}{}", "run", "FLOP", heads.collect::<String>()),
    ];
    let mut rows = Vec::new();
    for known in catalogue.runs() {
        let run = TrainingRun { flop: known.flop, days: args.days };
        let mut line = format!("{:<18}{:>10}", known.name, short(known.flop));
        for &chips in &args.chips {
            let regime = args.inspections.regime(chips, &catalogue)?;
            let samples = match samples(&regime, &run, confidence) {
                Ok(samples) => samples,
                Err(RegimeError::TooLarge { .. }) => {
                    line += &format!(" {:>30}", "-");
                    continue;
                }
                Err(error) => return Err(usage(error)),
            };
            let year = |each: f64| samples.per_year(each);
            let (exact, eq1) = (year(samples.exact as f64), year(samples.formula));
            let first_order = samples.first_order_per_year();
            line +=
                &format!(" {:>30}", format!("{} / {} / {}", short(exact), short(eq1), short(first_order)));
            rows.push(json!({
                "run": known.name, "flop": known.flop, "chips": chips,
                "exact_per_year": exact, "eq1_per_year": eq1, "first_order_per_year": first_order,
            }));
        }
        lines.push(line);
    }
    printer.result(lines, &json!({ "confidence": confidence, "days": args.days, "rows": rows }));
    Ok(Exit::Match)
}
