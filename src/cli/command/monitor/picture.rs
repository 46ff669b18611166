//! The probability of detection as a picture.

use clap::ValueEnum;
use tiebreak_monitor::detection::{exact, formula};
use tiebreak_monitor::regime::{Regime, TrainingRun};

use super::inspections::short;
use crate::cli::view::chart::{Chart, Curve};

/// The quantity below a picture's curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Over {
    /// Chips that are sampled in a year.
    Samples,
    /// Days that the run takes, on as many chips as it then needs.
    Days,
    /// The run's FLOP.
    Size,
}

/// Points of a curve.
const POINTS: u32 = 120;

/// Curves of the exact probability and of Eq. 1 for a run and so many samples at each inspection.
pub fn svg(regime: &Regime, run: &TrainingRun, drawn: u64, over: Over) -> String {
    let chips = regime.fleet.chips as f64;
    let day = regime.fleet.flop_per_day;
    let (x, points): (String, Vec<(f64, TrainingRun, u64)>) = match over {
        Over::Samples => {
            let most = (3.0 * drawn as f64).min(chips).max(2.0);
            let each = steps(0.0, most).map(|samples| samples.round());
            let row = |samples: f64| (samples * regime.inspections_per_year(), *run, samples as u64);
            ("chips sampled in a year".into(), each.map(row).collect())
        }
        Over::Days => {
            let least = (run.flop / (day * chips)).max(run.days / 30.0);
            let row = |days: f64| (days, TrainingRun { days, ..*run }, drawn);
            let name = format!("days that {} FLOP take, on as many chips as they then need", short(run.flop));
            (name, steps(least, 10.0 * run.days).map(row).collect())
        }
        Over::Size => {
            let most = (3.0 * run.flop).min(day * chips * run.days);
            let row = |flop: f64| (flop, TrainingRun { flop, ..*run }, drawn);
            (format!("FLOP of a run of {} days", run.days), steps(0.0, most).map(row).collect())
        }
    };
    let fits = |run: &TrainingRun| regime.check_run(run).is_ok();
    let curve = |name: &str, colour: usize, found: &dyn Fn(&TrainingRun, u64) -> f64| {
        let points = points.iter().filter(|(_, run, _)| fits(run));
        let points = points.map(|(x, run, samples)| (*x, found(run, *samples))).collect();
        Curve { name: name.into(), points, colour, dashed: false }
    };
    let curves = vec![
        curve("no chip twice, logs kept (exact)", 0, &|run, samples| exact(regime, run, samples)),
        curve("Eq. 1", 1, &|run, samples| formula(regime, run, samples as f64)),
    ];
    let title = match over {
        Over::Samples => {
            format!("{} FLOP in {} days on {} chips", short(run.flop), run.days, regime.fleet.chips)
        }
        _ => format!("{drawn} of {} chips sampled at each inspection", regime.fleet.chips),
    };
    Chart { title: &title, x: &x, y: "probability of detection", curves }.svg()
}

fn steps(low: f64, high: f64) -> impl Iterator<Item = f64> {
    (0..=POINTS).map(move |i| low + (high - low) * f64::from(i) / f64::from(POINTS))
}
