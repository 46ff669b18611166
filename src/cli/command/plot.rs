//! `tiebreak plot`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::json;

use crate::cli::args::limits::Limits;
use crate::cli::view::chart::{Curve, over_steps};
use crate::cli::view::escape::one_line;
use crate::cli::view::report::{CommandResult, Exit, Printer};
use tiebreak_record::commit::record::Record;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{RunError, metrics, names, transcript};

/// Draw curves of one run or several as one SVG picture, with axes.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak plot runs/mine runs/other --output loss.svg")]
pub struct Args {
    /// Folders of the runs, or their addresses (http://HOST/PATH).
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// File for the picture.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Quantity that is drawn over the steps.
    #[arg(long, value_enum, default_value_t = Quantity::Loss)]
    quantity: Quantity,
    #[command(flatten)]
    limits: Limits,
}

/// The quantity of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Quantity {
    /// The loss of each step's batch, as records have it, and dashed that of evaluations.
    Loss,
    /// The part of the evaluation's labels that the model finds most likely.
    Accuracy,
    /// The learning rate of each step.
    LearningRate,
    /// The gradient's norm before clipping, from the run's metrics.
    Norm,
    /// The factor that each step's gradient was clipped by.
    Clip,
}

impl Quantity {
    fn name(self) -> &'static str {
        match self {
            Quantity::Loss => "loss",
            Quantity::Accuracy => "accuracy",
            Quantity::LearningRate => "learning rate",
            Quantity::Norm => "gradient norm",
            Quantity::Clip => "clip factor",
        }
    }
}

/// The curves of a run: from its records what they have, else from its metrics.
fn curves(run: &Run, quantity: Quantity, name: &str, colour: usize) -> Result<Vec<Curve>, RunError> {
    let (transcript, _) = transcript::read(run.at(names::TRANSCRIPT))?;
    let of_records = |value: fn(&tiebreak_record::commit::record::StepRecord) -> u32| -> Vec<(f64, f64)> {
        let point = |record: &Record| match record {
            Record::Step { step, .. } => Some((f64::from(step.step), f64::from(f32::from_bits(value(step))))),
            _ => None,
        };
        transcript.records.iter().filter_map(point).collect()
    };
    let of_metrics = |key: &str| metrics::points(run.at(names::METRICS), key);
    let all = match quantity {
        Quantity::Loss => {
            vec![(of_records(|step| step.loss), false), (of_metrics("evaluation_loss")?, true)]
        }
        Quantity::Accuracy => vec![(of_metrics("evaluation_accuracy")?, true)],
        Quantity::LearningRate => vec![(of_records(|step| step.learning_rate), false)],
        Quantity::Norm => vec![(of_metrics("norm")?, false)],
        Quantity::Clip => vec![(of_records(|step| step.clip), false)],
    };
    let drawn = all.into_iter().filter(|(points, _)| !points.is_empty());
    let curve = |(points, dashed): (Vec<(f64, f64)>, bool)| {
        let name = if dashed { format!("{name}, evaluation") } else { name.to_string() };
        Curve { name, points, colour, dashed }
    };
    Ok(drawn.map(curve).collect())
}

/// A short name of a run: the last part of its path.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    one_line(&name).chars().take(40).collect()
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let (mut all, mut not_finite) = (Vec::new(), Vec::new());
    for (colour, path) in args.runs.iter().enumerate() {
        let run = args.limits.open(path)?;
        let drawn = curves(&run, args.quantity, &name_of(path), colour)?;
        for curve in &drawn {
            let gap = curve.points.iter().find(|(_, y)| !y.is_finite());
            not_finite.extend(gap.map(|(step, _)| json!({ "curve": curve.name, "step": step })));
            if let Some((step, _)) = gap {
                let (name, quantity) = (&curve.name, args.quantity.name());
                printer.say(format!(
                    "warning: {name}: the {quantity} is not finite at step {step}: the curve has gaps"
                ));
            }
        }
        all.extend(drawn);
    }
    let quantity = args.quantity.name();
    let points: usize =
        all.iter().flat_map(|curve: &Curve| &curve.points).filter(|(_, y)| y.is_finite()).count();
    let count = all.len();
    if points == 0 && not_finite.is_empty() {
        printer.say(format!(
            "warning: the runs have no {quantity} to draw; accuracy and norm are in metrics.jsonl"
        ));
    }
    let path = std::path::absolute(&args.output).map_err(RunError::io(&args.output))?;
    Disk::default().replace(&path, over_steps(quantity, quantity, all).as_bytes())?;
    printer.result(
        vec![format!("{count} curves with {points} points: {}", args.output.display())],
        &json!({ "output": args.output, "curves": count, "points": points, "not_finite": not_finite }),
    );
    Ok(Exit::Match)
}
