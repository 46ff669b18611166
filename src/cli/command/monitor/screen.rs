//! `tiebreak monitor screen`: forward passes over all segments of a run, which say where to replay first.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};
use tiebreak_audit::checks::{self, Checked};
use tiebreak_audit::forward::{self, Data, Pass, Passes, Sampling, passes};
use tiebreak_engine::Engine;
use tiebreak_job::data::Dataset;
use tiebreak_monitor::screen::memory::POINTS_MIN;
use tiebreak_monitor::screen::outlier::Departure;
use tiebreak_monitor::screen::segment::{Levels, Recorded, Screened, Segment, screen};
use tiebreak_record::commit::record::Record;
use tiebreak_run::evaluate::Evaluator;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, evaluation, shell};

use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::limits::Limits;
use crate::cli::args::random::random;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};

/// The least number of samples of a segment that are looked at, if it has so many.
const LEAST: u64 = 100;
/// The most segments that are listed; JSON has all.
const LINES_MAX: usize = 50;

/// Say which segments of a run to replay first, by forward passes over all of them.
///
/// Compares each segment between two checkpoints with its neighbours: how well the model remembers the segment's samples, whether the
/// recorded losses continue, and how far the weights moved. A screening convicts nobody, and a run that passes is not proved: the exit
/// code is 0 whatever it finds. `tiebreak audit` of the segment that it names decides.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor screen runs/mine
  tiebreak monitor screen runs/mine --held-out text.txt --share 0.05")]
pub struct Args {
    /// Folder of the run, or its address (http://HOST/PATH).
    run: PathBuf,
    /// Data file that no step draws from, in the order in which the job names its own; once for each.
    ///
    /// Without the option the command takes the job's [evaluation] files, else the samples that its validation_split keeps. Without any
    /// of these nothing says how well a model remembers.
    #[arg(long, value_name = "FILE")]
    held_out: Vec<PathBuf>,
    /// Folder or address of the data files that the run does not hold.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Share of each segment's samples to look at, but at least 100 samples.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    share: f64,
    /// Most samples of a segment, and most held-out ones.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    points: u64,
    /// Standard deviations from which a segment is called suspicious.
    #[arg(long, value_name = "SIGMAS", default_value_t = 6.0)]
    threshold: f64,
    /// Seed of the samples that are looked at; by default the system's randomness.
    ///
    /// The same seed gives the same result.
    #[arg(long, value_name = "NUMBER", hide_short_help = true)]
    seed: Option<u64>,
    /// Quantile p of FBQ(p), the share of a segment's samples that are remembered less than this share of held-out ones.
    #[arg(long, value_name = "P", default_value_t = 0.25, hide_short_help = true)]
    quantile: f64,
    /// Confidence of the bound on the share of samples without training.
    #[arg(long, value_name = "P", default_value_t = 0.95, hide_short_help = true)]
    confidence: f64,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
}

impl Args {
    fn levels(&self) -> Result<Levels, Failure> {
        for (option, value) in [("--quantile", self.quantile), ("--confidence", self.confidence)] {
            if !(value > 0.0 && value < 1.0) {
                let why = format!("{option} {value}: a number above 0 and below 1 is wanted");
                return Err(Failure::new(Exit::Usage, why));
            }
        }
        if !(self.threshold > 0.0 && self.threshold.is_finite()) {
            let why = format!("--threshold {}: a number above 0 is wanted, such as 6", self.threshold);
            return Err(Failure::new(Exit::Usage, why));
        }
        Ok(Levels { quantile: self.quantile, confidence: self.confidence, threshold: self.threshold })
    }

    fn sampling(&self) -> Result<Sampling, Failure> {
        if !(0.0..=1.0).contains(&self.share) {
            let why = format!("--share {}: a share from 0 to 1 is wanted, such as 0.01", self.share);
            return Err(Failure::new(Exit::Usage, why));
        }
        let seed = self.seed.map_or_else(|| random().map(u64::from_le_bytes), Ok)?;
        Ok(Sampling { share: self.share, least: LEAST, most: self.points, seed })
    }
}

/// A part of a screening that could not be computed, with the reason.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum NotComputed {
    /// No forward pass was possible.
    Losses { why: String },
    /// No held-out losses are there.
    Memory { why: String },
    /// Segments beside a checkpoint that is not readable were left out.
    Segments { why: String },
    /// Too few segments say what is usual.
    Comparisons { segments: usize },
}

impl fmt::Display for NotComputed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            NotComputed::Losses { why } => write!(f, "losses and memory: {why}"),
            NotComputed::Memory { why } => write!(f, "memory: {why}"),
            NotComputed::Segments { why } => write!(f, "segments beside a checkpoint: {why}"),
            NotComputed::Comparisons { segments } => {
                write!(f, "comparisons with neighbours: {segments} segments are there, at least 5 are wanted")
            }
        }
    }
}

/// Data that no step draws from, or why there are none.
fn held_out(args: &Args, run: &Run) -> Result<Result<Dataset, String>, Failure> {
    let job = run.job();
    if !args.held_out.is_empty() {
        let names: Vec<String> =
            args.held_out.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        let spec = job.data.in_files(&names);
        let spec = spec.map_err(|why| Failure::new(Exit::Usage, format!("--held-out: {why}")))?;
        return Ok(Ok(evaluation::open_named(&spec, &args.held_out, &run.program().sample())?.dataset));
    }
    let declared = job.evaluation.as_ref().is_some_and(|evaluation| evaluation.files.is_some());
    if !declared && job.data.validation_split.is_none() {
        let why = "the job keeps no data from training; name some with --held-out FILE";
        return Ok(Err(why.into()));
    }
    match evaluation::of_run(run) {
        Ok(data) => Ok(Ok(data.dataset)),
        Err(error @ RunError::Refused(_)) => Ok(Err(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// The data of the forward passes. What is missing is noted.
fn data(
    args: &Args,
    run: &Run,
    needed: u64,
    engine: &mut dyn Engine,
    missing: &mut Vec<NotComputed>,
) -> Result<Option<Data>, Failure> {
    let Some(of_model) = run.job().model() else {
        let why = "a program from a file says nothing of how its model is evaluated";
        missing.push(NotComputed::Losses { why: why.into() });
        return Ok(None);
    };
    let dataset = match run.dataset() {
        Ok(dataset) => dataset,
        Err(error @ RunError::Refused(_)) => {
            missing.push(NotComputed::Losses { why: error.to_string() });
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let held = held_out(args, run)?.map_err(|why| missing.push(NotComputed::Memory { why })).ok();
    let batch = of_model.batch.micro_batch;
    let evaluation =
        Evaluator::memory(run.job(), of_model, batch).map_err(|why| Failure::new(Exit::Undecided, why))?;
    args.limits.check("a screening", needed.saturating_add(evaluation))?;
    Ok(Some(Data { evaluator: Evaluator::new(engine, of_model, batch)?, dataset, held }))
}

fn segment(pass: Pass, run: &Run) -> Segment {
    Segment {
        first: pass.first,
        last: pass.last,
        points: pass.points,
        held: pass.held,
        opening: pass.opening,
        opening_of: run.program().samples().into(),
        change: pass.change,
        cosine: pass.cosine,
        other_batches: pass.other_batches,
    }
}

/// The numbers of all records of steps.
fn recorded(checked: &Checked) -> Vec<Recorded> {
    let number = |bits| f64::from(f32::from_bits(bits));
    let of = |record: &Record| match record {
        Record::Step { step, .. } => {
            Some(Recorded { loss: number(step.loss), rate: number(step.learning_rate) })
        }
        _ => None,
    };
    checked.transcript.records.iter().filter_map(of).collect()
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let watch = args.limits.watch(printer);
    let (levels, sampling) = (args.levels()?, args.sampling()?);
    let run = args.limits.open_with_data(&args.run, args.data.as_ref())?;
    let checked = printer.during("reading the records", || checks::structure(&run, None))?;
    let borders = forward::borders(&run, &checked)?;
    let mut engine = open_exact(&args.engine)?;
    let needed = forward::memory(&run, &borders, &sampling);
    args.limits.check("a screening", needed)?;
    let mut missing = Vec::new();
    let data = data(&args, &run, needed, engine.as_mut(), &mut missing)?;
    watch.planned();
    let working = data.is_none().then(|| printer.working("reading the checkpoints", None));
    let bar = printer.bar(0, "samples");
    let found = passes(&run, &checked, &borders, engine.as_mut(), data, &sampling, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
        bar.set_message("");
    });
    bar.finish_and_clear();
    drop(working);
    let Passes { segments, unreadable } = found?;
    missing.extend(unreadable.iter().map(|error| NotComputed::Segments { why: error.to_string() }));
    let segments: Vec<Segment> = segments.into_iter().map(|pass| segment(pass, &run)).collect();
    if segments.is_empty() {
        let why = format!(
            "a screening compares checkpoints, and no two that follow each other can be read; {} are there",
            borders.len() - 1
        );
        return Err(Failure::new(Exit::Undecided, why));
    }
    if segments.len() < 5 {
        missing.push(NotComputed::Comparisons { segments: segments.len() });
    }
    let screened = screen(&segments, &recorded(&checked), &levels);
    let no_memory =
        !missing.iter().any(|one| matches!(one, NotComputed::Losses { .. } | NotComputed::Memory { .. }));
    if no_memory && screened.iter().all(|one| one.memory.is_none()) {
        let why = format!("fewer than {POINTS_MIN} samples have finite losses");
        missing.push(NotComputed::Memory { why });
    }
    let result =
        Screening { args: &args, run: &run, sampling, levels, screened, missing, engine: engine.describe() };
    printer.result(result.told(), &result.as_json());
    Ok(Exit::Match)
}

/// The result of a screening.
struct Screening<'a> {
    args: &'a Args,
    run: &'a Run,
    sampling: Sampling,
    levels: Levels,
    screened: Vec<Screened>,
    missing: Vec<NotComputed>,
    engine: String,
}

impl Screening<'_> {
    fn suspicious(&self) -> usize {
        self.screened.iter().filter(|one| one.suspicious).count()
    }

    /// The command that replays the most suspicious segment.
    fn next(&self) -> Option<Next> {
        let Screened { first, last, .. } = self.screened.first()?;
        let data =
            self.args.data.as_ref().map_or(String::new(), |data| format!(" --data {}", shell::path(data)));
        let run = shell::path(Path::new(&self.args.run));
        let command = format!("tiebreak audit {run} --steps {first}..{last}{data}");
        Some(Next::new("replay the most suspicious segment with", command))
    }

    /// True if no segment's samples are remembered clearly better than held-out ones: then their memory says nothing.
    fn forgets(&self) -> bool {
        let mut known = self.screened.iter().filter_map(|one| one.memory).peekable();
        known.peek().is_some() && known.all(|memory| memory.remembered - 0.5 < 3.0 * memory.error)
    }

    fn told(&self) -> Vec<String> {
        let (n, threshold) = (self.screened.len(), self.levels.threshold);
        let mut lines = vec![
            format!(
                "SCREENED: {} of {n} segments are suspicious ({threshold} standard deviations or more); a screening convicts nobody",
                self.suspicious()
            ),
            format!(
                "{:>19} {:>8} {:>10} {:>8} {:>10} {:>8}  {}",
                "steps", "sigmas", "remembered", "usual", "untrained", "change", "signs"
            ),
        ];
        lines.extend(self.screened.iter().take(LINES_MAX).map(line));
        if let Some(more) = n.checked_sub(LINES_MAX).filter(|more| *more > 0) {
            lines.push(format!("  and {more} less suspicious ones; --json lists all"));
        }
        let at_most = "untrained: at most this share of a segment's samples was not trained on";
        if self.screened.iter().any(|one| one.memory.is_some()) {
            lines.push(format!("{at_most}, with confidence {}", self.levels.confidence));
        }
        if self.forgets() {
            lines
                .push("no segment is remembered better than unseen data, so memory says nothing here".into());
        }
        lines.extend(self.missing.iter().map(|missing| format!("not computed: {missing}")));
        lines.push(format!("seed {}, on {}", self.sampling.seed, self.engine));
        lines.extend(self.next().iter().map(Next::line));
        lines
    }

    fn as_json(&self) -> Value {
        let missing = self.missing.iter().map(|missing| {
            let mut value = json!(missing);
            value["what"] = json!(missing.to_string());
            value
        });
        json!({
            "result": "screened",
            "run": self.run.id,
            "suspicious": self.suspicious(),
            "threshold": self.levels.threshold,
            "quantile": self.levels.quantile,
            "confidence": self.levels.confidence,
            "share": self.sampling.share,
            "points": self.sampling.most,
            "seed": self.sampling.seed,
            "engine": self.engine,
            "segments": self.screened,
            "not_computed": missing.collect::<Vec<_>>(),
            "next": self.next().iter().collect::<Vec<_>>(),
        })
    }
}

/// A segment in words.
fn line(one: &Screened) -> String {
    let number = |number: Option<f64>| number.map_or("-".to_string(), |number| format!("{number:.3}"));
    let change = one.step_size.map(|Departure { value, expected, .. }| (value - expected).exp());
    let signs: Vec<String> = one.signs.iter().map(|sign| sign.sign.to_string()).collect();
    format!(
        "{:>19} {:>8.1} {:>10} {:>8} {:>10} {:>8}  {}",
        format!("{} to {}", one.first, one.last),
        one.suspicion,
        number(one.memory.map(|memory| memory.remembered)),
        number(one.remembered.map(|departure| departure.expected)),
        number(one.memory.map(|memory| memory.untrained_most)),
        number(change),
        signs.join("; ")
    )
}
